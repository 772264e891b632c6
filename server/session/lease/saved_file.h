// SavedFile tells where a lease is in the session store: the name of its file, and how much of the
// session the file contains. It does no I/O. Thread-safe: the writer of snapshots sets it, and a
// take-over passes it to the next lease of the session.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "engine/core/mutex.h"

namespace teletensor::server {

class SavedFile {
 public:
  // Name in the store. Empty if there is no file yet.
  std::string name() const {
    core::MutexLock lock(mutex_);
    return name_;
  }
  // The file contains all commands up to this number.
  std::uint64_t upto() const {
    core::MutexLock lock(mutex_);
    return upto_;
  }
  // Returns false, without a change, if the file was passed to the next lease of the session.
  bool set(const std::string& name, std::uint64_t upto) {
    core::MutexLock lock(mutex_);
    if (handed_on_) return false;
    name_ = name;
    upto_ = upto;
    return true;
  }

  // Why the last snapshot of the session could not be written. Empty if it was, or if there was
  // none.
  std::string failure() const {
    core::MutexLock lock(mutex_);
    return failure_;
  }
  void set_failure(const std::string& why) {
    core::MutexLock lock(mutex_);
    failure_ = why;
  }

  // Passes the file to the next lease of the session: returns name() and upto().
  std::pair<std::string, std::uint64_t> hand_on() {
    core::MutexLock lock(mutex_);
    handed_on_ = true;
    return {name_, upto_};
  }
  // Returns true once hand_on() was called; the lease must not write or remove the file any more.
  bool handed_on() const {
    core::MutexLock lock(mutex_);
    return handed_on_;
  }

 private:
  mutable core::Mutex mutex_;
  std::string name_ TT_GUARDED_BY(mutex_);
  std::uint64_t upto_ TT_GUARDED_BY(mutex_) = 0;
  std::string failure_ TT_GUARDED_BY(mutex_);
  bool handed_on_ TT_GUARDED_BY(mutex_) = false;
};

}  // namespace teletensor::server
