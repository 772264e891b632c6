// What the dashboard reads, as JSON: the overview as the caller may see it, the largest tensors of
// each session, the slow log.
#pragma once

#include <string>

#include "server/canary.h"
#include "server/leases.h"
#include "server/rights.h"

namespace teletensor::server {

std::string state_json(Leases& leases, const Canary& canary, const std::string& version,
                       Clock::time_point started, const Caller& caller);

}  // namespace teletensor::server
