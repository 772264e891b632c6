// BoundedServer is the library's HTTP server with bounds on connections, requests and time. It uses
// the library's listening thread, parser and routes: each accepted socket goes to HttpConnections,
// and each request is read through an HttpStream.
#pragma once

#include <httplib.h>

#include <memory>
#include <string>

#include "server/access/certificates.h"
#include "server/net/http_connections.h"
#include "server/net/http_stream.h"

namespace teletensor::server {

class BoundedServer final : public httplib::Server {
 public:
  // `certificates` is null without TLS; otherwise it outlives the server.
  BoundedServer(Certificates* certificates, Counters& counters);
  // Ends all connections. Precondition: run() does not run.
  ~BoundedServer() override = default;

  bool is_valid() const override { return !tls_ || context_ != nullptr; }
  // Binds the address; port 0 selects a free port. Returns the port, or a number below 1.
  int bind(const std::string& host, int port);
  // Accepts connections until stop().
  void run();
  const HttpLimits& limits() const { return limits_; }

 private:
  struct FreeContext {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };

  bool process_and_close_socket(socket_t socket) override;
  void serve(HttpConnections::Connection& connection);
  void serve_requests(HttpStream& stream, const SSL* tls);
  // Answers one request. `Self` is BoundedServer; as a template parameter it lets the compiler look
  // for the call that this version of the library has.
  template <class Self>
  static bool answer(Self& self, HttpStream& stream, bool last, bool& closes, const SSL* tls);

  const HttpLimits limits_;
  const bool tls_;
  Counters& counters_;
  std::unique_ptr<SSL_CTX, FreeContext> context_;
  HttpConnections connections_;  // Its threads use the other members.
};

}  // namespace teletensor::server
