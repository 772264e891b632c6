// KeptMessages holds the messages of an outbox that were sent and not acknowledged, so that another
// stream can send them again. Not thread-safe, but bytes() may be called at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace teletensor::server {

class KeptMessages {
 public:
  using Message = std::shared_ptr<const std::string>;

  // `most` is the maximum size of the messages in bytes.
  explicit KeptMessages(std::size_t most) : most_(most) {}

  // Keeps a message with a larger number than all others. `sent` tells whether it has been sent. If
  // there are too many, the oldest messages that were sent are dropped.
  void keep(std::uint64_t number, Message message, bool sent);
  // The client has read all messages up to this number.
  void forget_upto(std::uint64_t number);
  // All messages are sent again. Returns false if one after `number` was dropped.
  bool rewind(std::uint64_t number);
  // The next message to send again. Null if there is none.
  Message next();

  // The messages with their numbers.
  std::vector<std::pair<std::uint64_t, Message>> all() const;
  std::size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  const std::size_t most_;
  std::deque<std::pair<std::uint64_t, Message>> messages_;
  std::atomic<std::size_t> bytes_ = 0;
  // Number of the last unacknowledged message that was dropped.
  std::uint64_t dropped_upto_ = 0;
  std::size_t unsent_ = 0;  // Number of messages at the end that are to be sent.
};

}  // namespace teletensor::server
