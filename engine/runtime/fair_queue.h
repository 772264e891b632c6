// FairQueue: whose turn is it? Sessions that have work, in the order in which they get a lane.
//
// Round robin in plans, which are bounded in time. The seam for weighted deficit round robin (user,
// then session) is pop(): each task measures the lane time that it has used.
// Guarded by the lanes' mutex.
#pragma once

#include <atomic>
#include <cstdint>

namespace teletensor::runtime {

// One session's ordered work.
class Task {
 public:
  virtual ~Task() = default;
  // Runs one plan on the calling thread, never two at once. True when there is more.
  virtual bool run_plan() = 0;
  std::uint64_t used_ns() const { return used_ns_.load(std::memory_order_relaxed); }

 protected:
  void charge(std::uint64_t ns) { used_ns_.fetch_add(ns, std::memory_order_relaxed); }

 private:
  friend class FairQueue;
  friend class Lanes;  // charges the time of lanes that help
  Task* next_ = nullptr;
  std::atomic<std::uint64_t> used_ns_{0};  // lane time so far
};

class FairQueue {
 public:
  bool empty() const { return head_ == nullptr; }
  // Precondition: not in the queue.
  void push(Task* task) {
    task->next_ = nullptr;
    (head_ == nullptr ? head_ : tail_->next_) = task;
    tail_ = task;
  }
  // Precondition: not empty.
  Task* pop() {
    Task* task = head_;
    head_ = task->next_;
    return task;
  }

 private:
  Task* head_ = nullptr;
  Task* tail_ = nullptr;
};

}  // namespace teletensor::runtime
