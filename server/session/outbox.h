// Outbox: what a session has to tell its client, gathered into at most one pending message.
//
// Thread-safe: lanes and the reader put in, the stream takes out. Messages are numbered, and kept
// until the client says that it has read them, so that a cut connection loses none.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "proto/wire/progress.h"
#include "server/base/limits.h"

namespace teletensor::server {

class Outbox {
 public:
  // The bytes of a Progress; null: nothing to send.
  using Message = std::shared_ptr<const std::string>;

  // `keeps`: messages that carry more than numbers are kept until they are acknowledged.
  // `attach`: of the first stream.
  explicit Outbox(const Limits& limits, bool keeps = false, std::uint64_t attach = 0);

  // ---- from the reader. A frame with commands [first_seq, first_seq + count) of `bytes` bytes has
  // come. True: it follows the last one, within the credits told so far, and counts as received.
  // False: it came before, whole, and is not to be executed again. Where a session was restored
  // from a snapshot that was taken in the middle of a frame, that frame follows.
  core::Result<bool> received(std::uint64_t first_seq, std::uint64_t count, std::size_t bytes);

  // The session is taken over where it is. Before anything else.
  void begin_at(std::uint64_t received, std::uint64_t completed);
  std::uint64_t credit_granted() const;
  // For a client whose frames come again: Attached.
  struct Credits {
    std::uint64_t upto = 0, bytes = 0;  // as told
    std::uint64_t received = 0;         // bytes of frames
  };
  Credits credits() const;

  // For a snapshot of the session, all of whose commands have run: what waits to be told becomes
  // messages, which keep their numbers whoever sends them.
  struct Sealed {
    std::uint64_t number = 0;                             // of the last message
    std::uint64_t bytes_received = 0;                     // of the frames that have run
    std::vector<std::pair<std::uint64_t, Message>> kept;  // not acknowledged
  };
  Sealed seal();
  // Goes on where another one was sealed, behind command `completed`. Before anything else.
  void restore(Sealed sealed, std::uint64_t completed);

  // ---- from the engine.
  void completed(std::uint64_t seq);
  // What has been written down reaches up to this command.
  void written(std::uint64_t seq);
  // RESOURCE_EXHAUSTED once the client has left too much unread: the session should end.
  core::Status fetched(wire::FetchedValue value);
  void error(wire::ErrorEvent error);
  void raised(wire::RaisedEvent raised);

  // ---- from the stream. The next message, if there is something that the client waits for: a
  // value, an error, all of its commands done, or a good part of its credits.
  // `attach`: of the stream that asks; older ones than the last get nothing.
  Message take(std::uint64_t attach = 0);
  // The session has ended: take() returns no further message.
  void close();
  // Messages up to this number have been read.
  void acknowledged(std::uint64_t number);
  // The stream of `attach` comes, whose client has read messages up to `number`: what is behind
  // that is sent again, then a message in any case. False: part of it is not kept any more.
  bool rewind(std::uint64_t number, std::uint64_t attach);

  std::uint64_t received_upto() const;
  std::uint64_t completed_upto() const;

 private:
  struct FrameBytes {
    std::uint64_t last_seq;
    std::uint64_t upto;  // bytes of the session up to and with this frame
  };

  struct Kept {
    std::uint64_t number;
    Message message;
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

  void keep(std::uint64_t number, const Message& message) TT_REQUIRES(sending_);
  void forget_upto(std::uint64_t number) TT_REQUIRES(sending_);

  const Limits limits_;
  const bool keeps_;
  mutable core::Mutex mutex_;
  std::uint64_t received_ TT_GUARDED_BY(mutex_) = 0;
  std::uint64_t restored_ TT_GUARDED_BY(mutex_) = ~0ull;  // `received_` when it was restored
  std::uint64_t completed_ TT_GUARDED_BY(mutex_) = 0;
  std::uint64_t told_ TT_GUARDED_BY(mutex_) = 0;  // completed_ of the last message
  std::uint64_t bytes_received_ TT_GUARDED_BY(mutex_) = 0;
  std::uint64_t bytes_completed_ TT_GUARDED_BY(mutex_) = 0;
  std::uint64_t told_credit_upto_ TT_GUARDED_BY(mutex_);
  std::uint64_t told_credit_bytes_ TT_GUARDED_BY(mutex_);
  std::deque<FrameBytes> frames_ TT_GUARDED_BY(mutex_);  // not completed
  std::deque<wire::FetchedValue> values_ TT_GUARDED_BY(mutex_);
  std::size_t values_bytes_ TT_GUARDED_BY(mutex_) = 0;
  std::vector<wire::ErrorEvent> errors_ TT_GUARDED_BY(mutex_);
  std::vector<wire::RaisedEvent> raised_ TT_GUARDED_BY(mutex_);
  std::uint64_t written_ TT_GUARDED_BY(mutex_) = 0;
  bool tell_written_ TT_GUARDED_BY(mutex_) = false;
  bool greet_ TT_GUARDED_BY(mutex_) = false;  // a new stream waits for a message

  core::Mutex sending_;                               // taken before mutex_
  std::uint64_t number_ TT_GUARDED_BY(sending_) = 0;  // of the last message
  std::uint64_t attach_ TT_GUARDED_BY(sending_) = 0;  // the stream that may take
  bool closed_ TT_GUARDED_BY(sending_) = false;
  std::deque<Kept> kept_ TT_GUARDED_BY(sending_);  // sent, not acknowledged
  std::size_t kept_bytes_ TT_GUARDED_BY(sending_) = 0;
  std::uint64_t dropped_upto_ TT_GUARDED_BY(sending_) = 0;  // the last number that kept_ lost
  std::size_t again_ TT_GUARDED_BY(sending_) = 0;  // the last so many of kept_ are sent again
};

}  // namespace teletensor::server
