// HeldReleases: whether releases of tensors wait to be sent together with a later command, and
// whether the writer of the stream, which sends them if no command follows, sleeps meanwhile.
#pragma once

#include <atomic>

namespace teletensor::client {

// Thread-safe. An API thread first sets the mark and then looks for sleeping writers; a writer
// first counts itself and then looks at the mark. So at least one of them sees the other, and no
// release waits for a writer that sleeps without a limit.
class HeldReleases {
 public:
  // Marks that releases wait. Returns true if the mark is new and a writer sleeps: the caller must
  // then limit its sleep.
  bool hold() {
    if (held_.load(std::memory_order_relaxed)) return false;
    held_.store(true);
    return resting_.load() > 0;
  }
  // Called when the releases are sent.
  void let_go() { held_.store(false, std::memory_order_relaxed); }
  bool any() const { return held_.load(); }
  // Adds to the number of writers that sleep: 1 before a sleep and -1 after it.
  void rest(int writers) { resting_.fetch_add(writers); }

 private:
  std::atomic<bool> held_ = false;
  std::atomic<int> resting_ = 0;
};

}  // namespace teletensor::client
