// Listener: one gRPC server with services of its own, for callers that come one way: the daemon's
// own user (UNIX socket) and loopback, one other user of this machine, or those from elsewhere
// (TLS, a proxy's socket), who need a token. They are kept apart by being different servers, so no
// header can blur them.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "server/access/certificates.h"
#include "server/access/grpc_server.h"
#include "server/admin/admin.h"
#include "server/rendezvous/store_service.h"
#include "server/stream/service.h"

namespace teletensor::server {

struct ListenerOptions {
  std::string tcp;  // "HOST:PORT"; "": none
  Entrance entrance;
  std::shared_ptr<Certificates> certificates;  // of tcp; null: no TLS
};

class Listener {
 public:
  // Binds and serves. Says why where an address is refused or taken. The others outlive it.
  static core::Result<std::unique_ptr<Listener>> start(const ListenerOptions& options,
                                                       Leases& leases, Recovery& recovery,
                                                       Moves& moves, KeyStores& stores,
                                                       const Auth& auth, const ServerFacts& facts);
  ~Listener();  // as stop()

  // A connection of a UNIX socket that somebody else has accepted, which becomes this one's.
  void take(int connection);
  void set_serving(bool serving);
  // Accepts nothing more; streams have a moment to end by themselves.
  void stop();
  const std::string& tcp() const { return tcp_; }  // with the port that was taken

 private:
  Listener(const ListenerOptions& options, Leases& leases, Recovery& recovery, Moves& moves,
           KeyStores& stores, const Auth& auth, const ServerFacts& facts);
  core::Status bind(const Limits& limits);

  const ListenerOptions options_;
  ComputeService compute_;
  AdminService admin_;
  StoreService store_;
  std::shared_ptr<grpc::ServerCredentials> tcp_credentials_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> grpc_;
  std::string tcp_;
};

}  // namespace teletensor::server
