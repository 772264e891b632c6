#include "engine/runtime/back/back.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/core/memory/reserve.h"
#include "engine/runtime/execute/value_storage.h"
#include "engine/runtime/lanes/lane_thread.h"

namespace teletensor::runtime {
namespace {

using core::Status;
using program::Instruction;
using program::Operand;

constexpr std::int64_t kFewElements = 1024;
constexpr std::chrono::microseconds kReportEvery{200};
constexpr std::uint64_t kPlanNs = std::chrono::nanoseconds(Back::kPlanTime).count();

// Returns true if the entries take a few microseconds altogether.
bool is_quick(const ops::Catalog& catalog, Chunk& chunk) {
  if (chunk.size() > Back::kMaxHere) return false;
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
        if (catalog.at(i.op).inplace != ops::Inplace::kElementwise || i.results.size() != 1 ||
            i.results[0].value->device.kind != core::DeviceKind::kCpu ||
            !few(i.results[0].geometry) || i.results[0].value->elements > kFewElements) {
          return false;
        }
        break;
      case Entry::Kind::kUploaded:
      case Entry::Kind::kCall:
      case Entry::Kind::kPublish:
      case Entry::Kind::kGroup:
        return false;
      case Entry::Kind::kTemplate:
        if (entry.repetition->repeated->elements * static_cast<std::int64_t>(entry.size()) >
            static_cast<std::int64_t>(Back::kMaxHere) * kFewElements) {
          return false;
        }
        break;
    }
  }
  return true;
}

}  // namespace

// Charges a session for the time that its task uses a lane.
class Back::Charge {
 public:
  explicit Charge(Back& back) : back_(back) {}
  // Charges for the time since the last call, or since this object was made.
  void upto(core::Clock::time_point now) {
    const auto ran = static_cast<std::uint64_t>(std::chrono::nanoseconds(now - since_).count());
    back_.lanes_.charge(back_, back_.executor_.cost(ran - (Lanes::given_ns() - given_)));
    since_ = now;
    given_ = Lanes::given_ns();
  }
  core::Clock::time_point since() const { return since_; }

 private:
  Back& back_;
  core::Clock::time_point since_ = core::Clock::now();
  std::uint64_t given_ = Lanes::given_ns();
};

Back::Back(const ops::Catalog& catalog, Devices& devices, Lanes& lanes, memory::OwnerId owner,
           std::uint64_t quota, BackEvents* events, Publications* publications, Tiers* tiers,
           Groups* groups)
    : lanes_(lanes),
      owner_(owner),
      events_(*events),
      lock_wait_(lanes, this),
      executor_(catalog, devices, lanes, owner, quota, lock_wait_, session_groups_),
      session_groups_(groups),
      failures_(executor_, events_),
      state_(load_, collectives_, lock_wait_),
      rank_waits_(state_, session_groups_, collectives_, executor_.interrupts(), lanes, this),
      collectives_(rank_waits_, executor_, failures_, groups, session_groups_),
      queue_(*this, catalog, devices, executor_.failures(), chunks_, load_),
      backlog_(catalog),
      tiers_(tiers, executor_, state_, backlog_, events_, lanes, this),
      outputs_(executor_, failures_, events_, publications, owner),
      window_(catalog, devices, executor_, *this) {}

Back::~Back() {
  const core::UsesReserve reserve;  // Also if the constructor of its owner has found no memory.
  stop();
}

// ---------------------------------------------------------------- functions of the frame consumer

void Back::publish_full(Chunk* chunk) {
  if (state_.add(chunk)) lanes_.ready(this);
}

void Back::publish(std::uint64_t seq, bool here) {
  const TaskState::Published published = state_.publish(queue_.take_open(), seq);
  if (published.wake) {
    // Until the task is made ready, no other thread reads the chunk.
    here = here && published.only != nullptr && is_quick(executor_.catalog(), *published.only);
    if (!here || !lanes_.run_inline(this)) lanes_.ready(this);
  }
  if (!published.report) return;
  // Nothing runs, so this thread acts as the session task for a moment.
  report_progress();
  if (state_.end_report()) lanes_.ready(this);
}

std::vector<std::uint64_t> Back::take_failed_rebinds(std::uint64_t root) {
  failures_.forget(root);
  queue_.forget(root);
  return executor_.failures().take(root);
}

