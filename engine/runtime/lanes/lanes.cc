#include "engine/runtime/lanes/lanes.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "engine/core/clock.h"
#include "engine/core/memory/reserve.h"
#include "engine/core/threads.h"
#include "engine/runtime/lanes/lane_thread.h"

namespace teletensor::runtime {

// A thread without a lane; stored on that thread's stack.
struct Parked {
  core::CondVar go_on;
  bool goes_on = false;
  Task* task = nullptr;  // the task to run, unless the thread is in the middle of a plan
  CoreSuccessor heir;
};

namespace {

thread_local bool on_lane = false;
thread_local std::uint64_t given = 0;  // ns, see given_ns()
// The task whose plan this thread runs, while it does nothing else.
thread_local Task* own_plan = nullptr;
thread_local Task* worked_for = nullptr;
// Another thread has the lane of this thread, which runs a part of a long job.
thread_local bool lent = false;
thread_local ShortWait next_work, helpers_end;

constexpr std::uint64_t kChargeHelpEvery = 1'000'000;  // ns

}  // namespace

struct Lanes::Job {
  const std::int64_t parts;
  const std::function<void(std::int64_t)>& part;
  Task* const task;    // the task that helpers work for; nullptr outside of plans
  const bool is_long;  // see run_long()
  std::atomic<std::int64_t> next{0};
  std::atomic<int> helpers{0};           // changed under mu_
  std::exception_ptr failure = nullptr;  // the first failure; guarded by mu_

