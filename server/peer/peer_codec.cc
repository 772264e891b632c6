#include "server/peer/peer_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "teletensor/v1/peer.pb.h"

namespace teletensor::server {

using core::Result;
using core::Status;
using runtime::PeerMessage;

namespace {

constexpr char kPayloadTag = static_cast<char>(v1::PeerFrame::kPayloadFieldNumber << 3 | 2);

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

// The bytes of a frame as an input stream for protobuf.
class Input {
 public:
  explicit Input(runtime::Pieces bytes) {
    for (const std::span<const char> piece : bytes) {
      pieces_.emplace_back(piece.data(), static_cast<int>(piece.size()));
    }
    for (auto& piece : pieces_) pointers_.push_back(&piece);
    stream.emplace(pointers_.data(), static_cast<int>(pointers_.size()));
  }
  std::optional<google::protobuf::io::ConcatenatingInputStream> stream;

 private:
  std::deque<google::protobuf::io::ArrayInputStream> pieces_;
  std::vector<google::protobuf::io::ZeroCopyInputStream*> pointers_;
};

// Position of a frame's payload: the offset of its field and the offset of its contents.
struct PayloadPlace {
  std::int64_t field = 0, begin = 0, bytes = 0;
};

Status find_payload(runtime::Pieces bytes, PayloadPlace* place) {
  using google::protobuf::internal::WireFormatLite;
  const Status bad = core::invalid("a frame cannot be decoded as a PeerFrame");
  Input frame(bytes);
  google::protobuf::io::CodedInputStream input(&*frame.stream);
  while (true) {
    place->field = input.CurrentPosition();
    const std::uint32_t tag = input.ReadTag();
    if (tag == 0) break;
    if (tag != static_cast<std::uint8_t>(kPayloadTag)) {
      if (!WireFormatLite::SkipField(&input, tag)) return bad;
      continue;
    }
    std::uint32_t size = 0;
    if (!input.ReadVarint32(&size)) return bad;
    if (size > kMaxPeerPayload) return wrong("payload");
    place->begin = input.CurrentPosition();
    place->bytes = size;
    if (!input.Skip(static_cast<int>(size))) return bad;
    if (input.ReadTag() != 0) return core::invalid("a frame has a field after its payload");
    break;
  }
  return input.ConsumedEntireMessage() ? Status() : bad;
}

std::vector<std::span<const char>> part_of(runtime::Pieces bytes, const PayloadPlace& place) {
  std::vector<std::span<const char>> part;
  auto skipped = static_cast<std::size_t>(place.begin),
       wanted = static_cast<std::size_t>(place.bytes);
  for (const std::span<const char> piece : bytes) {
    const std::size_t skip = std::min(skipped, piece.size());
    const std::size_t taken = std::min(wanted, piece.size() - skip);
    skipped -= skip;
    wanted -= taken;
    if (taken > 0) part.push_back(piece.subspan(skip, taken));
  }
  return part;
}

std::string encode(const v1::PeerFrame& frame, std::size_t payload_bytes) {
  std::string bytes = frame.SerializeAsString();
  if (payload_bytes > 0) {
    std::uint8_t size[10];
    const std::uint8_t* const end =
        google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(payload_bytes, size);
    bytes += kPayloadTag;
    bytes.append(reinterpret_cast<const char*>(size), static_cast<std::size_t>(end - size));
  }
  return bytes;
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

std::string encode_message(const PeerMessage& message, std::size_t payload_bytes) {
  v1::PeerFrame frame;
  fill(message, *frame.mutable_message());
  return encode(frame, payload_bytes);
}

std::string encode_move(v1::PeerMove move, std::size_t payload_bytes) {
  v1::PeerFrame frame;
  *frame.mutable_move() = std::move(move);
  return encode(frame, payload_bytes);
}

Result<PeerFrame> decode_frame(runtime::Pieces bytes) {
  PayloadPlace place;
  TT_RETURN_IF_ERROR(find_payload(bytes, &place));
  v1::PeerFrame frame;
  Input input(bytes);
  google::protobuf::io::LimitingInputStream before(&*input.stream, place.field);
  if (!frame.ParseFromZeroCopyStream(&before)) {
    return core::invalid("a frame cannot be decoded as a PeerFrame");
  }
  PeerFrame result;
  if (frame.has_hello()) {
    if (frame.has_message() || frame.has_move() || frame.number() != 0 || place.bytes > 0) {
      return wrong("hello");
    }
    TT_RETURN_IF_ERROR(read(frame.hello(), result.hello.emplace()));
    return result;
  }
  result.number = frame.number();
  result.received = frame.received();
  if (frame.has_message() && frame.has_move()) return wrong("move");
  if ((frame.has_message() || frame.has_move()) != (frame.number() != 0)) return wrong("number");
  if (frame.has_move()) {
    TT_RETURN_IF_ERROR(check(frame.move(), static_cast<std::size_t>(place.bytes)));
    result.move = std::move(*frame.mutable_move());
  } else {
    if (frame.has_message()) TT_RETURN_IF_ERROR(read(frame.message(), result.message));
    const bool may_have = frame.has_message() && result.message.kind == PeerMessage::Kind::kGroup;
    if (std::cmp_greater(place.bytes, may_have ? kMaxPeerPayload : 0)) return wrong("payload");
  }
  result.message.message.payload = place.bytes;
  result.payload = part_of(bytes, place);
  return result;
}

}  // namespace teletensor::server
