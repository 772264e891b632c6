#include "server/server.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <thread>

#include "engine/core/threads.h"
#include "server/access/grpc_server.h"
#include "server/base/log.h"
#include "server/base/os/listen.h"
#include "server/base/os/notify.h"
#include "server/base/os/private_files.h"
#include "server/base/os/spare_threads.h"
#include "server/base/secrets.h"
#include "server/client_limits.h"

namespace teletensor::server {

using core::MutexLock;
using core::Status;

namespace {

// Number of refusals that are logged; afterwards every 100th is.
constexpr std::uint64_t kTurnedAwayLogged = 100;
// gRPC creates kGrpcThreads threads, and two more for each of at most kMaxGrpcCores cores.
constexpr int kGrpcThreads = 8, kMaxGrpcCores = 32;
constexpr int kListenerThreads = 2;  // Number of threads of each gRPC server.
// Maximum time to wait for the first result of the health probe. Then the server counts as started,
// ready or not.
constexpr std::chrono::seconds kFirstAnswer{10};

// The message that gRPC logs right before it aborts the process because it cannot create a thread.
constexpr std::string_view kRefusedThread = "Could not create grpc_sync_server worker-thread";

// Redirects gRPC's messages to the daemon's log. An abort becomes one line and exit status 1.
void log_of_grpc(gpr_log_func_args* args) {
  if (args->message == kRefusedThread) {
    const std::system_error error(EAGAIN, std::generic_category());
    log_failure("not_started", core::refused_thread(error));
    std::_Exit(1);
  }
  const bool error = args->severity == GPR_LOG_SEVERITY_ERROR;
  error ? log_warn("grpc", {{"text", args->message}})
        : log_debug("grpc", {{"text", args->message}});
}

std::uint64_t make_epoch() {
  const auto now = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  // The result is never 0 and fits a signed integer.
  return random_number().value_or(now) >> 1 | 1;
}

TlsFiles tls_files(const Config& config) {
  return {config.tls_cert, config.tls_key, config.tls_client_ca};
}

// The store for session files. Null if sessions cannot be restored, or if another daemon uses the
// folder.
std::unique_ptr<SessionStore> store_of(const ServerOptions& options) {
  const Config& config = options.config;
  if (config.state_dir->empty() || options.limits.lease.count() == 0 ||
      milliseconds(config.restart_seconds).count() == 0) {
    return nullptr;
  }
  auto store = SessionStore::open(*config.state_dir);
  if (store.ok()) return std::move(*store);
  log_warn("no_snapshots", {{"reason", store.status().message()}});
  return nullptr;
}

}  // namespace

core::Result<std::unique_ptr<Server>> Server::start(engine::Engine& engine, ServerOptions options) {
  for (auto* const path : {&options.config.socket, &options.config.state_dir}) {
    if (!*path) path->emplace();
  }
  if (!options.config.state_dir->empty()) {
    const Status state = private_state(*options.config.state_dir);
    if (state.code() == core::Code::kPermissionDenied) return state;
  }
  std::unique_ptr<Server> server(new Server(engine, std::move(options)));
  if (server->recovery_.on()) {
    server->facts_.restart = milliseconds(server->options_.config.restart_seconds);
    server->facts_.every = milliseconds(server->options_.config.snapshot_every);
  }
  server->moves_.restore();
  server->recovery_.restore();
  server->moves_.restored();
  if (server->recovery_.on()) {
    const Status kept = server->stores_.keep_in(*server->options_.config.state_dir);
    if (!kept.ok()) log_warn("stores_not_kept", {{"reason", kept.message()}});
  }
  const Status status = server->bind();
  if (!status.ok()) return status;
  server->moves_.listens(server->tcp_, server->certificates_ != nullptr, server->socket());
  return server;
}

Server::Server(engine::Engine& engine, ServerOptions options)
    : options_(std::move(options)),
      facts_{options_.version, make_epoch(), Clock::now()},
      tokens_(*options_.config.state_dir),
      auth_(tokens_, options_.config.tls_users, options_.config.allow_anonymous),
      leases_(engine, options_.limits),
      recovery_(leases_, store_of(options_),
                {milliseconds(options_.config.drain_seconds),
                 milliseconds(options_.config.snapshot_every),
                 milliseconds(options_.config.drain_ranks_seconds)},
                options_.shutdown),
      moves_(leases_, recovery_, auth_, options_.peers,
             {options_.version, options_.config.move_from, options_.config.advertise,
              options_.config.allow_anonymous, options_.config.tls_users,
              options_.config.socket_users}) {}

Server::~Server() { stop(); }

// A listener outside the loopback interface, or with TLS, is remote; it then requires TLS and a
// token.
Status Server::check_remote(const std::string& what, const std::string& address) {
  TT_RETURN_IF_ERROR(check_address(what, address));
  const Config& config = options_.config;
  const bool off_loopback = !is_loopback(address);
  if (off_loopback && !tls_files(config).on()) {
    return core::invalid(what + ": \"" + address +
                         "\" is not a loopback address; there the daemon needs TLS (--tls-cert, "
                         "--tls-key) and a token (teletensord --create-token); or reach it on "
                         "loopback through an SSH tunnel");
  }
  if (config.tls_users && config.tls_client_ca.empty()) {
    return core::invalid("tls_users: needs client certificates (--tls-client-ca)");
  }
  if (!off_loopback || config.tls_users) return {};
  const core::Result<bool> any = tokens_.any();
  if (!any.ok()) return any.status();
  if (*any) return {};
  return core::invalid(what +
                       ": off loopback the daemon needs a token first: teletensord "
                       "--state-dir DIR --create-token USER:admin");
}

Status Server::bind() {
  const Config& config = options_.config;
  const std::string &tcp = config.listen, &socket = *config.socket;
  if (tcp.empty() && socket.empty() && config.proxy_socket.empty()) {
    return core::invalid("neither an address (--listen) nor a socket (--socket) to listen on");
  }
  // gRPC aborts the process if it cannot create a thread.
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  TT_RETURN_IF_ERROR(check_threads(kGrpcThreads + 2 * std::min(cores, kMaxGrpcCores)));
  hold_grpc();
  gpr_set_log_function(log_of_grpc);
  if (!tcp.empty()) TT_RETURN_IF_ERROR(check_remote("listen", tcp));
  if (!config.http.empty()) TT_RETURN_IF_ERROR(check_remote("http", config.http));
  if (config.allow_anonymous && !(tcp.empty() && config.http.empty())) {
    log_warn("anonymous_allowed", {{"text",
                                    "every user of this machine may use the daemon on loopback "
                                    "without a token (--allow-anonymous)"}});
  }
  ListenerOptions local, remote;
  if (const TlsFiles tls = tls_files(config); tls.on()) {
    auto certificates = Certificates::open(tls);
    if (!certificates.ok()) return certificates.status();
    certificates_ = std::move(*certificates);
  }
  (certificates_ ? remote : local).tcp = tcp;
  remote.entrance.remote = true;
  remote.certificates = certificates_;
  TT_RETURN_IF_ERROR(open_sockets());
  if (!socket.empty()) {
    auto shares = ShareServer::start(socket, leases_);
    if (shares.ok()) {
      shares_ = std::move(*shares);
    } else {  // Without shared memory, clients use streams.
      log_warn("no_shared_memory", {{"reason", shares.status().message()}});
    }
    facts_.shares = shares_ != nullptr;
  }
  for (const ListenerOptions* each : {&local, &remote}) {
    UnixListener* const socket = each == &local ? unix_listener_.get() : proxy_listener_.get();
    if (each->tcp.empty() && socket == nullptr) continue;
    auto listener = Listener::start(*each, leases_, recovery_, moves_, stores_, auth_, facts_);
    if (!listener.ok()) return listener.status();
    if (!(*listener)->tcp().empty()) tcp_ = (*listener)->tcp();
    listeners_.push_back(std::move(*listener));
  }
  if (unix_listener_) {
    if (config.socket_users) {
      user_listeners_ = std::make_unique<UserListeners>(
          [this](const std::string& user) { return listener_of(user); });
    }
    unix_listener_->start([this](uid_t user, int connection) { guide(user, connection); });
  }
  if (proxy_listener_) {
    proxy_listener_->start([remote_one = listeners_.back().get()](uid_t, int connection) {
      remote_one->take(connection);
    });
  }
  set_serving(!options_.health_probe);
  if (options_.health_probe) {
    health_probe_ = std::make_unique<HealthProbe>(leases_.engine(), [this](bool ready) {
      set_serving(ready);
      if (ready) notify_supervisor("WATCHDOG=1");
    });
    health_probe_->wait_for_first(kFirstAnswer);
    set_serving(health_probe_->ready());
  }
  return config.http.empty() ? Status() : bind_http();
}

Status Server::open_sockets() {
  const auto open = [](const std::string& path, mode_t mode, std::unique_ptr<UnixListener>& out) {
    if (path.empty()) return Status();
    auto opened = UnixListener::open(path, mode);
    if (opened.ok()) out = std::move(*opened);
    return opened.status();
  };
  const Config& config = options_.config;
  TT_RETURN_IF_ERROR(open(*config.socket, config.socket_users ? 0666 : 0600, unix_listener_));
  return open(config.proxy_socket, 0660, proxy_listener_);
}

void Server::guide(uid_t user, int connection) {
  if (user == geteuid() || user == 0) return listeners_.front()->take(connection);
  if (user_listeners_ && user_listeners_->take(user, connection)) return;
  leases_.counters().refused(Refusal::kSocketUser);
  const std::uint64_t count = ++refused_users_;
  if (count <= kTurnedAwayLogged || count % kTurnedAwayLogged == 0) {
    log_warn("socket_user_refused", {{"uid", user}, {"count", count}});
  }
  close(connection);
}

core::Result<std::unique_ptr<Listener>> Server::listener_of(const std::string& user) {
  TT_RETURN_IF_ERROR(check_threads(kListenerThreads));
  ListenerOptions options;
  options.entrance.neighbour = user;
  return Listener::start(options, leases_, recovery_, moves_, stores_, auth_, facts_);
}

void Server::set_serving(bool serving) {
  MutexLock lock(serving_mutex_);
  serving = serving && !ending_;
  for (const auto& listener : listeners_) listener->set_serving(serving);
  if (user_listeners_) user_listeners_->set_serving(serving);
}

Status Server::bind_http() {
  if (!health_probe_) return core::invalid("http: needs the health probe");
  const Config& config = options_.config;
  HttpOptions options{config.http, facts_.version, config.http_names, nullptr};
  if (!is_loopback(config.http)) options.certificates = certificates_;
  auto http = HttpServer::start(std::move(options), leases_, auth_, *health_probe_,
                                {stores_, options_.peers, recovery_.state_use()});
  if (!http.ok()) return http.status();
  http_ = std::move(*http);
  return {};
}

void Server::end_serving() {
  if (health_probe_) health_probe_->stop();
  {
    MutexLock lock(serving_mutex_);
    ending_ = true;
  }
  set_serving(false);
}

void Server::drain(Clock::time_point since) {
  end_serving();
  moves_.stop();
  recovery_.drain(since);
  stop();
}

void Server::stop() {
  end_serving();
  moves_.stop();
  http_.reset();  // The HTTP server is stopped first, because it uses the health probe.
  if (!listeners_.empty()) leases_.shutdown();
  stores_.close();
  health_probe_.reset();
  unix_listener_.reset();
  proxy_listener_.reset();
  user_listeners_.reset();
  for (const auto& listener : listeners_) listener->stop();
  listeners_.clear();
  shares_.reset();
}

}  // namespace teletensor::server
