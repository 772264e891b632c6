// Sharing: what a storage has that several sessions use: the lock that makes every instruction on
// it atomic for the others.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/core/mutex.h"

namespace teletensor::memory {

class Sharing {
 public:
  // `order` > 0 is unique: whoever needs several locks takes them in this order.
  explicit Sharing(std::uint64_t order, std::uint64_t writes = 1) : order(order), writes_(writes) {}
  // With the storage's last reference.
  virtual ~Sharing() = default;
  Sharing(const Sharing&) = delete;
  Sharing& operator=(const Sharing&) = delete;

  const std::uint64_t order;

  // Several readers or one writer; readers that come do not overtake a writer that waits.
  void lock(bool write);
  void unlock(bool write);
  // How often it was written, the first contents included; what it is made with in its next life.
  std::uint64_t writes() const { return writes_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::uint64_t> writes_;
  core::Mutex mu_;
  core::CondVar changed_;
  int readers_ TT_GUARDED_BY(mu_) = 0;
  int writers_waiting_ TT_GUARDED_BY(mu_) = 0;
  bool writing_ TT_GUARDED_BY(mu_) = false;
};

}  // namespace teletensor::memory
