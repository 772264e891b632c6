// Listener: one gRPC server with services of its own, for callers that come one way: the daemon's
// own user (UNIX socket) and loopback, one other user of this machine, or those from elsewhere
// (TLS, a proxy's socket), who need a token. They are kept apart by being different servers, so no
// header can blur them.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "server/admin.h"
#include "server/certificates.h"
#include "server/service.h"
#include "server/store_service.h"

namespace teletensor::server {

// Holds gRPC's library until the process ends: its own shutdown may wait 10 s for a poller of
// connections that are gone (seen with 1.51).
void hold_grpc();
// Limits of a server, against callers that send much, slowly or nothing.
void harden(grpc::ServerBuilder& builder, std::size_t message_bytes);
// For servers that do not describe themselves: reflection's library adds itself to every server.
std::unique_ptr<grpc::ServerBuilderOption> without_reflection();

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
