// LateErrors: the errors of an Outbox, the answers to Raise commands and the lost ranks of groups
// that are in no message yet, with a bound on the texts of errors.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "proto/wire/progress.h"

namespace teletensor::server {

class LateErrors {
 public:
  // Maximum size of one text in bytes; a longer one is cut.
  static constexpr std::size_t kMaxText = 4096;
  // Size of all texts in bytes above which further errors keep only their number and code, with
  // kLeftOut as their text. The first error of each code keeps its text in any case.
  static constexpr std::size_t kMaxTexts = 256u << 10;
  static constexpr std::string_view kLeftOut = "text left out";

  // Returns the status with a text of at most kMaxText bytes and a mark where it was cut.
  static core::Status shortened(core::Status status);

  void add(wire::ErrorEvent error);
  void add(wire::RaisedEvent raised);
  void add(wire::LostRankEvent lost);
  std::vector<wire::ErrorEvent> take_errors();
  std::vector<wire::RaisedEvent> take_raised();
  std::vector<wire::LostRankEvent> take_lost_ranks();
  bool empty() const { return errors_.empty() && raised_.empty() && lost_ranks_.empty(); }
  // The memory of the errors with their texts, of the answers and of the lost ranks, in bytes.
  std::size_t bytes() const {
    return (errors_.size() + lost_ranks_.size()) * kPerError + texts_ + raised_bytes_;
  }

 private:
  // Approximate memory of an error without its text, in bytes: the event, its status, the short
  // text kLeftOut, and the room that a growing vector has to spare.
  static constexpr std::size_t kPerError = 160;

  std::vector<wire::ErrorEvent> errors_;
  std::size_t texts_ = 0;    // Size of their texts.
  std::uint32_t codes_ = 0;  // A bit for each code among them.
  std::vector<wire::RaisedEvent> raised_;
  std::size_t raised_bytes_ = 0;
  std::vector<wire::LostRankEvent> lost_ranks_;
};

}  // namespace teletensor::server
