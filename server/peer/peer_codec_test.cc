#include "server/peer/peer_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "teletensor/v1/peer.pb.h"

namespace teletensor::server {
namespace {

using collective::Message;
using core::Status;
using runtime::PeerMessage;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t n) { return engine_() % n; }
  std::uint64_t any() {
    const std::uint64_t wild[] = {0, 1, 127, 128, ~0ull, ~0ull >> 1, 1ull << 32, engine_()};
    return wild[below(std::size(wild))];
  }
  std::uint32_t any32() { return static_cast<std::uint32_t>(any()); }
  std::string text(std::size_t most) {
    std::string made(below(20) == 0 ? most : below(std::min<std::size_t>(most, 40) + 1), '\0');
    for (char& each : made) each = static_cast<char>(below(256));
    return made;
  }
  template <class Enum>
  Enum from(Enum first, Enum last) {
    const auto begin = static_cast<std::uint64_t>(first);
    return static_cast<Enum>(begin + below(static_cast<std::uint64_t>(last) - begin + 1));
  }

 private:
  std::mt19937_64 engine_;
};

Message group_message(Dice& dice) {
  Message made;
  made.kind = dice.from(collective::Kind::kVote, collective::Kind::kLeft);
  made.purpose = dice.from(collective::Purpose::kAnnounce, collective::Purpose::kLower);
  made.level = static_cast<std::uint8_t>(dice.below(256));
  made.number = dice.any();
  made.done = dice.any();
  made.range.begin = static_cast<std::int64_t>(dice.any() >> 2);
  made.range.end = made.range.begin + static_cast<std::int64_t>(dice.any() >> 2);
  made.from = dice.any32();
  made.to = dice.any32();
  made.tag = static_cast<std::int64_t>(dice.any());
  collective::Vote& vote = made.vote;
  vote.lowest = dice.any32();
  vote.fingerprint = dice.any();
  vote.equal = dice.below(2) == 0;
  vote.balance = dice.any();
  vote.failed = dice.any32();
  vote.done = dice.any();
  vote.announced = dice.any();
  vote.interrupted = dice.below(2) == 0;
  vote.claims.resize(dice.below(collective::kStateClaims + 1));
  for (collective::Claim& claim : vote.claims) {
    claim = {dice.any32(), dice.any(), dice.any32(), dice.text(collective::kMaxText)};
  }
  vote.code = dice.from(core::Code::kOk, core::Code::kDataLoss);
  vote.failure = dice.text(collective::kMaxText);
  return made;
}

PeerMessage random_message(Dice& dice) {
  PeerMessage made;
  made.kind = dice.from(PeerMessage::Kind::kRegister, PeerMessage::Kind::kKept);
  made.epoch = {dice.any(), dice.any()};
  made.user = dice.text(64);
  made.name = dice.text(256);
  made.ranks = static_cast<collective::Rank>(dice.below(kMaxPeerRanks + 1));
  made.rank = static_cast<collective::Rank>(dice.below(kMaxPeerRanks));
  made.ticket = dice.any();
  made.text = dice.text(collective::kMaxNote);
  made.places.resize(dice.below(5));
  for (std::size_t i = 0; i < made.places.size(); ++i) {
    made.places[i].daemon = "box-" + std::to_string(i);
    made.places[i].members.resize(dice.below(40));
    for (PeerMessage::Member& member : made.places[i].members) {
      member = {static_cast<collective::Rank>(dice.below(kMaxPeerRanks)), dice.any()};
    }
  }
  made.kept.resize(dice.below(5));
  for (PeerMessage::Kept& kept : made.kept) kept = {{dice.any(), dice.any()}, dice.any()};
  if (made.kind == PeerMessage::Kind::kGroup) made.message = group_message(dice);
  return made;
}

