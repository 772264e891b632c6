// Mutex, MutexLock and CondVar: wrappers of the standard classes with clang's thread-safety
// annotations.
//
// clang checks the annotations with -Wthread-safety; other compilers ignore them. TT_GUARDED_BY(m)
// marks a field that may only be used while m is held, TT_REQUIRES(m) a function whose caller must
// hold m, and TT_EXCLUDES(m) a function whose caller must not.
//
// TSan supports std::mutex, but not Debian's absl::Mutex.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TT_ANNOTATION(x) __attribute__((x))
#else
#define TT_ANNOTATION(x)
#endif
#define TT_GUARDED_BY(x) TT_ANNOTATION(guarded_by(x))
#define TT_REQUIRES(...) TT_ANNOTATION(requires_capability(__VA_ARGS__))
#define TT_EXCLUDES(...) TT_ANNOTATION(locks_excluded(__VA_ARGS__))

namespace teletensor::core {

// Not recursive. Prefer MutexLock to lock() and unlock().
class TT_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() TT_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void unlock() TT_ANNOTATION(release_capability()) { mutex_.unlock(); }
  bool try_lock() TT_ANNOTATION(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds the mutex while the object exists.
class TT_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TT_ANNOTATION(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() TT_ANNOTATION(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Threads that wait test their condition in a loop around wait(), which names the fields that it
// reads; a lambda as predicate would hide them from clang's check.
class CondVar {
 public:
  // Precondition: the caller holds `mutex`, which is held again on return. Wake-ups may be
  // spurious.
  void wait(Mutex& mutex) TT_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // Like wait(), but for at most `time` of the steady clock. Returns false if the time has passed.
  template <class Rep, class Period>
  bool wait_for(Mutex& mutex, std::chrono::duration<Rep, Period> time) TT_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool notified = condition_.wait_for(lock, time) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }
  // Callable with and without the mutex. The condition must have been changed with the mutex held.
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace teletensor::core
