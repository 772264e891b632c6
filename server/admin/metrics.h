// Writes the daemon's state in Prometheus' text format or in OpenMetrics, for /metrics. All values
// are in base units. The only labels from outside are user names, of which the kMaxUsers largest
// are listed separately. A caller with the role "user", unless it is anonymous, sees only its own
// rows of those by user.
#pragma once

#include <string>

#include "server/access/auth.h"
#include "server/admin/health_probe.h"
#include "server/admin/overview.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

inline constexpr std::size_t kMaxLabelledUsers = 50;

enum class MetricsFormat { kPrometheus, kOpenMetrics };

std::string metrics_text(Leases& leases, const Auth& auth, const HealthProbe& probe,
                         const Services& services, const std::string& version, const Caller& caller,
                         MetricsFormat format);

}  // namespace teletensor::server
