#include "engine/runtime/back.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/ops/verify.h"
#include "engine/runtime/lane_thread.h"

namespace teletensor::runtime {
namespace {

using core::Status;
using program::Instruction;
using program::Operand;
using program::ResultSlot;

constexpr int kFreeChunks = 512;    // kept while the queue is not empty
constexpr int kFreeChunksIdle = 4;  // kept when it is empty
constexpr int kSpareChunks = 256;   // maximum of all sessions together
constexpr std::int64_t kFewElements = 1024;
constexpr std::chrono::microseconds kReportEvery{200};
constexpr std::chrono::milliseconds kUsedAt{10};  // resolution of Storage::used_at()
constexpr std::uint64_t kPlanNs = std::chrono::nanoseconds(Back::kPlanTime).count();

// Free chunks that belong to no session: a session with an empty queue returns its chunks, and the
// next burst of any session reuses them.
class SpareChunks {
 public:
  static SpareChunks& all() {
    static SpareChunks& spare = *new SpareChunks;
    return spare;
  }
  Chunk* take() {
    {
      core::MutexLock lock(mu_);
      if (list_ != nullptr) {
        --count_;
        return std::exchange(list_, list_->next);
      }
    }
    return new Chunk;  // no (): that would clear the chunk first
  }
  // Precondition: the chunk is cleared.
  void give(Chunk* chunk) {
    {
      core::MutexLock lock(mu_);
      if (count_ < kSpareChunks) {
        ++count_;
        chunk->next = std::exchange(list_, chunk);
        return;
      }
    }
    delete chunk;
  }

