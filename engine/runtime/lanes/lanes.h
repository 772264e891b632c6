// Lanes: the worker threads, one per core, that run the plans of sessions in turn, and help with
// the parts of a plan that runs on another lane.
//
// Between two parts, a plan gives up its lane if another task has used much less time: its thread
// is parked until its turn comes again, and another thread takes the lane. So a long kernel delays
// other sessions by at most one part.
//
// A thread that runs a long call which cannot be divided (run_long) gives its lane to another
// thread for as long, and waits for a lane afterwards.
//
// Waking a sleeping lane costs about 60 us. Therefore a lane that has helped with a kernel looks
// for work for kSpinFor before it sleeps, and no lane is woken for work that such a lane will do.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/runtime/lanes/fair_queue.h"

namespace teletensor::runtime {

class Lanes {
 public:
  static constexpr int kMaxParked = 32;
  static constexpr int kMaxBeside = 16;

  explicit Lanes(int count);  // Precondition: count >= 1.
  // Precondition: no task is ready or running.
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // The time that other tasks ran in the middle of plans of this thread. A plan subtracts the
  // difference from its own time.
  static std::uint64_t given_ns();

  int count() const { return count_; }
  // Returns true if every lane runs a plan or a part of one. Any thread.
  bool all_busy() const;
  // Queues a task that has work. Precondition: it is neither ready nor running. Any thread.
  void ready(Task* task);
  // Like ready(), but the next plan runs on this thread. Returns false, without side effects, if no
  // lane is free for that.
  bool run_inline(Task* task);
  // The share of a user, which exists as long as it is referenced. `weight` applies if it is new.
  std::shared_ptr<Share> share(const std::string& user, double weight = 1);
  // Charges `ns` for the plan of `task` since it began or was last charged. Called by the task's
  // thread.
  void charge(Task& task, std::uint64_t ns);
  // The lane time of the task so far, including its current plan. Any thread; never decreases.
  std::uint64_t used_ns(const Task& task) const;
  // The number of waiting tasks that would get a lane before this one.
  std::size_t ahead_of(const Task& task) const;
  // Returns true if a task waits for a lane, so that plans should end at their next boundary.
  bool contended() const { return waiting_.load(std::memory_order_relaxed) > 0; }

  // Runs part(0) ... part(parts - 1), each once, on this thread and on free lanes, and returns when
  // all have run. Parts may call it recursively. An exception of a part is thrown here after the
  // running parts have ended; parts that have not begun are skipped.
  void run_parts(std::int64_t parts, const std::function<void(std::int64_t)>& part);
  // Like run_parts(), for parts that run long and cannot yield, such as a call of a library. The
  // threads that run them have no lane meanwhile, so that other tasks find as many lanes as ever.
  // At most count() threads work on them at a time. While kMaxBeside threads have no lane, further
  // parts run on lanes.
  void run_long(std::int64_t parts, const std::function<void(std::int64_t)>& part);
  // Yields between two pieces of a part: offers the core to other threads, and lets the plan of
  // this thread wait while other sessions go first.
  void maybe_yield();

 private:
  struct Job;

  // The loop of a thread, which first runs `task` unless it is null.
  void lane(Task* task);
  void work_on(Job& job);
  void pull(Job& job, const Task* mine, std::uint64_t* helps_since);
  void charge_help(Job& job, std::uint64_t* since) TT_REQUIRES(mu_);
  void help(Job& job, const Task* mine) TT_REQUIRES(mu_);
  Job* first_job(bool long_ones = true) TT_REQUIRES(mu_);
  // Terminates on exceptions, because a plan's state would be inconsistent.
  void run_task(Task* task) noexcept;
  bool contested() const { return contended() || open_jobs_.load(std::memory_order_relaxed) > 1; }
  bool goes_first(const Job& job, const Task* mine);
  void yield_lane();
  bool enqueue(Task* task) TT_REQUIRES(mu_);  // returns true if a lane sleeps and must be woken
  bool must_wake(int awake) const TT_REQUIRES(mu_);
  void look_for_work() TT_REQUIRES(mu_);
  Task* take() TT_REQUIRES(mu_);
  bool park(Task& task) TT_REQUIRES(mu_);
  bool lend_lane() TT_REQUIRES(mu_);
  void await_turn(Task& task) TT_REQUIRES(mu_);
  Task* rest(Parked& here) TT_REQUIRES(mu_);
  void sleep(Parked& here) TT_REQUIRES(mu_);
  void wake(Parked& thread) TT_REQUIRES(mu_);

  const int count_;
  mutable core::Mutex mu_;
  core::CondVar work_;       // signalled for a task, a job, or the end
  core::CondVar job_ended_;  // signalled when a helper has left a job
  FairQueue queue_ TT_GUARDED_BY(mu_);
  std::map<std::string, std::weak_ptr<Share>> shares_ TT_GUARDED_BY(mu_);  // by user
  std::vector<Job*> jobs_ TT_GUARDED_BY(mu_);      // with parts that have not begun
  int sleeping_ TT_GUARDED_BY(mu_) = 0;            // number of sleeping lanes
  int looking_ TT_GUARDED_BY(mu_) = 0;             // number of lanes in look_for_work()
  std::vector<Parked*> spare_ TT_GUARDED_BY(mu_);  // threads without a lane or a plan
  int parked_ TT_GUARDED_BY(mu_) = 0;              // number of plans that wait in the middle
  int beside_ TT_GUARDED_BY(mu_) = 0;              // number of threads that have lent their lane
  bool stopping_ TT_GUARDED_BY(mu_) = false;
  std::atomic<int> waiting_{0};           // number of tasks in queue_
  std::atomic<int> open_jobs_{0};         // number of jobs in jobs_
  std::atomic<std::uint64_t> offers_{0};  // number of tasks and jobs so far

  std::vector<std::thread> threads_ TT_GUARDED_BY(mu_);  // with and without a lane
};

}  // namespace teletensor::runtime
