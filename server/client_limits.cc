#include "server/client_limits.h"

#include <cstdint>

namespace teletensor::server {

namespace {

constexpr int kLease = 600;  // Default lease in seconds, unless the daemon is embedded.
// Period in which clients report source lines, with and without the dashboard that shows them.
constexpr std::chrono::milliseconds kShownSites{2000}, kOtherSites{5000};

}  // namespace

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

Limits client_limits(const Config& config) {
  Limits limits;
  limits.slow = std::chrono::milliseconds(config.slow_ms);
  limits.sites = config.http.empty() ? kOtherSites : kShownSites;
  limits.session_memory = config.session_memory;
  limits.user_memory = config.user_memory;
  limits.user_sessions = static_cast<std::size_t>(max_user_sessions(config));
  limits.state_memory = config.user_state_memory;
  limits.amounts = config.session_limits;
  limits.credit_instructions = static_cast<std::uint64_t>(config.session_queue);
  limits.outbox_bytes = config.session_unread;
  limits.sessions = static_cast<std::size_t>(config.max_sessions);
  limits.templates = config.templates;
  limits.rank_grace = milliseconds(config.rank_grace_seconds);
  limits.stall = milliseconds(config.stall_seconds);
  limits.lease = std::chrono::seconds(config.lease.value_or(config.embedded ? 0 : kLease));
  const UserLimits general = limits_of(limits, "");
  for (const auto& [name, user] : config.users) {
    UserLimits own = general;
    if (user.sessions) own.sessions = static_cast<std::size_t>(*user.sessions);
    own.memory = user.memory.value_or(own.memory);
    own.session_memory = user.session_memory.value_or(own.session_memory);
    own.weight = user.weight;
    if (user.state_memory) own.state_memory = user.state_memory;
    for (const auto& [field, limit] : user.session_limits) own.amounts.*field = limit;
    limits.users[name] = own;
  }
  return limits;
}

}  // namespace teletensor::server
