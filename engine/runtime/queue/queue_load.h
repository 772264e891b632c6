// QueueLoad: how much a session has queued, and how fast it runs. Thread-safe: the frame consumer
// adds, the session task removes, and any thread reads. The numbers are independent of each other,
// so a reader may see an entry in one of them and not yet in another.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/core/clock.h"
#include "engine/runtime/queue/queue.h"

namespace teletensor::runtime {

class QueueLoad {
 public:
  // A queue with this number of instructions, or of bytes of constants, is full; it has room again
  // when it has fallen to half of that.
  static constexpr std::size_t kMaxQueued = 16384;
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

  // Counts the instructions of an entry that is appended, or dropped before it was published. An
  // entry of another kind counts as one instruction.
  void add(std::size_t size) {
    if (queued_.fetch_add(size, std::memory_order_relaxed) == 0) {
      ran_.store(0, std::memory_order_relaxed);
      busy_since_.store(core::now_ns(), std::memory_order_relaxed);
    }
  }
  void drop(std::size_t size) { queued_.fetch_sub(size, std::memory_order_relaxed); }
  // Only the session task calls these two. An entry that has run is removed later if its window
  // runs in another order.
  void run(std::size_t entries) {
    ran_.store(ran_.load(std::memory_order_relaxed) + entries, std::memory_order_relaxed);
    done_.store(done_.load(std::memory_order_relaxed) + entries, std::memory_order_relaxed);
  }
  void remove_run(std::size_t entries) {
    done_.store(done_.load(std::memory_order_relaxed) - entries, std::memory_order_relaxed);
    queued_.fetch_sub(entries, std::memory_order_relaxed);
  }
  void clear() {
    queued_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
  }
  // Counts the bytes of a constant.
  void add_bytes(std::size_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void drop_bytes(std::size_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  std::size_t entries() const { return queued_.load(std::memory_order_relaxed); }
  // The entries that have not run.
  std::size_t waiting() const {
    const std::size_t done = done_.load(std::memory_order_relaxed);
    return std::max(entries(), done) - done;
  }
  std::size_t bytes() const {
    return entries() * sizeof(Entry) + bytes_.load(std::memory_order_relaxed);
  }
  bool full() const {
    return entries() >= kMaxQueued || bytes_.load(std::memory_order_relaxed) >= kMaxBytes;
  }
  bool has_room() const {
    return entries() <= kMaxQueued / 2 && bytes_.load(std::memory_order_relaxed) <= kMaxBytes / 2;
  }
  // Estimated seconds until the waiting entries have run, from the speed since the queue was last
  // empty.
  double wait_seconds() const {
    const std::size_t left = waiting();
    if (left == 0) return 0;
    const auto busy =
        static_cast<double>(core::now_ns() - busy_since_.load(std::memory_order_relaxed)) * 1e-9;
    const std::uint64_t ran = ran_.load(std::memory_order_relaxed);
    // If no instruction has run yet, assume that the queue needs as much time as has passed.
    return ran == 0 ? busy : busy / static_cast<double>(ran) * static_cast<double>(left);
  }

 private:
  std::atomic<std::size_t> queued_{0};
  std::atomic<std::size_t> done_{0};          // entries that have run and are not removed yet
  std::atomic<std::size_t> bytes_{0};         // of constants
  std::atomic<std::uint64_t> ran_{0};         // entries since the queue was last empty
  std::atomic<std::uint64_t> busy_since_{0};  // time in nanoseconds
};

}  // namespace teletensor::runtime
