// Frames: what the client writes and the daemon reads. Bytes as proto/teletensor/v1/session.proto
// (Frame) and program.proto (Command) define them; docs/wire.md shows one instruction byte by byte.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/program/command.h"

namespace teletensor::wire {

// What a frame may hold. The server tells its own in Hello.
struct FrameLimits {
  std::size_t bytes = 1 << 20;
  std::size_t commands = 4096;
  // Arguments, attributes, numbers, texts, counts, handles of the whole frame: bounds what decoding
  // may allocate to about 100 bytes each.
  std::size_t items = 1 << 16;
  std::size_t inline_bytes = 64 << 10;  // largest constant
};

struct Frame {
  std::uint64_t first_seq = 0;  // of commands[0]
  std::uint64_t first_id = 0;   // that the next made handle gets
  std::uint64_t ack_upto = 0;
  std::uint64_t attach_counter = 0;
  std::vector<program::Command> commands;
  std::uint64_t next_id = 0;  // not on the wire: first_id of the frame that follows
};

// An Apply whose parts lie elsewhere: what the client's hot path writes, without copies.
struct ApplyView {
  program::OpId op = 0;
  bool record = false;
  bool inplace = false;
  core::DType default_dtype = core::DType::kF32;
  std::span<const program::Argument> arguments;
  std::span<const std::uint32_t> counts;
  const core::Attributes& attributes;
};

// What a command adds to a frame's items, at most.
std::size_t items_of(const core::Attributes& attributes);
std::size_t items_of(const ApplyView& apply);
std::size_t items_of(const program::Command& command);

// The ids that a command makes where the writer says nothing else.
std::uint32_t usual_made(const program::Command& command);

// Gathers commands into one frame. One thread at a time; never fails (it throws bad_alloc only).
//
//   writer.begin(next_seq, next_id);
//   writer.append(apply, 1); ...
//   send(writer.finish(ack, counter));
class FrameWriter {
 public:
  // An empty frame. Ids and numbers start at 1 in a session.
  void begin(std::uint64_t first_seq, program::HandleId first_id);

  // `made`: how many ids the command makes (its results get next_id(), next_id() + 1, ...).
  // Precondition: every handle in it is below next_id().
  void append(const ApplyView& apply, std::uint32_t made);
  void append(const program::Apply& apply, std::uint32_t made);
  void append(const program::Command& command, std::uint32_t made);

  // Would one more command of about `bytes` bytes and `items` items pass the limits? The caller
  // then finishes this frame and begins another. True never for an empty frame.
  bool full(const FrameLimits& limits, std::size_t bytes = 256, std::size_t items = 64) const {
    return commands_ != 0 && (size() + bytes > limits.bytes || commands_ >= limits.commands ||
                              items_ + items > limits.items);
  }

  std::uint64_t next_seq() const { return first_seq_ + commands_; }
  program::HandleId next_id() const { return next_id_; }
  std::size_t commands() const { return commands_; }
  bool empty() const { return commands_ == 0; }
  std::size_t size() const { return size_; }  // bytes, about

  // The frame; the view is valid until the next begin() or append(). Call begin() before the next
  // append().
  std::string_view finish(std::uint64_t ack_upto, std::uint64_t attach_counter);

 private:
  static constexpr std::size_t kHeader = 64;  // room for the header, written last

  char* room(std::size_t bytes);
  void end_command(char* opened, char* end, std::uint32_t made);

  std::unique_ptr<char[]> buffer_;
  std::size_t capacity_ = 0;
  std::size_t size_ = kHeader;  // with the header's room
  std::size_t commands_ = 0;
  std::size_t items_ = 0;
  std::uint64_t first_seq_ = 0;
  program::HandleId first_id_ = 0, next_id_ = 0;
};

// Reads frames of one session. Refuses with INVALID_ARGUMENT whatever is not well-formed (unknown
// fields and kinds, wrong types, fields twice or out of order, handles that cannot be, shapes and
// contents that disagree), with RESOURCE_EXHAUSTED what is over a limit, with UNIMPLEMENTED an op
// that this side has not. It does not look at the catalog: signatures are the front's business.
class FrameReader {
 public:
  static constexpr program::OpId kNoOp = 0xffff;

  // `ops`: op n of the wire is ops[n - 1]; `names` (as long) is for the text where that is kNoOp.
  // Both empty: op n is n - 1.
  // `thin`: an instruction whose fields are well-formed and whose contents are not becomes a
  // program::Refused, and an instruction says how many ids it takes.
  FrameReader(FrameLimits limits, std::vector<program::OpId> ops, std::vector<std::string> names,
              bool thin = false)
      : limits_(limits), ops_(std::move(ops)), names_(std::move(names)), thin_(thin) {}
  FrameReader() = default;

  bool thin() const { return thin_; }

  const FrameLimits& limits() const { return limits_; }
  // On failure `frame` is in an unknown but valid state.
  core::Status read(std::string_view bytes, Frame& frame) const;

 private:
  FrameLimits limits_;
  std::vector<program::OpId> ops_;
  std::vector<std::string> names_;
  bool thin_ = false;
};

}  // namespace teletensor::wire