void expect_equal(const Message& a, const Message& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.purpose, b.purpose);
  EXPECT_EQ(a.level, b.level);
  EXPECT_EQ(a.number, b.number);
  EXPECT_EQ(a.done, b.done);
  EXPECT_EQ(a.range, b.range);
  EXPECT_EQ(a.from, b.from);
  EXPECT_EQ(a.to, b.to);
  EXPECT_EQ(a.tag, b.tag);
  EXPECT_EQ(a.payload, b.payload);
  const collective::Vote &v = a.vote, &w = b.vote;
  EXPECT_EQ(v.lowest, w.lowest);
  EXPECT_EQ(v.fingerprint, w.fingerprint);
  EXPECT_EQ(v.equal, w.equal);
  EXPECT_EQ(v.balance, w.balance);
  EXPECT_EQ(v.failed, w.failed);
  EXPECT_EQ(v.done, w.done);
  EXPECT_EQ(v.announced, w.announced);
  EXPECT_EQ(v.interrupted, w.interrupted);
  EXPECT_EQ(v.code, w.code);
  EXPECT_EQ(v.failure, w.failure);
  ASSERT_EQ(v.claims.size(), w.claims.size());
  for (std::size_t i = 0; i < v.claims.size(); ++i) {
    EXPECT_EQ(v.claims[i].rank, w.claims[i].rank);
    EXPECT_EQ(v.claims[i].fingerprint, w.claims[i].fingerprint);
    EXPECT_EQ(v.claims[i].ranks, w.claims[i].ranks);
    EXPECT_EQ(v.claims[i].text, w.claims[i].text);
  }
}

void expect_equal(const PeerMessage& a, const PeerMessage& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.user, b.user);
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.ranks, b.ranks);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.ticket, b.ticket);
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.places, b.places);
  EXPECT_EQ(a.kept, b.kept);
  expect_equal(a.message, b.message);
}

std::string payload_of(const PeerFrame& frame) {
  return std::string(frame.payload.data(), frame.payload.size());
}

TEST(PeerCodec, AMessageComesBackAsItWas) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Dice dice(seed);
  for (int i = 0; i < 3000 && !testing::Test::HasFailure(); ++i) {
    PeerMessage message = random_message(dice);
    const bool group = message.kind == PeerMessage::Kind::kGroup;
    const std::string payload = group ? dice.text(100'000) : "";
    message.message.payload = static_cast<std::int64_t>(payload.size());
    const std::uint64_t number = dice.any() | 1, received = dice.any();
    const auto frame =
        decode_frame(encode_numbers(number, received) + encode_message(message), payload);
    ASSERT_TRUE(frame.ok()) << frame.status().message();
    EXPECT_FALSE(frame->hello);
    EXPECT_EQ(frame->number, number);
    EXPECT_EQ(frame->received, received);
    EXPECT_TRUE(payload_of(*frame) == payload);
    expect_equal(frame->message, message);
  }
}

TEST(PeerCodec, FramesWithoutAMessageComeBack) {
  const PeerHello hello{"box-1.train.svc", 7, {~0ull, 5, 1}};
  const std::string first = encode_hello(hello);
  EXPECT_LE(first.size(), kMaxPeerHello);
  const auto frame = decode_frame(first, {});
  ASSERT_TRUE(frame.ok());
  EXPECT_EQ(frame->hello, hello);
  const std::string last = encode_end(Status(core::Code::kAborted, std::string(2000, 'x')));
  EXPECT_LE(last.size(), kMaxPeerHello);
  const auto end = decode_frame(last, {});
  ASSERT_TRUE(end.ok() && end->end);
  EXPECT_EQ(end->end->code(), core::Code::kAborted);
  EXPECT_TRUE(end->end->message().starts_with("xxx"));
  const auto alone = decode_frame(encode_numbers(0, 77), {});
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->number, 0u);
  EXPECT_EQ(alone->received, 77u);
}

