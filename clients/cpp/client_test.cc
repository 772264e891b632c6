// Tests the C++ client with a real daemon in the same process, including the engine and gRPC.
#include "clients/cpp/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "clients/cpp/credentials.h"
#include "engine/engine.h"
#include "server/server.h"
#include "server/testing.h"

namespace teletensor::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CppClient : public testing::Test {
 protected:
  CppClient() {
    engine::EngineOptions machine;
    machine.lanes = 2;
    machine.host_memory = 256u << 20;
    engine_ = engine::Engine::create(machine);
    server::ServerOptions options;
    options.config.listen = "";
    options.config.socket = folder_.path + "/d.sock";
    options.version = "test";
    auto started = server::Server::start(*engine_, options);
    EXPECT_TRUE(started.ok()) << started.status().message();
    server_ = std::move(*started);
  }
  Connection open(Options options = {}) {
    return Connection::open("unix:" + server_->socket(), options);
  }
  std::uint64_t used() const { return engine_->memory()[0].device_used; }

  server::testing::Folder folder_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<server::Server> server_;
};

template <class Work>
Error error_of(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(0, "");
}

const std::vector<float> kSix = {1, 2, 3, 4, 5, 6};

TEST_F(CppClient, OperatorsAndOpsByName) {
  const Connection c = open();
  EXPECT_THAT(c.devices(), ElementsAre("cpu"));
  const Tensor x = c.tensor(kSix, {2, 3});
  EXPECT_EQ(x.shape(), (Shape{2, 3}));
  EXPECT_EQ(x.dtype(), "float32");
  EXPECT_THAT((x * 2 + 1).to_floats(), ElementsAre(3, 5, 7, 9, 11, 13));
  EXPECT_THAT((-x / x - 0.5).to_floats(), ElementsAre(-1.5, -1.5, -1.5, -1.5, -1.5, -1.5));
  EXPECT_THAT(x.call("sum", {Shape{1}}).to_floats(), ElementsAre(6, 15));
  EXPECT_EQ(x.call("sum", {}, {{"dim", 0}, {"keepdim", true}}).shape(), (Shape{1, 3}));
  EXPECT_EQ(x.sum().item(), 21);
  EXPECT_EQ((x.call("gt", {2.5})).sum().item(), 4);
  EXPECT_THAT(x.matmul(x.call("transpose", {0, 1})).to_floats(), ElementsAre(14, 32, 32, 77));
  EXPECT_EQ(c.call("cat", {std::vector<Tensor>{x, x}, 0}).shape(), (Shape{4, 3}));
  const std::vector<Tensor> halves = c.call_all("max_dim", {x, 1});
  ASSERT_EQ(halves.size(), 2u);
  EXPECT_THAT(halves[1].to_ints(), ElementsAre(2, 2));
}

TEST_F(CppClient, InPlaceWritesAreSeenThroughViews) {
  const Connection c = open();
  const Tensor x = c.zeros({2, 3});
  const Tensor row = x.call("select", {0, 1});
  row.call_("add", {1.0});
  EXPECT_THAT(x.to_floats(), ElementsAre(0, 0, 0, 1, 1, 1));
}

TEST_F(CppClient, GradientsAndAStep) {
  const Connection c = open();
  const Tensor x = c.tensor(kSix, {2, 3});
  const Tensor w = c.tensor(std::vector<float>{1, 1, 1}, {3, 1}).requires_grad();
  EXPECT_TRUE(w.is_grad_required() && !x.is_grad_required() && !w.grad().defined());
  SGD optimizer({w}, 0.5, 0.9);
  for (int step = 0; step < 2; ++step) {  // The gradient is (5, 7, 9) in each step.
    optimizer.zero_grad();
    x.matmul(w).sum().backward();
    EXPECT_THAT(w.grad().to_floats(), ElementsAre(5, 7, 9));
    optimizer.step();
  }
  // Expected value: 1 - 0.5 g - 0.5 (0.9 g + g), with the gradient g.
  EXPECT_THAT(w.to_floats(), ElementsAre(testing::FloatEq(-6.25f), testing::FloatEq(-9.15f),
                                         testing::FloatEq(-12.05f)));
  {
    const NoGrad no_grad;
    EXPECT_FALSE((w * 2).is_grad_required());
  }
  EXPECT_TRUE((w * 2).is_grad_required());
}

