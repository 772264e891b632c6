#include "server/access/rights.h"

#include <algorithm>
#include <array>

namespace teletensor::server {

using core::Code;
using core::Status;

namespace {

constexpr std::array kRights = {
    MethodRight{"/teletensor.v1.Compute/Hello", Right::kUser},
    MethodRight{"/teletensor.v1.Compute/Run", Right::kUser},
    MethodRight{"/teletensor.v1.Compute/Attach", Right::kUser},
    MethodRight{"/teletensor.v1.Compute/Close", Right::kUser},
    MethodRight{"/teletensor.v1.Compute/Upload", Right::kUser},
    MethodRight{"/teletensor.v1.Compute/Staged", Right::kUser},
    MethodRight{"/teletensor.v1.Compute/Download", Right::kUser},
    MethodRight{"/teletensor.v1.Compute/Interrupt", Right::kUser},
    MethodRight{"/teletensor.v1.Compute/Describe", Right::kMetrics},
    MethodRight{"/teletensor.v1.Compute/ReportSites", Right::kUser},
    MethodRight{"/teletensor.v1.Compute/Published", Right::kUser},
    MethodRight{"/teletensor.v1.Compute/Profile", Right::kUser},
    // A user receives details about its own sessions, and sums about all others.
    MethodRight{"/teletensor.v1.Admin/Sessions", Right::kUser},
    MethodRight{"/teletensor.v1.Admin/Memory", Right::kMetrics},
    MethodRight{"/teletensor.v1.Admin/Holdings", Right::kUser},
    MethodRight{"/teletensor.v1.Admin/SlowLog", Right::kUser},
    MethodRight{"/teletensor.v1.Admin/Publications", Right::kUser},
    MethodRight{"/teletensor.v1.Admin/Groups", Right::kUser},
    MethodRight{"/teletensor.v1.Admin/Kill", Right::kUser},
    MethodRight{"/teletensor.v1.Admin/InterruptSession", Right::kUser},
    MethodRight{"/teletensor.v1.Admin/Snapshot", Right::kUser},
    MethodRight{"/teletensor.v1.Admin/Move", Right::kUser},
    MethodRight{"/teletensor.v1.Admin/Drain", Right::kAdmin},
    MethodRight{"/teletensor.v1.Admin/Admit", Right::kAdmin},
    MethodRight{"/teletensor.v1.Admin/CreateToken", Right::kAdmin},
    MethodRight{"/teletensor.v1.Admin/ListTokens", Right::kAdmin},
    MethodRight{"/teletensor.v1.Admin/RevokeToken", Right::kAdmin},
    // Calls on the caller's own key-value stores.
    MethodRight{"/teletensor.v1.Store/Open", Right::kUser},
    MethodRight{"/teletensor.v1.Store/Set", Right::kUser},
    MethodRight{"/teletensor.v1.Store/Get", Right::kUser},
    MethodRight{"/teletensor.v1.Store/Add", Right::kUser},
    MethodRight{"/teletensor.v1.Store/Append", Right::kUser},
    MethodRight{"/teletensor.v1.Store/CompareSet", Right::kUser},
    MethodRight{"/teletensor.v1.Store/Delete", Right::kUser},
    MethodRight{"/teletensor.v1.Store/Count", Right::kUser},
    MethodRight{"/teletensor.v1.Store/Drop", Right::kUser},
    MethodRight{"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Right::kUser},
    MethodRight{"GET /healthz", Right::kPublic},
    MethodRight{"GET /readyz", Right::kPublic},
    MethodRight{"GET /metrics", Right::kMetrics},
    // The dashboard page contains no data; it loads the data from /api.
    MethodRight{"GET /", Right::kPublic},
    MethodRight{"GET /dashboard.js", Right::kPublic},
    MethodRight{"GET /page.js", Right::kPublic},
    MethodRight{"GET /overview.js", Right::kPublic},
    MethodRight{"GET /session.js", Right::kPublic},
    MethodRight{"GET /history.js", Right::kPublic},
    MethodRight{"GET /dashboard.css", Right::kPublic},
    MethodRight{"GET /chart.js", Right::kPublic},
    MethodRight{"GET /api/state", Right::kMetrics},
    MethodRight{"GET /api/history", Right::kMetrics},
    MethodRight{"GET /api/session", Right::kUser},
    MethodRight{"POST /api/kill", Right::kUser},
    MethodRight{"POST /api/interrupt", Right::kUser},
};

bool allowed(Right right, Role role) {
  switch (right) {
    case Right::kPublic:
      return true;
    case Right::kMetrics:
      return role != Role::kNobody;
    case Right::kUser:
      return role == Role::kUser || role == Role::kAdmin;
    case Right::kAdmin:
      return role == Role::kAdmin;
  }
  return false;
}

}  // namespace

std::string_view to_string(Role role) {
  constexpr std::string_view kNames[] = {"nobody", "metrics", "user", "admin"};
  return kNames[static_cast<std::size_t>(role)];
}

Role role_of(std::string_view text) {
  for (const Role role : {Role::kMetrics, Role::kUser, Role::kAdmin}) {
    if (text == to_string(role)) return role;
  }
  return Role::kNobody;
}

std::span<const MethodRight> rights() { return kRights; }

Status check_right(std::string_view method, const Caller& caller) {
  const auto found = std::find_if(kRights.begin(), kRights.end(),
                                  [&](const MethodRight& entry) { return entry.method == method; });
  if (found != kRights.end() && allowed(found->right, caller.role)) return {};
  if (caller.role == Role::kNobody) {
    return Status(kUnauthenticated, "this needs a token (tt.connect(address, token=...))");
  }
  return Status(Code::kPermissionDenied,
                std::string(method) + ": not for the role " + std::string(to_string(caller.role)));
}

}  // namespace teletensor::server
