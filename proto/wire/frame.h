// Frames: the messages that the client writes and the daemon reads.
// proto/teletensor/v1/session.proto (Frame) and program.proto (Command) define the bytes;
// docs/wire.md shows one instruction byte by byte.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/program/command.h"
#include "engine/program/made.h"
#include "proto/wire/known_applies.h"
#include "proto/wire/protocol.h"

namespace teletensor::wire {

// The limits of a frame. The server states its limits in Hello.
struct FrameLimits {
  std::size_t bytes = 1 << 20;
  std::size_t commands = 4096;
  // Arguments, attributes, numbers, texts, counts and handles of the whole frame. This bounds the
  // memory that decoding may allocate to about 100 bytes per item.
  std::size_t items = 1 << 16;
  std::size_t inline_bytes = 64 << 10;  // maximum size of a constant
};

struct Frame {
  std::uint64_t first_seq = 0;  // of commands[0]
  std::uint64_t first_id = 0;   // the id of the next new handle
  std::uint64_t ack_upto = 0;
  std::uint64_t attach_counter = 0;
  std::vector<program::Command> commands;
  std::uint64_t next_id = 0;  // not transmitted: first_id of the following frame
};

// An Apply command that refers to its parts, so that the client's hot path writes it without
// copies.
struct ApplyView {
  program::OpId op = 0;
  bool record = false;
  bool inplace = false;
  core::DType default_dtype = core::DType::kF32;
  std::span<const program::Argument> arguments;
  std::span<const std::uint32_t> counts;
  const core::Attributes& attributes;
};

// The maximum number of items that a command adds to a frame.
inline std::size_t items_of(const core::Attributes& attributes) {
  std::size_t items = 2 * attributes.size();
  for (std::size_t i = 0; i < attributes.size(); ++i) items += attributes.ints(i).size();
  return items;
}
std::size_t items_of(const ApplyView& apply);
std::size_t items_of(const program::Command& command);

// The number of ids that a command usually makes. A writer states the number in the frame only if
// it differs from this one.
using program::usual_made;

// Collects commands in one frame. Not thread-safe; never fails (it can only throw bad_alloc).
//
//   writer.begin(next_seq, next_id);
//   writer.append(apply, 1); ...
//   send(writer.finish(ack, counter));
class FrameWriter {
 public:
  // Writes commands for a daemon that speaks this protocol from now on.
  void set_protocol(std::uint32_t protocol) { protocol_ = protocol; }
  // Starts an empty frame. Ids and sequence numbers of a session start at 1.
  void begin(std::uint64_t first_seq, program::HandleId first_id);

  // `made` is the number of ids that the command makes; its results get next_id(), next_id() + 1,
  // ... Precondition: every handle in the command is below next_id().
  void append(const ApplyView& apply, std::uint32_t made);
  void append(const program::Apply& apply, std::uint32_t made);
  void append(const program::Command& command, std::uint32_t made);

  // Returns true if one more command of about `bytes` bytes and `items` items would exceed the
  // limits; then the caller finishes this frame and starts another. Never true for an empty frame.
  bool full(const FrameLimits& limits, std::size_t bytes = 256, std::size_t items = 64) const {
    return commands_ != 0 && (size() + bytes > limits.bytes || commands_ >= limits.commands ||
                              items_ + items > limits.items);
  }

  std::uint64_t next_seq() const { return first_seq_ + commands_; }
  program::HandleId next_id() const { return next_id_; }
  std::size_t commands() const { return commands_; }
  bool empty() const { return commands_ == 0; }
  std::size_t size() const { return size_; }  // approximate size in bytes

  // Returns the bytes of the frame; the view is valid until the next begin() or append(). Call
  // begin() before the next append().
  std::string_view finish(std::uint64_t ack_upto, std::uint64_t attach_counter);

 private:
  static constexpr std::size_t kHeader = 64;  // space for the header, which is written last

  char* room(std::size_t bytes);
  void append_message(const program::Command& command, std::uint32_t made);
  void end_command(char* opened, char* end, std::uint32_t made);

  std::unique_ptr<char[]> buffer_;
  std::size_t capacity_ = 0;
  std::size_t size_ = kHeader;  // includes the space for the header
  std::size_t commands_ = 0;
  std::size_t items_ = 0;
  std::uint64_t first_seq_ = 0;
  program::HandleId first_id_ = 0, next_id_ = 0;
  std::uint32_t protocol_ = kProtocol;
};

// Reads the frames of one session, in every encoding that protobuf permits. Returns
// INVALID_ARGUMENT for malformed frames (unknown fields and kinds, wrong types, impossible handles,
// contents that do not match the shape), RESOURCE_EXHAUSTED if a limit is exceeded, and
// UNIMPLEMENTED for an op that this side does not have. It does not use the catalog: the front end
// checks signatures.
class FrameReader {
 public:
  static constexpr program::OpId kNoOp = 0xffff;

  // Op n of the protocol is ops[n - 1]. `names` has the same length and gives the name for the
  // error if that is kNoOp. If both are empty, op n is n - 1.
  // With `thin`, a command with well-formed fields and invalid contents becomes a
  // program::Refused, and each instruction declares how many ids it takes. `protocol` is the number
  // that Hello has chosen for the session.
  FrameReader(FrameLimits limits, std::vector<program::OpId> ops, std::vector<std::string> names,
              bool thin = false, std::uint32_t protocol = kProtocol)
      : limits_(limits),
        ops_(std::move(ops)),
        names_(std::move(names)),
        thin_(thin),
        protocol_(protocol) {}
  FrameReader() = default;

  bool thin() const { return thin_; }

  const FrameLimits& limits() const { return limits_; }
  // After an error `frame` is in a valid but unspecified state. With `known`, an instruction that
  // was read several times becomes a program::Repeated; these are not used for a thin client.
  core::Status read(std::string_view bytes, Frame& frame, KnownApplies* known = nullptr) const;

 private:
  FrameLimits limits_;
  std::vector<program::OpId> ops_;
  std::vector<std::string> names_;
  bool thin_ = false;
  std::uint32_t protocol_ = kProtocol;
};

}  // namespace teletensor::wire