TEST_F(CppClient, EagerErrorsAreRaisedAtTheCall) {
  const Connection c = open();
  const Tensor x = c.tensor(kSix, {2, 3});
  const Error shapes = error_of([&] { x.matmul(x); });
  EXPECT_EQ(shapes.code(), Error::kInvalid);
  EXPECT_THAT(shapes.what(), HasSubstr("[2, 3]"));
  EXPECT_THAT(error_of([&] { x.call("frobnicate"); }).what(), HasSubstr("frobnicate"));
  EXPECT_THAT(error_of([&] {
                x.call("sum", {}, {{"dimension", 1}});
              }).what(),
              HasSubstr("'dimension' is unknown"));
  EXPECT_THAT(error_of([&] { x.call("sum", {"all"}); }).what(), HasSubstr("'dim' must be"));
  EXPECT_THAT(error_of([&] { c.tensor(kSix, {7}); }).what(), HasSubstr("do not fit"));
  EXPECT_THAT(error_of([&] { Tensor().shape(); }).what(), HasSubstr("absent"));
  EXPECT_THAT(error_of([&] { x.backward(); }).what(), HasSubstr("grad"));
  EXPECT_EQ(x.sum().item(), 21);
}

// If such a command were sent, the daemon would treat the client as broken and end the session.
TEST_F(CppClient, ADeviceThatTheDaemonHasNotIsAnErrorOfItsLine) {
  const Connection c = open();
  const std::string bytes(4, '\0'), many(1 << 20, '\0');
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { c.tensor(bytes, "float32", {1}, "cuda:7"); },
           [&] { c.tensor(many, "float32", {1 << 18}, "cuda:7"); },
           [&] {
             c.call("full", {1.0, Shape{2}}, {{"device", DeviceName{"cuda:7"}}});
           }}) {
    const Error error = error_of(use);
    EXPECT_EQ(error.code(), Error::kInvalid);
    EXPECT_THAT(error.what(), HasSubstr("device cuda:7 is not on this daemon; it has cpu"));
  }
  EXPECT_EQ(c.tensor(kSix, {6}).sum().item(), 21);
}

TEST_F(CppClient, ANameThatIsNoneIsAnErrorOfItsLine) {
  const Connection c = open();
  const Tensor x = c.tensor(kSix, {6});
  for (const std::string& bad : {std::string(), std::string("a\0b", 3), std::string(201, 'a')}) {
    for (const auto& use : std::vector<std::function<void()>>{
             [&] { c.publish(bad, x); }, [&] { c.published(bad); }, [&] { c.unpublish(bad); }}) {
      EXPECT_THAT(error_of(use).what(), HasSubstr("a name: 1 to 200 characters"));
    }
  }
  EXPECT_THAT(error_of([&] { c.publish("x", x, false, "bob\n"); }).what(), HasSubstr("users: "));
  EXPECT_EQ(x.sum().item(), 21);
}

TEST_F(CppClient, AFolderIsNoProgram) {
  const Connection c = open();
  EXPECT_THAT(error_of([&] { Program::load(c, folder_.path); }).what(), HasSubstr("cannot open"));
}

TEST_F(CppClient, LateErrorsNameTheOpAndTheLine) {
  const Connection c = open();
  const Tensor x = c.tensor(kSix, {2, 3});
  const Tensor bad = c.tensor(std::vector<std::int64_t>{0, 5}, {2});
  const int line = __LINE__ + 1;
  const Tensor chosen = x.call("index_select", {}, {{"dim", 0}, {"index", bad}});
  const Tensor later = chosen + 1;
  const Error late = error_of([&] { later.sum().item(); });
  EXPECT_THAT(late.what(), HasSubstr("issued by index_select at "));
  EXPECT_THAT(late.what(), HasSubstr("client_test.cc:" + std::to_string(line) + ")"));
  EXPECT_EQ(x.sum().item(), 21);
}

