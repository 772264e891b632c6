// Back's division of the queue into windows, which run as plans (window.h).
#include <new>
#include <utility>

#include "engine/runtime/back.h"

namespace teletensor::runtime {

using program::Instruction;

namespace {

constexpr std::int64_t kSmall = 1 << 14;

}  // namespace

// Judged by the size of what is read, not of what is stored: an expanded scalar is much work.
bool Back::is_small(const Instruction& instruction) {
  return instruction.results.size() == 1 && instruction.results[0].geometry->numel() < kSmall &&
         (instruction.operands.empty() || !instruction.operands[0].value ||
          instruction.operands[0].geometry->numel() < kSmall);
}

// Scans the published entries up to the end of the front entry's window.
void Back::look_ahead() {
  if (boundary_ > 0) return;
  while (true) {
    if (scan_ == nullptr) {
      scan_ = current_;
      scan_at_ = scan_ == nullptr ? 0 : scan_->taken();
    } else if (scan_at_ == scan_->filled() && scan_->next != nullptr) {
      scan_ = scan_->next;
      scan_at_ = scan_->taken();
    }
    if (scan_ == nullptr || scan_at_ == scan_->filled()) {
      core::MutexLock lock(mu_);
      if (head_ == nullptr) return;
      (current_ == nullptr ? current_ : last_->next) = std::exchange(head_, nullptr);
      last_ = std::exchange(tail_, nullptr);
      continue;
    }
    const Entry& entry = scan_->entry(scan_at_);
    // RULE: a Fetch or a Call must see complete values, so a window ends before it. Collectives run
    // in the same order on all ranks, so a window must not reorder them.
    const bool run = entry.kind == Entry::Kind::kRun;
    const bool alone = entry.kind == Entry::Kind::kFetch || entry.kind == Entry::Kind::kCall ||
                       entry.kind == Entry::Kind::kGroup ||
                       (run && executor_.catalog().at(entry.instruction.op).collective);
    if (alone && scanned_ > 0) {
      boundary_ = scanned_;
      since_mark_ = 0;
      return;
    }
    ++scan_at_;
    ++scanned_;
    ++since_mark_;
    const bool mark =
        alone || (run && !executor_.catalog().at(entry.instruction.op).mutates.empty());
    if (mark || since_mark_ >= kWindowEntries) {
      boundary_ = scanned_;
      since_mark_ = 0;
      return;
    }
  }
}

// A whole window runs as a plan; a partial one instruction by instruction up to its mark. A partial
// window is planned only if its instructions are large, so that planning costs little in
// comparison.
bool Back::begin_window() {
  const std::size_t size = boundary_ > 0 ? boundary_ : scanned_;
  const Entry& front = current_->front();
  const bool part = boundary_ == 0 || broken_;
  if (!executor_.has_loops()) return false;
  if (size < 2 || front.kind == Entry::Kind::kFetch ||
      (part && (front.kind != Entry::Kind::kRun || is_small(front.instruction)))) {
    broken_ = true;
    return false;
  }
  broken_ = true;  // in case it stops half-way, or there is no memory for a plan
  try {
    plan_ = &plan_window(size);
  } catch (const std::bad_alloc&) {
    return false;
  }
  unit_ = 0;
  return true;
}

WindowPlans::Plan& Back::plan_window(std::size_t size) {
  window_.clear();
  window_instructions_.clear();
  loop_.reserve(size);  // no unit of the window is larger
  const Chunk* chunk = current_;
  for (std::size_t at = chunk->taken(); window_.size() < size; ++at) {
    while (at == chunk->filled()) {
      chunk = chunk->next;
      at = chunk->taken();
    }
    Entry& entry = const_cast<Chunk*>(chunk)->entry(at);
    window_.push_back(&entry);
    window_instructions_.push_back(entry.kind == Entry::Kind::kRun ? &entry.instruction : nullptr);
  }
  const std::uint64_t ends = interner_ends_.load(std::memory_order_relaxed);
  if (std::exchange(interner_ends_seen_, ends) != ends) plans_.clear();
  return plans_.plan(window_instructions_);
}

// Runs the next unit of the window's plan. Returns true if it was little work.
bool Back::run_unit() {
  const passes::Unit& unit = plan_->units[unit_];
  bool small = unit.steps.size() < kEntriesPerClock;
  bool together = unit.loop() && !plan_->never[unit_] && !apart_;
  loop_.clear();
  for (const std::uint32_t step : unit.steps) {
    const Entry& entry = *window_[step];
    small = small && entry.kind == Entry::Kind::kRun && is_small(entry.instruction);
    together = together && !entry.refused &&
               entry.instruction.seq >= cancel_below_.load(std::memory_order_relaxed) &&
               (collectives_.empty() || find_open(entry) == nullptr);
    loop_.push_back(window_instructions_[step]);
  }
  bool never = false;
  if (together && executor_.run_loop(loop_, &never)) {
    PlanStats::add(plans_.stats().loops);
    PlanStats::add(plans_.stats().loop_steps, loop_.size());
  } else {
    if (executor_.stopped()) return false;
    if (never) plan_->never[unit_] = true;
    apart_ = true;  // also when it continues later, after it lacked memory half-way
    for (const std::uint32_t step : unit.steps) {
      Entry& entry = *window_[step];
      if (entry.done) continue;
      const Next what = collectives_.empty() ? Next::kRun : next(entry);
      if (what == Next::kStop || (what == Next::kRun && !run_entry(entry))) return false;
      entry.done = true;
    }
  }
  for (const std::uint32_t step : unit.steps) {
    // Release the references now, not when the entry reaches the front.
    Entry& entry = *window_[step];
    entry.instruction.operands.clear();
    entry.instruction.results.clear();
    entry.done = true;
  }
  apart_ = false;
  if (++unit_ == plan_->units.size()) plan_ = nullptr;
  while (current_ != nullptr && current_->front().done) pop_front();
  return small;
}

}  // namespace teletensor::runtime
