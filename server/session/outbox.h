// Outbox collects what a session has to report to its client, and merges it into at most one
// pending message.
// Thread-safe: lanes and the frame reader add to it, and the stream takes from it. Messages are
// numbered, and kept until the client has acknowledged them, so that none is lost with a
// connection.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "proto/wire/progress.h"
#include "server/base/limits.h"
#include "server/session/kept_messages.h"
#include "server/session/late_errors.h"

namespace teletensor::server {

class Outbox {
 public:
  // The bytes of a Progress. Null if there is nothing to send.
  using Message = std::shared_ptr<const std::string>;

  // With `keeps`, messages that contain more than counters are kept until they are acknowledged.
  // `attach` is the attach counter of the first stream.
  explicit Outbox(const Limits& limits, bool keeps = false, std::uint64_t attach = 0);

  // ---- called by the frame reader
  // Reports the arrival of a frame with the commands [first_seq, first_seq + count) and `bytes`
  // bytes. Returns true if it follows the last frame within the granted credits; it then counts as
  // received. Returns false if the whole frame was received before and must not be executed again.
  // If the session was restored from a snapshot taken in the middle of a frame, that frame counts
  // as the next one.
  core::Result<bool> received(std::uint64_t first_seq, std::uint64_t count, std::size_t bytes);

  // Sets the position of a session that was taken over. Must precede all other calls.
  void begin_at(std::uint64_t received, std::uint64_t completed);
  // Credits for a client that replays its frames (see Attached).
  struct Credits {
    std::uint64_t upto = 0, bytes = 0;  // Credits that the client was told.
    std::uint64_t received = 0;         // Size of the received frames in bytes.
  };
  Credits credits() const;

  // The state for a snapshot of a session of which nothing runs. Pending reports become
  // messages, whose numbers do not change when another daemon sends them.
  struct Sealed {
    std::uint64_t number = 0;          // Number of the last message.
    std::uint64_t bytes_received = 0;  // Size of the frames that have run, in bytes.
    std::vector<std::pair<std::uint64_t, Message>> kept;  // Messages that are not acknowledged.
  };
  Sealed seal();
  // Continues from the state of another outbox that had received the commands up to `received`, of
  // which those up to `completed` had run. Must precede all other calls.
  void restore(Sealed sealed, std::uint64_t received, std::uint64_t completed);

  // ---- called by the engine
  void completed(std::uint64_t seq);
  // Reports that a snapshot with all commands up to `seq` is durable.
  void written(std::uint64_t seq);
  // Returns RESOURCE_EXHAUSTED if the client has left too many bytes unread; the session should
  // end.
  core::Status fetched(wire::FetchedValue value);
  // Every error is reported, but the texts of errors that wait for a message are bounded.
  void error(wire::ErrorEvent error);
  void raised(wire::RaisedEvent raised);
  void rank_lost(wire::LostRankEvent lost);

  // ---- called by the stream
  // Returns the next message if there is something to report that the client may wait for: a value,
  // an error, the completion of all its commands, a large part of its credits, or progress after
  // Limits::progress_every without a message. `attach` is the attach counter of the stream;
  // replaced streams receive nothing.
  Message take(std::uint64_t attach = 0);
  // Ends the outbox with its session: take() returns no further message.
  void close();
  // Reports that the client has read all messages up to this number.
  void acknowledged(std::uint64_t number);
  // Starts the stream with the counter `attach`, whose client has read the messages up to `number`.
  // Later messages are sent again, and one message follows in any case. Returns false if some of
  // them were not kept.
  bool rewind(std::uint64_t number, std::uint64_t attach);

  std::uint64_t received_upto() const;
  std::uint64_t completed_upto() const;
  // The time since which the client has been told that all its commands have run, and has sent no
  // further one. The epoch if commands run or if the client is still to be told.
  core::Clock::time_point idle_since() const;
  // Approximate memory of all reports that the client has not read or not acknowledged, in bytes.
  std::uint64_t bytes() const;

 private:
  struct FrameBytes {
    std::uint64_t last_seq;
    std::uint64_t upto;  // Bytes of the session's frames up to and including this one.
  };

  std::uint64_t credit_upto() const TT_REQUIRES(mutex_) {
    return completed_ + limits_.credit_instructions;
  }
  std::uint64_t credit_bytes() const TT_REQUIRES(mutex_) {
    return bytes_completed_ + limits_.credit_bytes;
  }
  void complete(std::uint64_t seq) TT_REQUIRES(mutex_);
  bool due() const TT_REQUIRES(mutex_);
  wire::Progress gather() TT_REQUIRES(mutex_);

  const Limits limits_;
  const bool keeps_;
  mutable core::Mutex mutex_;
  std::uint64_t received_ TT_GUARDED_BY(mutex_) = 0;
  // Value of received_ when the outbox was restored.
  std::uint64_t restored_ TT_GUARDED_BY(mutex_) = ~0ull;
  std::uint64_t completed_ TT_GUARDED_BY(mutex_) = 0;
  std::uint64_t bytes_received_ TT_GUARDED_BY(mutex_) = 0;
  std::uint64_t bytes_completed_ TT_GUARDED_BY(mutex_) = 0;
  // The numbers that the last message has reported.
  struct Told {
    std::uint64_t completed = 0, credit_upto = 0, credit_bytes = 0;
    core::Clock::time_point at = core::Clock::now();
  } told_ TT_GUARDED_BY(mutex_);
  // Frames whose commands have not all completed.
  std::deque<FrameBytes> frames_ TT_GUARDED_BY(mutex_);
  struct Values {
    std::deque<wire::FetchedValue> unsent;
    std::size_t bytes = 0;
  } values_ TT_GUARDED_BY(mutex_);
  LateErrors errors_ TT_GUARDED_BY(mutex_);
  std::uint64_t written_ TT_GUARDED_BY(mutex_) = 0;
  bool tell_written_ TT_GUARDED_BY(mutex_) = false;
  bool send_on_attach_ TT_GUARDED_BY(mutex_) =
      false;  // Whether a new stream waits for its first message.

  core::Mutex sending_;                               // Locked before mutex_.
  std::uint64_t number_ TT_GUARDED_BY(sending_) = 0;  // Number of the last message.
  // Attach counter of the stream that may take messages.
  std::uint64_t attach_ TT_GUARDED_BY(sending_) = 0;
  bool closed_ TT_GUARDED_BY(sending_) = false;
  // Changed with sending_ locked. bytes() reads its size without, because take() holds that lock
  // while it encodes a message.
  KeptMessages kept_;
};

}  // namespace teletensor::server
