// HttpServer: what people and their monitoring read over plain HTTP. Every route stands in the
// table of rights; what does not is 404 and serves nothing.
//
// A browser that shows a hostile page must gain nothing here: the Host header has to be one of ours
// (DNS rebinding), requests that change something have to be JSON from our own origin, and tokens
// travel in a header, never in a cookie.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/access/auth.h"
#include "server/admin/canary.h"
#include "server/admin/overview.h"
#include "server/net/listener.h"
#include "server/session/leases.h"

namespace teletensor::server {

struct HttpOptions {
  std::string listen;              // "HOST:PORT", port 0 takes a free one
  std::string version;             // of the daemon
  std::vector<std::string> names;  // host names of ours, beside loopback's and the one of `listen`
  std::shared_ptr<Certificates> certificates;  // null: no TLS. With it every caller needs a token
};

class HttpServer {
 public:
  // Binds and serves. Preconditions: the others outlive it.
  static core::Result<std::unique_ptr<HttpServer>> start(HttpOptions options, Leases& leases,
                                                         const Auth& auth, const Canary& canary,
                                                         const Services& services);
  virtual ~HttpServer() = default;  // ends all connections; no request is being answered
  virtual const std::string& address() const = 0;  // "127.0.0.1:41233"
  // With a token of this run that is kept in memory alone; "" over TLS.
  virtual std::string dashboard_url() const = 0;
};

}  // namespace teletensor::server
