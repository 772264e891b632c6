// Tests a connection whose daemon is restarted, with several daemons in turn in this process.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "clients/cpp/client.h"
#include "engine/engine.h"
#include "server/server.h"
#include "server/testing.h"

namespace teletensor::client {
namespace {

// One daemon. The next one with the same folder continues with its sessions.
struct Box {
  explicit Box(const std::string& folder) {
    engine::EngineOptions machine;
    machine.lanes = 2;
    machine.host_memory = 256u << 20;
    engine = engine::Engine::create(machine);
    server::ServerOptions options;
    options.config.socket = folder + "/d.sock";
    options.config.state_dir = folder;
    options.limits.lease = std::chrono::seconds(240);
    options.config.restart_seconds = std::chrono::duration<double>(server::testing::kHang).count();
    options.version = "1";
    auto started = server::Server::start(*engine, options);
    EXPECT_TRUE(started.ok()) << started.status().message();
    server = std::move(*started);
  }
  ~Box() { server->drain(server::Clock::now()); }

  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<server::Server> server;
};

TEST(CppRestart, UploadsAndDownloadsGoOnWithTheNextDaemon) {
  const server::testing::Folder folder;
  auto box = std::make_unique<Box>(folder.path);
  Options options;
  options.lease = 240;
  const Connection c = Connection::open("unix:" + folder.path + "/d.sock", options);
  std::vector<float> values(500'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  const Tensor w = c.tensor(std::vector<float>{1, 2}, {2}).requires_grad();
  const Tensor loss = (w * w).sum();

  std::atomic<bool> over{false};
  std::atomic<int> rounds{0};
  std::thread program([&] {
    try {
      while (!over) {
        EXPECT_EQ(c.tensor(values, {500'000}).to_floats(), values);
        ++rounds;
      }
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
      rounds = 1'000'000;
    }
  });
  for (int i = 0; i < 8; ++i) {
    const int before = rounds;
    EXPECT_TRUE(server::testing::eventually([&] { return rounds > before || rounds > 999'999; }));
    box.reset();
    box = std::make_unique<Box>(folder.path);
  }
  over = true;
  program.join();
  loss.backward();
  EXPECT_EQ(w.grad().to_floats(), (std::vector<float>{2, 4}));
  c.close();
  EXPECT_TRUE(
      server::testing::eventually([&] { return box->server->leases().table().all().empty(); }));
}

}  // namespace
}  // namespace teletensor::client