TEST_F(CppClient, OutOfMemoryIsAnErrorOfOneInstruction) {
  const Connection c =
      open({.name = "", .memory = 1u << 20, .token = "", .timeout = 240, .lease = 30});
  const Tensor x = c.zeros({150'000});
  const Tensor second = x + 1;
  const Error error = error_of([&] { c.synchronize(); });
  EXPECT_EQ(error.code(), Error::kOutOfMemory);
  EXPECT_THAT(error.what(), HasSubstr("(issued by add)"));
  EXPECT_EQ(x.sum().item(), 0);
}

TEST_F(CppClient, APublishedTemporaryStaysUntilItIsWithdrawn) {
  const Connection writer = open(), reader = open();
  const auto seen = [&] { return reader.published("temporary").sum().item(); };
  writer.publish("temporary", writer.tensor(kSix, {2, 3}));
  writer.synchronize();
  EXPECT_EQ(seen(), 21);
  reader.synchronize();  // No other session holds the published tensor at this point.
  EXPECT_EQ(seen(), 21);
  writer.publish("temporary", writer.tensor(kSix, {6}) * 2);
  writer.synchronize();
  EXPECT_EQ(seen(), 42);
  writer.unpublish("temporary");
  EXPECT_EQ(error_of(seen).code(), 5);
  writer.publish("temporary", writer.tensor(kSix, {6}));
  EXPECT_EQ(seen(), 21);
  writer.close();
  reader.synchronize();
  EXPECT_TRUE(server::testing::eventually([&] {
    try {
      seen();
      return false;
    } catch (const Error& error) {
      return error.code() == 5;
    }
  }));
}

TEST_F(CppClient, AWithdrawnOrRefusedTensorIsNotHeld) {
  const Connection writer = open(), other = open();
  const Shape big{1'000'000};
  const auto freed = [this] {
    return server::testing::eventually([&] { return used() < 1'000'000; });
  };
  writer.publish("big", writer.zeros(big));
  writer.synchronize();
  EXPECT_GE(used(), 4'000'000u);
  writer.publish("big", writer.zeros({1}));
  writer.synchronize();
  EXPECT_TRUE(freed());
  EXPECT_THAT(error_of([&] { other.publish("big", other.zeros(big)); }).what(),
              HasSubstr("another session of"));
  other.synchronize();
  EXPECT_TRUE(freed());
  writer.publish("big", writer.zeros(big));
  writer.unpublish("big");
  writer.synchronize();
  EXPECT_TRUE(freed());
}

TEST_F(CppClient, PublishedTensorsAreOneMemory) {
  const Connection writer = open(), reader = open();
  const Tensor x = writer.tensor(kSix, {2, 3});
  writer.publish("weights/x", x, true);
  const Tensor seen = reader.published("weights/x");
  EXPECT_EQ(seen.shape(), (Shape{2, 3}));
  EXPECT_EQ(seen.sum().item(), 21);
  x.call_("add", {1.0});
  writer.synchronize();
  EXPECT_EQ(seen.sum().item(), 27);
  seen.call_("mul", {2.0});
  reader.synchronize();
  EXPECT_THAT(x.to_floats(), ElementsAre(4, 6, 8, 10, 12, 14));
  EXPECT_EQ(error_of([&] { reader.published("weights/y"); }).code(), 5);
  writer.unpublish("weights/x");
  EXPECT_THAT(error_of([&] { reader.published("weights/x"); }).what(), HasSubstr("weights/x"));
  EXPECT_EQ(seen.sum().item(), 54);  // A session that uses the tensor keeps it.
}

TEST_F(CppClient, BulkGoesBothWays) {
  const Connection c = open();
  std::vector<float> values(3'000'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  const Tensor x = c.tensor(values, {3000, 1000});
  EXPECT_EQ(x.to_floats(), values);
  EXPECT_EQ((x + 1).call("mean", {Shape{1}}).to_floats()[7], 500.5f);
}

TEST_F(CppClient, MemoryComesBack) {
  {
    const Connection c = open();
    std::vector<Tensor> kept;
    for (int i = 0; i < 10; ++i) kept.push_back(c.randn({100'000}));
    c.synchronize();
    EXPECT_GE(used(), 4'000'000u);
    kept.clear();
    c.synchronize();
    EXPECT_LT(used(), 1'000'000u);
    kept.push_back(c.randn({100'000}));
  }
  EXPECT_TRUE(server::testing::eventually([&] { return used() == 0; }));
}

TEST_F(CppClient, ThreadsTakeTurns) {
  const Connection c = open();
  const Tensor x = c.tensor(kSix, {6});
  std::vector<std::thread> threads;
  std::vector<double> got(4);
  for (std::size_t t = 0; t < got.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) got[t] = (x * static_cast<int>(t)).sum().item();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(got, ElementsAre(0, 21, 42, 63));
}

TEST_F(CppClient, ADaemonThatStopsIsAnError) {
  const Connection c = open();
  const Tensor x = c.tensor(kSix, {6});
  EXPECT_EQ(x.sum().item(), 21);
  server_->stop();
  EXPECT_EQ(error_of([&] { x.sum().item(); }).code(), Error::kLost);
  EXPECT_EQ(error_of([&] {
              Options options;
              options.timeout = 0.2;
              open(options);
            }).code(),
            Error::kLost);
}

TEST(CppAddress, WhatIsNoneIsRefusedBeforeGrpcSeesIt) {
  Options options;
  options.timeout = 0.1;
  for (const char* bad :
       {"", "nowhere", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:", ":1", "127.0.0.1:1x",
        "tls://host:0", "unix:", "http://localhost:1", "tcp://localhost:1"}) {
    const Error error = error_of([&] { Connection::open(bad, options); });
    EXPECT_EQ(error.code(), Error::kInvalid) << bad;
    EXPECT_THAT(error.what(), HasSubstr("address \"" + std::string(bad) + "\": ")) << bad;
  }
  EXPECT_EQ(error_of([&] { Connection::open("unix:/" + std::string(107, 'x'), options); }).code(),
            Error::kInvalid);
  const Error nobody = error_of([&] { Connection::open("127.0.0.1:1", options); });
  EXPECT_THAT(nobody.what(), HasSubstr("no teletensord answers at 127.0.0.1:1"));
  for (const double wrong : {0.0, -1.0, 1e300, std::nan("")}) {
    options.timeout = wrong;
    EXPECT_THAT(error_of([&] { Connection::open("127.0.0.1:1", options); }).what(),
                HasSubstr("timeout"));
  }
}

TEST(CppAddress, EncryptedUnlessItStaysOnThisMachine) {
  for (const char* own :
       {"127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:/x", "/x"}) {
    EXPECT_FALSE(credentials_of(own, {}).tls) << own;
  }
  for (const char* far : {"tls://127.0.0.1:1", "example.org:1", "192.0.2.1:1", "127.example.org:1",
                          "[2001:db8::1]:1", "localhost.example.org:1"}) {
    EXPECT_TRUE(credentials_of(far, {}).tls) << far;
  }
  Options options;
  options.ca = "/proc/self/comm";  // A file that exists and is not a certificate.
  EXPECT_TRUE(credentials_of("localhost:1", options).tls);
}

TEST_F(CppClient, ATokenThatNoHeaderCanHoldIsAnError) {
  Options options;
  for (const std::string& bad :
       {std::string("a\nb"), std::string("a\0b", 3), std::string("\xff"), std::string(1001, 'a')}) {
    options.token = bad;
    const Error error = error_of([&] { open(options); });
    EXPECT_EQ(error.code(), Error::kInvalid);
    EXPECT_THAT(error.what(), HasSubstr("printable ASCII"));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("aa")));
  }
  options.token = "tt_nobody\n";  // A token as in a file, with a line break that is not part of it.
  EXPECT_THAT(error_of([&] { open(options); }).what(), HasSubstr("unknown, expired or revoked"));
}

}  // namespace
}  // namespace teletensor::client
