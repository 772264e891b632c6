// SerialExecutor is a serial executor: it runs a step repeatedly, in one thread at a time.
// Threads that share a socket use it to write one after another. gRPC requires that StartRead,
// StartWrite and Finish of a call do not overlap. It may call back from inside them, and they must
// not be called with a lock that the callbacks acquire. So every event only records what has
// happened and then runs the executor, whose step looks at the records and starts one operation.
#pragma once

#include "engine/core/memory/reserve.h"
#include "engine/core/mutex.h"

namespace teletensor::server {

class SerialExecutor {
 public:
  // Calls `step` until it returns false. If another thread, or an outer call of this thread, is
  // inside run() already, that call repeats its step, and this call returns at once.
  template <class Step>
  void run(Step step) noexcept {
    const core::UsesReserve reserve;
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
