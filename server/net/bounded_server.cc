#include "server/net/bounded_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <exception>
#include <functional>
#include <utility>

#include "engine/core/memory/reserve.h"

namespace teletensor::server {

namespace {

constexpr int kRequests = 100;  // Maximum number of requests of a connection.
constexpr int kBacklog = 128;   // Connections that the system holds until they are accepted.
constexpr int kSystemBuffer = 64 << 10;  // The system doubles it.

// The library's queue of connections. The listening thread runs each job itself, because a job only
// hands a socket over.
class Immediately final : public httplib::TaskQueue {
 public:
  // bool (whether the job was accepted) since version 0.16 of the library, void before.
  using Accepted = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));
  Accepted enqueue(std::function<void()> job) override {
    job();
    return Accepted(true);
  }
  void shutdown() override {}
};

// Bounds the memory that the system takes for answers that are not read, which are several MiB
// otherwise.
void bound_buffers(int socket) {
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSystemBuffer, sizeof kSystemBuffer);
  setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &kSystemBuffer, sizeof kSystemBuffer);
}

struct FreeTls {
  void operator()(SSL* tls) const { SSL_free(tls); }
};

}  // namespace

BoundedServer::BoundedServer(Certificates* certificates, Counters& counters)
    : tls_(certificates != nullptr),
      counters_(counters),
      connections_([this](HttpConnections::Connection& connection) { serve(connection); },
                   counters) {
  new_task_queue = [] { return new Immediately; };
  if (!tls_) return;
  context_.reset(SSL_CTX_new(TLS_server_method()));
  if (context_ == nullptr || !use(*context_, *certificates)) {
    context_.reset();
    return;
  }
  // Neither sessions nor buffers of idle connections take memory.
  SSL_CTX_set_session_cache_mode(context_.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context_.get(), SSL_MODE_RELEASE_BUFFERS);
}

int BoundedServer::bind(const std::string& host, int port) {
  const int bound = port == 0 ? bind_to_any_port(host) : (bind_to_port(host, port) ? port : -1);
  // The library's backlog of 5 would let a crowd of peers keep others out.
  if (bound > 0) ::listen(svr_sock_, kBacklog);
  return bound;
}

void BoundedServer::run() { listen_after_bind(); }

bool BoundedServer::process_and_close_socket(socket_t socket) {
  connections_.admit(socket);
  return true;
}

void BoundedServer::serve(HttpConnections::Connection& connection) try {
  const core::UsesReserve forbidden(false);
  bound_buffers(connection.socket);
  const int flags = fcntl(connection.socket, F_GETFL);
  if (flags < 0 || fcntl(connection.socket, F_SETFL, flags | O_NONBLOCK) != 0) return;
  std::unique_ptr<SSL, FreeTls> tls;
  if (tls_) {
    tls.reset(SSL_new(context_.get()));
    if (tls == nullptr || SSL_set_fd(tls.get(), connection.socket) != 1) return;
  }
  HttpStream stream(connection.socket, tls.get(), limits_, connection.waits_since);
  if (stream.handshake()) serve_requests(stream, tls.get());
} catch (const std::exception&) {  // No memory, for example: the connection ends.
}

template <class Self>
bool BoundedServer::answer(Self& self, HttpStream& stream, bool last, bool& closes,
                           const SSL* tls) {
  const auto set_up = [tls](httplib::Request& request) { request.ssl = tls; };
  if constexpr (requires { self.process_request(stream, last, closes, set_up); }) {
    return self.process_request(stream, last, closes, set_up);
  } else {  // Later versions take the addresses of both sides, which the routes do not use.
    return self.process_request(stream, "", 0, "", 0, last, closes, set_up);
  }
}

void BoundedServer::serve_requests(HttpStream& stream, const SSL* tls) {
  for (int count = 1; !stream.over(); ++count) {
    const int status = stream.receive_head();
    if (status == HttpStream::kEnded) return;
    if (status != 0) {
      stream.refuse(status);
      break;
    }
    // A refused body is not read, so that no further request can follow it.
    const bool last = stream.has_body() || count == kRequests;
    bool closes = false;
    if (!answer(*this, stream, last, closes, tls) || last || closes) break;
  }
  if (const int status = stream.refused(); status != 0) {
    counters_.refused(status == 408   ? Refusal::kHttpTime
                      : status == 413 ? Refusal::kHttpBody
                                      : Refusal::kHttpHead);
  }
  stream.linger();
}

}  // namespace teletensor::server
