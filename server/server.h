// Server is the complete daemon except for its process. main() and tests create one.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/admin/health_probe.h"
#include "server/net/http.h"
#include "server/net/listener.h"
#include "server/net/local/share_server.h"
#include "server/net/local/unix_listener.h"
#include "server/net/local/user_listeners.h"
#include "server/peer/moves.h"
#include "server/peer/peers.h"
#include "server/rendezvous/key_stores.h"
#include "server/state/recovery.h"
#include "server/stream/service.h"

namespace teletensor::server {

struct ServerOptions {
  std::string listen;            // Address for TCP. Empty disables TCP.
  bool allow_anonymous = false;  // Whether callers on the loopback interface need no token.
  std::string socket;            // Path of the UNIX socket. Empty disables it.
  bool socket_users = false;  // Whether other users of this machine may connect to the UNIX socket.
  std::string http;           // Address for HTTP. Empty disables HTTP.
  // Host names under which the HTTP server may be reached, besides loopback names.
  std::vector<std::string> http_names;
  std::string proxy_socket;  // Socket for a proxy. Its callers need tokens.
  TlsFiles tls;              // TLS for `listen`, and for `http` unless it is a loopback address.
  bool tls_users = false;    // Whether client certificates identify users, who then need no token.
  std::string state_dir;     // The state directory. Empty if nothing is to be stored.
  // Whether a health probe runs. Without it the server is ready when it has started.
  bool health_probe = false;
  Limits limits;
  // `drain` is the time to write sessions to files during a shutdown. `restart` is the time for
  // which clients wait for the next daemon.
  std::chrono::milliseconds drain{8000};
  std::chrono::milliseconds drain_ranks{0};  // Recovery::Times::ranks
  std::chrono::milliseconds restart{10'000};
  // Period of the snapshots of active sessions. 0 means none.
  std::chrono::milliseconds snapshot_every{0};
  std::function<void()> shutdown;  // Called once when the server is to be drained.
  // The connections to peers. Null if there are no peers. Must outlive the server, and is started
  // after it.
  Peers* peers = nullptr;
  std::vector<std::string> move_from;  // Peers that may move sessions here.
  std::string advertise;  // Address at which clients of moved sessions reach the daemon.
  std::string version;
};

class Server {
 public:
  // Binds the addresses and starts to serve. Returns an error that says why an address is refused
  // or in use. Precondition: the engine outlives the server.
  static core::Result<std::unique_ptr<Server>> start(engine::Engine& engine, ServerOptions options);
  ~Server();  // Calls stop().

  // Makes the daemon not ready, refuses new sessions, writes the sessions that can be restored to
  // files, and then does what stop() does. The time limit counts from `since`. hurry() ends the
  // writing.
  void drain(Clock::time_point since);
  void hurry() { recovery_.hurry(); }
  // Accepts no more connections and ends all sessions. Returns when their memory is released.
  void stop();

  // The TCP address with the actual port, for example "127.0.0.1:41233". Empty if TCP is off.
  const std::string& tcp() const { return tcp_; }
  const std::string& socket() const { return options_.socket; }
  std::string http() const { return http_ ? http_->address() : ""; }
  // URL of the dashboard with a token that gives the admin role until the server ends. Empty if
  // HTTP is off or uses TLS.
  std::string dashboard_url() const { return http_ ? http_->dashboard_url() : ""; }
  Leases& leases() { return leases_; }
  Recovery& recovery() { return recovery_; }
  Moves& moves() { return moves_; }

 private:
  Server(engine::Engine& engine, ServerOptions options);
  core::Status bind();
  core::Status bind_http();
  core::Status check_remote(const std::string& what, const std::string& address);
  void set_serving(bool serving);
  void end_serving();  // Ends readiness at once and for good.
  core::Status open_sockets();
  // Handles a connection to the UNIX socket. Called by the socket's listener thread.
  void guide(uid_t user, int connection);
  // Creates the listener for another user of this machine.
  core::Result<std::unique_ptr<Listener>> listener_of(const std::string& user);

  const ServerOptions options_;
  ServerFacts facts_;
  std::shared_ptr<Certificates> certificates_;  // Certificates for TLS. Null if TLS is off.
  Tokens tokens_;
  Auth auth_;
  Leases leases_;
  std::unique_ptr<ShareServer> shares_;
  Recovery recovery_;
  Moves moves_;
  KeyStores stores_;
  std::vector<std::unique_ptr<Listener>> listeners_;  // The first one serves the daemon's own user.
  // Started after the listeners, and stopped before them.
  std::unique_ptr<UnixListener> unix_listener_, proxy_listener_;
  std::unique_ptr<UserListeners> user_listeners_;  // Null unless other users may connect.
  std::uint64_t refused_users_ = 0;                // Used only by the thread that calls guide().
  core::Mutex serving_mutex_;
  // Whether the server is ending; set_serving() then has no effect.
  bool ending_ TT_GUARDED_BY(serving_mutex_) = false;
  std::unique_ptr<HealthProbe> health_probe_;
  std::unique_ptr<HttpServer> http_;
  std::string tcp_;
};

}  // namespace teletensor::server
