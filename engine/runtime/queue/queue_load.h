// QueueLoad: how much a session has queued, and how fast it runs. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/core/clock.h"
#include "engine/runtime/queue/queue.h"

namespace teletensor::runtime {

class QueueLoad {
 public:
  static constexpr std::size_t kMaxQueued = 16384;
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

  // Counts an entry that is appended, dropped before it was published, or has run.
  void add() {
    if (queued_.fetch_add(1, std::memory_order_relaxed) == 0) {
      ran_.store(0, std::memory_order_relaxed);
      busy_since_.store(core::now_ns(), std::memory_order_relaxed);
    }
  }
  void drop() { queued_.fetch_sub(1, std::memory_order_relaxed); }
  void run() {  // only the session task calls this
    drop();
    ran_.store(ran_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void clear() { queued_.store(0, std::memory_order_relaxed); }
  // Counts the bytes of a constant.
  void add_bytes(std::size_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void drop_bytes(std::size_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  std::size_t entries() const { return queued_.load(std::memory_order_relaxed); }
  std::size_t bytes() const {
    return entries() * sizeof(Entry) + bytes_.load(std::memory_order_relaxed);
  }
  bool full() const {
    return entries() >= kMaxQueued || bytes_.load(std::memory_order_relaxed) >= kMaxBytes;
  }
  bool has_room() const {
    return entries() <= kMaxQueued / 2 && bytes_.load(std::memory_order_relaxed) <= kMaxBytes / 2;
  }
  // Estimated seconds until the queued entries have run, from the speed since the queue was last
  // empty.
  double wait_seconds() const {
    const std::size_t queued = entries();
    if (queued == 0) return 0;
    const auto busy =
        static_cast<double>(core::now_ns() - busy_since_.load(std::memory_order_relaxed)) * 1e-9;
    const std::uint64_t ran = ran_.load(std::memory_order_relaxed);
    // If no instruction has run yet, assume that the queue needs as much time as has passed.
    return ran == 0 ? busy : busy / static_cast<double>(ran) * static_cast<double>(queued);
  }

 private:
  std::atomic<std::size_t> queued_{0};
  std::atomic<std::size_t> bytes_{0};         // of constants
  std::atomic<std::uint64_t> ran_{0};         // entries since the queue was last empty
  std::atomic<std::uint64_t> busy_since_{0};  // time in nanoseconds
};

}  // namespace teletensor::runtime
