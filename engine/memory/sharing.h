// Sharing: the lock of a storage that several sessions use. It makes every instruction on the
// storage atomic for the other sessions.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/core/mutex.h"

namespace teletensor::memory {

class Sharing {
 public:
  // `order` > 0 is unique. A thread that needs several locks must take them in ascending order.
  explicit Sharing(std::uint64_t order, std::uint64_t writes = 1) : order(order), writes_(writes) {}
  // Called when the last reference to the storage is released.
  virtual ~Sharing() = default;
  Sharing(const Sharing&) = delete;
  Sharing& operator=(const Sharing&) = delete;

  const std::uint64_t order;

  // Allows several readers or one writer. New readers wait while a writer waits.
  void lock(bool write);
  void unlock(bool write);
  // Number of writes including the initial contents; saved in snapshots and passed to the
  // constructor after a restart.
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
