// Interrupts: which commands of a session were interrupted and must not run. Thread-safe.
//
// A window's plan runs its units in another order than that of the commands. So that the commands
// that took effect are always the first ones, a command is not interrupted if a later one has run.
#pragma once

#include <atomic>
#include <cstdint>

namespace teletensor::runtime {

class Interrupts {
 public:
  // Interrupts the commands below this one.
  void add_below(std::uint64_t seq) {
    std::uint64_t below = below_.load(std::memory_order_relaxed);
    while (below < seq && !below_.compare_exchange_weak(below, seq, std::memory_order_relaxed)) {
    }
  }
  std::uint64_t below() const { return below_.load(std::memory_order_relaxed); }
  // Returns true also if a later command has run: for a collective that is open meanwhile.
  bool reaches(std::uint64_t seq) const { return seq < below(); }
  // Reports that a command has run, and was not interrupted meanwhile. Only the session task calls
  // this.
  void ran(std::uint64_t seq) {
    if (seq > ran_upto_.load(std::memory_order_relaxed)) {
      ran_upto_.store(seq, std::memory_order_relaxed);
    }
  }
  bool has(std::uint64_t seq) const {
    return reaches(seq) && seq > ran_upto_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> below_{0};
  std::atomic<std::uint64_t> ran_upto_{0};
};

}  // namespace teletensor::runtime