void Back::begin_at(std::uint64_t consumed, std::uint64_t completed, std::uint64_t cancelled_below,
                    Failures::Open failed) {
  queue_.begin_at(consumed);
  state_.begin_at(consumed, completed);
  executor_.interrupts().add_below(cancelled_below);
  executor_.failures().restore(std::move(failed));
}

core::Result<std::vector<program::Image::Entry>> Back::entries(const QueueImage::IndexOf& index_of,
                                                               QueueImage::NotRun& parts) const {
  const QueueImage image(executor_.catalog(), collectives_);
  return image.entries({backlog_.chunks(), state_.published()}, index_of, parts);
}

Status Back::restore_entries(const std::vector<program::Image::Entry>& entries,
                             const std::vector<program::ValueRef>& values) {
  if (entries.empty()) return {};
  state_.hold();
  const QueueImage image(executor_.catalog(), collectives_);
  TT_RETURN_IF_ERROR(image.restore(entries, values, queue_));
  if (Chunk* const open = queue_.take_open()) (void)state_.add(open);  // held back until begin()
  return {};
}

void Back::begin_restored() {
  if (state_.begin()) lanes_.ready(this);
}

// ---------------------------------------------------------------- functions for any thread

void Back::cancel_upto(std::uint64_t seq) {
  executor_.interrupts().add_below(seq + 1);
  rank_waits_.interrupt(seq);
  if (lock_wait_.end(seq)) lanes_.ready(this);
  tiers_.hurry();
}

void Back::stop() {
  state_.stop();
  executor_.interrupts().add_below(~0ull);
  session_groups_.end_all(RankWaits::kSessionEnds);
  session_groups_.end_waits();
  if (state_.begin()) state_.give_up();
  const bool waited = tiers_.leave();
  if (lock_wait_.end(UINT64_MAX) || waited) state_.give_up();
  Chunk* left = state_.end();
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
  state_.enter();
  bool starved = false;
  TaskState::Next next = run_plans(&starved);
  // A session with an empty queue and open collectives waits until the oldest one ends or more
  // entries arrive.
  if (!next.more && !state_.stopping() && !collectives_.empty()) {
    next.more = !rank_waits_.request(collectives_.oldest().open);
  }
  next = state_.rest(next);
  if (!next.more) chunks_.trim();
  if (next.more) next.more = !stop_before_next(starved);
  if (next.go_on) {
    // This lane becomes the frame consumer for a while; the session task continues on another lane.
    if (std::exchange(next.more, false)) lanes_.ready(this);
    events_.on_continue();
  }
  state_.leave();
  return next.more;
}

// Runs plans until another session needs the lane, or nothing is left. *starved is set if the next
// instruction must wait.
TaskState::Next Back::run_plans(bool* starved) {
  Charge charge(*this);
  tiers_.begin_run(charge.since());
  TaskState::Next next;
  {
    const memory::SessionTaskScope strand(owner_);
    while (true) {
      if (!collectives_.empty() && !state_.stopping()) collectives_.close_ended();
      const bool drained = !run_entries();
      if (state_.stopping()) {
        next = {};
        break;
      }
      *starved = executor_.stopped() || collectives_.blocked();
      const auto now = core::Clock::now();
      if (drained || *starved || now - reported_at_ >= kReportEvery) {
        reported_at_ = now;
        report_progress();
      }
      if (now - charge.since() >= kPlanTime) charge.upto(now);
      if (!drained) yield_core();
      next = state_.look(drained);
      if (!next.more || *starved || tiers_.must_yield() || next.go_on || lanes_.contended()) break;
    }
  }
  executor_.memory().drop_grant();
  charge.upto(core::Clock::now());
  return next;
}

// Returns false if the session task continues at once.
bool Back::stop_before_next(bool starved) {
  if (executor_.collectives().waits_for_ranks()) {
    return rank_waits_.wait(executor_.collectives().forming(), backlog_.front().instruction.seq);
  }
  OpenCollective* before = collectives_.take_blocker();
  if (before == nullptr && executor_.memory().starved() && executor_.memory().full()) {
    (void)executor_.memory().take_need();
    before = &collectives_.oldest();
  }
  if (before != nullptr) return rank_waits_.wait(before->open, before->instruction.seq);
  if (lock_wait_.blocked()) {
    if (lock_wait_.begin(state_.stop_flag(), executor_.interrupts())) return true;
    starved = false;
  }
  return (starved || tiers_.must_yield()) && tiers_.yield(starved);
}

