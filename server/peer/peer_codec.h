// Converts between the messages of peer.proto and the types of daemons. No other file depends on
// both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/collective/link.h"
#include "engine/core/status.h"
#include "engine/runtime/groups/fabric.h"
#include "teletensor/v1/peer.pb.h"

namespace teletensor::server {

inline constexpr std::uint32_t kPeerProtocol = 5;
inline constexpr std::size_t kMaxPeers = 256;
inline constexpr std::size_t kMaxPeerName = 64;       // Maximum length of a peer's name in bytes.
inline constexpr std::size_t kMaxPeerRanks = 16'384;  // Maximum number of ranks in a group.
// Maximum size of the payload of one message, in bytes.
inline constexpr std::size_t kMaxPeerPayload = 64ull << 20;
// Maximum size of a part of a session's file, in bytes.
inline constexpr std::size_t kMaxMoveData = 1ull << 20;
// Maximum number of tokens of the session's user.
inline constexpr std::size_t kMaxMoveTokens = 64;
// Maximum size of a frame without its payload, in bytes.
inline constexpr std::size_t kMaxPeerTexts = 4ull << 20;

struct PeerHello {
  std::string name;
  std::uint32_t protocol = kPeerProtocol;
  collective::LinkHello link;
  friend bool operator==(const PeerHello&, const PeerHello&) = default;
};

// A received frame.
struct PeerFrame {
  std::optional<PeerHello> hello;  // The hello. If it is set, nothing else is.
  std::uint64_t number = 0;        // The message number. 0 if the frame is only an acknowledgement.
  std::uint64_t received = 0;
  runtime::PeerMessage message;      // message.message.payload is the size of `payload`.
  std::optional<v1::PeerMove> move;  // A message about a session that moves, instead of `message`.
  // The payload, which refers to the memory of the frame's bytes.
  std::vector<std::span<const char>> payload;
};

// Returns true for 1 to 64 letters, digits and ._-, as in the DNS name of a certificate.
bool good_peer_name(std::string_view name);

// Encodes a complete frame.
std::string encode_hello(const PeerHello& hello);
// A frame is the concatenation of encode_numbers(), of encode_message() unless the number is 0, and
// of the payload. So a message is encoded once even if it is sent several times.
std::string encode_numbers(std::uint64_t number, std::uint64_t received);
// message.message.payload is not encoded. Precondition: payload_bytes <= kMaxPeerPayload.
std::string encode_message(const runtime::PeerMessage& message, std::size_t payload_bytes);
std::string encode_move(v1::PeerMove move, std::size_t payload_bytes);

// Decodes a frame. The payload must be the last field, so that it need not be copied. Checks
// enumeration values, sizes and numbers of entries; the receiver checks their meaning. An
// InvalidArgument error names the field.
core::Result<PeerFrame> decode_frame(runtime::Pieces bytes);

}  // namespace teletensor::server
