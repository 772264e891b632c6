// Outbox: what a session has to tell its client, gathered into at most one pending message.
//
// Thread-safe: lanes and the reader put in, the stream takes out. Its lock is held for pushes and
// for encoding only.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "proto/wire/progress.h"
#include "server/limits.h"

namespace teletensor::server {

class Outbox {
 public:
  explicit Outbox(const Limits& limits);

  // ---- from the reader. A frame with commands [first_seq, first_seq + count) of `bytes` bytes has
  // come: it must follow the last one and stay within the credits told so far; then it counts as
  // received.
  core::Status received(std::uint64_t first_seq, std::uint64_t count, std::size_t bytes);

  // ---- from the engine.
  void completed(std::uint64_t seq);
  // RESOURCE_EXHAUSTED once the client has left too much unread: the session should end.
  core::Status fetched(wire::FetchedValue value);
  void error(wire::ErrorEvent error);
  void raised(wire::RaisedEvent raised);

  // ---- from the stream. The next message, if there is something that the client waits for: a
  // value, an error, all of its commands done, or a good part of its credits.
  std::optional<std::string> take();

  std::uint64_t received_upto() const;
  std::uint64_t completed_upto() const;

 private:
  struct FrameBytes {
    std::uint64_t last_seq;
    std::uint64_t upto;  // bytes of the session up to and with this frame
  };

  std::uint64_t credit_upto() const TT_REQUIRES(mutex_) {
    return completed_ + limits_.credit_instructions;
  }
  std::uint64_t credit_bytes() const TT_REQUIRES(mutex_) {
    return bytes_completed_ + limits_.credit_bytes;
  }
  void complete(std::uint64_t seq) TT_REQUIRES(mutex_);
  bool due() const TT_REQUIRES(mutex_);

  const Limits limits_;
  mutable core::Mutex mutex_;
  std::uint64_t received_ TT_GUARDED_BY(mutex_) = 0;
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
};

}  // namespace teletensor::server
