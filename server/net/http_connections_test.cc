#include "server/net/http_connections.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

namespace teletensor::server {
namespace {

// Connections whose threads wait until their peer ends them, as those of a silent peer do.
class HttpConnectionsTest : public ::testing::Test {
 protected:
  ~HttpConnectionsTest() override {
    connections_.end();
    for (const int peer : peers_) close(peer);
  }

  // Connects; returns the peer's socket.
  int connect(const std::string& address) {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    connections_.admit(sockets[0], address);
    peers_.push_back(sockets[1]);
    return sockets[1];
  }
  std::vector<int> connect(const std::string& address, std::size_t count) {
    std::vector<int> peers;
    for (std::size_t i = 0; i < count; ++i) peers.push_back(connect(address));
    return peers;
  }
  // Whether the daemon has ended the connection.
  static bool ended(int peer) {
    char data;
    return recv(peer, &data, 1, MSG_DONTWAIT) == 0;
  }
  static std::size_t count_ended(const std::vector<int>& peers) {
    std::size_t count = 0;
    for (const int peer : peers) count += ended(peer) ? 1 : 0;
    return count;
  }
  // Waits until a thread serves the connection.
  static void expect_served(int peer) {
    pollfd readable{peer, POLLIN, 0};
    ASSERT_EQ(poll(&readable, 1, -1), 1);
    char data = 0;
    EXPECT_EQ(recv(peer, &data, 1, 0), 1);
    EXPECT_EQ(data, '!');
  }

  std::vector<int> peers_;
  Counters counters_;
  HttpConnections connections_{[](HttpConnections::Connection& connection) {
                                 if (connection.peer == "busy")
                                   connection.waits_since = core::Clock::time_point::max();
                                 // Fails if the connection has already been ended for another one.
                                 if (send(connection.socket, "!", 1, MSG_NOSIGNAL) != 1) return;
                                 char data;
                                 while (recv(connection.socket, &data, 1, 0) > 0) {
                                 }
                               },
                               counters_};
};

TEST_F(HttpConnectionsTest, AnAddressHasAShareAndItsOldestSilentConnectionEnds) {
  const auto crowd = connect("a", HttpConnections::kShare);
  for (const int peer : crowd) expect_served(peer);
  const int other = connect("b");
  expect_served(other);
  expect_served(connect("a"));
  EXPECT_TRUE(ended(crowd[0]));
  EXPECT_EQ(count_ended(crowd), 1u);
  EXPECT_FALSE(ended(other));
  EXPECT_EQ(std::as_const(counters_).refused(Refusal::kHttpReplaced), 1u);
  EXPECT_EQ(std::as_const(counters_).refused(Refusal::kHttpPlaces), 0u);
}

TEST_F(HttpConnectionsTest, ANewAddressFindsAPlaceWhenAllAreTaken) {
  std::vector<int> all;
  for (const char* address : {"a", "b", "c"}) {
    for (const int peer : connect(address, HttpConnections::kShare)) all.push_back(peer);
  }
  for (const int peer : connect("d", HttpConnections::kShare - 1)) all.push_back(peer);
  const int alone = connect("alone");
  for (const int peer : all) expect_served(peer);
  expect_served(alone);
  // A connection of the address with most connections ends for each new one.
  for (int i = 0; i < 20; ++i) expect_served(connect("n" + std::to_string(i)));
  EXPECT_EQ(count_ended(all), 20u);
  EXPECT_FALSE(ended(alone));
}

TEST_F(HttpConnectionsTest, AConnectionThatIsAnsweredDoesNotEnd) {
  const auto crowd = connect("busy", HttpConnections::kShare);
  for (const int peer : crowd) expect_served(peer);
  const auto pending = connect("busy", HttpConnections::kPendingShare);
  EXPECT_TRUE(ended(connect("busy")));
  EXPECT_EQ(count_ended(crowd), 0u);
  EXPECT_EQ(count_ended(pending), 0u);
  expect_served(connect("other"));
  shutdown(crowd[3], SHUT_RDWR);
  expect_served(pending[0]);
}

TEST_F(HttpConnectionsTest, ACrowdOfOneAddressDoesNotKeepOthersOut) {
  const auto crowd = connect("a", 500);
  const int last = connect("a"), other = connect("b");
  expect_served(other);
  expect_served(last);
  EXPECT_FALSE(ended(other));
  EXPECT_FALSE(ended(last));
}

TEST_F(HttpConnectionsTest, CrowdsLeaveRoomForOtherAddresses) {
  const std::size_t each = HttpConnections::kShare + HttpConnections::kPendingShare;
  for (int i = 0; i < 20; ++i) connect("crowd" + std::to_string(i), each);
  expect_served(connect("other"));
}

TEST_F(HttpConnectionsTest, EndsAllConnections) {
  const auto crowd = connect("a", 5);
  connections_.end();
  for (const int peer : crowd) {
    char data;
    while (recv(peer, &data, 1, MSG_DONTWAIT) == 1) {
    }
    EXPECT_TRUE(ended(peer));
  }
  EXPECT_TRUE(ended(connect("a")));
}

TEST_F(HttpConnectionsTest, EndsConnectionsThatWaitForAPlace) {
  const auto crowd = connect("busy", HttpConnections::kShare + 10);
  connections_.end();
  EXPECT_TRUE(ended(crowd.back()));
}

}  // namespace
}  // namespace teletensor::server
