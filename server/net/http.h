// HttpServer serves the dashboard, the metrics and the health checks over HTTP. Every route is
// listed in the table of rights (server/access/rights.cc); other paths return 404.
// A browser that displays a hostile page must gain no access: the Host header must be a name of
// this daemon (against DNS rebinding), requests that change something must be JSON from the same
// origin, and tokens are sent in a header, never in a cookie.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/access/auth.h"
#include "server/admin/health_probe.h"
#include "server/admin/overview.h"
#include "server/net/listener.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

struct HttpOptions {
  std::string listen;   // Address "HOST:PORT". Port 0 selects a free port.
  std::string version;  // Version of the daemon.
  // Additional host names of this daemon, besides loopback names and the host in `listen`.
  std::vector<std::string> names;
  // Certificates for TLS. Null disables TLS; with TLS every caller needs a token.
  std::shared_ptr<Certificates> certificates;
};

class HttpServer {
 public:
  // Binds the address and starts to serve. Precondition: the other arguments outlive the server.
  static core::Result<std::unique_ptr<HttpServer>> start(HttpOptions options, Leases& leases,
                                                         const Auth& auth, const HealthProbe& probe,
                                                         const Services& services);
  virtual ~HttpServer() = default;  // Ends all connections and waits for running requests.
  // Address with the actual port, for example "127.0.0.1:41233".
  virtual const std::string& address() const = 0;
  // URL of the dashboard with a token that is valid for this run and kept in memory only. Empty
  // over TLS.
  virtual std::string dashboard_url() const = 0;
};

}  // namespace teletensor::server
