#include "server/session/leases/moved_sessions.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

void MovedSessions::gone(const std::string& token, Place place) {
  MutexLock lock(mutex_);
  gone_.insert_or_assign(token, std::move(place));
}

void MovedSessions::forget(const std::string& token) {
  MutexLock lock(mutex_);
  gone_.erase(token);
}

std::optional<MovedSessions::Place> MovedSessions::find(std::string_view token) const {
  MutexLock lock(mutex_);
  const auto found = gone_.find(token);
  return found == gone_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<MovedSessions::Place> MovedSessions::find(std::string_view user,
                                                        std::string_view name) const {
  MutexLock lock(mutex_);
  for (const auto& [token, place] : gone_) {
    if (!name.empty() && place.user == user && place.name == name) return place;
  }
  return std::nullopt;
}

bool MovedSessions::expect(const std::string& token, const std::string& user,
                           const std::string& name) {
  MutexLock lock(mutex_);
  for (const auto& [other, whose] : expected_) {
    if (!name.empty() && other != token && whose == std::pair(user, name)) return false;
  }
  expected_.insert_or_assign(token, std::pair(user, name));
  return true;
}

void MovedSessions::arrived(const std::string& token) {
  MutexLock lock(mutex_);
  expected_.erase(token);
}

bool MovedSessions::expected(std::string_view user, std::string_view name) const {
  MutexLock lock(mutex_);
  for (const auto& [token, whose] : expected_) {
    if (!name.empty() && whose.first == user && whose.second == name) return true;
  }
  return false;
}

Status MovedSessions::of(std::string_view token, std::string* word) const {
  MutexLock lock(mutex_);
  if (expected_.contains(token)) {
    if (word != nullptr) *word = "arriving";
    return Status(Code::kUnavailable, "the session is being moved to this daemon");
  }
  const auto found = gone_.find(token);
  if (found == gone_.end()) return {};
  if (word != nullptr) *word = "moved";
  return Status(Code::kAborted, "the session has moved to " + found->second.address);
}

}  // namespace teletensor::server
