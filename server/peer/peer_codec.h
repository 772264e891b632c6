// Where peer.proto and the messages of daemons meet; nothing else knows both.
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
#include "engine/runtime/fabric.h"
#include "teletensor/v1/peer.pb.h"

namespace teletensor::server {

inline constexpr std::uint32_t kPeerProtocol = 3;
inline constexpr std::size_t kMaxPeers = 256;
inline constexpr std::size_t kMaxPeerName = 64;              // bytes
inline constexpr std::size_t kMaxPeerRanks = 16'384;         // of a group
inline constexpr std::size_t kMaxPeerPayload = 64ull << 20;  // bytes with one message
inline constexpr std::size_t kMaxMoveData = 1ull << 20;      // bytes of a session's file
inline constexpr std::size_t kMaxMoveTokens = 64;            // of the session's user
inline constexpr std::size_t kMaxPeerTexts = 4ull << 20;     // bytes of a frame without its payload

struct PeerHello {
  std::string name;
  std::uint32_t protocol = kPeerProtocol;
  collective::LinkHello link;
  friend bool operator==(const PeerHello&, const PeerHello&) = default;
};

// A frame that has come.
struct PeerFrame {
  std::optional<PeerHello> hello;  // with it, there is nothing else
  std::uint64_t number = 0;        // 0: no message, an acknowledgement alone
  std::uint64_t received = 0;
  runtime::PeerMessage message;                // message.message.payload: the size of `payload`
  std::optional<v1::PeerMove> move;            // in the place of `message`
  std::vector<std::span<const char>> payload;  // in the memory of the frame's bytes
};

// Letters, digits and ._-, at most 64, as in the DNS name of a certificate.
bool good_peer_name(std::string_view name);

// A whole frame.
std::string encode_hello(const PeerHello& hello);
// A frame is encode_numbers(), encode_message() where the number is not 0, and the payload's bytes,
// one after the other. So a message is encoded once, however often it is sent.
std::string encode_numbers(std::uint64_t number, std::uint64_t received);
// Of message.message.payload nothing is encoded. Precondition: payload_bytes <= kMaxPeerPayload.
std::string encode_message(const runtime::PeerMessage& message, std::size_t payload_bytes);
std::string encode_move(v1::PeerMove move, std::size_t payload_bytes);

// Reads a frame whose payload, if any, is its last field, so that it need not be copied. Checks
// values of enumerations, sizes and numbers of entries; what they mean is checked by the receiver.
// InvalidArgument names the field.
core::Result<PeerFrame> decode_frame(runtime::Pieces bytes);

}  // namespace teletensor::server
