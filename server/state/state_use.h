// StateUse counts the bytes of the files that each user's sessions and published tensors have in
// the state directory, and compares them with the user's limit (--user-state-memory). Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "server/base/limits.h"

namespace teletensor::server {

class StateUse {
 public:
  explicit StateUse(const Limits& limits) : limits_(limits) {}

  // Records that `file` of `user` exists and has `bytes` bytes. Replaces what was recorded for it.
  void set(const std::string& file, const std::string& user, std::uint64_t bytes);
  void forget(const std::string& file);
  // Returns RESOURCE_EXHAUSTED, with the use, the limit and the cure, if the user's files would
  // exceed the limit after `file` had `bytes` bytes.
  core::Status fits(const std::string& file, const std::string& user, std::uint64_t bytes) const;
  // The bytes of all files of a user.
  std::uint64_t used(std::string_view user) const;
  std::map<std::string, std::uint64_t> users() const;

 private:
  struct File {
    std::string user;
    std::uint64_t bytes;
  };

  const Limits& limits_;
  mutable core::Mutex mutex_;
  std::map<std::string, File, std::less<>> files_ TT_GUARDED_BY(mutex_);
  std::map<std::string, std::uint64_t, std::less<>> users_ TT_GUARDED_BY(mutex_);

  void forget_locked(const std::string& file) TT_REQUIRES(mutex_);
};

}  // namespace teletensor::server