// Runs the entries of one plan. Returns false when nothing is left.
bool Back::run_entries() {
  const auto began = core::Clock::now();
  std::uint64_t before = 0, given = Lanes::given_ns();
  std::size_t ran = 0;
  bool more = true;
  while (!state_.stopping()) {
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
    const bool repetition = first.kind == Entry::Kind::kTemplate;
    const std::uint64_t seq = first.instruction.seq;
    const program::OpId op = run || repetition ? first.instruction.op : kNoOp;
    if (planned) {
      small = run_unit();
    } else if (first.kind == Entry::Kind::kCall) {
      if (!run_call(first, began + kPlanTime)) break;
      small = false;
      pop_front();
    } else if (repetition) {
      small = true;
      if (!run_repetition(first) && !executor_.stopped()) continue;
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
      if (!small && took >= kSlow) events_.on_slow(seq, op, took);
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
    if (!state_.take(backlog_)) return;
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
  std::size_t done = 0;
  for (; !backlog_.empty() && backlog_.front().done; ++done) drop_front();
  load_.remove_run(done);
  return small;
}

void Back::pop_front() {
  const std::size_t size = backlog_.front().size();
  load_.run(size);
  load_.remove_run(size);
  drop_front();
}

// Runs the front entry, a repetition of a template. Returns false if it did not run: it must be
// tried again (Executor::stopped), or was replaced by its instructions, which run one by one.
bool Back::run_repetition(Entry& entry) {
  if (!failures_.refuses(entry) && executor_.templates().run(*entry.repetition)) {
    PlanStats::add(window_.stats().loops);
    PlanStats::add(window_.stats().loop_steps, entry.size());
    pop_front();
    return true;
  }
  if (executor_.stopped()) return false;
  Chunk* chunk = nullptr;
  try {
    const core::UsesReserve forbidden(false);
    chunk = chunks_.take();
    TemplateRunner::expand(*entry.repetition, *chunk);
  } catch (const std::bad_alloc&) {
    if (chunk != nullptr) chunks_.give(chunk);
    const FailureRef failure = executor_.failures().make(
        entry.instruction.seq,
        Status(core::Code::kResourceExhausted, "the daemon process is out of memory"));
    for (std::size_t s = entry.repetition->first; s < entry.repetition->end; ++s) {
      if (entry.repetition->results[s]) entry.repetition->results[s]->failure = failure;
    }
    failures_.record(entry.instruction, failure, true);
    pop_front();
    return true;
  }
  if (Chunk* const emptied = backlog_.replace_front(chunk)) chunks_.give(emptied);
  return false;
}

void Back::drop_front() {
  if (Chunk* const emptied = backlog_.pop()) chunks_.give(emptied);
}

void Back::report_progress() {
  std::uint64_t completed = state_.ended_upto(backlog_);
  // Commands after an open collective do not count as completed before it has ended.
  if (!collectives_.empty()) {
    completed = std::min(completed, collectives_.oldest().instruction.seq - 1);
  }
  if (state_.advance(completed)) events_.on_completed(completed);
}

bool Back::run_entry(Entry& entry) {
  switch (entry.kind) {
    case Entry::Kind::kFetch:
      return outputs_.fetch(entry);
    case Entry::Kind::kPublish:
      return outputs_.publish(entry);
    case Entry::Kind::kGroup:
      run_group(entry);
      return true;
    default:
      break;
  }
  if (failures_.refuses(entry)) {
    failures_.fail(entry);
  } else if (!run_instruction(entry)) {
    return false;
  }
  if (entry.bytes) load_.drop_bytes(entry.bytes->size());
  return true;
}

bool Back::run_instruction(Entry& entry) {
  Instruction& instruction = entry.instruction;
  FailureRef failure;
  bool root = false;
  if (entry.kind == Entry::Kind::kRun) {
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
  if (failure) failures_.record(instruction, failure, root);
  return true;
}

}  // namespace teletensor::runtime
