#include "server/net/listener.h"

#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <array>

#include "server/base/os/listen.h"

namespace teletensor::server {

using core::Code;
using core::Result;
using core::Status;

namespace {

// Time for running streams to finish when the listener stops.
constexpr std::chrono::milliseconds kGrace{500};
constexpr std::array kServices = {"teletensor.v1.Compute", "teletensor.v1.Admin",
                                  "teletensor.v1.Store"};

}  // namespace

Listener::Listener(const ListenerOptions& options, Leases& leases, Recovery& recovery, Moves& moves,
                   KeyStores& stores, const Auth& auth, const ServerFacts& facts)
    : options_(options),
      compute_(leases, auth, options.entrance, facts),
      admin_(leases, recovery, moves, auth, options.entrance),
      store_(stores, auth, options.entrance),
      reflection_(auth, options.entrance, {kServices.begin(), kServices.end()}) {}

Listener::~Listener() { stop(); }

Result<std::unique_ptr<Listener>> Listener::start(const ListenerOptions& options, Leases& leases,
                                                  Recovery& recovery, Moves& moves,
                                                  KeyStores& stores, const Auth& auth,
                                                  const ServerFacts& facts) {
  std::unique_ptr<Listener> listener(
      new Listener(options, leases, recovery, moves, stores, auth, facts));
  TT_RETURN_IF_ERROR(listener->bind(leases.limits()));
  return listener;
}

Status Listener::bind(const Limits& limits) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  harden(builder, std::max(limits.frame.bytes, limits.chunk_bytes) + (64 << 10));
  builder.RegisterService(&compute_);
  builder.RegisterService(&admin_);
  builder.RegisterService(&store_);
  builder.RegisterService(&reflection_);
  int port = 0;
  if (!options_.tcp.empty()) {
    tcp_credentials_ = options_.certificates ? credentials(options_.certificates)
                                             : grpc::InsecureServerCredentials();
    builder.AddListeningPort(options_.tcp, tcp_credentials_, &port);
  }
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  grpc_ = builder.BuildAndStart();
  if (!grpc_) {
    return Status(Code::kUnavailable,
                  "cannot listen on " + options_.tcp + ": " + why_not_free(options_.tcp));
  }
  if (!options_.tcp.empty()) {
    tcp_ = options_.tcp.substr(0, options_.tcp.rfind(':') + 1) + std::to_string(port);
  }
  return {};
}

void Listener::take(int connection) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters made;
  made.fd = connection;
  acceptor_->HandleNewConnection(&made);
}

void Listener::set_serving(bool serving) {
  grpc::HealthCheckServiceInterface& health = *grpc_->GetHealthCheckService();
  health.SetServingStatus("", serving);
  for (const char* name : kServices) health.SetServingStatus(name, serving);
}

void Listener::stop() {
  if (!grpc_) return;
  grpc_->GetHealthCheckService()->SetServingStatus(false);
  grpc_->Shutdown(std::chrono::system_clock::now() + kGrace);
  grpc_->Wait();
  grpc_.reset();
}

}  // namespace teletensor::server
