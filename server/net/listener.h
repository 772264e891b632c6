// Listener is one gRPC server for one kind of caller: the daemon's own user (UNIX socket) and
// loopback, one other user of this machine, or remote callers (TLS or a proxy's socket), who need a
// token. Each kind has a separate server, so that no request header can change how a caller is
// treated.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "server/access/certificates.h"
#include "server/access/grpc_server.h"
#include "server/admin/admin.h"
#include "server/net/reflection.h"
#include "server/rendezvous/store_service.h"
#include "server/stream/service.h"

namespace teletensor::server {

struct ListenerOptions {
  std::string tcp;  // Address "HOST:PORT". Empty disables TCP.
  Entrance entrance;
  std::shared_ptr<Certificates> certificates;  // Certificates for TCP. Null disables TLS.
};

class Listener {
 public:
  // Binds the addresses and starts to serve. Returns an error that says why an address is refused
  // or in use. The other arguments must outlive the listener.
  static core::Result<std::unique_ptr<Listener>> start(const ListenerOptions& options,
                                                       Leases& leases, Recovery& recovery,
                                                       Moves& moves, KeyStores& stores,
                                                       const Auth& auth, const ServerFacts& facts);
  ~Listener();  // Calls stop().

  // Takes ownership of a connection that the listener of the UNIX socket has accepted.
  void take(int connection);
  void set_serving(bool serving);
  // Accepts no more connections, and gives running streams a moment to finish.
  void stop();
  const std::string& tcp() const { return tcp_; }  // TCP address with the actual port.

 private:
  Listener(const ListenerOptions& options, Leases& leases, Recovery& recovery, Moves& moves,
           KeyStores& stores, const Auth& auth, const ServerFacts& facts);
  core::Status bind(const Limits& limits);

  const ListenerOptions options_;
  ComputeService compute_;
  AdminService admin_;
  StoreService store_;
  ReflectionService reflection_;
  std::shared_ptr<grpc::ServerCredentials> tcp_credentials_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> grpc_;
  std::string tcp_;
};

}  // namespace teletensor::server
