// Fixture of the server's tests: a server in this process with a fake engine, and clients that send
// arbitrary bytes through real gRPC.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "proto/wire/frame.h"
#include "proto/wire/progress.h"
#include "proto/wire/protocol.h"
#include "server/server.h"
#include "server/testing.h"

namespace teletensor::server {

using namespace std::chrono_literals;
using grpc::StatusCode;
using program::Command;
using testing::eventually;
using testing::reason;
using testing::text_of;

// One session: sends Hello, and optionally opens a Run stream that carries arbitrary bytes.
class Client {
 public:
  using Stream = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

  explicit Client(const std::string& target)
      : channel_(grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), options())),
        stub(v1::Compute::NewStub(channel_)) {}
  ~Client() { cut(); }

  static v1::HelloRequest request() {
    v1::HelloRequest hello;
    hello.set_protocol_min(wire::kProtocol);
    hello.set_protocol_max(wire::kProtocol);
    hello.set_attach_counter(1);
    for (const auto& [name, revision] : {std::pair("exp", 2u), std::pair("add", 1u)}) {
      v1::Op& op = *hello.add_ops();
      op.set_name(name);
      op.set_revision(revision);
    }
    return hello;
  }
  grpc::Status hello(const v1::HelloRequest& request = Client::request()) {
    grpc::ClientContext context;
    return stub->Hello(&context, request, &greeting);
  }
  std::unique_ptr<grpc::ClientContext> context() const {
    auto context = std::make_unique<grpc::ClientContext>();
    context->AddMetadata("teletensor-token", greeting.token());
    return context;
  }
  void attach() {
    const grpc::internal::RpcMethod method("/teletensor.v1.Compute/Run",
                                           grpc::internal::RpcMethod::BIDI_STREAMING);
    context_ = context();
    using Factory = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>;
    run.reset(Factory::Create(channel_.get(), method, context_.get()));
  }
  void open() {
    const grpc::Status status = hello();
    ASSERT_TRUE(status.ok()) << status.error_message();
    attach();
  }

  bool send(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    return run && run->Write(grpc::ByteBuffer(&slice, 1));
  }
  // Sends commands as a frame that follows the last one.
  bool send(const std::vector<Command>& commands) {
    writer.begin(next_seq, next_id);
    for (const Command& command : commands) writer.append(command, wire::usual_made(command));
    next_seq = writer.next_seq();
    next_id = writer.next_id();
    return send(std::string(writer.finish(0, 1)));
  }
  // Returns the next progress message, or nothing when the stream has ended.
  std::optional<wire::Progress> progress() {
    grpc::ByteBuffer buffer;
    if (!run->Read(&buffer)) return std::nullopt;
    wire::Progress progress;
    EXPECT_TRUE(wire::decode_progress(text_of(buffer), progress).ok());
    return progress;
  }
  // Reads the remaining messages and returns the status with which the stream ended.
  grpc::Status finish() {
    while (progress()) {
    }
    const grpc::Status status = run->Finish();
    run.reset();
    return status;
  }
  void cut() {
    if (!run) return;
    context_->TryCancel();
    (void)finish();
  }

  grpc::Status upload(const std::vector<v1::UploadChunk>& chunks, v1::UploadReply* reply) {
    const auto context = this->context();
    const auto stream = stub->Upload(context.get(), reply);
    for (const v1::UploadChunk& chunk : chunks) {
      if (!stream->Write(chunk)) break;
    }
    stream->WritesDone();
    return stream->Finish();
  }

 private:
  static grpc::ChannelArguments options() {
    grpc::ChannelArguments arguments;
    // Each client uses its own connection.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    return arguments;
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::ClientContext> context_;

 public:
  std::unique_ptr<v1::Compute::Stub> stub;
  std::unique_ptr<Stream> run;
  v1::HelloReply greeting;
  wire::FrameWriter writer;
  std::uint64_t next_seq = 1, next_id = 1;
};

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() : engine(books) {}
  void start(Limits limits = {}) {
    ServerOptions options;
    options.config.listen = "127.0.0.1:0";
    options.config.allow_anonymous = true;
    options.config.socket = folder.path + "/d.sock";
    options.limits = limits;
    options.version = "1.2.3";
    auto started = Server::start(engine, options);
    ASSERT_TRUE(started.ok()) << started.status().message();
    server = std::move(*started);
  }
  std::string tcp() const { return server->tcp(); }
  bool all_gone() {
    return eventually([this] {
      return books.get(&testing::Books::sessions) == 0 &&
             books.get(&testing::Books::upload_bytes) == 0 &&
             server->leases().table().all().empty();
    });
  }
  // Checks that the server still serves a client from start to end.
  void expect_healthy() {
    Client client(tcp());
    client.open();
    ASSERT_TRUE(client.send({constant(), program::Fetch{1, false}}));
    const auto progress = client.progress();
    ASSERT_TRUE(progress.has_value());
    EXPECT_EQ(progress->fetched.at(0).data.size(), 4u);
    client.run->WritesDone();
    EXPECT_TRUE(client.finish().ok());
  }
  static program::Constant constant() { return {core::DType::kF32, {}, {1}, std::string(4, '\0')}; }
  // Checks that a session which sends `frame` ends with this code and a text that contains `part`,
  // and that nothing leaks.
  void expect_ends(const std::string& frame, StatusCode code, const std::string& part) {
    Client client(tcp());
    client.open();
    client.send(frame);
    const grpc::Status status = client.finish();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_NE(status.error_message().find(part), std::string::npos) << status.error_message();
    EXPECT_TRUE(all_gone());
  }
  static std::string frame(const std::vector<Command>& commands, std::uint64_t seq = 1,
                           std::uint64_t attach = 1) {
    wire::FrameWriter writer;
    writer.begin(seq, 1);
    for (const Command& command : commands) writer.append(command, wire::usual_made(command));
    return std::string(writer.finish(0, attach));
  }

  testing::Folder folder;
  testing::Books books;
  testing::FakeEngine engine;
  std::unique_ptr<Server> server;
};

}  // namespace teletensor::server
