// Lanes: the threads that compute, one per core. They run the plans of sessions in turn, and with
// time left over the parts of a plan that another lane is running.
//
// Waking a sleeping lane costs about 60 us, hence no wake-up while one is looking for work anyway.
#pragma once

#include <atomic>
#include <condition_variable>
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
  explicit Lanes(int count);  // >= 1
  // Precondition: no task is ready or running.
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // While one lives on this thread, its kernels run no other session's plans between two parts:
  // they could wait for what this one holds.
  class Quiet {
   public:
    Quiet();
    ~Quiet();
    Quiet(const Quiet&) = delete;
    Quiet& operator=(const Quiet&) = delete;
  };

  // Time that this thread has given to other sessions' plans in the middle of one. A plan takes the
  // difference off its own time.
  static std::uint64_t given_ns();

  int count() const { return static_cast<int>(threads_.size()); }
  // The task has work. Precondition: it is neither ready nor running. Any thread.
  void ready(Task* task);
  // The same, and its next plan runs on this thread. False where no lane is free for that: nothing
  // has happened.
  bool run_here(Task* task);
  // The share of a user, kept while somebody holds it. `weight` counts where it is new.
  std::shared_ptr<Share> share(const std::string& user, double weight = 1);
  // Tasks that wait for a lane and would get it before this one.
  std::size_t ahead_of(const Task& task) const;
  // Somebody waits for a lane: a plan ends at its next boundary.
  bool contended() const { return waiting_.load(std::memory_order_relaxed) > 0; }

  // Runs part(0) ... part(parts - 1), each once, on this thread and on lanes that are free; returns
  // when all have run. Parts may call it again. While other sessions wait, the caller runs one plan
  // of theirs between two parts, unless it is inside such a plan already. An exception of a part is
  // thrown here once the others have ended (parts not begun by then are left out).
  void run_parts(std::int64_t parts, const std::function<void(std::int64_t)>& part);

 private:
  struct Job;

  void lane();
  void pull(Job& job, bool helper);
  Job* joinable() TT_REQUIRES(mu_);
  void run_task(Task* task);
  // Has the job's session had less than those that wait?
  bool ahead_of_waiting(const Job& job) const;
  void yield_to_others();

  mutable core::Mutex mu_;
  core::CondVar work_;       // a task, a job, or the end
  core::CondVar job_ended_;  // a helper has left a job
  FairQueue queue_ TT_GUARDED_BY(mu_);
  std::map<std::string, std::weak_ptr<Share>> shares_ TT_GUARDED_BY(mu_);  // by user
  std::vector<Job*> jobs_ TT_GUARDED_BY(mu_);  // with parts that nobody has begun
  int sleeping_ TT_GUARDED_BY(mu_) = 0;
  bool stopping_ TT_GUARDED_BY(mu_) = false;
  std::atomic<int> waiting_{0};  // tasks in queue_

  std::vector<std::thread> threads_;
};

}  // namespace teletensor::runtime
