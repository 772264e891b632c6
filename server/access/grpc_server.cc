#include "server/access/grpc_server.h"

#include <grpc/grpc.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <utility>
#include <vector>

namespace teletensor::server {

namespace {

// Maximum size of incomplete messages and headers of all clients together.
constexpr std::size_t kQuotaBytes = 256ull << 20;

// Answers requests that are no message of their call. gRPC does so with UNIMPLEMENTED and no text,
// which would tell a client that the daemon is older than it and does not have the call.
class UndecodableRequest final : public grpc::experimental::Interceptor {
 public:
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
          status.error_message().empty()) {
        methods->ModifySendStatus(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                               "the request is not a message of this call"));
      }
    }
    methods->Proceed();
  }
};

// Only for unary calls: the messages of streams are decoded by the daemon's own code.
class UndecodableRequests final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* call) override {
    const bool unary = call->type() == grpc::experimental::ServerRpcInfo::Type::UNARY;
    return unary ? new UndecodableRequest : nullptr;
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
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<UndecodableRequests>());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
}

}  // namespace teletensor::server
