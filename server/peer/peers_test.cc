#include "server/peer/peers_test.h"

#include <gtest/gtest.h>

#include <future>

namespace teletensor::server {
namespace {

using core::Status;
using runtime::PeerMessage;
using testing::Box;
using testing::eventually;
using testing::Recorder;
using testing::Relay;

constexpr char kNowhere[] = "127.0.0.1:1";

// Payload contents that are a function of the message number.
std::string contents(std::uint64_t number) {
  std::mt19937_64 dice(number);
  const std::size_t bytes = dice() % 100 == 0 ? dice() % 100'000
                            : dice() % 4 == 0 ? 0
                                              : dice() % 1000;
  std::string text(bytes, '\0');
  for (char& each : text) each = static_cast<char>(dice());
  return text;
}

void send_contents(Box& box, const std::string& peer, std::uint64_t number) {
  const auto held = std::make_shared<const std::string>(contents(number));
  PeerMessage message;
  message.ticket = number;
  message.message.number = number;
  const std::size_t half = held->size() / 2;
  const std::span<const char> whole(*held);
  box.peers->send(peer, message, {{whole.first(half), whole.subspan(half)}, held});
}

std::vector<std::uint64_t> tickets(Box& box, const std::string& peer) {
  std::vector<std::uint64_t> result;
  for (const Recorder::Said& each : box.recorder->said(peer)) result.push_back(each.ticket);
  return result;
}

void expect_contents(Box& box, const std::string& peer, std::uint64_t count) {
  const std::vector<Recorder::Said> said = box.recorder->said(peer);
  ASSERT_EQ(said.size(), count);
  for (std::uint64_t i = 0; i < count; ++i) {
    ASSERT_EQ(said[i].ticket, i + 1);
    ASSERT_TRUE(said[i].payload == contents(i + 1)) << i;
  }
}

TEST(Peers, InOrderAndExactlyOnceOverConnectionsThatAreCut) {
  constexpr std::uint64_t kCount = 5000;  // Number of messages in each direction.
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Box b("b", {{"a", kNowhere}});
  b.start();
  Relay relay(b.port());
  std::mt19937_64 dice(seed);
  relay.budget = [&] { return std::int64_t{1} << (10 + dice() % 12); };
  Box a("a", {{"b", relay.address()}});
  a.start();
  std::thread back([&] {
    for (std::uint64_t number = 1; number <= kCount; ++number) send_contents(b, "a", number);
  });
  for (std::uint64_t number = 1; number <= kCount; ++number) send_contents(a, "b", number);
  back.join();
  EXPECT_TRUE(eventually([&] {
    return a.recorder->said_count("b") == kCount && b.recorder->said_count("a") == kCount;
  }));
  expect_contents(a, "b", kCount);
  expect_contents(b, "a", kCount);
  EXPECT_EQ(a.recorder->met_count("b"), 1);
  EXPECT_EQ(b.recorder->met_count("a"), 1);
  EXPECT_TRUE(a.recorder->lost_because("b").empty());
  EXPECT_GT(relay.cuts(), 3);
  a.peers->stop();
  b.peers->stop();
}

TEST(Peers, ARestartedPeerIsMetAgainAndHearsNothingOfBefore) {
  auto b = std::make_unique<Box>("b", std::map<std::string, std::string>{{"a", kNowhere}});
  b->start();
  Relay relay(b->port());
  Box a("a", {{"b", relay.address()}});
  a.recorder->on_met = [&](const std::string& peer) { a.say(peer, a.recorder->met_count(peer)); };
  a.start();
  ASSERT_TRUE(eventually([&] { return b->recorder->said_count("a") == 1; }));
  b->say("a", 7);
  ASSERT_TRUE(eventually([&] { return a.recorder->said_count("b") == 1; }));
  b.reset();
  a.say("b", 50);  // These messages are for the incarnation that has ended.
  b = std::make_unique<Box>("b", std::map<std::string, std::string>{{"a", kNowhere}});
  b->start();
  relay.aim(b->port());
  // The listener of a sends message 2 from its callback on_met. The meeting may be counted before
  // the callback has sent the message, so the test waits for the message.
  ASSERT_TRUE(eventually([&] { return b->recorder->said_count("a") == 1; }));
  a.say("b", 3);
  b->say("a", 8);
  ASSERT_TRUE(eventually([&] { return b->recorder->said_count("a") >= 2; }));
  EXPECT_EQ(tickets(*b, "a"), (std::vector<std::uint64_t>{2, 3}));
  ASSERT_TRUE(eventually([&] { return a.recorder->said_count("b") == 2; }));
  EXPECT_EQ(tickets(a, "b"), (std::vector<std::uint64_t>{7, 8}));
  a.peers->stop();
}

// Another thread of a daemon may send a vote of a group between the hello of a restarted peer and
// the message kKept that met() sends. The vote would let the peer continue before it has compared
// the generations of the cuts.
TEST(Peers, KeptPrecedesWhatIsSentDuringMet) {
  Box b("b", {{"a", kNowhere}});
  b.start();
  Box a("a", {{"b", b.peers->address()}});
  a.recorder->on_met = [&](const std::string& peer) {
    a.say(peer, 1);
    runtime::PeerMessage message;
    message.kind = runtime::PeerMessage::Kind::kKept;
    a.peers->send(peer, std::move(message));
  };
  a.start();
  ASSERT_TRUE(eventually([&] { return b.recorder->said_count("a") == 2; }));
  const std::vector<Recorder::Said> said = b.recorder->said("a");
  EXPECT_EQ(said[0].kind, runtime::PeerMessage::Kind::kKept);
  EXPECT_EQ(said[1].ticket, 1u);
  a.peers->stop();
  b.peers->stop();
}

TEST(Peers, WhatIsSentBeforeTheFirstConnectionArrives) {
  Box b("b", {{"a", kNowhere}});
  b.say("a", 1);
  b.start();
  Box a("a", {{"b", b.peers->address()}});
  a.say("b", 2);
  a.start();
  ASSERT_TRUE(eventually([&] { return a.recorder->said_count("b") == 1; }));
  ASSERT_TRUE(eventually([&] { return b.recorder->said_count("a") == 1; }));
  EXPECT_EQ(a.peers->peers(), std::vector<std::string>{"b"});
  EXPECT_NE(a.peers->incarnation(), 0u);
  EXPECT_NE(a.peers->incarnation(), b.peers->incarnation());
  a.peers->stop();
  b.peers->stop();
}

// A peer that cannot be reached is lost if something was sent to it; a known peer is lost in any
// case.
TEST(Peers, LostAfterPatience) {
  Relay relay;
  relay.shut(true);
  Box a("a", {{"b", relay.address()}, {"c", kNowhere}}, std::chrono::milliseconds(50));
  a.start();
  a.say("b", 1);
  ASSERT_TRUE(eventually([&] { return a.recorder->lost_because("b").size() == 1; }));
  EXPECT_EQ(a.recorder->lost_because("b").front(), "no connection for 50 ms");
  a.say("b", 2);
  ASSERT_TRUE(eventually([&] { return a.recorder->lost_because("b").size() == 2; }));

  Box b("b", {{"a", kNowhere}}, std::chrono::milliseconds(50));
  b.start();
  relay.aim(b.port());
  relay.shut(false);
  ASSERT_TRUE(eventually([&] { return b.recorder->met_count("a") == 1; }));
  ASSERT_TRUE(eventually([&] { return a.recorder->met_count("b") == 1; }));
  const std::size_t before = a.recorder->lost_because("b").size();
  relay.shut(true);
  ASSERT_TRUE(eventually([&] { return a.recorder->lost_because("b").size() > before; }));
  relay.shut(false);
  ASSERT_TRUE(eventually([&] { return a.recorder->met_count("b") >= 2; }));
  ASSERT_TRUE(eventually([&] { return b.recorder->met_count("a") >= 2; }));
  EXPECT_EQ(b.recorder->said_count("a"), 0u);
  EXPECT_TRUE(a.recorder->lost_because("c").empty());
  EXPECT_EQ(a.recorder->met_count("c"), 0);
  a.peers->stop();
  b.peers->stop();
}

// One side gives up, and the other has more patience: met() tells it that all messages were
// forgotten.
TEST(Peers, APeerThatHasGivenUpIsMetAgainByTheOther) {
  Box b("b", {{"a", kNowhere}});
  b.start();
  Relay relay(b.port());
  Box a("a", {{"b", relay.address()}}, std::chrono::milliseconds(50));
  a.start();
  ASSERT_TRUE(eventually([&] { return b.recorder->met_count("a") == 1; }));
  ASSERT_TRUE(eventually([&] { return a.recorder->met_count("b") == 1; }));
  relay.shut(true);
  ASSERT_TRUE(eventually([&] { return !a.recorder->lost_because("b").empty(); }));
  b.say("a", 1);  // This message belongs to the earlier incarnation.
  relay.shut(false);
  ASSERT_TRUE(eventually([&] { return b.recorder->met_count("a") >= 2; }));
  EXPECT_TRUE(b.recorder->lost_because("a").empty());
  ASSERT_TRUE(eventually([&] { return a.recorder->met_count("b") >= 2; }));
  b.say("a", 2);
  ASSERT_TRUE(eventually([&] { return a.recorder->said_count("b") >= 1; }));
  EXPECT_EQ(tickets(a, "b"), std::vector<std::uint64_t>{2});
  a.peers->stop();
  b.peers->stop();
}

TEST(Peers, AReceiverThatRefusesAMessageLosesThePeer) {
  Box b("b", {{"a", kNowhere}});
  b.recorder->on_received = [](const std::string&, std::uint64_t ticket) {
    return ticket == 2 ? core::invalid("a malformed message") : Status();
  };
  b.start();
  Box a("a", {{"b", b.peers->address()}});
  a.start();
  a.say("b", 1);
  a.say("b", 2);
  ASSERT_TRUE(eventually([&] { return !b.recorder->lost_because("a").empty(); }));
  EXPECT_EQ(b.recorder->lost_because("a").front(), "a malformed message");
  ASSERT_TRUE(eventually([&] { return b.recorder->met_count("a") == 2; }));
  ASSERT_TRUE(eventually([&] { return a.recorder->met_count("b") == 2; }));
  a.say("b", 3);
  ASSERT_TRUE(eventually([&] { return b.recorder->said_count("a") == 3; }));
  a.peers->stop();
  b.peers->stop();
}

// The receiver of c blocks its connection. Messages to b, and callers of send(), do not wait.
TEST(Peers, ASlowPeerHoldsUpNobodyElse) {
  Box c("c", {{"a", kNowhere}, {"b", kNowhere}});
  std::atomic<bool> go_on{false};
  // There are two threads for messages on a machine with two cores; the receiver occupies one of
  // them.
  c.recorder->on_received = [&](const std::string& peer, std::uint64_t) {
    if (peer != "a") return Status();
    return eventually([&] { return go_on.load(); }) ? Status() : core::internal("a hang");
  };
  c.start();
  Box b("b", {{"a", kNowhere}, {"c", c.peers->address()}});
  b.start();
  Box a("a", {{"b", b.peers->address()}, {"c", c.peers->address()}});
  a.start();
  for (std::uint64_t number = 1; number <= 200; ++number) {
    send_contents(a, "c", number);
    send_contents(a, "b", number);
    send_contents(b, "c", number);
  }
  ASSERT_TRUE(eventually([&] { return b.recorder->said_count("a") == 200; }));
  ASSERT_TRUE(eventually([&] { return c.recorder->said_count("b") == 200; }));
  EXPECT_LE(c.recorder->said_count("a"), 1u);
  go_on = true;
  ASSERT_TRUE(eventually([&] { return c.recorder->said_count("a") == 200; }));
  expect_contents(c, "a", 200);
  for (Box* box : {&a, &b, &c}) box->peers->stop();
}

class LastCall final : public PeerStream::Owner {
 public:
  void received(const PeerStream::Ref&, const FrameInput::Frame&) override {}
  std::optional<FrameOutput::Frame> next(const PeerStream::Ref&) override { return std::nullopt; }
  void closed(const PeerStream::Ref&, const std::string& why) override { told.set_value(why); }

