// The frames of a connection to a peer as a stream of bytes.
// A frame is a header, a text, which is an encoded v1::PeerFrame, and a payload. The header has the
// sizes of the two others as 32-bit numbers, least significant byte first. Large payloads pass
// through no buffer. The objects are used by one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "engine/runtime/groups/fabric.h"

namespace teletensor::server {

inline constexpr std::size_t kFrameHeader = 8;  // Size of a header in bytes.
// Payloads from this size on, in bytes, are neither copied nor sent together with other frames.
inline constexpr std::size_t kLargePayload = 16 << 10;

// Returns the header of a frame. Precondition: both sizes are below 2^32.
std::array<char, kFrameHeader> frame_header(std::size_t text, std::size_t payload);

// Assembles the frames from the bytes that have arrived.
class FrameInput {
 public:
  struct Frame {
    std::string_view text;
    std::span<const char> payload;

    std::size_t bytes() const { return kFrameHeader + text.size() + payload.size(); }
  };

  // Only frames up to these sizes, in bytes, are accepted from the next header on.
  void accept(std::size_t text, std::size_t payload) {
    most_text_ = text;
    most_payload_ = payload;
  }
  // Memory for the next bytes that arrive, never empty. Precondition: next() has returned none.
  std::span<char> room();
  // Reports that `bytes` bytes have been stored in room().
  void filled(std::size_t bytes);
  // Returns the next complete frame if there is one. It is valid until the next call of this
  // object. InvalidArgument if a header has a size that is not accepted, ResourceExhausted if there
  // is no memory for a frame; no further call may follow.
  core::Result<std::optional<Frame>> next();

 private:
  static constexpr std::size_t kBuffer = 64 << 10;

  bool whole() const { return text_have_ == text_.size() && payload_have_ == payload_size_; }
  core::Status read_header();
  void take(char* to, std::size_t& have, std::size_t size);

  std::size_t most_text_ = 0, most_payload_ = 0;
  const std::unique_ptr<char[]> buffer_ = std::make_unique_for_overwrite<char[]>(kBuffer);
  std::size_t begin_ = 0, end_ = 0;  // The bytes of the buffer that are not used yet.
  bool in_frame_ = false;            // Whether the header of the current frame was read.
  bool direct_ = false;              // Whether room() has returned memory of the payload.
  std::string text_;
  std::size_t text_have_ = 0;
  std::unique_ptr<char[]> payload_;  // Kept for the payloads of later frames.
  std::size_t payload_capacity_ = 0, payload_size_ = 0, payload_have_ = 0;
};

// The frames that are to be sent. Small frames that are added together are sent together.
class FrameOutput {
 public:
  struct Frame {
    std::string text;
    std::shared_ptr<const std::string> more_text;  // Follows `text`; may be null.
    runtime::Fabric::Payload payload;
    std::size_t payload_bytes = 0;

    std::size_t text_bytes() const { return text.size() + (more_text ? more_text->size() : 0); }
    std::size_t bytes() const { return kFrameHeader + text_bytes() + payload_bytes; }
  };

  // Returns true if the next frame should be added before the earlier ones are sent.
  bool has_room() const {
    return sent_ == 0 && batch_.size() < kLargePayload && payload_.parts.empty();
  }
  // Precondition: at_boundary().
  void add(Frame frame);
  // The next bytes to be sent. Empty if there are none.
  std::span<const char> front() const;
  // Reports that so many bytes of front() were sent.
  void sent(std::size_t bytes);
  // Returns true if no frame was sent in part.
  bool at_boundary() const { return sent_ == 0 && payload_.parts.empty(); }

 private:
  void skip_empty_parts();

  std::string batch_;                 // Small frames, and the beginning of a large one.
  std::size_t sent_ = 0;              // Bytes of the batch that were sent.
  runtime::Fabric::Payload payload_;  // The payload of a large frame, which follows the batch.
  std::size_t part_ = 0, part_sent_ = 0;
};

}  // namespace teletensor::server
