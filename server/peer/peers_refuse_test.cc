// Tests what peers refuse: callers with a false name, and frames that no daemon sends.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <string>

#include "server/peer/peers_test.h"
#include "teletensor/v1/peer.grpc.pb.h"

namespace teletensor::server {
namespace {

using grpc::StatusCode;
using testing::Box;
using testing::eventually;
using v1::PeerFrame;

constexpr char kNowhere[] = "127.0.0.1:1";

// A caller that sends whatever a test specifies.
class Caller {
 public:
  explicit Caller(const std::string& address)
      : channel_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        stub_(v1::Peer::NewStub(channel_)),
        stream_(stub_->Exchange(&context_)) {}

  static PeerFrame hello(const std::string& name, std::uint32_t protocol = kPeerProtocol) {
    PeerFrame frame;
    frame.mutable_hello()->set_name(name);
    frame.mutable_hello()->set_protocol(protocol);
    frame.mutable_hello()->set_incarnation(77);
    return frame;
  }
  static PeerFrame message(std::uint64_t number) {
    PeerFrame frame;
    frame.set_number(number);
    frame.mutable_message()->set_kind(2);
    frame.mutable_message()->set_ticket(number);
    return frame;
  }
  Caller& says(const PeerFrame& frame) {
    stream_->Write(frame);
    return *this;
  }
  bool hears(PeerFrame* frame) { return stream_->Read(frame); }
  // Returns the status with which the daemon ends the call.
  grpc::Status end() {
    for (PeerFrame frame; stream_->Read(&frame);) {
    }
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Peer::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<PeerFrame, PeerFrame>> stream_;
};

TEST(PeersRefuse, CallersThatAreNoPeers) {
  Box b("b", {{"a", kNowhere}, {"z", kNowhere}});
  b.start();
  const auto refused = [&](const PeerFrame& first, StatusCode code, const std::string& text) {
    const grpc::Status status = Caller(b.peers->address()).says(first).end();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(status.error_message(), "\"b\" refuses: " + text);
  };
  refused(Caller::hello("mallory"), StatusCode::PERMISSION_DENIED, "\"mallory\" is not in --peers");
  refused(Caller::hello("b"), StatusCode::PERMISSION_DENIED,
          "the caller uses the name of the daemon that it calls");
  refused(Caller::hello("z"), StatusCode::FAILED_PRECONDITION,
          "\"z\" must not open the connection: the daemon with the smaller name does");
  refused(
      Caller::hello("a", kPeerProtocol + 1), StatusCode::FAILED_PRECONDITION,
      "\"a\" speaks version 6 of the protocol of peers, \"b\" version 5: install daemons of one "
      "version");
  refused(Caller::message(1), StatusCode::INVALID_ARGUMENT, "the first frame has no hello");
  refused(Caller::hello("a \""), StatusCode::INVALID_ARGUMENT,
          "a frame's field hello.name is out of range");
  EXPECT_EQ(b.recorder->met_count("a"), 0);
  b.peers->stop();
}

TEST(PeersRefuse, FramesThatNoDaemonSends) {
  const auto lost = [](const std::string& why, std::vector<PeerFrame> frames) {
    Box b("b", {{"a", kNowhere}});
    b.start();
    Caller a(b.peers->address());
    a.says(Caller::hello("a"));
    for (const PeerFrame& frame : frames) a.says(frame);
    EXPECT_FALSE(a.end().ok());
    ASSERT_TRUE(eventually([&] { return !b.recorder->lost_because("a").empty(); })) << why;
    EXPECT_EQ(b.recorder->lost_because("a").front(), why);
    EXPECT_EQ(b.recorder->met_count("a"), 1);
    b.peers->stop();
  };
  PeerFrame unknown = Caller::message(1), acknowledges, with_payload = Caller::message(1);
  unknown.mutable_message()->set_kind(99);
  acknowledges.set_received(1);
  with_payload.set_payload("x");
  lost("a second hello", {Caller::hello("a")});
  lost("link: a peer sends #2 after #0", {Caller::message(2)});
  lost("link: a peer sends #1 after #1", {Caller::message(1), Caller::message(1)});
  lost("link: a peer acknowledges a parcel that was not sent to it", {acknowledges});
  lost("a frame's field kind is out of range", {unknown});
  lost("a frame's field payload is out of range", {with_payload});
}

// The deadline for the hello is 5 s. Silent callers do not keep other callers out for longer.
TEST(PeersRefuse, SilentCallers) {
  Box b("b", {{"a", kNowhere}});
  b.start();
  // There is room for two callers until their time is over; which of them arrive first is not
  // defined.
  std::deque<Caller> callers;
  for (int i = 0; i < 12; ++i) callers.emplace_back(b.peers->address());
  std::map<std::string, int> ends;
  for (Caller& caller : callers) {
    const grpc::Status status = caller.end();
    ++ends[status.error_message()];
    EXPECT_EQ(status.error_code(), status.error_message().starts_with("too many")
                                       ? StatusCode::RESOURCE_EXHAUSTED
                                       : StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_GE(ends["the peer sent no hello within 5 s"], 2);
  EXPECT_GE(ends["too many connections have not sent a hello"], 1);
  EXPECT_EQ(ends.size(), 2u);
  PeerFrame answer;
  Caller a(b.peers->address());
  ASSERT_TRUE(a.says(Caller::hello("a")).hears(&answer));
  EXPECT_EQ(answer.hello().name(), "b");
  b.peers->stop();
  // If the write of the answer was not reported yet, the call is cancelled instead of finished.
  const std::string end = a.end().error_message();
  EXPECT_TRUE(end == "the daemon shuts down" || end == "Cancelled on the server side") << end;
}

// If a connection is half open on the peer's side, the next valid call replaces it, but a refused
// call does not.
TEST(PeersRefuse, OnlyAValidHelloReplacesAConnection) {
  Box b("b", {{"a", kNowhere}});
  b.start();
  PeerFrame answer;
  Caller first(b.peers->address());
  ASSERT_TRUE(first.says(Caller::hello("a")).hears(&answer));
  EXPECT_FALSE(Caller(b.peers->address()).says(Caller::hello("a", kPeerProtocol + 1)).end().ok());
  first.says(Caller::message(1));
  ASSERT_TRUE(eventually([&] { return b.recorder->said_count("a") == 1; }));
  Caller second(b.peers->address());
  ASSERT_TRUE(second.says(Caller::hello("a")).hears(&answer));
  EXPECT_EQ(answer.hello().received(), 1u);
  EXPECT_EQ(answer.hello().of(), 77u);
  EXPECT_EQ(first.end().error_message(), "a later connection has taken its place");
  EXPECT_EQ(b.recorder->met_count("a"), 1);
  b.peers->stop();
}

// In the other direction: a daemon that answers with another name, or not at all, is not reported
// as met.
TEST(PeersRefuse, ADaemonOfAnotherName) {
  Box c("c", {{"a", kNowhere}});
  c.start();
  Box a("a", {{"b", c.peers->address()}}, std::chrono::milliseconds(50));
  a.start();
  a.say("b", 1);
  ASSERT_TRUE(eventually([&] { return a.recorder->lost_because("b").size() == 1; }));
  ASSERT_TRUE(eventually([&] { return c.recorder->met_count("a") >= 1; }));
  EXPECT_EQ(a.recorder->met_count("b"), 0);
  EXPECT_EQ(c.recorder->said_count("a"), 0u);
  a.peers->stop();
  c.peers->stop();
}

// Creates certificates with the openssl program.
class PeersTls : public ::testing::Test {
 protected:
  void authority(const std::string& name) {
    openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" + name +
        " -addext basicConstraints=critical,CA:TRUE -keyout " + name + ".key -out " + name);
  }
  TlsFiles issue(const std::string& authority, const std::string& file, const std::string& names) {
    std::ofstream(folder_.path + "/extensions") << "subjectAltName=" << names << "\n";
    openssl("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=a -keyout " + file +
            ".key -out request");
    openssl("x509 -req -in request -CA " + authority + " -CAkey " + authority +
            ".key -CAcreateserial -days 2 -extfile extensions -out " + file);
    std::filesystem::permissions(folder_.path + "/" + file + ".key", std::filesystem::perms(0600));
    return {folder_.path + "/" + file, folder_.path + "/" + file + ".key",
            folder_.path + "/" + authority};
  }

  const testing::Folder folder_;

 private:
  void openssl(const std::string& words) {
    const std::string command = "cd " + folder_.path + " && openssl " + words + " 2>/dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
};

TEST_F(PeersTls, DaemonsOfOneAuthorityMeet) {
  authority("ca");
  Box b("b", {{"a", kNowhere}}, testing::kHang, issue("ca", "b.pem", "DNS:b,DNS:box"));
  b.start();
  Box a("a", {{"b", b.peers->address()}}, testing::kHang, issue("ca", "a.pem", "DNS:a"));
  a.start();
  a.say("b", 1);
  b.say("a", 2);
  ASSERT_TRUE(eventually([&] { return b.recorder->said_count("a") == 1; }));
  ASSERT_TRUE(eventually([&] { return a.recorder->said_count("b") == 1; }));
  // A connection without TLS is refused.
  EXPECT_FALSE(Caller(b.peers->address()).says(Caller::hello("a")).end().ok());
  a.peers->stop();
  b.peers->stop();
}

// In each row the caller's or the listener's certificate is wrong, so that neither reports the
// other as met.
TEST_F(PeersTls, OthersDoNot) {
  authority("ca");
  authority("other");
  const TlsFiles a_good = issue("ca", "a.pem", "DNS:a"), b_good = issue("ca", "b.pem", "DNS:b");
  const auto strangers = [](const TlsFiles& for_a, const TlsFiles& for_b) {
    Box b("b", {{"a", kNowhere}}, testing::kHang, for_b);
    b.start();
    Box a("a", {{"b", b.peers->address()}}, std::chrono::milliseconds(500), for_a);
    a.start();
    a.say("b", 1);
    EXPECT_TRUE(eventually([&] { return a.recorder->lost_because("b").size() == 1; }));
    EXPECT_EQ(a.recorder->met_count("b"), 0);
    EXPECT_EQ(b.recorder->said_count("a"), 0u);
    a.peers->stop();
    b.peers->stop();
    return b.recorder->met_count("a");
  };
  EXPECT_EQ(strangers(issue("other", "a1.pem", "DNS:a"), b_good), 0);
  EXPECT_EQ(strangers(issue("ca", "a2.pem", "DNS:c"), b_good), 0);
  EXPECT_EQ(strangers(issue("ca", "a3.pem", "DNS:*"), b_good), 0);
  EXPECT_EQ(strangers(a_good, issue("other", "b1.pem", "DNS:b")), 0);
  EXPECT_EQ(strangers(a_good, issue("ca", "b2.pem", "DNS:c")), 0);
  EXPECT_EQ(strangers({a_good.certificate, a_good.key, folder_.path + "/other"}, b_good), 0);
}

TEST_F(PeersTls, SaysWhatIsWrongWithTheFiles) {
  authority("ca");
  PeerOptions options;
  options.name = "b";
  options.listen = "127.0.0.1:0";
  options.peers = {{"a", kNowhere}};
  options.tls = issue("ca", "b.pem", "DNS:b");
  options.tls.key = folder_.path + "/ca.key";
  const auto made = Peers::create(options);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("is not the key of"), std::string::npos)
      << made.status().message();
}

}  // namespace
}  // namespace teletensor::server
