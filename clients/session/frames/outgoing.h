// Outgoing builds the frames of a session and holds them until a stream takes them, and, with
// SentFrames, until they need not be sent again. It counts the daemon's credits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "clients/session/frames/recorder.h"
#include "clients/session/frames/sent_frames.h"
#include "clients/session/frames/session_limits.h"
#include "proto/wire/frame.h"
#include "proto/wire/progress.h"

namespace teletensor::client {

// The object has no lock: all functions but has_room() are called with the session's lock held.
class Outgoing {
 public:
  // `recorder` must outlive this object.
  Outgoing(const SessionLimits& limits, Recorder& recorder);

  // Returns true if API threads may issue commands after command `seq`: the credits allow it, and
  // the frames that wait are not too large.
  bool has_room(std::uint64_t seq) const {
    return seq + 64 <= credit_upto_.load(std::memory_order_relaxed) &&
           waiting_bytes_.load(std::memory_order_relaxed) <= kMaxWaitingBytes;
  }

  // Sets the number of the next command and the next id. Precondition: there is no command.
  void start_at(std::uint64_t next_seq, program::HandleId next_id) {
    writer_.begin(next_seq, next_id);
  }
  // Appends the next command, which makes `made` ids.
  void append(const wire::ApplyView& apply, std::uint32_t made);
  void append(const program::Command& command, std::uint32_t made);

  // Returns true if there is a frame that the credits allow.
  bool sendable() const;
  // Returns true if there is a frame to which no commands are added any more.
  bool whole_frame() const { return sent_.repeats() || !frames_.empty(); }
  // Returns true if all commands were taken.
  bool empty() const { return !sent_.repeats() && frames_.empty() && writer_.empty(); }
  // Takes the next frame. Without commands it only acknowledges messages. Precondition: sendable().
  FrameRef take();

  // Starts a stream of attach `attach` to the same daemon: frames after command `received_upto` are
  // taken again.
  void repeat(std::uint64_t attach, std::uint64_t received_upto);
  // Starts a stream to a restarted daemon, which has received `bytes_received` bytes: frames after
  // command `received_upto` are taken as if for the first time.
  void replay(std::uint64_t attach, std::uint64_t received_upto, std::uint64_t credit_upto,
              std::uint64_t credit_bytes, std::uint64_t bytes_received);

  // Number of the last message that was received, which the next frame acknowledges.
  std::uint64_t progress_upto() const { return progress_upto_; }
  // Counts a message of `bytes` bytes. Returns false if it was received before.
  bool acknowledge(std::uint64_t number, std::size_t bytes);
  // Updates the credits and drops frames that have run.
  void confirm(const wire::Progress& progress);

  SentFrames& sent() { return sent_; }
  const SentFrames& sent() const { return sent_; }

 private:
  // Maximum number of bytes that API threads may produce ahead of the sender.
  static constexpr std::size_t kMaxWaitingBytes = 32 << 20;

  void close_frame();

  const wire::FrameLimits limits_;
  Recorder& recorder_;
  wire::FrameWriter writer_;
  std::deque<SentFrame> frames_;  // Full frames, earlier than the writer's frame.
  SentFrames sent_;               // Frames that were taken.
  std::uint64_t attach_ = 1;
  std::uint64_t progress_upto_ = 0;
  std::size_t unacknowledged_ = 0;  // Bytes of messages since the last frame.
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t credit_bytes_;
  // Written with the session's lock held, and read without it by every operator call.
  std::atomic<std::size_t> waiting_bytes_ = 0;
  std::atomic<std::uint64_t> credit_upto_;
};

}  // namespace teletensor::client
