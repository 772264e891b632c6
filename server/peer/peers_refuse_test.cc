// Tests what peers refuse: callers with a false name, and frames that no daemon sends.
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>

#include "server/peer/peers_test.h"
#include "teletensor/v1/peer.pb.h"

namespace teletensor::server {
namespace {

using core::Code;
using core::Status;
using testing::Box;
using testing::eventually;
using v1::PeerFrame;

constexpr char kNowhere[] = "127.0.0.1:1";

// A caller that sends whatever a test specifies, on a connection without TLS.
class Caller {
 public:
  explicit Caller(const std::string& address) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const Endpoint to = PeerAddress(address).numeric().at(0);
    if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to.address), to.size) != 0) {
      throw std::runtime_error("cannot connect to " + address);
    }
    input_.accept(kMaxPeerTexts, kMaxPeerPayload);
  }
  virtual ~Caller() = default;

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
  Caller& says(const PeerFrame& frame, const std::string& payload = "") {
    const std::string text = frame.SerializeAsString();
    const auto header = frame_header(text.size(), payload.size());
    return says_bytes(std::string(header.data(), header.size()) + text + payload);
  }
  virtual Caller& says_bytes(const std::string& bytes) {
    (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return *this;
  }
  // Returns false if the connection has ended.
  bool hears(PeerFrame* frame) {
    while (true) {
      const auto next = input_.next();
      if (!next.ok()) return false;
      if (*next) return frame->ParseFromArray((*next)->text.data(), int((*next)->text.size()));
      const std::size_t got = receive(input_.room());
      if (got == 0) return false;
      input_.filled(got);
    }
  }
  // Returns the status with which the daemon ends the connection; UNAVAILABLE without a text if it
  // says nothing.
  Status end() {
    Status why(Code::kUnavailable, "");
    for (PeerFrame frame; hears(&frame);) {
      if (frame.has_end()) why = Status(Code(frame.end().code()), frame.end().text());
    }
    return why;
  }

 protected:
  // Returns the number of bytes that have arrived; 0 if the connection has ended.
  virtual std::size_t receive(std::span<char> room) {
    const ssize_t got = recv(socket_.get(), room.data(), room.size(), 0);
    return got < 0 ? 0 : static_cast<std::size_t>(got);
  }
  const Socket socket_;

 private:
  FrameInput input_;
};

// A caller with TLS that sends nothing before flush(), so that a test determines which parts of the
// handshake and which frames are in one segment.
class TlsCaller final : public Caller {
 public:
  TlsCaller(const std::string& address, const PeerTls& tls, const std::string& peer)
      : Caller(address), tls_(tls.connecting(socket_.get(), peer)) {
    SSL_set_bio(tls_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  }
  // Takes part in the handshake until only its own last part is to be sent. Returns false if the
  // handshake has failed.
  bool shake_hands() {
    while (SSL_do_handshake(tls_.get()) != 1) {
      flush();
      if (!fill()) return false;
    }
    return true;
  }
  Caller& says_bytes(const std::string& bytes) override {
    EXPECT_EQ(SSL_write(tls_.get(), bytes.data(), int(bytes.size())), int(bytes.size()));
    return *this;
  }
  void flush() {
    char* data = nullptr;
    const long size = BIO_get_mem_data(SSL_get_wbio(tls_.get()), &data);
    EXPECT_EQ(::send(socket_.get(), data, std::size_t(size), MSG_NOSIGNAL), size);
    (void)BIO_reset(SSL_get_wbio(tls_.get()));
  }

 private:
  std::size_t receive(std::span<char> room) override {
    std::size_t got = 0;
    while (SSL_read_ex(tls_.get(), room.data(), room.size(), &got) != 1) {
      if (!fill()) return 0;
    }
    return got;
  }
  // Waits until bytes have arrived. Returns false if the connection has ended.
  bool fill() {
    char bytes[4096];
    const std::size_t got = Caller::receive(bytes);
    return got > 0 && BIO_write(SSL_get_rbio(tls_.get()), bytes, int(got)) == int(got);
  }

  const TlsRef tls_;
};

TEST(PeersRefuse, CallersThatAreNoPeers) {
  Box b("b", {{"a", kNowhere}, {"z", kNowhere}});
  b.start();
  const auto refused = [&](const PeerFrame& first, Code code, const std::string& text) {
    const Status status = Caller(b.peers->address()).says(first).end();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_EQ(status.message(), "\"b\" refuses: " + text);
  };
  refused(Caller::hello("mallory"), Code::kPermissionDenied, "\"mallory\" is not in --peers");
  refused(Caller::hello("b"), Code::kPermissionDenied,
          "the caller uses the name of the daemon that it calls");
  refused(Caller::hello("z"), Code::kFailedPrecondition,
          "\"z\" must not open the connection: the daemon with the smaller name does");
  refused(
      Caller::hello("a", kPeerProtocol + 1), Code::kFailedPrecondition,
      "\"a\" speaks version 6 of the protocol of peers, \"b\" version 5: install daemons of one "
      "version");
  refused(Caller::message(1), Code::kInvalidArgument, "the first frame has no hello");
  refused(Caller::hello("a \""), Code::kInvalidArgument,
          "a frame's field hello.name is out of range");
  // Other protocols, and frames that are too large for a hello.
  for (const std::string& bytes :
       {std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), std::string("\x01\x04\0\0\0\0\0\0", 8),
        std::string("\0\0\0\0\x01\0\0\0", 8)}) {
    const Status status = Caller(b.peers->address()).says_bytes(bytes).end();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(status.message().ends_with("the maximum is 1024 + 0")) << status.message();
  }
  EXPECT_EQ(b.recorder->met_count("a"), 0);
  EXPECT_TRUE(eventually([&] { return b.peers->refused() == 9; }));
  b.peers->stop();
}

