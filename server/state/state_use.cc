#include "server/state/state_use.h"

#include <optional>

namespace teletensor::server {

using core::MutexLock;
using core::Status;

void StateUse::set(const std::string& file, const std::string& user, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  forget_locked(file);
  files_[file] = {user, bytes};
  users_[user] += bytes;
}

void StateUse::forget(const std::string& file) {
  MutexLock lock(mutex_);
  forget_locked(file);
}

void StateUse::forget_locked(const std::string& file) {
  const auto found = files_.find(file);
  if (found == files_.end()) return;
  const auto user = users_.find(found->second.user);
  user->second -= found->second.bytes;
  if (user->second == 0) users_.erase(user);
  files_.erase(found);
}

Status StateUse::fits(const std::string& file, const std::string& user, std::uint64_t bytes) const {
  const std::optional<std::uint64_t> limit = limits_of(limits_, user).state_memory;
  if (!limit) return {};
  std::uint64_t others = used(user);
  {
    MutexLock lock(mutex_);
    const auto found = files_.find(file);
    if (found != files_.end() && found->second.user == user) others -= found->second.bytes;
  }
  if (others <= *limit && bytes <= *limit - others) return {};
  if (*limit == 0) {
    return Status(core::Code::kResourceExhausted,
                  user +
                      " may have no files in the state directory (limit user_state_memory); ask "
                      "the administrator for room (--user-state-memory)");
  }
  return Status(
      core::Code::kResourceExhausted,
      "the files of " + user + " in the state directory may have " + std::to_string(*limit) +
          " bytes (limit user_state_memory), other sessions and "
          "published tensors of " +
          user + " take " + std::to_string(others) +
          " bytes of it, and this file needs more than the rest; free tensors, close a session "
          "(teletensor sessions, teletensor kill ID), or ask the administrator for more "
          "(--user-state-memory)");
}

std::uint64_t StateUse::used(std::string_view user) const {
  MutexLock lock(mutex_);
  const auto found = users_.find(user);
  return found == users_.end() ? 0 : found->second;
}

std::map<std::string, std::uint64_t> StateUse::users() const {
  MutexLock lock(mutex_);
  return {users_.begin(), users_.end()};
}

}  // namespace teletensor::server
