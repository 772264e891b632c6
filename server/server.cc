#include "server/server.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <spdlog/spdlog.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "server/listen.h"
#include "server/notify.h"

namespace teletensor::server {

using core::Code;
using core::Status;

namespace {

constexpr std::size_t kQuotaBytes = 256ull << 20;  // half-sent messages and headers, all clients
constexpr std::chrono::seconds kFirstAnswer{10};   // then the server is up, ready or not
constexpr std::chrono::milliseconds kGrace{500};   // for streams to end by themselves

// gRPC's own messages become ours.
void log_of_grpc(gpr_log_func_args* args) {
  const auto level =
      args->severity == GPR_LOG_SEVERITY_ERROR ? spdlog::level::warn : spdlog::level::debug;
  spdlog::log(level, "event=grpc text=\"{}\"", args->message);
}

std::uint64_t make_epoch() {
  std::uint64_t epoch = 0;
  if (getrandom(&epoch, sizeof epoch, 0) != static_cast<ssize_t>(sizeof epoch)) {
    epoch = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  }
  return epoch >> 1 | 1;  // never 0, and fits signed integers
}

// Against clients that send much, slowly or nothing; what each one does was measured, see
// docs/wire.md. Compression is refused: a small message must not become a large one.
void harden(grpc::ServerBuilder& builder, const Limits& limits) {
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::max(limits.frame.bytes, limits.chunk_bytes) + (64 << 10)));
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

}  // namespace

core::Result<std::unique_ptr<Server>> Server::start(engine::Engine& engine, ServerOptions options) {
  std::unique_ptr<Server> server(new Server(engine, std::move(options)));
  const Status status = server->bind();
  if (!status.ok()) return status;
  return server;
}

Server::Server(engine::Engine& engine, ServerOptions options)
    : options_(std::move(options)),
      facts_{options_.version, make_epoch(), Clock::now()},
      leases_(engine, options_.limits),
      compute_(leases_, auth_, facts_),
      admin_(leases_, auth_) {}

Server::~Server() { stop(); }

Status Server::bind() {
  if (options_.listen.empty() && options_.socket.empty()) {
    return core::invalid("neither an address nor a socket to listen on");
  }
  // Holds the library until the process ends: its own shutdown may wait 10 s for a poller of
  // connections that are gone (seen with 1.51).
  static const bool held = (grpc_init(), true);
  (void)held;
  gpr_set_log_function(log_of_grpc);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  harden(builder, options_.limits);
  builder.RegisterService(&compute_);
  builder.RegisterService(&admin_);
  int port = 0;
  if (!options_.listen.empty()) {
    TT_RETURN_IF_ERROR(check_loopback(options_.listen));
    builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(), &port);
  }
  int bound = 0;
  if (!options_.socket.empty()) {
    TT_RETURN_IF_ERROR(prepare_socket(options_.socket));
    builder.AddListeningPort("unix:" + options_.socket, grpc::InsecureServerCredentials(), &bound);
  }
  // The socket must never be open to others, not even for a moment.
  const mode_t mask = umask(0177);
  grpc_ = builder.BuildAndStart();
  umask(mask);
  if (!grpc_) {
    return Status(Code::kUnavailable,
                  "cannot listen on " + options_.listen +
                      (options_.listen.empty() || options_.socket.empty() ? "" : " or ") +
                      options_.socket + ": in use?");
  }
  if (!options_.socket.empty() && chmod(options_.socket.c_str(), 0600) != 0) {
    return Status(Code::kUnavailable, options_.socket + ": " + std::strerror(errno));
  }
  if (!options_.listen.empty()) {
    tcp_ = options_.listen.substr(0, options_.listen.rfind(':') + 1) + std::to_string(port);
  }
  set_serving(!options_.canary);
  if (options_.canary) {
    canary_ = std::make_unique<Canary>(leases_.engine(), [this](bool ready) {
      set_serving(ready);
      if (ready) notify_supervisor("WATCHDOG=1");
    });
    canary_->wait_for_first(kFirstAnswer);
    set_serving(canary_->ready());
  }
  return options_.http.empty() ? Status() : bind_http();
}

void Server::set_serving(bool serving) {
  for (const char* name : {"", "teletensor.v1.Compute", "teletensor.v1.Admin"}) {
    grpc_->GetHealthCheckService()->SetServingStatus(name, serving);
  }
}

Status Server::bind_http() {
  TT_RETURN_IF_ERROR(check_loopback(options_.http));
  if (!canary_) return core::invalid("http: needs the canary");
  auto http = HttpServer::start({options_.http, facts_.version}, leases_, auth_, *canary_);
  if (!http.ok()) return http.status();
  http_ = std::move(*http);
  return {};
}

void Server::stop() {
  if (!grpc_) return;
  http_.reset();
  canary_.reset();
  grpc_->GetHealthCheckService()->SetServingStatus(false);
  leases_.shutdown();
  grpc_->Shutdown(std::chrono::system_clock::now() + kGrace);
  grpc_->Wait();
  grpc_.reset();
  if (!options_.socket.empty()) unlink(options_.socket.c_str());
}

}  // namespace teletensor::server
