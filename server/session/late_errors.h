// LateErrors: the errors of an Outbox that are in no message yet, with a bound on their texts.
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
  std::vector<wire::ErrorEvent> take();
  bool empty() const { return errors_.empty(); }

 private:
  std::vector<wire::ErrorEvent> errors_;
  std::size_t bytes_ = 0;    // Size of their texts.
  std::uint32_t codes_ = 0;  // A bit for each code among them.
};

}  // namespace teletensor::server
