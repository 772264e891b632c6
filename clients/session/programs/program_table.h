// ProgramTable knows the programs that a session has defined in the daemon, and those that are to
// be released.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/core/status.h"
#include "engine/program/amounts.h"

namespace teletensor::client {

// Used by API threads only, one at a time.
class ProgramTable {
 public:
  // `most` has the limits of the daemon; 0 means that a limit is unknown.
  explicit ProgramTable(const program::Amounts& most) : most_(most) {}

  // The number that the next program gets.
  std::uint64_t next_number() const { return next_number_; }
  // Returns an error if a further program of this size would exceed a limit.
  core::Status fits(std::uint64_t steps, std::uint64_t bytes) const;
  // Adds the program with the number next_number().
  void add(std::uint64_t steps, std::uint64_t bytes);

  // Marks a program that is not called any more. Callable from a finalizer.
  void release(std::uint64_t number) { released_.push_back(number); }
  bool has_released() const { return !released_.empty(); }
  // Removes one of the released programs and returns its number, which the daemon is then to be
  // told. Precondition: has_released().
  std::uint64_t take_released();

 private:
  struct Size {
    std::uint64_t steps, bytes;
  };
  const program::Amounts most_;
  std::uint64_t next_number_ = 1;
  std::unordered_map<std::uint64_t, Size> defined_;  // By the program's number.
  std::uint64_t steps_ = 0, bytes_ = 0;              // Sums over defined_.
  std::vector<std::uint64_t> released_;
};

}  // namespace teletensor::client
