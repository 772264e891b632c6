// /metrics: the daemon's state in Prometheus' text format. Base units; the only labels that come
// from outside are users' names, of which the kMaxUsers largest are told apart.
#pragma once

#include <string>

#include "server/access/auth.h"
#include "server/admin/canary.h"
#include "server/admin/overview.h"
#include "server/session/leases.h"

namespace teletensor::server {

inline constexpr std::size_t kMaxLabelledUsers = 50;

std::string metrics_text(Leases& leases, const Auth& auth, const Canary& canary,
                         const Services& services, const std::string& version);

}  // namespace teletensor::server
