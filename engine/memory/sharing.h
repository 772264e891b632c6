// Sharing: the lock of a storage that several sessions use. It makes every instruction on the
// storage atomic for the other sessions.
//
// A LockRequest takes all locks of an instruction at once or none, and it never blocks its thread.
// Requests that cannot be granted wait in the order of their first attempt: a request is granted
// before each later one that wants one of its locks, unless both only read. Hence the oldest
// request waits only for locks that are held, and a stream of readers cannot keep a writer out.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/core/ref.h"

namespace teletensor::memory {

class LockRequest;

class Sharing {
 public:
  // `order` > 0 is unique.
  explicit Sharing(std::uint64_t order, std::uint64_t writes = 1) : order(order), writes_(writes) {}
  // Called when the last reference to the storage is released.
  virtual ~Sharing() = default;
  Sharing(const Sharing&) = delete;
  Sharing& operator=(const Sharing&) = delete;

  const std::uint64_t order;

  // Number of writes including the initial contents; saved in snapshots and passed to the
  // constructor after a restart.
  std::uint64_t writes() const { return writes_.load(std::memory_order_acquire); }

 private:
  friend class LockRequest;
  struct Waiting {
    LockRequest* request;
    bool write;
  };

  static core::Mutex mu_;  // guards all locks and requests

  std::atomic<std::uint64_t> writes_;
  int readers_ TT_GUARDED_BY(mu_) = 0;
  bool writing_ TT_GUARDED_BY(mu_) = false;
  std::vector<Waiting> waiting_ TT_GUARDED_BY(mu_);  // the oldest request first
};

// Used by one thread at a time.
class LockRequest {
 public:
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // Reports that the next try_lock() with the same locks will succeed, unless an older request
    // needs one of them by then. Called by the thread that releases a lock. Must not use a request
    // or release a storage.
    virtual void on_unlocked() = 0;
  };
  struct Use {
    core::Ref<core::Shared> storage;  // keeps `sharing` alive
    Sharing* sharing;
    bool write;
  };

  explicit LockRequest(Waiter* waiter) : waiter_(waiter) {}
  // Precondition: it holds no locks.
  ~LockRequest() { withdraw(); }
  LockRequest(const LockRequest&) = delete;
  LockRequest& operator=(const LockRequest&) = delete;

  // Takes these locks, each for several readers or one writer; each lock may occur once. Returns
  // false if they cannot be taken now: then the request waits, and the waiter is called at most
  // once until the next attempt. Another attempt keeps its place. Precondition: it holds no locks.
  bool try_lock(std::vector<Use> uses);
  void unlock();
  // Ends the waiting, if the request waits. The waiter is not called any more.
  void withdraw();
  bool waits() const { return waits_; }

 private:
  bool is_grantable(const std::vector<Use>& uses) const TT_REQUIRES(Sharing::mu_);
  void enqueue() TT_REQUIRES(Sharing::mu_);
  static void notify(Sharing& sharing) TT_REQUIRES(Sharing::mu_);

  Waiter* const waiter_;
  std::vector<Use> uses_;  // locks that it holds or waits for
  bool waits_ = false;
  std::uint64_t age_ = UINT64_MAX;  // less for an older request; UINT64_MAX: does not wait
  bool notified_ TT_GUARDED_BY(Sharing::mu_) = false;
};

// Lets a thread that runs no session wait for locks.
class UnlockedSignal final : public LockRequest::Waiter {
 public:
  void on_unlocked() override;
  // Waits at most this long for a call of on_unlocked() since the last wait. Returns false if there
  // was none.
  bool wait_for(std::chrono::milliseconds most);

 private:
  core::Mutex mu_;
  core::CondVar changed_;
  bool unlocked_ TT_GUARDED_BY(mu_) = false;
};

}  // namespace teletensor::memory
