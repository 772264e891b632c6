#include "server/peer/peer_codec.h"

#include <algorithm>
#include <utility>

#include "engine/program/text.h"
#include "teletensor/v1/peer.pb.h"

namespace teletensor::server {

using core::Result;
using core::Status;
using runtime::PeerMessage;

namespace {

// Maximum length of the reason in a frame that ends a connection, in bytes.
constexpr std::size_t kMaxEndText = 512;

void fill(const collective::Vote& vote, v1::PeerVote& out) {
  out.set_lowest(vote.lowest);
  out.set_fingerprint(vote.fingerprint);
  out.set_equal(vote.equal);
  out.set_balance(vote.balance);
  out.set_failed(vote.failed);
  out.set_done(vote.done);
  out.set_announced(vote.announced);
  out.set_interrupted(vote.interrupted);
  for (const collective::Claim& claim : vote.claims) {
    v1::PeerClaim& each = *out.add_claims();
    each.set_rank(claim.rank);
    each.set_fingerprint(claim.fingerprint);
    each.set_ranks(claim.ranks);
    each.set_text(claim.text);
  }
  out.set_code(static_cast<std::uint32_t>(vote.code));
  out.set_failure(vote.failure);
}

void fill(const collective::Message& message, v1::PeerGroupMessage& out) {
  out.set_kind(static_cast<std::uint32_t>(message.kind));
  out.set_purpose(static_cast<std::uint32_t>(message.purpose));
  out.set_level(message.level);
  out.set_number(message.number);
  out.set_done(message.done);
  out.mutable_range()->set_begin(message.range.begin);
  out.mutable_range()->set_end(message.range.end);
  out.set_from(message.from);
  out.set_to(message.to);
  out.set_tag(message.tag);
  fill(message.vote, *out.mutable_vote());
}

void fill(const PeerMessage& message, v1::PeerMessage& out) {
  out.set_kind(static_cast<std::uint32_t>(message.kind));
  out.set_former(message.epoch.former);
  out.set_epoch(message.epoch.number);
  out.set_user(message.user);
  out.set_name(message.name);
  out.set_ranks(message.ranks);
  out.set_rank(message.rank);
  out.set_ticket(message.ticket);
  out.set_elastic(message.elastic);
  out.set_text(message.text);
  for (const PeerMessage::Place& place : message.places) {
    v1::PeerPlace& each = *out.add_places();
    each.set_daemon(place.daemon);
    for (const PeerMessage::Member& member : place.members) {
      v1::PeerMember& made = *each.add_members();
      made.set_rank(member.rank);
      made.set_ticket(member.ticket);
    }
  }
  for (const PeerMessage::Kept& kept : message.kept) {
    v1::PeerKept& each = *out.add_kept();
    each.set_former(kept.epoch.former);
    each.set_epoch(kept.epoch.number);
    each.set_generation(kept.generation);
  }
  if (message.kind == PeerMessage::Kind::kGroup) fill(message.message, *out.mutable_message());
}

Status wrong(const char* field) {
  return core::invalid(std::string("a frame's field ") + field + " is out of range");
}

template <class Enum>
bool read(std::uint32_t value, Enum first, Enum last, Enum& out) {
  if (value < static_cast<std::uint32_t>(first) || value > static_cast<std::uint32_t>(last)) {
    return false;
  }
  out = static_cast<Enum>(value);
  return true;
}

Status read(const v1::PeerVote& from, collective::Vote& vote) {
  using core::Code;
  vote.lowest = from.lowest();
  vote.fingerprint = from.fingerprint();
  vote.equal = from.equal();
  vote.balance = from.balance();
  vote.failed = from.failed();
  vote.done = from.done();
  vote.announced = from.announced();
  vote.interrupted = from.interrupted();
  if (std::cmp_greater(from.claims_size(), collective::kStateClaims)) return wrong("vote.claims");
  for (const v1::PeerClaim& each : from.claims()) {
    if (each.text().size() > collective::kMaxText) return wrong("vote.claims.text");
    vote.claims.push_back({each.rank(), each.fingerprint(), each.ranks(), each.text()});
  }
  if (!read(from.code(), Code::kOk, Code::kDataLoss, vote.code)) return wrong("vote.code");
  if (from.failure().size() > collective::kMaxText) return wrong("vote.failure");
  vote.failure = from.failure();
  return {};
}

Status read(const v1::PeerGroupMessage& from, collective::Message& message) {
  using collective::Kind;
  using collective::Purpose;
  if (!read(from.kind(), Kind::kVote, Kind::kLeft, message.kind)) return wrong("message.kind");
  if (!read(from.purpose(), Purpose::kAnnounce, Purpose::kLower, message.purpose)) {
    return wrong("message.purpose");
  }
  if (from.level() > 0xff) return wrong("message.level");
  message.level = static_cast<std::uint8_t>(from.level());
  message.number = from.number();
  message.done = from.done();
  message.range = {from.range().begin(), from.range().end()};
  if (message.range.begin < 0 || message.range.end < message.range.begin) {
    return wrong("message.range");
  }
  message.from = from.from();
  message.to = from.to();
  message.tag = from.tag();
  return read(from.vote(), message.vote);
}

Status read_places(const v1::PeerMessage& from, PeerMessage& message) {
  if (std::cmp_greater(from.places_size(), kMaxPeers)) return wrong("places");
  std::size_t members = 0;
  for (const v1::PeerPlace& each : from.places()) {
    if (!good_peer_name(each.daemon())) return wrong("places.daemon");
    members += static_cast<std::size_t>(each.members_size());
    if (members > kMaxPeerRanks) return wrong("places.members");
    PeerMessage::Place& place = message.places.emplace_back();
    place.daemon = each.daemon();
    for (const v1::PeerMember& member : each.members()) {
      if (member.rank() >= kMaxPeerRanks) return wrong("places.members.rank");
      place.members.push_back({member.rank(), member.ticket()});
    }
  }
  return {};
}

Status read(const v1::PeerMessage& from, PeerMessage& message) {
  using Kind = PeerMessage::Kind;
  if (!read(from.kind(), Kind::kRegister, Kind::kKept, message.kind)) return wrong("kind");
  if (from.user().size() > collective::kMaxText) return wrong("user");
  if (from.name().size() > collective::kMaxText) return wrong("name");
  if (from.ranks() > kMaxPeerRanks) return wrong("ranks");
  if (from.rank() >= kMaxPeerRanks) return wrong("rank");
  if (from.text().size() > collective::kMaxNote) return wrong("text");
  message.epoch = {from.former(), from.epoch()};
  message.user = from.user();
  message.name = from.name();
  message.ranks = from.ranks();
  message.rank = from.rank();
  message.ticket = from.ticket();
  message.elastic = from.elastic();
  message.text = from.text();
  if (std::cmp_greater(from.kept_size(), kMaxPeerRanks)) return wrong("kept");
  for (const v1::PeerKept& each : from.kept()) {
    message.kept.push_back({{each.former(), each.epoch()}, each.generation()});
  }
  TT_RETURN_IF_ERROR(read_places(from, message));
  if (from.has_message() != (message.kind == Kind::kGroup)) return wrong("message");
  return from.has_message() ? read(from.message(), message.message) : Status();
}

// Maximum length of a text (name of a user, a session or a file), in bytes.
constexpr std::size_t kMaxMoveText = 4096;

Status check(const v1::PeerMove& move, std::size_t payload) {
  using Move = v1::PeerMove;
  if (move.kind() <= Move::NONE || move.kind() > Move::ASK) return wrong("move.kind");
  const auto hexadecimal = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (move.id().size() != 32 || !std::all_of(move.id().begin(), move.id().end(), hexadecimal)) {
    return wrong("move.id");
  }
  for (const std::string* each : {&move.text(), &move.address(), &move.socket()}) {
    if (each->size() > kMaxMoveText) return wrong("move.text");
  }
  if (move.code() > static_cast<std::uint32_t>(core::Code::kDataLoss)) return wrong("move.code");
  if (move.has_offer() != (move.kind() == Move::OFFER)) return wrong("move.offer");
  const v1::PeerOffer& offer = move.offer();
  for (const std::string* each :
       {&offer.user(), &offer.name(), &offer.version(), &offer.machine()}) {
    if (each->size() > kMaxMoveText) return wrong("move.offer");
  }
  if (std::cmp_greater(offer.tokens_size(), kMaxMoveTokens)) return wrong("move.offer.tokens");
  if (std::cmp_greater(offer.memory_size(), kMaxPeers)) return wrong("move.offer.memory");
  for (const v1::PeerToken& token : offer.tokens()) {
    if (token.hash().size() != 32 || token.id().size() > 64) return wrong("move.offer.tokens");
  }
  const bool data = move.kind() == Move::DATA;
  return payload > (data ? kMaxMoveData : 0) || (data && payload == 0) ? wrong("payload")
                                                                       : Status();
}

Status read(const v1::PeerHello& from, PeerHello& hello) {
  if (!good_peer_name(from.name())) return wrong("hello.name");
  if (from.incarnation() == 0) return wrong("hello.incarnation");
  hello = {from.name(), from.protocol(), {from.incarnation(), from.received(), from.of()}};
  return {};
}

Status read(const v1::PeerEnd& from, std::optional<Status>& end) {
  core::Code code{};
  if (!read(from.code(), core::Code::kCancelled, core::Code::kDataLoss, code)) {
    return wrong("end.code");
  }
  if (from.text().size() > kMaxEndText) return wrong("end.text");
  end = Status(code, from.text());
  return {};
}

// Decodes a frame that introduces or ends a connection, and has nothing else.
Status read_alone(const v1::PeerFrame& frame, std::size_t payload, PeerFrame& result) {
  const char* const field = frame.has_hello() ? "hello" : "end";
  const bool both = frame.has_hello() && frame.has_end();
  if (both || frame.has_message() || frame.has_move() || frame.number() != 0 || payload > 0) {
    return wrong(field);
  }
  return frame.has_hello() ? read(frame.hello(), result.hello.emplace())
                           : read(frame.end(), result.end);
}

}  // namespace

bool good_peer_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxPeerName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

std::string encode_hello(const PeerHello& hello) {
  v1::PeerFrame frame;
  v1::PeerHello& out = *frame.mutable_hello();
  out.set_name(hello.name);
  out.set_protocol(hello.protocol);
  out.set_incarnation(hello.link.incarnation);
  out.set_received(hello.link.received);
  out.set_of(hello.link.of);
  return frame.SerializeAsString();
}

std::string encode_numbers(std::uint64_t number, std::uint64_t received) {
  v1::PeerFrame frame;
  frame.set_number(number);
  frame.set_received(received);
  return frame.SerializeAsString();
}

std::string encode_end(const Status& why) {
  v1::PeerFrame frame;
  frame.mutable_end()->set_code(static_cast<std::uint32_t>(why.code()));
  frame.mutable_end()->set_text(program::shortened(why.message(), kMaxEndText));
  return frame.SerializeAsString();
}

std::string encode_message(const PeerMessage& message) {
  v1::PeerFrame frame;
  fill(message, *frame.mutable_message());
  return frame.SerializeAsString();
}

std::string encode_move(v1::PeerMove move) {
  v1::PeerFrame frame;
  *frame.mutable_move() = std::move(move);
  return frame.SerializeAsString();
}

Result<PeerFrame> decode_frame(std::string_view text, std::span<const char> payload) {
  v1::PeerFrame frame;
  if (std::cmp_greater(text.size(), kMaxPeerTexts) ||
      !frame.ParseFromArray(text.data(), static_cast<int>(text.size()))) {
    return core::invalid("a frame cannot be decoded as a PeerFrame");
  }
  PeerFrame result;
  if (frame.has_hello() || frame.has_end()) {
    TT_RETURN_IF_ERROR(read_alone(frame, payload.size(), result));
    return result;
  }
  result.number = frame.number();
  result.received = frame.received();
  if (frame.has_message() && frame.has_move()) return wrong("move");
  if ((frame.has_message() || frame.has_move()) != (frame.number() != 0)) return wrong("number");
  if (frame.has_move()) {
    TT_RETURN_IF_ERROR(check(frame.move(), payload.size()));
    result.move = std::move(*frame.mutable_move());
  } else {
    if (frame.has_message()) TT_RETURN_IF_ERROR(read(frame.message(), result.message));
    const bool may_have = frame.has_message() && result.message.kind == PeerMessage::Kind::kGroup;
    if (payload.size() > (may_have ? kMaxPeerPayload : 0)) return wrong("payload");
  }
  result.message.message.payload = static_cast<std::int64_t>(payload.size());
  result.payload = payload;
  return result;
}

}  // namespace teletensor::server
