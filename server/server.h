// Server: the daemon without its process. main() and tests start one.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/admin/canary.h"
#include "server/net/door.h"
#include "server/net/http.h"
#include "server/net/listener.h"
#include "server/net/share_server.h"
#include "server/peer/moves.h"
#include "server/peer/peers.h"
#include "server/rendezvous/key_stores.h"
#include "server/state/recovery.h"
#include "server/stream/service.h"

namespace teletensor::server {

struct ServerOptions {
  std::string listen;                   // "": no TCP
  bool allow_anonymous = false;         // callers on loopback need no token
  std::string socket;                   // "": no UNIX socket
  bool socket_users = false;            // other users of this machine may come to it
  std::string http;                     // "": no HTTP
  std::vector<std::string> http_names;  // host names that HTTP answers for, beside loopback's
  std::string proxy_socket;             // for a proxy in front: its callers need tokens
  TlsFiles tls;                         // of listen, and of http off loopback
  bool tls_users = false;               // client certificates name users, who need no token
  std::string state_dir;                // "": keeps nothing
  bool canary = false;                  // without it the server is ready as soon as it is up
  Limits limits;
  // To write sessions down before the end; and how long clients wait for the next daemon.
  std::chrono::milliseconds drain{8000};
  std::chrono::milliseconds restart{10'000};
  std::chrono::milliseconds snapshot_every{0};  // sessions that have done something; 0: never
  std::function<void()> shutdown;               // drain() is wanted; called once
  Peers* peers = nullptr;                       // null: none. Outlives the server, starts after it
  std::vector<std::string> move_from;           // peers whose sessions may come
  std::string advertise;                        // where clients of those reach the daemon
  std::string version;
};

class Server {
 public:
  // Binds and serves. Says why where an address is refused or taken.
  // Precondition: the engine outlives the server.
  static core::Result<std::unique_ptr<Server>> start(engine::Engine& engine, ServerOptions options);
  ~Server();  // as stop()

  // Not ready any more, accepts no session, writes down those that can come back; then as stop().
  // Nothing is waited for before the writing, and `since` is when its time began. hurry() ends it.
  void drain(Clock::time_point since);
  void hurry() { recovery_.hurry(); }
  // Accepts nothing more, ends all sessions, returns when their memory is back.
  void stop();

  // "127.0.0.1:41233"; "" where there is none.
  const std::string& tcp() const { return tcp_; }
  const std::string& socket() const { return options_.socket; }
  std::string http() const { return http_ ? http_->address() : ""; }
  // Of the dashboard, with a token that makes whoever has it an admin there until the server ends;
  // "" where HTTP is off or speaks TLS.
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
  void end_serving();  // for good, at once
  core::Status open_doors();
  // A connection to the door; called by its thread.
  void guide(uid_t user, int connection);
  // Serves one more user of this machine; null where that cannot be.
  Listener* neighbour(uid_t user) TT_REQUIRES(neighbours_mutex_);

  const ServerOptions options_;
  ServerFacts facts_;
  std::shared_ptr<Certificates> certificates_;  // null: no TLS
  Tokens tokens_;
  Auth auth_;
  Leases leases_;
  std::unique_ptr<ShareServer> shares_;
  Recovery recovery_;
  Moves moves_;
  KeyStores stores_;
  std::vector<std::unique_ptr<Listener>> listeners_;  // the first one is the own user's
  std::unique_ptr<Door> door_, proxy_door_;           // start after them, end before
  core::Mutex neighbours_mutex_;
  std::map<uid_t, std::unique_ptr<Listener>> neighbours_ TT_GUARDED_BY(neighbours_mutex_);
  std::uint64_t turned_away_ TT_GUARDED_BY(neighbours_mutex_) = 0;
  bool serving_ TT_GUARDED_BY(neighbours_mutex_) = false;
  bool ending_ TT_GUARDED_BY(neighbours_mutex_) = false;  // never serving again
  std::unique_ptr<Canary> canary_;
  std::unique_ptr<HttpServer> http_;
  std::string tcp_;
};

}  // namespace teletensor::server
