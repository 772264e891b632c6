// Writes the JSON for the dashboard: an overview as the caller may see it, with the largest tensors
// of each session and the slow log; and one session in detail.
#pragma once

#include <string>

#include "server/access/rights.h"
#include "server/admin/health_probe.h"
#include "server/admin/history.h"
#include "server/admin/overview.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

std::string state_json(Leases& leases, const HealthProbe& probe, History& history,
                       const Services& services, const std::string& version,
                       Clock::time_point started, const Caller& caller);

// One session as JSON. Returns an error if the session has ended. Precondition: the caller may see
// it.
core::Result<std::string> session_json(Leases& leases, Lease& lease, History& history,
                                       const Caller& caller);

}  // namespace teletensor::server
