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
  while (!backlog_.scan()) {
    core::MutexLock lock(mu_);
    if (head_ == nullptr) return;
    backlog_.add(std::exchange(head_, nullptr), std::exchange(tail_, nullptr));
  }
}

// A whole window runs as a plan; a partial one instruction by instruction up to its mark. A partial
// window is planned only if its instructions are large, so that planning costs little in
// comparison.
bool Back::begin_window() {
  const std::size_t size = backlog_.window();
  const Entry& front = backlog_.front();
  const bool part = !backlog_.whole();
  if (!executor_.has_loops()) return false;
  if (size < 2 || front.kind == Entry::Kind::kFetch ||
      (part && (front.kind != Entry::Kind::kRun || is_small(front.instruction)))) {
    backlog_.split();
    return false;
  }
  backlog_.split();  // in case it stops half-way, or there is no memory for a plan
  try {
    plan_ = &plan_window(size);
  } catch (const std::bad_alloc&) {
    return false;
  }
  unit_ = 0;
  return true;
}

WindowPlans::Plan& Back::plan_window(std::size_t size) {
  backlog_.list(size, window_);
  window_instructions_.clear();
  for (Entry* const entry : window_) {
    window_instructions_.push_back(entry->kind == Entry::Kind::kRun ? &entry->instruction
                                                                    : nullptr);
  }
  loop_.reserve(size);  // no unit of the window is larger
  const std::uint64_t ends = queue_.interner_ends();
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
               (collectives_.empty() || !collectives_.block(entry));
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
      const Next what = collectives_.empty() ? Next::kRun : collectives_.next(entry);
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
  while (!backlog_.empty() && backlog_.front().done) pop_front();
  return small;
}

}  // namespace teletensor::runtime
