// FairQueue: chooses which session's task runs next, with fair shares of lane time for users.
//
// Each task (session) belongs to a share (user). Lane time divided by the share's weight is its
// virtual time. The share with the smallest virtual time goes first, and within it the task with
// the smallest time. A share or task that returns after a pause gets a virtual time that is at most
// kCredit below that of the others: it goes first at the next boundary, but time that it did not
// use is not saved. So the lane time of shares that always have work is proportional to their
// weights, regardless of their numbers of tasks, and a task with little work never waits for tasks
// with much work. The time that a running plan has used counts before it is charged.
//
// `now` is in nanoseconds, from one clock for all calls. Unless stated otherwise, everything is
// guarded by the mutex of Lanes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace teletensor::runtime {

// The part of the lane time that one user gets.
class Share {
 public:
  // weight > 0; twice the weight gets twice the time.
  explicit Share(double weight = 1) : weight_(weight) {}
  std::uint64_t used_ns() const { return used_ns_.load(std::memory_order_relaxed); }
  double weight() const { return weight_; }

 private:
  friend class Task;
  friend class FairQueue;
  double time() const { return lead_ + static_cast<double>(used_ns()) / weight_; }

  const double weight_;
  std::atomic<std::uint64_t> used_ns_{0};
  double lead_ = 0;  // virtual time added after pauses
  double now_ = 0;   // the virtual time of its task that was chosen last
};

struct Parked;

// The ordered work of one session.
class Task {
 public:
  virtual ~Task() = default;
  // Runs one plan on the calling thread; never called concurrently. Returns true if there is more
  // work.
  virtual bool run_plan() = 0;
  std::uint64_t used_ns() const { return used_ns_.load(std::memory_order_relaxed); }
  // Sets the share, before the task is ready for the first time. All tasks without one belong to a
  // common share.
  void set_share(std::shared_ptr<Share> share) { share_ = std::move(share); }

 protected:
  void charge(std::uint64_t ns) {
    used_ns_.fetch_add(ns, std::memory_order_relaxed);
    if (share_) share_->used_ns_.fetch_add(ns, std::memory_order_relaxed);
  }

 private:
  friend class FairQueue;
  friend class Lanes;  // charges the time of lanes that help
  double time() const { return lead_ + static_cast<double>(used_ns()); }
  // The time of its current plan that is not charged yet.
  double spent(std::uint64_t now) const {
    return spent_ + (runs_ ? static_cast<double>(now) - since_ : 0);
  }

  std::shared_ptr<Share> share_;
  std::atomic<std::uint64_t> used_ns_{0};  // lane time so far
  double lead_ = 0;
  bool runs_ = false;
  double since_ = 0;                // start of the current run
  double spent_ = 0;                // time of the same plan before since_
  mutable std::uint64_t told_ = 0;  // the largest value that FairQueue::used_ns() has returned
  Parked* parked_ = nullptr;        // its thread, while it waits in the middle of a plan
};

class FairQueue {
 public:
  static constexpr double kCredit = 8e6;  // ns
  // A running plan stops in the middle if a waiting task has used less time by this amount.
  static constexpr double kTurn = 3e6;

