// Tests a connection whose session moves between two daemons in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "clients/cpp/client.h"
#include "clients/cpp/hello.h"
#include "clients/cpp/route.h"
#include "engine/engine.h"
#include "server/peer/peers.h"
#include "server/server.h"
#include "server/testing.h"

namespace teletensor::client {
namespace {

using testing::HasSubstr;

// A daemon with one peer. It connects to the peer at `address` if its own name is the smaller one.
struct Box {
  Box(const std::string& name, const std::string& peer, const std::string& address) {
    server::PeerOptions links;
    links.name = name;
    links.listen = "127.0.0.1:0";
    links.peers = {{peer, address}};
    peers = std::move(*server::Peers::create(links));
    engine::EngineOptions machine;
    machine.lanes = 2;
    machine.host_memory = 256u << 20;
    engine = engine::Engine::create(machine);
    auto* const groups = engine->connect(*peers);
    server::ServerOptions options;
    options.config.listen = "127.0.0.1:0";
    options.config.allow_anonymous = true;
    options.config.state_dir = folder.path;
    options.limits.lease = std::chrono::seconds(120);
    options.version = "1";
    options.peers = peers.get();
    options.config.move_from = {peer};
    auto started = server::Server::start(*engine, options);
    EXPECT_TRUE(started.ok()) << started.status().message();
    server = std::move(*started);
    EXPECT_TRUE(peers->start(*groups, &server->moves()).ok());
  }
  ~Box() {
    server->stop();
    peers->stop();
  }

  // Moves the only session to the peer.
  core::Status move(const std::string& peer) {
    std::promise<core::Status> moved;
    server->moves().move({server->leases().table().all().at(0), peer, server::testing::kHang,
                          [] { return true; },
                          [&](const auto& facts) { moved.set_value(facts.status()); }});
    return moved.get_future().get();
  }

  server::testing::Folder folder;
  std::unique_ptr<server::Peers> peers;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<server::Server> server;
};

TEST(CppMoving, BytesOnTheirWayFollowTheSession) {
  Box b("b", "a", "127.0.0.1:0"), a("a", "b", b.peers->address());
  Options options;
  options.lease = 120;
  const Connection c = Connection::open(a.server->tcp(), options);
  std::vector<float> values(500'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  const Tensor x = c.tensor(values, {1000, 500});
  const Tensor row = x.call("select", {0, 1});
  const Tensor w = c.tensor(std::vector<float>{1, 2}, {2}).requires_grad();
  const Tensor loss = (w * w).sum();

  std::atomic<bool> over{false};
  std::atomic<int> rounds{0};
  std::thread program([&] {
    while (!over) {
      EXPECT_EQ(c.tensor(values, {500'000}).to_floats(), values);
      ++rounds;
    }
  });
  Box* here = &a;
  Box* there = &b;
  for (int i = 0; i < 5; ++i) {
    const int before = rounds;
    EXPECT_TRUE(server::testing::eventually([&] { return rounds > before; }));
    const core::Status moved = here->move(here == &a ? "b" : "a");
    EXPECT_TRUE(moved.ok()) << moved.message();
    EXPECT_TRUE(server::testing::eventually(
        [&] { return there->server->leases().table().all().size() == 1; }));
    std::swap(here, there);
  }
  over = true;
  program.join();
  EXPECT_EQ(c.address(), b.server->tcp());
  loss.backward();
  EXPECT_EQ(w.grad().to_floats(), (std::vector<float>{2, 4}));
  row.call_("add", {1.0});
  EXPECT_EQ(x.to_floats()[500], values[500] + 1);
  c.close();
  EXPECT_TRUE(
      server::testing::eventually([&] { return b.server->leases().table().all().empty(); }));
}

TEST(CppMoving, WhereAConnectionFollows) {
  Options options;
  options.token = "secret";
  const Credentials far = credentials_of("box1.example:7420", options);
  const Credentials next = far.at("box2.example:7421");
  EXPECT_TRUE(next.tls);
  EXPECT_EQ(next.target, "box2.example:7421");
  EXPECT_EQ(next.token, "secret");
  const Credentials near = credentials_of("127.0.0.1:7420", options);
  EXPECT_FALSE(near.at("127.0.0.1:7421").tls);
  EXPECT_FALSE(near.at("unix:/run/x.sock").tls);
  EXPECT_TRUE(near.at("tls://127.0.0.1:7421").tls);
  EXPECT_TRUE(near.at("box2.example:7420").tls);
  EXPECT_TRUE(credentials_of("/run/x.sock", options).at("box2.example:7420").tls);

  Route route("box1.example:7420", far);
  const auto channel = route.channel();
  for (const char* own :
       {"127.0.0.1:7420", "localhost:1", "tls://[::1]:7420", "unix:/run/x.sock", "nowhere"}) {
    const core::Status refused = route.follow(own);
    EXPECT_EQ(refused.code(), core::Code::kInvalidArgument) << own;
    EXPECT_THAT(refused.message(), HasSubstr("address")) << own;
  }
  EXPECT_EQ(route.address(), "box1.example:7420");
  EXPECT_EQ(route.channel(), channel);
  EXPECT_TRUE(route.follow("box2.example:7421").ok());
  EXPECT_EQ(route.address(), "box2.example:7421");
  EXPECT_NE(route.channel(), channel);
}

}  // namespace
}  // namespace teletensor::client