// Any bytes give an error or a frame whose values are in range.
TEST(PeerCodec, MutatedFramesAreRefusedOrInRange) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Dice dice(seed);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const PeerMessage message = random_message(dice);
    const bool group = message.kind == PeerMessage::Kind::kGroup;
    const std::string payload = group ? dice.text(300) : "";
    const std::uint64_t form = dice.below(16);
    std::string bytes = form == 0 ? encode_hello({dice.text(70), 1, {dice.any(), 1, 1}})
                        : form == 1
                            ? encode_end(Status(core::Code::kAborted, dice.text(600)))
                            : encode_numbers(dice.any(), dice.any()) + encode_message(message);
    for (std::uint64_t n = dice.below(4); n > 0 && !bytes.empty(); --n) {
      bytes[dice.below(bytes.size())] = static_cast<char>(dice.below(256));
    }
    if (dice.below(4) == 0) bytes.resize(dice.below(bytes.size() + 1));
    const auto frame = decode_frame(bytes, payload);
    if (!frame.ok()) {
      EXPECT_EQ(frame.status().code(), core::Code::kInvalidArgument);
      ++refused;
      continue;
    }
    if (frame->hello) {
      EXPECT_TRUE(good_peer_name(frame->hello->name));
      EXPECT_NE(frame->hello->link.incarnation, 0u);
      continue;
    }
    if (frame->end) {
      EXPECT_FALSE(frame->end->ok());
      continue;
    }
    const PeerMessage& read = frame->message;
    EXPECT_LE(read.kind, PeerMessage::Kind::kKept);
    EXPECT_LE(read.places.size(), kMaxPeers);
    EXPECT_LE(read.text.size(), collective::kMaxNote);
    EXPECT_LE(read.message.kind, collective::Kind::kLeft);
    EXPECT_LE(read.message.vote.claims.size(), collective::kStateClaims);
    EXPECT_LE(read.message.range.begin, read.message.range.end);
    EXPECT_EQ(read.message.payload, static_cast<std::int64_t>(payload_of(*frame).size()));
  }
  EXPECT_GT(refused, 1000);
}

// Each row breaks one rule of an otherwise valid frame.
TEST(PeerCodec, NamesTheFieldThatIsOutOfRange) {
  const auto refused = [](const char* field, auto change, const std::string& payload = "") {
    PeerMessage message;
    message.message.vote.claims.resize(1);
    message.places.resize(1);
    message.places[0] = {"box", {{1, 2}}};
    v1::PeerFrame frame;
    ASSERT_TRUE(frame.ParseFromString(encode_numbers(1, 0) + encode_message(message)));
    change(frame);
    const auto read = decode_frame(frame.SerializeAsString(), payload);
    ASSERT_FALSE(read.ok()) << field;
    EXPECT_EQ(read.status().message(),
              std::string("a frame's field ") + field + " is out of range");
  };
  using Frame = v1::PeerFrame;
  const auto group = [](Frame& f) { return f.mutable_message()->mutable_message(); };
  const std::string long_text(collective::kMaxText + 1, 'x');
  refused("number", [](Frame& f) { f.set_number(0); });
  refused("number", [](Frame& f) { f.clear_message(); });
  refused("hello", [](Frame& f) { f.mutable_hello(); });
  refused("end", [](Frame& f) { f.mutable_end(); });
  const auto ends = [](std::uint32_t code, const std::string& text) {
    return [=](Frame& f) {
      f.Clear();
      f.mutable_end()->set_code(code);
      f.mutable_end()->set_text(text);
    };
  };
  refused("end.code", ends(0, ""));
  refused("end.code", ends(16, ""));
  refused("end.text", ends(1, std::string(513, 'x')));
  refused("end", ends(1, ""), "x");
  refused("kind", [](Frame& f) { f.mutable_message()->set_kind(0); });
  refused("kind", [](Frame& f) { f.mutable_message()->set_kind(8); });
  refused("message", [](Frame& f) { f.mutable_message()->set_kind(1); });
  refused("message", [](Frame& f) { f.mutable_message()->clear_message(); });
  refused("user", [&](Frame& f) { f.mutable_message()->set_user(long_text); });
  refused("name", [&](Frame& f) { f.mutable_message()->set_name(long_text); });
  refused("ranks", [](Frame& f) { f.mutable_message()->set_ranks(kMaxPeerRanks + 1); });
  refused("rank", [](Frame& f) { f.mutable_message()->set_rank(kMaxPeerRanks); });
  refused("text", [](Frame& f) { f.mutable_message()->set_text(std::string(513, 'x')); });
  refused("places", [](Frame& f) {
    for (std::size_t i = 0; i < kMaxPeers; ++i) f.mutable_message()->add_places();
  });
  refused("kept", [](Frame& f) {
    for (std::size_t i = 0; i <= kMaxPeerRanks; ++i) f.mutable_message()->add_kept();
  });
  refused("places.daemon",
          [](Frame& f) { f.mutable_message()->mutable_places(0)->set_daemon(""); });
  refused("places.members.rank", [](Frame& f) {
    f.mutable_message()->mutable_places(0)->mutable_members(0)->set_rank(kMaxPeerRanks);
  });
  refused("places.members", [](Frame& f) {
    for (std::size_t i = 0; i < kMaxPeerRanks; ++i)
      f.mutable_message()->mutable_places(0)->add_members();
  });
  refused("message.kind", [&](Frame& f) { group(f)->set_kind(15); });
  refused("message.purpose", [&](Frame& f) { group(f)->set_purpose(0); });
  refused("message.level", [&](Frame& f) { group(f)->set_level(256); });
  refused("message.range", [&](Frame& f) { group(f)->mutable_range()->set_begin(-1); });
  refused("message.range", [&](Frame& f) { group(f)->mutable_range()->set_begin(1); });
  refused("vote.claims", [&](Frame& f) {
    for (int i = 0; i < 16; ++i) group(f)->mutable_vote()->add_claims();
  });
  refused("vote.claims.text",
          [&](Frame& f) { group(f)->mutable_vote()->mutable_claims(0)->set_text(long_text); });
  refused("vote.code", [&](Frame& f) { group(f)->mutable_vote()->set_code(16); });
  refused("vote.failure", [&](Frame& f) { group(f)->mutable_vote()->set_failure(long_text); });
  refused(
      "payload", [](Frame&) {}, std::string(kMaxPeerPayload + 1, 'x'));
  refused(
      "payload",
      [](Frame& f) {
        f.mutable_message()->set_kind(1);
        f.mutable_message()->clear_message();
      },
      "x");
}

