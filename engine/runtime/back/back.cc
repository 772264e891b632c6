#include "engine/runtime/back/back.h"

#include <algorithm>
#include <utility>

#include "engine/runtime/execute/value_storage.h"
#include "engine/runtime/lanes/lane_thread.h"

namespace teletensor::runtime {
namespace {

using core::Status;
using program::Instruction;
using program::Operand;
using program::ResultSlot;

constexpr std::int64_t kFewElements = 1024;
constexpr std::chrono::microseconds kReportEvery{200};
constexpr std::chrono::milliseconds kUsedAt{10};  // resolution of Storage::used_at()
constexpr std::uint64_t kPlanNs = std::chrono::nanoseconds(Back::kPlanTime).count();

}  // namespace

Back::Back(const ops::Catalog& catalog, Devices& devices, Lanes& lanes, memory::OwnerId owner,
           std::uint64_t quota, BackEvents* events, Publications* publications, Tiers* tiers,
           Groups* groups)
    : lanes_(lanes),
      owner_(owner),
      events_(events),
      publications_(publications),
      tiers_(tiers),
      lock_wait_(lanes, this),
      executor_(catalog, devices, lanes, owner, quota, lock_wait_, session_groups_),
      session_groups_(groups),
      collectives_(*this, executor_, groups, session_groups_),
      queue_(*this, catalog, devices, executor_.failures(), chunks_, load_),
      backlog_(catalog),
      window_(catalog, devices, executor_, *this) {}

Back::~Back() { stop(); }

// ---------------------------------------------------------------- functions of the frame consumer

void Back::add_published(Chunk* chunk) {
  chunk->next = nullptr;
  (head_ == nullptr ? head_ : tail_->next) = chunk;
  tail_ = chunk;
}

void Back::publish_full(Chunk* chunk) {
  bool wake = false;
  {
    core::MutexLock lock(mu_);
    add_published(chunk);
    wake = !std::exchange(scheduled_, true);
  }
  if (wake) lanes_.ready(this);
}

// Returns true if the entries take a few microseconds altogether.
bool Back::is_quick(Chunk& chunk) const {
  if (chunk.size() > kMaxHere) return false;
  for (std::size_t at = chunk.taken(); at < chunk.filled(); ++at) {
    const Entry& entry = chunk.entry(at);
    const Instruction& i = entry.instruction;
    // A published tensor may be locked by another session for the duration of a kernel.
    for (const Operand& operand : i.operands) {
      if (operand.value && operand.value->through) return false;
    }
    const auto few = [](const core::Geometry* g) { return g->numel() <= kFewElements; };
    switch (entry.kind) {
      case Entry::Kind::kConstant:
        if (entry.bytes->size() > kFewElements) return false;
        break;
      case Entry::Kind::kFetch:
        if (entry.bulk || !few(i.operands[0].geometry)) return false;
        break;
      case Entry::Kind::kRun:
        if (executor_.catalog().at(i.op).inplace != ops::Inplace::kElementwise ||
            i.results.size() != 1 || i.results[0].value->device.kind != core::DeviceKind::kCpu ||
            !few(i.results[0].geometry) || i.results[0].value->elements > kFewElements) {
          return false;
        }
        break;
      case Entry::Kind::kUploaded:
      case Entry::Kind::kCall:
      case Entry::Kind::kPublish:
      case Entry::Kind::kGroup:
        return false;
    }
  }
  return true;
}

void Back::publish(std::uint64_t seq, bool here) {
  bool wake = false, report = false;
  {
    core::MutexLock lock(mu_);
    if (Chunk* const open = queue_.take_open()) add_published(open);
    published_ = seq;
    if (!scheduled_) {
      scheduled_ = true;
      wake = head_ != nullptr;
      report = !wake;
      here = here && wake && head_ == tail_ && is_quick(*head_);
    }
  }
  if (wake && !(here && lanes_.run_inline(this))) lanes_.ready(this);
  if (!report) return;
  // Nothing runs, so this thread acts as the session task for a moment.
  report_progress();
  {
    core::MutexLock lock(mu_);
    wake = std::exchange(woken_, false);
    if (!wake) scheduled_ = false;
    if (stopping_) idle_.notify_all();
  }
  if (wake) lanes_.ready(this);
}

bool Back::wait_for_room() {
  core::MutexLock lock(mu_);
  if (load_.has_room()) return false;
  waiting_ = Waiting::kRoom;
  return true;
}

bool Back::wait_until_drained() {
  core::MutexLock lock(mu_);
  if (!scheduled_ && collectives_.none()) return false;
  waiting_ = Waiting::kDrained;
  return true;
}

std::vector<std::uint64_t> Back::take_failed_rebinds(std::uint64_t root) {
  core::MutexLock lock(mu_);
  if (cancelled_.failure && cancelled_.failure->seq == root) cancelled_.failure = nullptr;
  queue_.forget(root);
  return executor_.failures().take(root);
}

void Back::begin_at(std::uint64_t consumed, std::uint64_t completed, std::uint64_t cancelled_below,
                    Failures::Open failed) {
  queue_.begin_at(consumed);
  completed_ = completed;
  executor_.interrupts().add_below(cancelled_below);
  core::MutexLock lock(mu_);
  published_ = consumed;
  executor_.failures().restore(std::move(failed));
}

// ---------------------------------------------------------------- functions for any thread

void Back::cancel_upto(std::uint64_t seq) {
  executor_.interrupts().add_below(seq + 1);
  interrupt_groups(seq);
  if (lock_wait_.end(seq)) lanes_.ready(this);
  if (tiers_ != nullptr) tiers_->hurry(this);
}

void Back::stop() {
  stopping_ = true;
  executor_.interrupts().add_below(~0ull);
  session_groups_.end_all(kSessionEnds);
  session_groups_.end_waits();
  if (waits_to_begin_.exchange(false)) {
    core::MutexLock lock(mu_);
    scheduled_ = false;
  }
  const bool waited = std::exchange(joined_, false) && tiers_->leave(this);
  if (lock_wait_.end(UINT64_MAX) || waited) {
    core::MutexLock lock(mu_);
    scheduled_ = false;
  }
  Chunk* left;
  {
    core::MutexLock lock(mu_);
    while (scheduled_ || inside_ > 0 || pending_notifications_ > 0) idle_.wait(mu_);
    left = std::exchange(head_, nullptr);
  }
  const memory::SessionTaskScope strand(owner_);
  lock_wait_.give_up();
  backlog_.clear();
  window_.stop();
  collectives_.clear();
  queue_.clear();
  while (left != nullptr) delete std::exchange(left, left->next);
  load_.clear();
}

// ---------------------------------------------------------------- the session task

bool Back::run_plan() {
  {
    core::MutexLock lock(mu_);
    ++inside_;
    woken_ = false;
  }
  const auto began = core::Clock::now();
  auto charged = began;
  std::uint64_t given = Lanes::given_ns();
  const auto charge_until = [&](core::Clock::time_point now) {
    const auto ran = static_cast<std::uint64_t>(std::chrono::nanoseconds(now - charged).count());
    lanes_.charge(*this, executor_.cost(ran - (Lanes::given_ns() - given)));
    charged = now;
    given = Lanes::given_ns();
  };
  bool more = true, go_on = false, starved = false, yields = false;
  if (tiers_ != nullptr) {
    active(began);
    executor_.memory().set_now(static_cast<std::uint32_t>(began.time_since_epoch() / kUsedAt));
  }
  {
    const memory::SessionTaskScope strand(owner_);
    while (true) {
      if (!collectives_.empty() && !stopping_) collectives_.close_ended();
      const bool drained = !run_entries();
      if (stopping_) {
        more = false;
        break;
      }
      starved = executor_.stopped() || collectives_.blocked();
      const auto now = core::Clock::now();
      if (drained || starved || now - reported_at_ >= kReportEvery) {
        reported_at_ = now;
        report_progress();
      }
      if (now - charged >= kPlanTime) charge_until(now);
      if (!drained) yield_core();
      core::MutexLock lock(mu_);
      more = !drained || head_ != nullptr;
      if (!more) break;
      go_on = waiting_ == Waiting::kRoom && load_.has_room();
      yields = yield_.load(std::memory_order_relaxed);
      if (starved || yields || go_on || lanes_.contended()) break;
    }
  }
  if (tiers_ != nullptr) executor_.memory().drop_grant();
  charge_until(core::Clock::now());
  // A session with an empty queue and open collectives waits until the oldest one ends or more
  // entries arrive.
  if (!more && !stopping_ && !collectives_.empty())
    more = !request_notification(collectives_.oldest().open);
  {
    core::MutexLock lock(mu_);
    // Entries may have arrived in between, or commands without entries whose completion must be
    // reported here.
    if (!more && !stopping_ &&
        (head_ != nullptr || woken_ ||
         (collectives_.empty() && published_ > completed_.load(std::memory_order_relaxed)))) {
      more = true;
    }
    if (!more) {
      scheduled_ = false;
      go_on = !stopping_ && (waiting_ == Waiting::kRoom ||
                             (waiting_ == Waiting::kDrained && collectives_.empty()));
      chunks_.trim();
    }
    if (go_on) waiting_ = Waiting::kNo;
  }
  if (more) more = !stop_before_next(starved, yields);
  if (go_on) {
    // This lane becomes the frame consumer for a while; the session task continues on another lane.
    if (std::exchange(more, false)) lanes_.ready(this);
    events_->on_continue();
  }
  core::MutexLock lock(mu_);
  --inside_;
  idle_.notify_all();
  return more;
}

// Returns false if the session task continues at once.
bool Back::stop_before_next(bool starved, bool yields) {
  if (executor_.collectives().forming().member) {
    return wait_for(executor_.collectives().forming(), backlog_.front().instruction.seq);
  }
  OpenCollective* before = collectives_.take_blocker();
  if (before == nullptr && executor_.memory().starved() && executor_.memory().full()) {
    (void)executor_.memory().take_need();
    before = &collectives_.oldest();
  }
  if (before != nullptr) return wait_for(before->open, before->instruction.seq);
  if (lock_wait_.blocked()) {
    if (lock_wait_.begin(stopping_, executor_.interrupts())) return true;
    starved = false;
  }
  return (starved || yields) && yield_to_spiller(starved);
}

// Runs the entries of one plan. Returns false when nothing is left.
bool Back::run_entries() {
  const auto began = core::Clock::now();
  std::uint64_t before = 0, given = Lanes::given_ns();
  std::size_t ran = 0;
  bool more = true;
  while (!stopping_.load(std::memory_order_relaxed)) {
    bool small;
    const bool planned = window_.active();
    if (!planned) {
      look_ahead();
      if (backlog_.empty()) {
        more = false;
        break;
      }
      if (window_.begin(backlog_, queue_.interner_ends())) continue;
      if (!collectives_.empty()) [[unlikely]] {
        const Next what = collectives_.next(backlog_.front());
        if (what == Next::kStop) break;
        if (what == Next::kRan) {
          pop_front();
          continue;
        }
      }
    }
    Entry& first = planned ? window_.next() : backlog_.front();  // of the next unit
    const bool run = first.kind == Entry::Kind::kRun;
    const std::uint64_t seq = first.instruction.seq;
    const program::OpId op = run ? first.instruction.op : kNoOp;
    if (planned) {
      small = run_unit();
    } else if (first.kind == Entry::Kind::kCall) {
      if (!run_call(first, began + kPlanTime)) break;
      small = false;
      pop_front();
    } else {
      small = run && WindowRun::is_small(first.instruction);
      if (run_entry(first)) pop_front();
    }
    if (executor_.stopped() || collectives_.blocked()) [[unlikely]]
      break;
    lock_wait_.give_up();  // for an entry that was cancelled while it waited
    ++ran;
    if (!small || ran % WindowRun::kEntriesPerClock == 0) {
      const std::uint64_t so_far = core::ns_since(began);
      // The small instructions before this one are not timed separately.
      const std::uint64_t took = so_far - before - (Lanes::given_ns() - given);
      if (!small && took >= kSlow) events_->on_slow(seq, op, took);
      before = so_far;
      given = Lanes::given_ns();
      if (so_far >= kPlanNs) break;
    }
    if (ran >= kPlanEntries) break;
  }
  return more;
}

// Scans the published entries up to the end of the front entry's window.
void Back::look_ahead() {
  while (!backlog_.scan()) {
    core::MutexLock lock(mu_);
    if (head_ == nullptr) return;
    backlog_.add(std::exchange(head_, nullptr), std::exchange(tail_, nullptr));
  }
}

bool Back::is_plain(const Entry& entry) {
  return !entry.refused && !executor_.interrupts().has(entry.instruction.seq) &&
         (collectives_.empty() || !collectives_.must_wait(entry));
}

bool Back::run_alone(Entry& entry) {
  const Next what = collectives_.empty() ? Next::kRun : collectives_.next(entry);
  return what == Next::kRan || (what == Next::kRun && run_entry(entry));
}

// Runs the next unit of the window's plan. Returns true if it was little work.
bool Back::run_unit() {
  bool small = false;
  std::size_t ran = 0;
  if (!window_.run(&small, &ran)) return false;
  load_.run(ran);
  while (!backlog_.empty() && backlog_.front().done) pop_front(0);
  return small;
}

void Back::pop_front(std::size_t ran) {
  load_.run(ran);
  load_.remove_run();
  if (Chunk* const emptied = backlog_.pop()) chunks_.give(emptied);
}

void Back::report_progress() {
  std::uint64_t completed;
  {
    core::MutexLock lock(mu_);
    Chunk* next = backlog_.empty() ? head_ : backlog_.chunks();
    completed = next == nullptr ? published_ : next->front().instruction.seq - 1;
  }
  // Commands after an open collective do not count as completed before it has ended.
  if (!collectives_.empty()) {
    completed = std::min(completed, collectives_.oldest().instruction.seq - 1);
  }
  if (completed <= completed_.load(std::memory_order_relaxed)) return;
  completed_.store(completed, std::memory_order_release);
  events_->on_completed(completed);
}

FailureRef Back::interrupted(std::uint64_t seq, bool* root) {
  const std::uint64_t below = executor_.interrupts().below();
  *root = !cancelled_.failure || cancelled_.below != below;
  if (*root) {
    cancelled_.below = below;
    cancelled_.failure =
        executor_.failures().make(seq, Status(core::Code::kCancelled, "interrupted before it ran"));
  }
  return cancelled_.failure;
}

bool Back::run_entry(Entry& entry) {
  if (entry.kind == Entry::Kind::kFetch) return run_fetch(entry);
  if (entry.kind == Entry::Kind::kPublish) return run_publish(entry);
  if (entry.kind == Entry::Kind::kGroup) {
    run_group(entry);
    return true;
  }
  Instruction& instruction = entry.instruction;
  FailureRef failure;
  bool root = false;
  if (entry.refused || executor_.interrupts().has(instruction.seq)) {
    for (const Operand& operand : instruction.operands) {
      if (operand.value && operand.value->failure) failure = operand.value->failure;
    }
    if (!failure && entry.refused) {
      failure = entry.refused;
      root = std::exchange(refused_, failure) != failure;
    } else if (!failure) {
      failure = interrupted(instruction.seq, &root);
    }
    if (entry.kind == Entry::Kind::kRun)
      executor_.collectives().decline(instruction, failure->status);
    executor_.fail(instruction, failure);
  } else if (entry.kind == Entry::Kind::kRun) {
    failure = executor_.run(instruction, &root);
    if (executor_.collectives().opened()) [[unlikely]] {
      collectives_.add(std::move(instruction), false);
      return true;
    }
    if (executor_.stopped()) return false;
  } else {
    const std::string_view bytes = entry.bytes ? std::string_view(*entry.bytes) : "";
    failure = executor_.bind(*instruction.results[0].value, bytes, std::move(entry.storage),
                             instruction.seq);
    if (executor_.stopped()) return false;
    root = failure != nullptr;
    if (!root) describe_results(instruction);
  }
  if (entry.bytes) load_.drop_bytes(entry.bytes->size());
  if (failure) record(instruction, failure, root);
  return true;
}

void Back::record(const Instruction& instruction, const FailureRef& failure, bool root) noexcept {
  bool rebinds = false;
  for (const ResultSlot& result : instruction.results) rebinds |= result.overwrites >= 0;
  executor_.failures().add(instruction.seq, *failure, rebinds);
  if (root) events_->on_failed(*failure);
}

}  // namespace teletensor::runtime
