// FairQueue: whose turn is it? Tasks (sessions) that have work, and the shares (users) that they
// belong to.
//
// Lane time is measured and divided by weight: that is virtual time. The share that has had least
// of it goes first, and in it the task that has had least. Whoever comes back after a pause is put
// at most kCredit behind the others: it goes first at the next boundary, but time that it did not
// use is not saved up. So among shares that always have work lane time is divided by weight,
// whatever the number of their tasks, and a task that now and then has a little never waits for
// those that flood. Time that a running plan has used counts before it is charged.
//
// `now` is any clock's nanoseconds, the same one's everywhere. Guarded by the lanes' mutex, where
// nothing else is said.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace teletensor::runtime {

// A user's part of the lanes.
class Share {
 public:
  // weight > 0: twice the weight is twice the time.
  explicit Share(double weight = 1) : weight_(weight) {}
  std::uint64_t used_ns() const { return used_ns_.load(std::memory_order_relaxed); }
  double weight() const { return weight_; }

 private:
  friend class Task;
  friend class FairQueue;
  double time() const { return lead_ + static_cast<double>(used_ns()) / weight_; }

  const double weight_;
  std::atomic<std::uint64_t> used_ns_{0};
  double lead_ = 0;  // what pauses have cost
  double now_ = 0;   // of its tasks: the virtual time of the last one that was chosen
};

struct Parked;

// One session's ordered work.
class Task {
 public:
  virtual ~Task() = default;
  // Runs one plan on the calling thread, never two at once. True when there is more.
  virtual bool run_plan() = 0;
  std::uint64_t used_ns() const { return used_ns_.load(std::memory_order_relaxed); }
  // Before it is ready for the first time. Without one it shares with all others that have none.
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
  // Of its plan, which is not charged yet.
  double spent(std::uint64_t now) const {
    return spent_ + (runs_ ? static_cast<double>(now) - since_ : 0);
  }

  std::shared_ptr<Share> share_;
  std::atomic<std::uint64_t> used_ns_{0};  // lane time so far
  double lead_ = 0;
  bool runs_ = false;
  double since_ = 0;                // while it runs
  double spent_ = 0;                // before that, of the same plan
  mutable std::uint64_t told_ = 0;  // the most that FairQueue::used_ns() has told
  Parked* parked_ = nullptr;        // its thread, where it waits in the middle of a plan
};

class FairQueue {
 public:
  static constexpr double kCredit = 8e6;  // ns
  // How much less than a running plan somebody must have had for it to stop in its middle.
  static constexpr double kTurn = 3e6;

  bool empty() const { return ready_.empty(); }
  // Precondition: not in the queue, no plan of it runs.
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
  // Precondition: not empty. Its plan, or the rest of it, runs from now on.
  Task* pop(std::uint64_t now) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < ready_.size(); ++i) {
      if (before(*ready_[i], *ready_[best], now)) best = i;
    }
    Task* task = ready_[best];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(best));  // who came first stays first
    now_ = std::max(now_, task->share_->time());
    task->share_->now_ = std::max(task->share_->now_, task->time());
    resume(*task, now);
    return task;
  }
  // The thread of a running plan works for another task from pause() to resume(): that time is not
  // the plan's.
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
  // The plan that `task` runs has ended. The task itself may be gone.
  void ended(const Task* task) {
    const auto at = std::find_if(running_.begin(), running_.end(),
                                 [&](const Running& plan) { return plan.task == task; });
    if (at != running_.end()) running_.erase(at);
  }
  // The plan that `task` runs has cost `ns` until `now`, where it goes on or ends.
  void charge(Task& task, std::uint64_t ns, std::uint64_t now) {
    task.charge(ns);
    task.spent_ = 0;
    task.since_ = static_cast<double>(now);
    for (Running& plan : running_) {
      if (plan.task == &task) plan.had = task.time(), plan.since = task.since_;
    }
    catch_up(now);
  }
  // Other lanes have worked on the plan of `task` for `ns`.
  void charge_help(Task& task, std::uint64_t ns) {
    task.charge(ns);
    for (Running& plan : running_) {
      if (plan.task == &task) plan.had = task.time();
    }
  }
  // Lane time of `task` until `now`. It never becomes less, even where a plan costs less in the end
  // than it has held its lane.
  static std::uint64_t used_ns(const Task& task, std::uint64_t now) {
    const double used = static_cast<double>(task.used_ns()) + task.spent(now);
    return task.told_ = std::max(task.told_, static_cast<std::uint64_t>(used));
  }
  // A running plan waits in its middle until its task is popped.
  void push_paused(Task* task, std::uint64_t now) {
    pause(*task, now);
    ready_.push_back(task);
  }

  // Has `a` had less than `b`, by more than `lead`? Both have been in the queue.
  static bool before(const Task& a, const Task& b, std::uint64_t now, double lead = 0) {
    if (a.share_ == b.share_) return a.time() + a.spent(now) + lead < b.time() + b.spent(now);
    return a.share_->time() + a.spent(now) / a.share_->weight_ + lead <
           b.share_->time() + b.spent(now) / b.share_->weight_;
  }
  // Has somebody in the queue had less than `task`, which runs?
  bool has_before(const Task& task, std::uint64_t now, double lead = 0) const {
    return std::any_of(ready_.begin(), ready_.end(),
                       [&](const Task* other) { return before(*other, task, now, lead); });
  }
  // How many tasks in the queue would go before this one.
  std::size_t ahead_of(const Task& task, std::uint64_t now) const {
    if (!task.share_) return ready_.size();
    return static_cast<std::size_t>(std::count_if(
        ready_.begin(), ready_.end(),
        [&](const Task* other) { return other != &task && before(*other, task, now); }));
  }

 private:
  struct Running {
    const Task* task;  // may be gone: only compared
    std::shared_ptr<Share> share;
    double had;    // the task's time when the plan began or was charged
    double since;  // when that was
  };

  // While no task waits, each running plan could be chosen again at any moment, so the virtual time
  // goes on with the plans. A task that comes later is not owed the time that they ran alone.
  void catch_up(std::uint64_t now) {
    if (!ready_.empty()) return;
    for (const Running& plan : running_) {
      const double ran = static_cast<double>(now) - plan.since;
      now_ = std::max(now_, plan.share->time() + ran / plan.share->weight_);
      plan.share->now_ = std::max(plan.share->now_, plan.had + ran);
    }
  }

  std::vector<Task*> ready_;  // in the order in which they came
  std::vector<Running> running_;
  double now_ = 0;  // the virtual time of the last share that was chosen
  const std::shared_ptr<Share> common_ = std::make_shared<Share>();
};

}  // namespace teletensor::runtime
