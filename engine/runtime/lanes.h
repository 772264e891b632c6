// Lanes: so many threads compute at a time, one per core. They run the plans of sessions in turn,
// and with time left over the parts of a plan that another lane is running.
//
// Between two parts a plan gives its lane away where somebody has had much less: its thread waits
// (parked) until its turn comes again, and another one has the lane. So a kernel that takes long
// holds nobody up for longer than a part.
//
// Waking a sleeping lane costs about 60 us, hence no wake-up while one is looking for work anyway.
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
#include "engine/runtime/fair_queue.h"

namespace teletensor::runtime {

class Lanes {
 public:
  static constexpr int kMaxParked = 32;

  explicit Lanes(int count);  // >= 1
  // Precondition: no task is ready or running.
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // While one lives on this thread, its kernels do not give their lane away: others could wait for
  // what this one holds.
  class Quiet {
   public:
    Quiet();
    ~Quiet();
    Quiet(const Quiet&) = delete;
    Quiet& operator=(const Quiet&) = delete;
  };

  // Time that others had in the middle of plans of this thread. A plan takes the difference off its
  // own time.
  static std::uint64_t given_ns();

  int count() const { return count_; }
  // The task has work. Precondition: it is neither ready nor running. Any thread.
  void ready(Task* task);
  // The same, and its next plan runs on this thread. False where no lane is free for that: nothing
  // has happened.
  bool run_here(Task* task);
  // The share of a user, kept while somebody holds it. `weight` counts where it is new.
  std::shared_ptr<Share> share(const std::string& user, double weight = 1);
  // The plan that `task` runs has cost `ns` since it began or was last charged. Its thread.
  void charge(Task& task, std::uint64_t ns);
  // Lane time of the task so far, with the plan that it runs. Any thread; never decreases.
  std::uint64_t used_ns(const Task& task) const;
  // Tasks that wait for a lane and would get it before this one.
  std::size_t ahead_of(const Task& task) const;
  // Somebody waits for a lane: a plan ends at its next boundary.
  bool contended() const { return waiting_.load(std::memory_order_relaxed) > 0; }

  // Runs part(0) ... part(parts - 1), each once, on this thread and on lanes that are free; returns
  // when all have run. Parts may call it again. An exception of a part is thrown here once the
  // others have ended (parts not begun by then are left out).
  void run_parts(std::int64_t parts, const std::function<void(std::int64_t)>& part);
  // Between two pieces of a part: the core is offered to other threads, and the plan on this one
  // waits while other sessions go first.
  void breathe();

 private:
  struct Job;

  void lane(Task* first);
  void pull(Job& job, const Task* mine, std::uint64_t* helps_since);
  void charge_help(Job& job, std::uint64_t* since) TT_REQUIRES(mu_);
  void help(Job& job, const Task* mine) TT_REQUIRES(mu_);
  Job* first_job() TT_REQUIRES(mu_);
  void run_task(Task* task) noexcept;  // what its plan leaves half done nobody can use
  bool contested() const { return contended() || open_jobs_.load(std::memory_order_relaxed) > 1; }
  bool goes_first(const Job& job, const Task* mine);
  void give_way();
  bool enqueue(Task* task) TT_REQUIRES(mu_);  // true: a lane sleeps, and is to be woken
  Task* take() TT_REQUIRES(mu_);
  bool park(Task& task) TT_REQUIRES(mu_);
  void sleep(Parked& here) TT_REQUIRES(mu_);
  void wake(Parked& thread) TT_REQUIRES(mu_);

  const int count_;
  mutable core::Mutex mu_;
  core::CondVar work_;       // a task, a job, or the end
  core::CondVar job_ended_;  // a helper has left a job
  FairQueue queue_ TT_GUARDED_BY(mu_);
  std::map<std::string, std::weak_ptr<Share>> shares_ TT_GUARDED_BY(mu_);  // by user
  std::vector<Job*> jobs_ TT_GUARDED_BY(mu_);      // with parts that nobody has begun
  int sleeping_ TT_GUARDED_BY(mu_) = 0;            // lanes
  std::vector<Parked*> spare_ TT_GUARDED_BY(mu_);  // threads without a lane or a plan
  int parked_ TT_GUARDED_BY(mu_) = 0;
  bool stopping_ TT_GUARDED_BY(mu_) = false;
  std::atomic<int> waiting_{0};    // tasks in queue_
  std::atomic<int> open_jobs_{0};  // in jobs_

  std::vector<std::thread> threads_ TT_GUARDED_BY(mu_);  // lanes, parked and spare ones
};

}  // namespace teletensor::runtime
