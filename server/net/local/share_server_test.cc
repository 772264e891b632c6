// Tests the requests over the socket for shared memory, with a fake engine.
#include "server/net/local/share_server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "server/testing.h"

namespace teletensor::server {
namespace {

class Stream final : public LeaseCall {
 public:
  void lease_ended(const Ending&) override {}
  void abandon() override {}
};

Limits impatient() {
  Limits limits;
  limits.chunk_wait = std::chrono::milliseconds(100);
  return limits;
}

// Requests the value of command `seq` of a session. Returns the code of the reply; -1 if none came.
int take(const std::string& path, const Lease& lease, std::uint64_t seq) {
  const int peer = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  wire::ShareRequest request;
  wire::ShareReply reply;
  request.kind = wire::kShareTake;
  request.session = lease.client.id;
  lease.ticket.copy(request.ticket, sizeof request.ticket);
  request.number = seq;
  const bool answered =
      connect(peer, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      send(peer, &request, sizeof request, 0) == static_cast<ssize_t>(sizeof request) &&
      recv(peer, &reply, sizeof reply, MSG_WAITALL) == static_cast<ssize_t>(sizeof reply);
  close(peer);
  return answered ? static_cast<int>(reply.code) : -1;
}

TEST(ShareServer, ATakeOfACommandThatDoesNotComeEnds) {
  const testing::Folder folder;
  const std::string socket = folder.path + "/d.sock";
  testing::Books books;
  testing::FakeEngine engine(books);
  Leases leases(engine, impatient());
  const auto server = ShareServer::start(socket, leases);
  ASSERT_TRUE(server.ok()) << server.status().message();
  ClientInfo client;
  client.name = "n";
  client.by_socket = true;
  client.attach_counter = 1;
  const LeaseRef lease = *leases.open(client);
  const auto stream = std::make_shared<Stream>();
  ASSERT_TRUE(lease->streams().join(stream, 1).ok());
  EXPECT_EQ(take(socket + wire::kShareSuffix, *lease, 1000),
            static_cast<int>(core::Code::kDeadlineExceeded));
  EXPECT_EQ(take(socket + wire::kShareSuffix, *lease, 1), static_cast<int>(core::Code::kNotFound));
  leases.shutdown();
}

}  // namespace
}  // namespace teletensor::server