 private:
  core::Mutex mu_;
  Chunk* list_ TT_GUARDED_BY(mu_) = nullptr;
  int count_ TT_GUARDED_BY(mu_) = 0;
};

}  // namespace

Back::Back(const ops::Catalog& catalog, Devices& devices, Lanes& lanes, memory::OwnerId owner,
           std::uint64_t quota, BackEvents* events, Publications* publications, Tiers* tiers,
           Groups* groups)
    : lanes_(lanes),
      owner_(owner),
      events_(events),
      publications_(publications),
      tiers_(tiers),
      groups_(groups),
      lock_wait_(lanes, this),
      executor_(catalog, devices, lanes, owner, quota, lock_wait_),
      plans_(catalog, devices) {}

Back::~Back() { stop(); }

// ---------------------------------------------------------------- functions of the frame consumer

Entry& Back::append(std::uint64_t seq) {
  if (open_ != nullptr && open_->full()) {
    bool wake = false;
    {
      core::MutexLock lock(mu_);
      publish_open_entries();
      wake = !std::exchange(scheduled_, true);
    }
    if (wake) lanes_.ready(this);
  }
  if (open_ == nullptr) {
    core::MutexLock lock(mu_);
    if (free_ != nullptr) {
      open_ = std::exchange(free_, free_->next);
      --free_count_;
    }
  }
  if (open_ == nullptr) open_ = SpareChunks::all().take();
  if (interner_->size() > kMaxInterned) renew_interner();
  Entry& entry = open_->add();
  appended_ = seq;
  entry.instruction.seq = seq;
  if (refusing()) [[unlikely]] {
    if (!refusal_) {
      refusal_ = executor_.failures().make(seq, refuse_);
    }
    entry.refused = refusal_;
  }
  if (queued_.fetch_add(1, std::memory_order_relaxed) == 0) {
    ran_.store(0, std::memory_order_relaxed);
    busy_since_.store(core::now_ns(), std::memory_order_relaxed);
  }
  return entry;
}

// Entries in the queue refer to the old interner until they have run.
void Back::renew_interner() {
  if (old_interner_ != nullptr) {
    if (completed_.load(std::memory_order_acquire) < old_interner_until_) return;
    // The session task reads this counter with its next chunk and then drops its plans, which
    // contain pointers into the old interner.
    interner_ends_.fetch_add(1, std::memory_order_relaxed);
  }
  old_interner_ = std::exchange(interner_, std::make_unique<program::Interner>());
  old_interner_until_ = appended_;
}

void Back::publish_open_entries() {
  open_->next = nullptr;
  (head_ == nullptr ? head_ : tail_->next) = open_;
  tail_ = std::exchange(open_, nullptr);
}

void Back::constant(std::uint64_t seq, const core::Dims& shape, std::string bytes,
                    program::ValueRef value) {
  if (value->dtype == core::DType::kBool) {
    for (char& byte : bytes) byte = byte != 0;
  }
  bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kConstant;
  entry.bytes = std::make_unique<const std::string>(std::move(bytes));
  entry.instruction.results.push_back(
      {std::move(value), interner_->geometry(core::Geometry(shape))});
}

void Back::uploaded(std::uint64_t seq, core::Ref<memory::Storage> storage,
                    program::ValueRef value) {
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kUploaded;
  entry.storage = std::move(storage);
  entry.instruction.results.emplace_back().value = std::move(value);
}

void Back::fetch(std::uint64_t seq, bool bulk, Operand operand) {
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kFetch;
  entry.bulk = bulk;
  entry.instruction.operands.push_back(std::move(operand));
}

void Back::publish_tensor(std::uint64_t seq, Publications::Facts facts, Operand operand,
                          program::ValueRef value) {
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kPublish;
  entry.publish = std::make_unique<Publications::Facts>(std::move(facts));
  if (!value) return;
  entry.instruction.operands.push_back(std::move(operand));
  program::ResultSlot& result = entry.instruction.results.emplace_back();
  result.value = std::move(value);
  result.overwrites = 0;
}

Entry& Back::append_failed(std::uint64_t seq, Status status) {
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kUploaded;
  if (!entry.refused) {
    entry.refused = executor_.failures().make(seq, std::move(status));
  }
  return entry;
}

FailureRef Back::failed(std::uint64_t seq, Status status, program::ValueRef value) {
  Entry& entry = append_failed(seq, std::move(status));
  entry.instruction.results.emplace_back().value = std::move(value);
  return entry.refused;
}

void Back::change_group(std::uint64_t seq, std::uint64_t number, std::optional<Groups::Join> join) {
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kGroup;
  entry.group = std::make_unique<Entry::Group>(Entry::Group{number, std::move(join)});
}

void Back::refuse(Status status) {
  refuse_ = std::move(status);
  refusal_ = nullptr;
}

void Back::call(std::uint64_t seq, program::Invocation invocation) {
  std::uint64_t ns = 0;
  auto prepared = planned_.plan(invocation.program, executor_.catalog(), executor_.devices(), &ns);
  if (ns > 0) charge(ns);
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kCall;
  entry.call = std::make_unique<ProgramRun>(std::move(prepared), std::move(invocation), seq);
}

void Back::failed_call(std::uint64_t seq, Status status, program::Invocation invocation) {
  Entry& entry = append_failed(seq, std::move(status));
  const program::Program& program = *invocation.program;
  for (program::Invocation::Outcome& outcome : invocation.outcomes) {
    ResultSlot& result = entry.instruction.results.emplace_back();
    result.value = std::move(outcome.becomes);
    for (const auto& rebind : program.rebinds) {
      if (rebind.value == outcome.value && outcome.result == program::Invocation::kWhole) {
        result.overwrites = static_cast<int>(rebind.parameter);
      }
    }
  }
  for (Operand& input : invocation.inputs) {
    entry.instruction.operands.push_back(std::move(input));
  }
  // This rank will never reach the collectives of the call. It is not known which groups they
  // belong to, because the program need not have been checked.
  if (ops::has_collectives(program, executor_.catalog())) {
    change_group(seq, kAllGroups, std::nullopt);
  }
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
    if (open_ != nullptr && !open_->empty()) publish_open_entries();
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

void Back::take_back(std::uint64_t seq) {
  while (open_ != nullptr && !open_->empty() && open_->last().instruction.seq > seq) {
    open_->drop_last();
    queued_.fetch_sub(1, std::memory_order_relaxed);
  }
}

bool Back::wait_for_room() {
  core::MutexLock lock(mu_);
  if (has_room()) return false;
  waiting_ = Waiting::kRoom;
  return true;
}

bool Back::wait_until_drained() {
  core::MutexLock lock(mu_);
  if (!scheduled_ && opened_.empty()) return false;
  waiting_ = Waiting::kDrained;
  return true;
}

std::vector<std::uint64_t> Back::take_failed_rebinds(std::uint64_t root) {
  core::MutexLock lock(mu_);
  if (cancelled_.failure && cancelled_.failure->seq == root) cancelled_.failure = nullptr;
  if (refusal_ && refusal_->seq == root) refusal_ = nullptr;
  return executor_.failures().take(root);
}

void Back::begin_at(std::uint64_t consumed, std::uint64_t completed, std::uint64_t cancelled_below,
                    Failures::Open failed) {
  appended_ = consumed;
  completed_ = completed;
  cancel_below_ = cancelled_below;
  executor_.cancel_below(cancelled_below);
  core::MutexLock lock(mu_);
  published_ = consumed;
  executor_.failures().restore(std::move(failed));
}

// ---------------------------------------------------------------- functions for any thread

void Back::cancel_upto(std::uint64_t seq) {
  std::uint64_t below = cancel_below_.load(std::memory_order_relaxed);
  while (below < seq + 1 &&
         !cancel_below_.compare_exchange_weak(below, seq + 1, std::memory_order_relaxed)) {
  }
  executor_.cancel_below(cancel_below_.load(std::memory_order_relaxed));
  interrupt_groups(seq);
  if (lock_wait_.end(seq)) lanes_.ready(this);
  if (tiers_ != nullptr) tiers_->hurry(this);
}

double Back::wait_seconds() const {
  const std::size_t queued = queued_.load(std::memory_order_relaxed);
  if (queued == 0) return 0;
  const auto busy =
      static_cast<double>(core::now_ns() - busy_since_.load(std::memory_order_relaxed)) * 1e-9;
  const std::uint64_t ran = ran_.load(std::memory_order_relaxed);
  // If no instruction has run yet, assume that the queue needs as much time as has passed.
  return ran == 0 ? busy : busy / static_cast<double>(ran) * static_cast<double>(queued);
}

void Back::stop() {
  stopping_ = true;
  executor_.cancel_below(~0ull);
  leave_groups(kSessionEnds);
  for (const auto& member : members()) member->end_waits();
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
  std::multimap<std::uint64_t, std::shared_ptr<Groups::Member>> opened;
  {
    core::MutexLock lock(mu_);
    opened.swap(opened_);
  }
  const memory::SessionTaskScope strand(owner_);
  lock_wait_.give_up();
  while (current_ != nullptr) delete std::exchange(current_, current_->next);
  last_ = scan_ = nullptr;
  plan_ = nullptr;
  collectives_.clear();
  delete std::exchange(open_, nullptr);
  while (left != nullptr) delete std::exchange(left, left->next);
  core::MutexLock lock(mu_);
  while (free_ != nullptr) delete std::exchange(free_, free_->next);
  queued_ = 0;
}

// ---------------------------------------------------------------- the session task

bool Back::has_room() const {
  return queued_.load(std::memory_order_relaxed) <= kMaxQueued / 2 &&
         bytes_.load(std::memory_order_relaxed) <= kMaxBytes / 2;
}

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
    executor_.set_now(static_cast<std::uint32_t>(began.time_since_epoch() / kUsedAt));
  }
  {
    const memory::SessionTaskScope strand(owner_);
    while (true) {
      if (!collectives_.empty() && !stopping_) close_ended();
      const bool drained = !run_entries();
      if (stopping_) {
        more = false;
        break;
      }
      starved = executor_.stopped() || blocker_ != nullptr;
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
      go_on = waiting_ == Waiting::kRoom && has_room();
      yields = yield_.load(std::memory_order_relaxed);
      if (starved || yields || go_on || lanes_.contended()) break;
    }
  }
  if (tiers_ != nullptr) executor_.drop_grant();
  charge_until(core::Clock::now());
  // A session with an empty queue and open collectives waits until the oldest one ends or more
  // entries arrive.
  if (!more && !stopping_ && !collectives_.empty())
    more = !request_notification(collectives_.front().open);
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
      trim_free(kFreeChunksIdle);
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
  if (executor_.forming().member) {
    return wait_for(executor_.forming(), current_->front().instruction.seq);
  }
  OpenCollective* before = std::exchange(blocker_, nullptr);
  if (before == nullptr && executor_.starved() && executor_.full()) {
    (void)executor_.take_need();
    before = &collectives_.front();
  }
  if (before != nullptr) return wait_for(before->open, before->instruction.seq);
  if (lock_wait_.blocked()) {
    if (lock_wait_.begin(stopping_, cancel_below_)) return true;
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
    Entry* first;  // first entry of the unit
    if (plan_ != nullptr) {
      first = window_[plan_->units[unit_].steps[0]];
    } else {
      look_ahead();
      if (scanned_ == 0) {
        more = false;
        break;
      }
      if (begin_window()) continue;
      first = &current_->front();
    }
    if (plan_ == nullptr && !collectives_.empty()) [[unlikely]] {
      const Next what = next(*first);
      if (what == Next::kStop) break;
      if (what == Next::kRan) {
        pop_front();
        continue;
      }
    }
    const bool run = first->kind == Entry::Kind::kRun;
    const std::uint64_t seq = first->instruction.seq;
    const program::OpId op = run ? first->instruction.op : kNoOp;
    if (plan_ != nullptr) {
      small = run_unit();
    } else if (first->kind == Entry::Kind::kCall) {
      if (!run_call(*first, began + kPlanTime)) break;
      small = false;
      pop_front();
    } else {
      small = run && is_small(first->instruction);
      if (run_entry(*first)) pop_front();
    }
    if (executor_.stopped() || blocker_ != nullptr) [[unlikely]]
      break;
    lock_wait_.give_up();  // for an entry that was cancelled while it waited
    ++ran;
    if (!small || ran % kEntriesPerClock == 0) {
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

void Back::pop_front() {
  queued_.fetch_sub(1, std::memory_order_relaxed);
  ran_.store(ran_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  current_->pop();
  --scanned_;
  if (boundary_ > 0 && --boundary_ == 0) broken_ = false;
  if (!current_->empty()) return;
  if (scan_ == current_) scan_ = nullptr;
  core::MutexLock lock(mu_);
  Chunk* next = current_->next;
  release_chunk(std::exchange(current_, next));
  if (current_ == nullptr) last_ = nullptr;
}

void Back::release_chunk(Chunk* chunk) {
  chunk->clear();
  chunk->next = free_;
  free_ = chunk;
  ++free_count_;
  trim_free(kFreeChunks);
}

void Back::trim_free(int most) {
  while (free_count_ > most) {
    SpareChunks::all().give(std::exchange(free_, free_->next));
    --free_count_;
  }
}

void Back::report_progress() {
  std::uint64_t completed;
  {
    core::MutexLock lock(mu_);
    Chunk* next = current_ != nullptr ? current_ : head_;
    completed = next == nullptr ? published_ : next->front().instruction.seq - 1;
  }
  // Commands after an open collective do not count as completed before it has ended.
  if (!collectives_.empty()) {
    completed = std::min(completed, collectives_.front().instruction.seq - 1);
  }
  if (completed <= completed_.load(std::memory_order_relaxed)) return;
  completed_.store(completed, std::memory_order_release);
  events_->on_completed(completed);
}

FailureRef Back::cancelled_failure(std::uint64_t seq, bool* root) {
  const std::uint64_t below = cancel_below_.load(std::memory_order_relaxed);
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
  if (entry.refused || instruction.seq < cancel_below_.load(std::memory_order_relaxed)) {
    for (const Operand& operand : instruction.operands) {
      if (operand.value && operand.value->failure) failure = operand.value->failure;
    }
    if (!failure && entry.refused) {
      failure = entry.refused;
      root = std::exchange(refused_, failure) != failure;
    } else if (!failure) {
      failure = cancelled_failure(instruction.seq, &root);
    }
    if (entry.kind == Entry::Kind::kRun) executor_.decline(instruction, failure->status);
    executor_.fail(instruction, failure);
  } else if (entry.kind == Entry::Kind::kRun) {
    failure = executor_.run(instruction, &root);
    if (executor_.opened()) [[unlikely]] {
      keep_open(std::move(instruction));
      return true;
    }
    if (executor_.stopped()) return false;
  } else {
    const std::string_view bytes = entry.bytes ? std::string_view(*entry.bytes) : "";
    failure = executor_.bind(*instruction.results[0].value, bytes, std::move(entry.storage),
                             instruction.seq);
    if (executor_.stopped()) return false;
    root = failure != nullptr;
    if (!root) executor_.describe(instruction);
  }
  if (entry.bytes) bytes_.fetch_sub(entry.bytes->size(), std::memory_order_relaxed);
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