  bool exhausted() const { return next.load(std::memory_order_relaxed) >= parts; }
};

std::uint64_t Lanes::given_ns() { return given; }

Lanes::Lanes(int count) : count_(std::max(count, 1)) {
  core::MutexLock lock(mu_);
  spare_.reserve(static_cast<std::size_t>(count_ + kMaxParked + kMaxBeside));
  for (int i = 0; i < count_; ++i) {
    threads_.push_back(core::start_thread([this] { lane(nullptr); }));
  }
}

Lanes::~Lanes() {
  std::vector<std::thread> threads;
  {
    core::MutexLock lock(mu_);
    stopping_ = true;
    threads = std::move(threads_);
    for (Parked* thread : spare_) thread->go_on.notify_one();
  }
  work_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

bool Lanes::all_busy() const {
  core::MutexLock lock(mu_);
  return sleeping_ + looking_ == 0;
}

void Lanes::ready(Task* task) {
  bool wake;
  {
    core::MutexLock lock(mu_);
    wake = enqueue(task);
  }
  if (wake) work_.notify_one();
}

bool Lanes::enqueue(Task* task) {
  queue_.push(task, core::now_ns());
  offers_.fetch_add(1, std::memory_order_relaxed);
  waiting_.fetch_add(1, std::memory_order_relaxed);
  return must_wake(looking_);
}

// Returns true if there is more work than `awake` lanes, each of which takes one task or helps one
// job, will begin.
bool Lanes::must_wake(int awake) const {
  const auto open = queue_.size() + static_cast<std::size_t>(open_jobs_);
  return sleeping_ > 0 && open > static_cast<std::size_t>(awake);
}

Task* Lanes::take() {
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  return queue_.pop(core::now_ns());
}

bool Lanes::run_inline(Task* task) {
  {
    core::MutexLock lock(mu_);
    if (sleeping_ + looking_ == 0 || !queue_.empty() || own_plan != nullptr) return false;
    const std::uint64_t now = core::now_ns();
    queue_.push(task, now);  // to determine its position among the tasks
    (void)queue_.pop(now);
  }
  run_task(task);
  return true;
}

void Lanes::run_task(Task* task) noexcept {
  const core::UsesReserve reserve;
  (void)spread();
  own_plan = worked_for = task;
  const bool more = task->run_plan();
  own_plan = worked_for = nullptr;
  bool wake = false;
  {
    core::MutexLock lock(mu_);
    queue_.ended(task);
    if (more) wake = enqueue(task);  // without more work, the task may already be destroyed
  }
  if (wake) work_.notify_one();
}

void Lanes::charge(Task& task, std::uint64_t ns) {
  core::MutexLock lock(mu_);
  queue_.charge(task, ns, core::now_ns());
}

std::uint64_t Lanes::used_ns(const Task& task) const {
  core::MutexLock lock(mu_);
  return queue_.used_ns(task, core::now_ns());
}

std::size_t Lanes::ahead_of(const Task& task) const {
  core::MutexLock lock(mu_);
  return queue_.ahead_of(task, core::now_ns());
}

std::shared_ptr<Share> Lanes::share(const std::string& user, double weight) {
  core::MutexLock lock(mu_);
  std::erase_if(shares_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Share>& known = shares_[user];
  std::shared_ptr<Share> share = known.lock();
  if (!share) known = share = std::make_shared<Share>(weight);
  return share;
}

// Returns the job with parts left whose task has used the least time.
Lanes::Job* Lanes::first_job(bool long_ones) {
  Job* first = nullptr;
  const std::uint64_t now = core::now_ns();
  for (Job* job : jobs_) {
    if (job->exhausted()) continue;
    if (job->is_long && (!long_ones || job->helpers + 1 >= count_)) continue;
    if (first == nullptr ||
        (job->task != nullptr &&
         (first->task == nullptr || FairQueue::before(*job->task, *first->task, now)))) {
      first = job;
    }
  }
  return first;
}

void Lanes::lane(Task* task) {
  on_lane = true;
  begin_lane_thread();
  Parked here;
  bool helped = false;  // since it last looked for work
  mu_.lock();
  while (true) {
    if (task != nullptr) {
      mu_.unlock();
      run_task(std::exchange(task, nullptr));
      mu_.lock();
    }
    // A kernel whose task has used the least time gets help before waiting tasks get a lane. If the
    // thread of that task is itself waiting, the thread continues instead.
    Job* const job = first_job();
    const bool helps = job != nullptr && job->task != nullptr && job->task->parked_ == nullptr &&
                       !queue_.has_before(*job->task, core::now_ns());
    if (!queue_.empty() && !helps) {
      task = take();
      if (task->parked_ != nullptr) {
        wake(*std::exchange(task->parked_, nullptr));
        task = rest(here);
      }
    } else if (job != nullptr) {
      help(*job, nullptr);
      helped = true;
      if (std::exchange(lent, false)) {
        --beside_;
        task = rest(here);
      }
    } else if (stopping_) {
      break;
    } else if (std::exchange(helped, false)) {
      look_for_work();
    } else {
      const Asleep asleep;
      ++sleeping_;
      work_.wait(mu_);
      --sleeping_;
    }
  }
  mu_.unlock();
}

// Returns when there is new work, or after kSpinFor. The kernels of a model follow each other
// within microseconds, so a lane that has helped with one of them will soon be needed again.
void Lanes::look_for_work() {
  ++looking_;
  const std::uint64_t seen = offers_.load(std::memory_order_relaxed);
  mu_.unlock();
  next_work.until([&] { return offers_.load(std::memory_order_relaxed) != seen; });
  mu_.lock();
  if (must_wake(looking_--)) work_.notify_one();
}

void Lanes::help(Job& job, const Task* mine) {
  ++job.helpers;
  mu_.unlock();
  Task* const outer = std::exchange(worked_for, job.task);
  Task* const plan = std::exchange(own_plan, nullptr);
  std::uint64_t since = core::now_ns();
  pull(job, mine, &since);
  own_plan = plan;
  worked_for = outer;
  mu_.lock();
  charge_help(job, &since);  // its plan waits for this lane
  if (--job.helpers == 0) job_ended_.notify_all();
}

// Charges the time since `*since` to the job's task.
void Lanes::charge_help(Job& job, std::uint64_t* since) {
  const std::uint64_t now = core::now_ns();
  if (job.task != nullptr) queue_.charge_help(*job.task, now - *since);
  *since = now;
}

// Runs parts of the job. With `helps_since`, the start of the time to be charged, this thread is a
// helper and leaves when another task or job has precedence. The job's own thread stays until all
// parts have begun.
void Lanes::pull(Job& job, const Task* mine, std::uint64_t* helps_since) {
  std::optional<Asleep> beside;
  while (true) {
    if (helps_since == nullptr) {
      maybe_yield();
    } else {
      yield_core();
      if (core::now_ns() - *helps_since >= kChargeHelpEvery) {
        core::MutexLock lock(mu_);
        charge_help(job, helps_since);
      }
      if ((mine != nullptr || contested()) && !goes_first(job, mine)) return;
    }
    const std::int64_t i = job.next.fetch_add(1, std::memory_order_relaxed);
    if (i >= job.parts) return;
    if (job.is_long && !lent && (helps_since != nullptr || own_plan != nullptr)) {
      core::MutexLock lock(mu_);
      lent = lend_lane();
    }
    if (lent && !beside) beside.emplace();  // The lanes choose their cores without this thread.
    try {
      const core::UsesReserve forbidden(false);
      job.part(i);
    } catch (...) {
      job.next.store(job.parts, std::memory_order_relaxed);
      core::MutexLock lock(mu_);
      if (!job.failure) job.failure = std::current_exception();
    }
  }
}

// Returns true if the job's session has used less time than the waiting tasks and than `mine`.
bool Lanes::goes_first(const Job& job, const Task* mine) {
  core::MutexLock lock(mu_);
  if (job.task == nullptr) return queue_.empty() && mine == nullptr;
  const std::uint64_t now = core::now_ns();
  return first_job() == &job && !queue_.has_before(*job.task, now) &&
         (mine == nullptr || !FairQueue::before(*mine, *job.task, now));
}

void Lanes::run_parts(std::int64_t parts, const std::function<void(std::int64_t)>& part) {
  if (parts <= 1) {
    if (parts == 1) part(0);
    return;
  }
  Job job{.parts = parts, .part = part, .task = worked_for, .is_long = false};
  work_on(job);
}

void Lanes::run_long(std::int64_t parts, const std::function<void(std::int64_t)>& part) {
  Job job{.parts = parts, .part = part, .task = worked_for, .is_long = true};
  work_on(job);
}

// Runs the parts of a new job on this thread, and on free lanes.
void Lanes::work_on(Job& job) {
  int wake;
  {
    core::MutexLock lock(mu_);
    jobs_.push_back(&job);
    open_jobs_.fetch_add(1, std::memory_order_relaxed);
    offers_.fetch_add(1, std::memory_order_relaxed);
    wake = static_cast<int>(std::min<std::int64_t>(sleeping_, job.parts - 1 - looking_));
  }
  while (wake-- > 0) work_.notify_one();
  pull(job, nullptr, nullptr);
  if (!job.is_long) helpers_end.until([&] { return job.helpers == 0; });
  core::MutexLock lock(mu_);
  std::erase(jobs_, &job);
  open_jobs_.fetch_sub(1, std::memory_order_relaxed);
  if (job.is_long && job.helpers > 0 && !lent && own_plan != nullptr) lent = lend_lane();
  while (job.helpers > 0) {
    const Asleep asleep;
    job_ended_.wait(mu_);
  }
  if (job.is_long && own_plan != nullptr && std::exchange(lent, false)) {
    --beside_;
    if (sleeping_ > 0) work_.notify_one();
    await_turn(*own_plan);
  }
  if (job.failure) std::rethrow_exception(job.failure);
}

void Lanes::maybe_yield() {
  yield_core();
  if (contested()) yield_lane();
}

// Lets other tasks run in the middle of a plan, as long as they have used much less time.
void Lanes::yield_lane() {
  Task* const task = own_plan;
  if (task == nullptr || !on_lane || lent) return;
  core::MutexLock lock(mu_);
  while (true) {
    const std::uint64_t now = core::now_ns();
    const bool waits = queue_.has_before(*task, now, FairQueue::kTurn);
    if (waits && park(*task)) continue;
    // A part of a long job would hold this thread, and with it the plan, for too long.
    Job* const job = first_job(false);
    if (waits || job == nullptr || job->task == nullptr || job->task == task ||
        !FairQueue::before(*job->task, *task, now, FairQueue::kTurn)) {
      return;
    }
    queue_.pause(*task, now);
    help(*job, task);
    const std::uint64_t back = core::now_ns();
    queue_.resume(*task, back);
    given += back - now;
  }
}

// Makes the plan on this thread wait until its task's turn comes again; the first task in the queue
// gets the lane. Returns false, without side effects, if no more threads can wait.
bool Lanes::park(Task& task) {
  if (parked_ >= kMaxParked) return false;
  Task* const next = take();
  if (next->parked_ != nullptr) {
    wake(*std::exchange(next->parked_, nullptr));
  } else if (!spare_.empty()) {
    spare_.back()->task = next;
    wake(*spare_.back());
    spare_.pop_back();
  } else {
    try {
      threads_.emplace_back([this, next] { lane(next); });
    } catch (const std::exception&) {
      queue_.ended(next);
      (void)enqueue(next);
      return false;
    }
  }
  await_turn(task);
  return true;
}

// Gives the lane of this thread to another thread. Returns false, without side effects, if this
// thread is no lane, or if too many threads have lent theirs.
bool Lanes::lend_lane() {
  if (!on_lane || beside_ >= kMaxBeside) return false;
  if (!spare_.empty()) {
    spare_.back()->goes_on = true;  // It looks for work as a lane, on a core of its own.
    spare_.back()->go_on.notify_one();
    spare_.pop_back();
  } else {
    try {
      threads_.emplace_back([this] { lane(nullptr); });
    } catch (const std::exception&) {
      return false;
    }
  }
  ++beside_;
  return true;
}

// Makes the plan on this thread, which has no lane any more, wait until its task is chosen.
void Lanes::await_turn(Task& task) {
  const std::uint64_t now = core::now_ns();
  queue_.push_paused(&task, now);
  waiting_.fetch_add(1, std::memory_order_relaxed);
  Parked here;
  task.parked_ = &here;
  ++parked_;
  sleep(here);
  --parked_;
  given += core::now_ns() - now;
}

// Sleeps without a lane. Returns the task for which this thread is woken; nullptr if it is to look
// for work itself.
Task* Lanes::rest(Parked& here) {
  spare_.push_back(&here);
  sleep(here);
  return std::exchange(here.task, nullptr);
}

// Sleeps until another thread passes on its lane, or until the end.
void Lanes::sleep(Parked& here) {
  const Asleep asleep;
  while (!here.goes_on && !stopping_) here.go_on.wait(mu_);
  here.goes_on = false;
  here.heir.roam();
}

// Passes the lane of this thread, which sleeps next, and its core to another thread.
void Lanes::wake(Parked& thread) {
  thread.goes_on = true;
  thread.heir.inherit();
  thread.go_on.notify_one();
}

}  // namespace teletensor::runtime
