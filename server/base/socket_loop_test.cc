#include "server/base/socket_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <functional>

#include "server/testing.h"

namespace teletensor::server {
namespace {

using testing::eventually;

class Called final : public SocketLoop::Handler {
 public:
  explicit Called(std::function<void()> act) : act_(std::move(act)) {}
  void on_event() noexcept override { act_(); }

 private:
  const std::function<void()> act_;
};

// Two connected sockets; the first one is always writable.
struct Pair {
  Pair() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, both.data()), 0); }
  ~Pair() {
    for (const int each : both) close(each);
  }
  std::array<int, 2> both{-1, -1};
};

// Another thread arms the socket while a thread of the loop is in the handler, or about to call it:
// the other thread of the loop does not call it as well, and the event is not lost.
TEST(SocketLoop, CallsOfAHandlerDoNotOverlap) {
  auto loop = SocketLoop::start(2);
  ASSERT_TRUE(loop.ok());
  const Pair one, other;
  std::atomic<int> inside{0}, most{0}, calls{0};
  std::atomic<bool> go{false}, served{false};
  const auto first = (*loop)->add(one.both[0], std::make_shared<Called>([&] {
                                    const int now = ++inside;
                                    most = std::max(most.load(), now);
                                    ++calls;
                                    while (!go && now == 1) std::this_thread::yield();
                                    --inside;
                                  }));
  const auto second = (*loop)->add(other.both[0], std::make_shared<Called>([&] { served = true; }));
  ASSERT_TRUE(first.ok() && second.ok());
  (*loop)->arm(*first, one.both[0], EPOLLOUT);
  ASSERT_TRUE(eventually([&] { return inside == 1; }));
  (*loop)->arm(*first, one.both[0], EPOLLOUT);
  // The loop's other thread would call the first handler before the second one.
  (*loop)->arm(*second, other.both[0], EPOLLOUT);
  EXPECT_TRUE(eventually([&] { return served.load(); }));
  EXPECT_EQ(calls, 1);
  go = true;
  EXPECT_TRUE(eventually([&] { return calls == 2; }));
  EXPECT_EQ(most, 1);
}

}  // namespace
}  // namespace teletensor::server