v1::PeerMove a_move(v1::PeerMove::Kind kind) {
  v1::PeerMove move;
  move.set_kind(kind);
  move.set_id(std::string(32, 'a'));
  if (kind == v1::PeerMove::OFFER) move.mutable_offer()->add_tokens()->set_hash(std::string(32, 1));
  return move;
}

TEST(PeerCodec, AMoveComesBackAsItWas) {
  for (int kind = v1::PeerMove::OFFER; kind <= v1::PeerMove::ASK; ++kind) {
    const v1::PeerMove move = a_move(static_cast<v1::PeerMove::Kind>(kind));
    const std::string data = kind == v1::PeerMove::DATA ? "bytes" : "";
    const auto read = decode_frame(encode_numbers(3, 2) + encode_move(move), data);
    ASSERT_TRUE(read.ok()) << read.status().message();
    ASSERT_TRUE(read->move);
    EXPECT_EQ(read->move->SerializeAsString(), move.SerializeAsString());
    EXPECT_EQ(payload_of(*read), data);
  }
}

TEST(PeerCodec, NamesTheFieldOfAMoveThatIsOutOfRange) {
  using Move = v1::PeerMove;
  const auto refused = [](const char* field, Move::Kind kind, auto change,
                          const std::string& data = "") {
    Move move = a_move(kind);
    change(move);
    const auto read = decode_frame(encode_numbers(1, 0) + encode_move(move), data);
    ASSERT_FALSE(read.ok()) << field;
    EXPECT_EQ(read.status().message(),
              std::string("a frame's field ") + field + " is out of range");
  };
  const auto nothing = [](Move&) {};
  const std::string long_text(5000, 'x');
  refused("move.kind", Move::ASK, [](Move& m) { m.set_kind(Move::NONE); });
  refused("move.id", Move::ASK, [](Move& m) { m.set_id("../../../etc/passwd............."); });
  refused("move.id", Move::ASK, [](Move& m) { m.set_id("aa"); });
  refused("move.text", Move::ABORT, [&](Move& m) { m.set_text(long_text); });
  refused("move.code", Move::REFUSE, [](Move& m) { m.set_code(99); });
  refused("move.offer", Move::OFFER, [](Move& m) { m.clear_offer(); });
  refused("move.offer", Move::ASK, [](Move& m) { m.mutable_offer(); });
  refused("move.offer", Move::OFFER, [&](Move& m) { m.mutable_offer()->set_name(long_text); });
  refused("move.offer.tokens", Move::OFFER,
          [](Move& m) { m.mutable_offer()->add_tokens()->set_hash("short"); });
  refused("move.offer.tokens", Move::OFFER, [](Move& m) {
    for (int i = 0; i < 64; ++i) *m.mutable_offer()->add_tokens() = m.offer().tokens(0);
  });
  refused("payload", Move::DATA, nothing);
  refused("payload", Move::ASK, nothing, "x");
  refused("payload", Move::DATA, nothing, std::string(kMaxMoveData + 1, 'x'));
}

}  // namespace
}  // namespace teletensor::server
