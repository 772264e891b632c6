// The table of access rights, by full method name. Methods that are not in the table are refused
// for all callers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace teletensor::server {

// gRPC's code 16, which the engine does not use.
inline constexpr core::Code kUnauthenticated = static_cast<core::Code>(16);

// The role of a caller, which results from its token or its connection.
enum class Role : std::uint8_t {
  kNobody,   // The caller has no identity.
  kMetrics,  // The caller may read totals.
  kUser,     // The caller may run sessions, and see and end its own ones.
  kAdmin,    // The caller may see and end all sessions.
};
std::string_view to_string(Role role);
// Converts the name of a role. Returns kNobody for unknown names.
Role role_of(std::string_view text);

// The lowest role that may call a method.
enum class Right : std::uint8_t { kPublic, kMetrics, kUser, kAdmin };

struct Caller {
  std::string user;
  Role role = Role::kNobody;
  bool admin() const { return role == Role::kAdmin; }
};

struct MethodRight {
  // The name of a method, for example "/teletensor.v1.Compute/Run" or "GET /metrics".
  std::string_view method;
  Right right;
};
std::span<const MethodRight> rights();

// Returns an error that names the method if the caller may not call it: UNAUTHENTICATED if the
// caller's role is kNobody, PERMISSION_DENIED otherwise.
core::Status check_right(std::string_view method, const Caller& caller);

}  // namespace teletensor::server