  std::promise<std::string> told;
};

// Connects to an address, and returns the reason with which the stream ends.
std::string end_of(const std::string& address, const core::Status& early = {}) {
  const auto loop = std::move(*SocketLoop::start(2));
  LastCall owner;
  PeerStream::Home home;
  home.loop = loop.get();
  PeerStream::Ref stream =
      PeerStream::dialed(home, owner, std::make_shared<PeerAddress>(address), "b");
  if (!early.ok()) stream->end(early);
  stream->open();
  std::future<std::string> told = owner.told.get_future();
  EXPECT_EQ(told.wait_for(testing::kHang), std::future_status::ready);
  stream.reset();
  EXPECT_TRUE(eventually([&] { return home.streams == 0; }));
  return told.get();
}

// A daemon that shuts down may end the stream while another thread is about to open it.
TEST(PeerStream, AStreamThatHasEndedBeforeItIsOpenIsClosed) {
  const core::Status early(core::Code::kUnavailable, "the daemon shuts down");
  EXPECT_EQ(end_of("127.0.0.1:1", early), "the daemon shuts down");
  EXPECT_EQ(end_of("localhost:1", early), "the daemon shuts down");
}

TEST(PeerStream, SaysWhyItCannotConnect) {
  EXPECT_EQ(end_of("127.0.0.1:1"), "cannot connect: Connection refused");
  EXPECT_EQ(end_of("localhost:1"), "cannot connect: Connection refused");
  EXPECT_TRUE(end_of("no such host:1").starts_with("no address of no such host: "));
}

// Calls stop() with many messages in flight: afterwards no memory is held, and the messages that
// arrived are the first ones.
TEST(Peers, StopsWhileMessagesAreQueued) {
  Box b("b", {{"a", kNowhere}});
  b.start();
  Box a("a", {{"b", b.peers->address()}, {"c", kNowhere}});
  a.start();
  ASSERT_TRUE(eventually([&] { return a.recorder->met_count("b") == 1; }));
  const auto held = std::make_shared<const std::string>(1 << 20, 'x');
  for (std::uint64_t number = 1; number <= 200; ++number) {
    PeerMessage message;
    message.ticket = number;
    a.peers->send("b", message, {{*held}, held});
    a.peers->send("c", message, {{*held}, held});
  }
  a.peers->stop();
  EXPECT_EQ(held.use_count(), 1);
  a.say("b", 201);  // This message is dropped.
  b.peers->stop();
  std::uint64_t next = 0;
  for (const std::uint64_t ticket : tickets(b, "a")) EXPECT_EQ(ticket, ++next);
}

TEST(Peers, MemoryIsGivenBackWhenThePeerHasIt) {
  Box b("b", {{"a", kNowhere}});
  b.start();
  Box a("a", {{"b", b.peers->address()}});
  a.start();
  const auto held = std::make_shared<const std::string>(3 << 20, 'x');
  a.peers->send("b", PeerMessage(), {{*held}, held});
  ASSERT_TRUE(eventually([&] { return held.use_count() == 1; }));
  EXPECT_EQ(b.recorder->said("a").front().payload, *held);
  a.peers->stop();
  b.peers->stop();
}

TEST(Peers, SaysWhyItCannotListen) {
  Box b("b", {{"a", kNowhere}});
  b.start();
  PeerOptions options;
  options.name = "c";
  options.listen = b.peers->address();
  options.peers = {{"a", kNowhere}};
  auto taken = std::move(*Peers::create(options));
  Recorder recorder;
  const Status status = taken->start(recorder);
  EXPECT_EQ(status.code(), core::Code::kUnavailable);
  EXPECT_NE(status.message().find("listens there"), std::string::npos) << status.message();
  b.peers->stop();
}

}  // namespace
}  // namespace teletensor::server
