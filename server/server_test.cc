// Tests the server in-process, with a fake engine and real gRPC: what clients may do wrong, and the
// effect on them, on other clients and on memory.
#include "server/server_test.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <random>
#include <thread>

namespace teletensor::server {
namespace {

// ---------------------------------------------------------------- normal sessions

TEST_F(ServerTest, HelloThenRunThenClose) {
  start();
  Client client(tcp());
  ASSERT_TRUE(client.hello().ok());
  EXPECT_EQ(client.greeting.token().size(), 32u);
  EXPECT_EQ(client.greeting.server_version(), "1.2.3");
  EXPECT_EQ(client.greeting.session_name(), "session-1");
  EXPECT_GT(client.greeting.server_epoch(), 0u);
  EXPECT_EQ(client.greeting.devices(0).name(), "cpu");
  EXPECT_EQ(client.greeting.limits().inline_bytes(), 65536u);
  EXPECT_EQ(client.greeting.unsupported_ops_size(), 0);
  client.attach();
  ASSERT_TRUE(client.send({constant(), constant(), program::Fetch{2, false}}));
  auto progress = client.progress();
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->fetched.at(0).seq, 3u);
  EXPECT_EQ(progress->fetched.at(0).shape, core::Dims({2}));
  client.run->WritesDone();
  EXPECT_TRUE(client.finish().ok());
  EXPECT_TRUE(all_gone());
}

TEST_F(ServerTest, UnixSocketIsPrivateAndGoesWithTheServer) {
  start();
  struct stat info {};
  ASSERT_EQ(stat(server->socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  Client client("unix:" + server->socket());
  EXPECT_TRUE(client.hello().ok());
  const std::string path = server->socket();
  server.reset();
  EXPECT_NE(stat(path.c_str(), &info), 0);
}

TEST_F(ServerTest, ASocketThatIsServedIsNotTaken) {
  start();
  ServerOptions options;
  options.config.listen = "";
  options.config.socket = server->socket();
  const auto second = Server::start(engine, options);
  EXPECT_EQ(second.status().code(), core::Code::kAlreadyExists);
  options.config.listen = tcp();
  options.config.socket = "";
  const core::Status taken = Server::start(engine, options).status();
  EXPECT_EQ(taken.code(), core::Code::kUnavailable);
  EXPECT_EQ(taken.message().find("cannot listen on " + tcp() + ": process " +
                                 std::to_string(getpid()) + " (server_test) listens there"),
            0u)
      << taken.message();
  expect_healthy();
}

TEST_F(ServerTest, AStaleSocketIsReplaced) {
  const std::string path = folder.path + "/d.sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(fd);
  start();
  Client client("unix:" + path);
  EXPECT_TRUE(client.hello().ok());
}

TEST_F(ServerTest, ErrorsAndRaisesArrive) {
  start();
  Client client(tcp());
  client.open();
  ASSERT_TRUE(client.send({program::Raise{7}}));
  const auto progress = client.progress();
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->raised.at(0).seq, 1u);
  EXPECT_EQ(progress->raised.at(0).rebinds.at(0), 7u);
  // The session is named by its token.
  v1::InterruptReply reply;
  ASSERT_TRUE(client.stub->Interrupt(client.context().get(), {}, &reply).ok());
  auto interrupted = client.progress();
  while (interrupted && interrupted->errors.empty()) interrupted = client.progress();
  ASSERT_TRUE(interrupted.has_value());
  EXPECT_EQ(interrupted->errors.at(0).status.code(), core::Code::kCancelled);
}

TEST_F(ServerTest, ManyFramesFlowWithinTheCredits) {
  Limits limits;
  limits.credit_instructions = 64;
  start(limits);
  Client client(tcp());
  client.open();
  std::uint64_t granted = client.greeting.limits().credit_upto();
  for (std::uint64_t sent = 0; sent < 5000;) {
    while (sent + 16 > granted) {
      const auto progress = client.progress();
      ASSERT_TRUE(progress.has_value());
      granted = progress->credit_upto;
    }
    ASSERT_TRUE(client.send(std::vector<Command>(16, program::Raise{1})));
    sent += 16;
  }
  EXPECT_TRUE(eventually([this] { return books.get(&testing::Books::commands) >= 5000; }));
}

TEST_F(ServerTest, AdminAndDescribe) {
  start();
  Client client(tcp());
  v1::HelloRequest hello = Client::request();
  hello.set_session_name("notebook of A");
  ASSERT_TRUE(client.hello(hello).ok());
  client.attach();
  const auto channel = grpc::CreateChannel(tcp(), grpc::InsecureChannelCredentials());
  const auto admin = v1::Admin::NewStub(channel);
  v1::SessionsReply sessions;
  grpc::ClientContext first, second, third;
  ASSERT_TRUE(admin->Sessions(&first, {}, &sessions).ok());
  ASSERT_EQ(sessions.sessions_size(), 1);
  EXPECT_EQ(sessions.sessions(0).name(), "notebook of A");
  EXPECT_EQ(sessions.sessions(0).handles(), 42u);
  EXPECT_EQ(sessions.sessions(0).memory(0).peak(), 2u);
  v1::MemoryReply memory;
  ASSERT_TRUE(admin->Memory(&second, {}, &memory).ok());
  EXPECT_EQ(memory.devices(0).device(), "cpu");
  v1::DescribeReply about;
  ASSERT_TRUE(client.stub->Describe(&third, {}, &about).ok());
  EXPECT_EQ(about.ops_size(), 2);
  EXPECT_EQ(about.sessions(), 1u);
  EXPECT_EQ(about.server_version(), "1.2.3");
}

// ---------------------------------------------------------------- Hello

TEST_F(ServerTest, HelloSaysWhatDoesNotFit) {
  start();
  Client client(tcp());
  const auto refused = [&](const v1::HelloRequest& request, const std::string& part) {
    const grpc::Status status = client.hello(request);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.error_message().find(part), std::string::npos) << status.error_message();
  };
  v1::HelloRequest request = Client::request();
  request.set_protocol_min(wire::kProtocol + 1);
  request.set_protocol_max(wire::kProtocol + 2);
  refused(request, "speaks protocol 3 to 4");
  request.set_protocol_min(0);
  request.set_protocol_max(wire::kProtocolMin - 1);
  refused(request, "speaks protocol 0, server 1.2.3 speaks 1 to 2: install a newer client");
  request.set_protocol_min(2);
  request.set_protocol_max(1);
  refused(request, "protocol_min is 2, above protocol_max, which is 1");
  request = Client::request();
  request.clear_ops();
  refused(request, "table of operators");
  request = Client::request();
  request.set_session_name("a\nb");
  refused(request, "session name");
  EXPECT_EQ(books.get(&testing::Books::sessions), 0);
}

TEST_F(ServerTest, OpsOfAnotherCatalogAreNamed) {
  start();
  Client client(tcp());
  v1::HelloRequest request = Client::request();
  request.mutable_ops(0)->set_revision(9);
  request.mutable_ops(1)->set_name("frobnicate");
  ASSERT_TRUE(client.hello(request).ok());
  ASSERT_EQ(client.greeting.unsupported_ops_size(), 2);
  EXPECT_EQ(client.greeting.unsupported_ops(1), "frobnicate (revision 1)");
  client.attach();
  program::Apply apply;
  apply.op = 1;
  client.send({apply});
  const grpc::Status status = client.finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_NE(status.error_message().find("no op frobnicate"), std::string::npos);
}

TEST_F(ServerTest, SessionsAreCounted) {
  Limits limits;
  limits.sessions = 2;
  start(limits);
  Client a(tcp()), b(tcp()), c(tcp());
  a.open();
  b.open();
  EXPECT_EQ(c.hello().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  a.cut();
  EXPECT_TRUE(eventually([&] { return c.hello().ok(); }));
}

TEST_F(ServerTest, WantOfRoomEndsADetachedSessionOfTheSameUserOnly) {
  Limits limits;
  limits.sessions = 1;
  limits.lease = 60s;
  limits.safe = 20ms;
  start(limits);
  Client first("unix:" + server->socket());
  first.open();
  first.cut();
  const auto refused = [&](const std::string& target) {
    Client other(target);
    return other.hello().error_code() == StatusCode::RESOURCE_EXHAUSTED;
  };
  EXPECT_TRUE(
      eventually([&] { return !server->leases().table().all().at(0)->streams().attached(); }));
  std::this_thread::sleep_for(2 * limits.safe);  // The session's client has had its time to return.
  // A session of another user is never ended.
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(refused(tcp()));
  EXPECT_EQ(server->leases().table().all().at(0)->token, first.greeting.token());
  EXPECT_TRUE(eventually([&] { return !refused("unix:" + server->socket()); }));
}

TEST_F(ServerTest, UsersHaveLimitsOfTheirOwn) {
  Limits limits;
  limits.session_memory = 8 << 20;
  limits.user_sessions = 5;
  limits.users["anonymous"] = {.sessions = 2, .memory = 0, .session_memory = 1 << 20, .weight = 1};
  start(limits);
  Client own("unix:" + server->socket()), one(tcp()), two(tcp()), three(tcp());
  EXPECT_TRUE(own.hello().ok());
  EXPECT_EQ(own.greeting.memory_quota(), 8u << 20);
  v1::HelloRequest request = Client::request();
  request.set_memory_quota(4 << 20);
  EXPECT_TRUE(one.hello(request).ok());
  EXPECT_EQ(one.greeting.memory_quota(), 1u << 20);
  request.set_memory_quota(4096);
  EXPECT_TRUE(two.hello(request).ok());
  EXPECT_EQ(two.greeting.memory_quota(), 4096u);
  EXPECT_EQ(three.hello().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  Client again("unix:" + server->socket());
  EXPECT_TRUE(again.hello().ok());
}

TEST_F(ServerTest, AHelloThatIsNotFollowedByRunEnds) {
  Limits limits;
  limits.attach = 100ms;
  start(limits);
  Client client(tcp());
  ASSERT_TRUE(client.hello().ok());
  EXPECT_TRUE(all_gone());
  client.attach();
  const grpc::Status status = client.finish();
  EXPECT_EQ(status.error_code(), StatusCode::ABORTED);
  EXPECT_NE(status.error_message().find("no Run stream"), std::string::npos);
}

// ---------------------------------------------------------------- tokens

TEST_F(ServerTest, CallsWithoutOrWithAWrongToken) {
  start();
  Client client(tcp());
  client.greeting.set_token("0123456789abcdef0123456789abcdef");
  client.attach();
  EXPECT_EQ(client.finish().error_code(), StatusCode::NOT_FOUND);
  v1::UploadReply reply;
  EXPECT_EQ(client.upload({}, &reply).error_code(), StatusCode::NOT_FOUND);
  grpc::ClientContext bare;
  v1::InterruptReply interrupt;
  EXPECT_EQ(client.stub->Interrupt(&bare, {}, &interrupt).error_code(),
            StatusCode::INVALID_ARGUMENT);
  v1::DownloadChunk chunk;
  const auto context = client.context();
  EXPECT_EQ(client.stub->Download(context.get(), {})->Finish().error_code(), StatusCode::NOT_FOUND);
}

TEST_F(ServerTest, OneRunStreamASession) {
  start();
  Client client(tcp()), thief(tcp());
  client.open();
  ASSERT_TRUE(client.send({constant()}));
  ASSERT_TRUE(client.progress().has_value());
  thief.greeting = client.greeting;
  thief.attach();
  EXPECT_EQ(thief.finish().error_code(), StatusCode::ALREADY_EXISTS);
  ASSERT_TRUE(client.send({program::Fetch{1, false}}));
  EXPECT_TRUE(client.progress().has_value());
}

// ---------------------------------------------------------------- bad frames

TEST_F(ServerTest, BrokenFramesEndTheirSessionOnly) {
  start();
  Client other(tcp());
  other.open();
  const auto none_but_other = [&] {
    return eventually([this] { return books.get(&testing::Books::sessions) == 1; });
  };
  const auto ends = [&](const std::string& bytes, StatusCode code, const std::string& part) {
    Client client(tcp());
    client.open();
    client.send(bytes);
    const grpc::Status status = client.finish();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_NE(status.error_message().find(part), std::string::npos) << status.error_message();
    EXPECT_TRUE(none_but_other());
  };
  ends("random bytes, no frame", StatusCode::INVALID_ARGUMENT, "frame");
  ends("", StatusCode::INVALID_ARGUMENT, "start at 1");
  ends(frame({constant()}).substr(0, 12), StatusCode::INVALID_ARGUMENT, "truncated");
  ends(frame({constant()}, 2), StatusCode::FAILED_PRECONDITION, "out of order");
  ends(frame({constant()}, 1, 2), StatusCode::FAILED_PRECONDITION, "attach");
  ends(frame({program::SetData{0, 0}}), StatusCode::INVALID_ARGUMENT, "set_data");
  ends(std::string((1 << 20) + 1, 'x'), StatusCode::RESOURCE_EXHAUSTED, "bytes");
  ends(std::string(3 << 20, 'x'), StatusCode::RESOURCE_EXHAUSTED, "larger than max");
  ASSERT_TRUE(other.send({constant(), program::Fetch{1, false}}));
  EXPECT_TRUE(other.progress().has_value());
}

TEST_F(ServerTest, RandomFramesNeverHurt) {
  start();
  std::mt19937_64 random(5);
  const std::string good = frame({constant(), program::Fetch{1, false}, program::Raise{1}});
  for (int i = 0; i < 60; ++i) {
    Client client(tcp());
    client.open();
    std::string bytes = good;
    for (int n = 0; n < 3; ++n) bytes[random() % bytes.size()] = static_cast<char>(random());
    bytes.resize(random() % (bytes.size() + 1));
    client.send(bytes);
    client.run->WritesDone();
    (void)client.finish();
  }
  EXPECT_TRUE(all_gone());
  expect_healthy();
}

TEST_F(ServerTest, CreditsThatAreIgnoredEndTheSession) {
  Limits limits;
  limits.credit_instructions = 10;
  start(limits);
  expect_ends(frame(std::vector<Command>(11, program::Raise{1})), StatusCode::RESOURCE_EXHAUSTED,
              "credits");
}

TEST_F(ServerTest, CompressedMessagesAreRefused) {
  start();
  Client client(tcp());
  ASSERT_TRUE(client.hello().ok());
  auto context = client.context();
  context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::UploadReply reply;
  const auto stream = client.stub->Upload(context.get(), &reply);
  v1::UploadChunk chunk;
  chunk.set_bytes(100'000);
  chunk.set_data(std::string(100'000, 'a'));
  stream->Write(chunk);
  stream->WritesDone();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(books.get(&testing::Books::upload_bytes), 0);
}

// ---------------------------------------------------------------- clients that disconnect

TEST_F(ServerTest, ACutStreamGivesEverythingBack) {
  start();
  for (int i = 0; i < 5; ++i) {
    Client client(tcp());
    client.open();
    ASSERT_TRUE(client.send({constant()}));
    client.cut();
  }
  EXPECT_TRUE(all_gone());
}

TEST_F(ServerTest, ACutWhileTheEngineHoldsTheFrame) {
  start();
  {
    core::MutexLock lock(books.mutex);
    books.hold_done = true;
  }
  {
    Client client(tcp());
    client.open();
    ASSERT_TRUE(client.send({constant()}));
  }
  EXPECT_TRUE(all_gone());
}

TEST_F(ServerTest, AClientThatNeverReadsIsEnded) {
  Limits limits;
  limits.stall = 300ms;
  start(limits);
  Client client(tcp());
  client.open();
  // Values of 64 KiB fill the connection's windows, and then the outbox.
  const std::vector<Command> fetches(50, program::Fetch{1, false});
  std::vector<Command> handles(16'384, constant());
  for (std::size_t at = 0; at < handles.size(); at += 4096) {
    ASSERT_TRUE(client.send(std::vector<Command>(handles.begin(), handles.begin() + 4096)));
  }
  // Credits for those commands are granted only to a client that reads; so the client reads once,
  // and then never again.
  while (client.progress()->completed_upto < handles.size()) {
  }
  ASSERT_TRUE(client.send(std::vector<Command>(200, program::Fetch{16'000, false})));
  EXPECT_TRUE(all_gone());
  expect_healthy();
}

TEST_F(ServerTest, ShutdownEndsEverybody) {
  start();
  Client client(tcp());
  client.open();
  ASSERT_TRUE(client.send({constant()}));
  ASSERT_TRUE(client.progress().has_value());
  std::thread stopping([this] { server->stop(); });
  const grpc::Status status = client.finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << status.error_message();
  stopping.join();
  EXPECT_EQ(books.get(&testing::Books::sessions), 0);
}

TEST_F(ServerTest, ARefusedHelloHasItsReasonInAWord) {
  start();
  Client client("unix:" + server->socket());
  client.open();
  const auto refusal = [&] {
    v1::HelloRequest request = Client::request();
    request.set_session_name("n");
    request.set_take_over(true);
    grpc::ClientContext context;
    v1::HelloReply reply;
    const grpc::Status status = client.stub->Hello(&context, request, &reply);
    EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << status.error_message();
    return reason(context);
  };
  Leases& leases = server->leases();
  const std::string user = leases.table().all().front()->client.user;
  ASSERT_TRUE(leases.moved_sessions().expect("token", user, "n"));
  EXPECT_EQ(refusal(), "arriving");
  leases.moved_sessions().arrived("token");
  leases.table().close();
  EXPECT_EQ(refusal(), "daemon");
}

}  // namespace
}  // namespace teletensor::server
