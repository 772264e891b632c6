// Who may call what: one table, by full method name. What is not in it is refused to everybody.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace teletensor::server {

// gRPC's 16, which the engine has no use for.
inline constexpr core::Code kUnauthenticated = static_cast<core::Code>(16);

// What a token, or the way in, makes of a caller.
enum class Role : std::uint8_t {
  kNobody,   // no identity
  kMetrics,  // reads totals
  kUser,     // computes; sees and ends its own sessions
  kAdmin,    // sees and ends everybody's
};
std::string_view to_string(Role role);
// kNobody for any other text.
Role role_of(std::string_view text);

// Least that a method asks for.
enum class Right : std::uint8_t { kAnybody, kMetrics, kUser, kAdmin };

struct Caller {
  std::string user;
  Role role = Role::kNobody;
  bool admin() const { return role == Role::kAdmin; }
};

struct MethodRight {
  std::string_view method;  // "/teletensor.v1.Compute/Run", "GET /metrics"
  Right right;
};
std::span<const MethodRight> rights();

// PERMISSION_DENIED, or UNAUTHENTICATED for kNobody, with the method's name.
core::Status check_right(std::string_view method, const Caller& caller);

}  // namespace teletensor::server
