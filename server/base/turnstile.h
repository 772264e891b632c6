// Turnstile: runs a step again and again, one thread at a time.
//
// gRPC wants StartRead, StartWrite and Finish of one call not to overlap, calls back from inside
// them, and must not be called under a lock that the callbacks take. So every event only notes what
// has happened and then runs the turnstile: the step looks at the notes and starts one operation.
#pragma once

#include "engine/core/mutex.h"

namespace teletensor::server {

class Turnstile {
 public:
  // Calls `step` until it returns false. If another thread (or a caller of this one) is in here, it
  // is made to look again instead, and this call returns at once.
  template <class Step>
  void run(Step step) noexcept {
    {
      core::MutexLock lock(mutex_);
      again_ = true;
      if (running_) return;
      running_ = true;
    }
    while (true) {
      {
        core::MutexLock lock(mutex_);
        if (!again_) {
          running_ = false;
          return;
        }
        again_ = false;
      }
      while (step()) {
      }
    }
  }

 private:
  core::Mutex mutex_;
  bool running_ TT_GUARDED_BY(mutex_) = false;
  bool again_ TT_GUARDED_BY(mutex_) = false;
};

}  // namespace teletensor::server