TEST(PeersRefuse, FramesThatNoDaemonSends) {
  const auto lost = [](const std::string& why, std::vector<PeerFrame> frames,
                       const std::string& payload = "") {
    Box b("b", {{"a", kNowhere}});
    b.start();
    Caller a(b.peers->address());
    a.says(Caller::hello("a"));
    for (const PeerFrame& frame : frames) a.says(frame, payload);
    EXPECT_FALSE(a.end().ok());
    ASSERT_TRUE(eventually([&] { return !b.recorder->lost_because("a").empty(); })) << why;
    EXPECT_EQ(b.recorder->lost_because("a").front(), why);
    EXPECT_EQ(b.recorder->met_count("a"), 1);
    b.peers->stop();
  };
  PeerFrame unknown = Caller::message(1), acknowledges;
  unknown.mutable_message()->set_kind(99);
  acknowledges.set_received(1);
  lost("a second hello", {Caller::hello("a")});
  lost("link: a peer sends #2 after #0", {Caller::message(2)});
  lost("link: a peer sends #1 after #1", {Caller::message(1), Caller::message(1)});
  lost("link: a peer acknowledges a parcel that was not sent to it", {acknowledges});
  lost("a frame's field kind is out of range", {unknown});
  lost("a frame's field payload is out of range", {Caller::message(1)}, "x");
}

TEST(PeersRefuse, FramesBeyondTheLimits) {
  Box b("b", {{"a", kNowhere}});
  b.start();
  const auto header = frame_header(1, kMaxPeerPayload + 1);
  Caller a(b.peers->address());
  a.says(Caller::hello("a")).says_bytes(std::string(header.data(), header.size()));
  EXPECT_EQ(a.end().message(), "a frame of 1 + 67108865 bytes; the maximum is 4194304 + 67108864");
  b.peers->stop();
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
    const Status status = caller.end();
    ++ends[status.message()];
    EXPECT_EQ(status.code(), status.message().starts_with("too many") ? Code::kResourceExhausted
                                                                      : Code::kDeadlineExceeded);
  }
  EXPECT_GE(ends["the peer sent no hello within 5 s"], 2);
  EXPECT_GE(ends["too many connections have not sent a hello"], 1);
  EXPECT_EQ(ends.size(), 2u);
  PeerFrame answer;
  Caller a(b.peers->address());
  ASSERT_TRUE(a.says(Caller::hello("a")).hears(&answer));
  EXPECT_EQ(answer.hello().name(), "b");
  b.peers->stop();
  EXPECT_EQ(a.end().message(), "the daemon shuts down");
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
  EXPECT_EQ(first.end().message(), "a later connection has taken its place");
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

// OpenSSL receives ahead, and the socket reports no event for what OpenSSL has received.
TEST_F(PeersTls, AFrameInTheSegmentWithTheEndOfTheHandshake) {
  authority("ca");
  Box b("b", {{"a", kNowhere}}, testing::kHang, issue("ca", "b.pem", "DNS:b"));
  b.start();
  const auto certificates = Certificates::open(issue("ca", "a.pem", "DNS:a"));
  ASSERT_TRUE(certificates.ok()) << certificates.status().message();
  const auto tls = PeerTls::create(*certificates);
  TlsCaller a(b.peers->address(), *tls, "b");
  ASSERT_TRUE(a.shake_hands());
  a.says(Caller::hello("a"));
  a.flush();
  PeerFrame answer;
  ASSERT_TRUE(a.hears(&answer));
  EXPECT_EQ(answer.hello().name(), "b");
  EXPECT_TRUE(eventually([&] { return b.recorder->met_count("a") == 1; }));
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
