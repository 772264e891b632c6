#include "server/listener.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>

#include "server/listen.h"

namespace teletensor::server {

using core::Code;
using core::Result;
using core::Status;

namespace {

// Maximum size of incomplete messages and headers of all clients together.
constexpr std::size_t kQuotaBytes = 256ull << 20;
// Time for running streams to finish when the listener stops.
constexpr std::chrono::milliseconds kGrace{500};

// Removes reflection from remote listeners. The reflection library adds itself to every server.
class NoReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins,
                  [](const auto& plugin) { return plugin->name() == "proto_server_reflection"; });
  }
};

}  // namespace

void hold_grpc() {
  static const bool held = (grpc_init(), true);
  (void)held;
}

// docs/wire.md describes the measured effect of each setting. Compression is refused, because a
// small message could expand into a large one.
void harden(grpc::ServerBuilder& builder, std::size_t message_bytes) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(message_bytes));
  builder.SetResourceQuota(grpc::ResourceQuota("teletensord").Resize(kQuotaBytes));
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 300'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 100);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8192);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 2000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

std::unique_ptr<grpc::ServerBuilderOption> without_reflection() {
  return std::make_unique<NoReflection>();
}

Listener::Listener(const ListenerOptions& options, Leases& leases, Recovery& recovery, Moves& moves,
                   KeyStores& stores, const Auth& auth, const ServerFacts& facts)
    : options_(options),
      compute_(leases, auth, options.entrance, facts),
      admin_(leases, recovery, moves, auth, options.entrance),
      store_(stores, auth, options.entrance) {}

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
  if (options_.entrance.remote) builder.SetOption(without_reflection());
  builder.RegisterService(&compute_);
  builder.RegisterService(&admin_);
  builder.RegisterService(&store_);
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
  for (const char* name :
       {"", "teletensor.v1.Compute", "teletensor.v1.Admin", "teletensor.v1.Store"}) {
    grpc_->GetHealthCheckService()->SetServingStatus(name, serving);
  }
}

void Listener::stop() {
  if (!grpc_) return;
  grpc_->GetHealthCheckService()->SetServingStatus(false);
  grpc_->Shutdown(std::chrono::system_clock::now() + kGrace);
  grpc_->Wait();
  grpc_.reset();
}

}  // namespace teletensor::server
