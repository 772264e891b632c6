#include "engine/runtime/lanes.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "engine/core/clock.h"

namespace teletensor::runtime {
namespace {

// Inside a plan that was run between the parts of another session's kernel.
thread_local bool nested = false;
thread_local int quiet = 0;  // see Lanes::Quiet
// In a plan since when; for how long one may go on before others get a turn between parts.
thread_local core::Clock::time_point turn_began;
constexpr std::chrono::milliseconds kTurn{2};
thread_local std::uint64_t given = 0;       // ns, see given_ns()
thread_local Task* running_task = nullptr;  // whose plan this thread runs

}  // namespace

struct Lanes::Job {
  const std::int64_t parts;
  const std::function<void(std::int64_t)>& part;
  Task* const task;  // that helpers work for; nullptr outside of plans
  const bool quiet;  // the caller's
  const core::Clock::time_point began = core::Clock::now();
  std::atomic<std::int64_t> next{0};
  int helpers = 0;                       // guarded by mu_
  std::exception_ptr failure = nullptr;  // guarded by mu_; the first

  bool exhausted() const { return next.load(std::memory_order_relaxed) >= parts; }
};

std::uint64_t Lanes::given_ns() { return given; }

Lanes::Quiet::Quiet() { ++quiet; }
Lanes::Quiet::~Quiet() { --quiet; }

Lanes::Lanes(int count) {
  for (int i = 0; i < std::max(count, 1); ++i) threads_.emplace_back([this] { lane(); });
}

Lanes::~Lanes() {
  {
    core::MutexLock lock(mu_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Lanes::ready(Task* task) {
  bool wake;
  {
    core::MutexLock lock(mu_);
    queue_.push(task);
    waiting_.fetch_add(1, std::memory_order_relaxed);
    wake = sleeping_ > 0;
  }
  if (wake) work_.notify_one();
}

bool Lanes::run_here(Task* task) {
  {
    core::MutexLock lock(mu_);
    if (sleeping_ == 0 || !queue_.empty() || running_task != nullptr) return false;
    queue_.push(task);  // for its place among the others
    (void)queue_.pop();
  }
  run_task(task);
  return true;
}

void Lanes::run_task(Task* task) {
  turn_began = core::Clock::now();
  Task* const outer = std::exchange(running_task, task);
  const bool more = task->run_plan();
  running_task = outer;
  if (more) ready(task);  // without more, the task may be gone by now
}

std::size_t Lanes::ahead_of(const Task& task) const {
  core::MutexLock lock(mu_);
  return queue_.ahead_of(task);
}

std::shared_ptr<Share> Lanes::share(const std::string& user, double weight) {
  core::MutexLock lock(mu_);
  std::erase_if(shares_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Share>& known = shares_[user];
  std::shared_ptr<Share> share = known.lock();
  if (!share) known = share = std::make_shared<Share>(weight);
  return share;
}

Lanes::Job* Lanes::joinable() {
  for (Job* job : jobs_) {
    if (!job->exhausted()) return job;
  }
  return nullptr;
}

void Lanes::lane() {
  mu_.lock();
  while (true) {
    // A kernel of somebody who has had least gets help before those who wait get a lane.
    Job* const first = queue_.empty() ? nullptr : joinable();
    const bool help = first != nullptr && first->task != nullptr &&
                      !queue_.has_before(*first->task, core::ns_since(first->began));
    if (!queue_.empty() && !help) {
      Task* task = queue_.pop();
      waiting_.fetch_sub(1, std::memory_order_relaxed);
      mu_.unlock();
      run_task(task);
      mu_.lock();
    } else if (Job* const job = help ? first : joinable()) {
      ++job->helpers;
      mu_.unlock();
      const auto began = core::Clock::now();
      quiet += job->quiet;
      pull(*job, true);
      quiet -= job->quiet;
      if (job->task != nullptr) job->task->charge(core::ns_since(began));  // its plan waits for us
      mu_.lock();
      if (--job->helpers == 0) job_ended_.notify_all();
    } else if (stopping_) {
      break;
    } else {
      ++sleeping_;
      work_.wait(mu_);
      --sleeping_;
    }
  }
  mu_.unlock();
}

void Lanes::pull(Job& job, bool helper) {
  while (true) {
    // A helper leaves for a waiting session; the caller stays until all parts have begun.
    if (contended()) {
      if (!helper) {
        yield_to_others();
      } else if (!ahead_of_waiting(job)) {
        return;
      }
    }
    const std::int64_t i = job.next.fetch_add(1, std::memory_order_relaxed);
    if (i >= job.parts) return;
    try {
      job.part(i);
    } catch (...) {
      job.next.store(job.parts, std::memory_order_relaxed);
      core::MutexLock lock(mu_);
      if (!job.failure) job.failure = std::current_exception();
    }
  }
}

bool Lanes::ahead_of_waiting(const Job& job) const {
  core::MutexLock lock(mu_);
  return job.task != nullptr && !queue_.has_before(*job.task, core::ns_since(job.began));
}

void Lanes::yield_to_others() {
  if (nested || quiet > 0 || core::Clock::now() - turn_began < kTurn) return;
  Task* task;
  {
    core::MutexLock lock(mu_);
    if (queue_.empty()) return;
    // Not for those who have had their share: the plan goes on.
    if (running_task != nullptr && !queue_.has_before(*running_task, core::ns_since(turn_began)))
      return;
    task = queue_.pop();
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  const auto began = core::Clock::now();
  nested = true;
  run_task(task);
  nested = false;
  given += core::ns_since(began);
  turn_began = core::Clock::now();
}

void Lanes::run_parts(std::int64_t parts, const std::function<void(std::int64_t)>& part) {
  if (parts <= 1) {
    if (parts == 1) part(0);
    return;
  }
  Job job{.parts = parts, .part = part, .task = running_task, .quiet = quiet > 0};
  int wake;
  {
    core::MutexLock lock(mu_);
    jobs_.push_back(&job);
    wake = static_cast<int>(std::min<std::int64_t>(sleeping_, parts - 1));
  }
  while (wake-- > 0) work_.notify_one();
  pull(job, false);
  core::MutexLock lock(mu_);
  std::erase(jobs_, &job);
  while (job.helpers > 0) job_ended_.wait(mu_);
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace teletensor::runtime
