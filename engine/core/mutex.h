// Mutex, MutexLock and CondVar: wrappers of the standard classes with clang's thread-safety
// annotations.
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

class TT_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() TT_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void unlock() TT_ANNOTATION(release_capability()) { mutex_.unlock(); }
  bool try_lock() TT_ANNOTATION(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

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

class CondVar {
 public:
  // Precondition: the caller holds `mutex`, which is held again on return. Wake-ups may be
  // spurious.
  void wait(Mutex& mutex) TT_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // Returns false if the time has passed.
  template <class Rep, class Period>
  bool wait_for(Mutex& mutex, std::chrono::duration<Rep, Period> time) TT_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool notified = condition_.wait_for(lock, time) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace teletensor::core