  bool empty() const { return ready_.empty(); }
  std::size_t size() const { return ready_.size(); }
  // Precondition: the task is not in the queue, and no plan of it runs.
  void push(Task* task, std::uint64_t now) {
    if (!task->share_) task->share_ = common_;
    task->runs_ = false;
    task->spent_ = 0;
    catch_up(now);
    Share& share = *task->share_;
    share.lead_ += std::max(0.0, now_ - kCredit - share.time());
    task->lead_ += std::max(0.0, share.now_ - kCredit - task->time());
    ready_.push_back(task);
  }
  // Takes the next task; its plan, or the rest of a plan, runs from now on. Precondition: the queue
  // is not empty.
  Task* pop(std::uint64_t now) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < ready_.size(); ++i) {
      if (before(*ready_[i], *ready_[best], now)) best = i;
    }
    Task* task = ready_[best];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(best));  // keeps the order of arrival
    now_ = std::max(now_, task->share_->time());
    task->share_->now_ = std::max(task->share_->now_, task->time());
    resume(*task, now);
    return task;
  }
  // Between pause() and resume() the thread of a running plan works for another task; this time
  // does not count for the plan.
  void pause(Task& task, std::uint64_t now) {
    task.spent_ = task.spent(now);
    task.runs_ = false;
    ended(&task);
  }
  void resume(Task& task, std::uint64_t now) {
    task.runs_ = true;
    task.since_ = static_cast<double>(now);
    running_.push_back({&task, task.share_, task.time(), task.since_ - task.spent_});
  }
  // Reports that the plan of `task` has ended. The task itself may be destroyed.
  void ended(const Task* task) {
    const auto at = std::find_if(running_.begin(), running_.end(),
                                 [&](const Running& plan) { return plan.task == task; });
    if (at != running_.end()) running_.erase(at);
  }
  // Charges `ns` for the plan of `task` until `now`, when it continues or ends.
  void charge(Task& task, std::uint64_t ns, std::uint64_t now) {
    task.charge(ns);
    task.spent_ = 0;
    task.since_ = static_cast<double>(now);
    for (Running& plan : running_) {
      if (plan.task == &task) plan.had = task.time(), plan.since = task.since_;
    }
    catch_up(now);
  }
  // Charges the time of other lanes that worked on the plan of `task`.
  void charge_help(Task& task, std::uint64_t ns) {
    task.charge(ns);
    for (Running& plan : running_) {
      if (plan.task == &task) plan.had = task.time();
    }
  }
  // The lane time of `task` until `now`. It never decreases, even if a plan is finally charged less
  // than the time for which it used its lane.
  std::uint64_t used_ns(const Task& task, std::uint64_t now) const {
    // A plan that has ended leaves `runs_` as it was, because its task may have been destroyed.
    const bool over =
        task.runs_ && std::none_of(running_.begin(), running_.end(),
                                   [&](const Running& plan) { return plan.task == &task; });
    const double used = static_cast<double>(task.used_ns()) + (over ? 0 : task.spent(now));
    return task.told_ = std::max(task.told_, static_cast<std::uint64_t>(used));
  }
  // Puts a running plan back into the queue; it waits in the middle until its task is popped.
  void push_paused(Task* task, std::uint64_t now) {
    pause(*task, now);
    ready_.push_back(task);
  }

  // Returns true if `a` goes before `b`: its virtual time is smaller by more than `lead`, in
  // nanoseconds. Precondition: both tasks have been in the queue.
  static bool before(const Task& a, const Task& b, std::uint64_t now, double lead = 0) {
    if (a.share_ == b.share_) return a.time() + a.spent(now) + lead < b.time() + b.spent(now);
    return a.share_->time() + a.spent(now) / a.share_->weight_ + lead <
           b.share_->time() + b.spent(now) / b.share_->weight_;
  }
  // Returns true if some task in the queue goes before `task`, which runs now (see before()).
  bool has_before(const Task& task, std::uint64_t now, double lead = 0) const {
    return std::any_of(ready_.begin(), ready_.end(),
                       [&](const Task* other) { return before(*other, task, now, lead); });
  }
  // The number of tasks in the queue that would run before this one.
  std::size_t ahead_of(const Task& task, std::uint64_t now) const {
    if (!task.share_) return ready_.size();
    return static_cast<std::size_t>(std::count_if(
        ready_.begin(), ready_.end(),
        [&](const Task* other) { return other != &task && before(*other, task, now); }));
  }

 private:
  struct Running {
    const Task* task;  // may be destroyed: only compared
    std::shared_ptr<Share> share;
    double had;    // the task's time when the plan began or was last charged
    double since;  // the time of that event
  };

  // While no task waits, each running plan could be chosen again at any moment, so the virtual time
  // advances with the plans. A task that arrives later gets no credit for the time in which they
  // ran alone.
  void catch_up(std::uint64_t now) {
    if (!ready_.empty()) return;
    for (const Running& plan : running_) {
      const double ran = static_cast<double>(now) - plan.since;
      now_ = std::max(now_, plan.share->time() + ran / plan.share->weight_);
      plan.share->now_ = std::max(plan.share->now_, plan.had + ran);
    }
  }

  std::vector<Task*> ready_;  // in the order of arrival
  std::vector<Running> running_;
  double now_ = 0;  // the virtual time of the share that was chosen last
  const std::shared_ptr<Share> common_ = std::make_shared<Share>();
};

}  // namespace teletensor::runtime
