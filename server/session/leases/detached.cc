#include "server/session/leases/detached.h"

#include <algorithm>
#include <cstdio>

namespace teletensor::server {

using core::Clock;

namespace {

constexpr std::size_t kMaxNamed = 3;

std::string text_of(const Detached::Session& session, Clock::time_point now) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - session.since);
  char size[32];
  std::snprintf(size, sizeof size, "%.1f MiB", static_cast<double>(session.bytes) / 0x1p20);
  return session.name + ", detached " + std::to_string(seconds.count()) + " s ago, " + size +
         ": teletensor kill " + std::to_string(session.id);
}

}  // namespace

void Detached::set(ByUser sessions) {
  for (auto& [user, each] : sessions) {
    std::sort(each.begin(), each.end(),
              [](const Session& a, const Session& b) { return a.bytes > b.bytes; });
    if (each.size() > kMaxNamed) each.resize(kMaxNamed);
  }
  core::MutexLock lock(mutex_);
  sessions_ = std::move(sessions);
}

core::Status Detached::advise(std::string_view user, core::Status status) const {
  if (status.code() != core::Code::kResourceExhausted) return status;
  std::string text;
  {
    core::MutexLock lock(mutex_);
    const auto found = sessions_.find(user);
    if (found == sessions_.end()) return status;
    for (const Session& session : found->second) {
      text += (text.empty() ? "; sessions of this user without a client: " : "; ") +
              text_of(session, Clock::now());
    }
  }
  return core::Status(status.code(), status.message() + text);
}

}  // namespace teletensor::server
