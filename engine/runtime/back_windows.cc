// How the back takes its queue: in windows, which run as plans (window.h).
#include <new>
#include <utility>

#include "engine/runtime/back.h"

namespace teletensor::runtime {

using program::Instruction;

namespace {

constexpr std::int64_t kSmall = 1 << 14;

}  // namespace

// By what is read, not by what is stored: an expanded scalar is much work.
bool Back::is_small(const Instruction& instruction) {
  return instruction.results.size() == 1 && instruction.results[0].geometry->numel() < kSmall &&
         (instruction.operands.empty() || !instruction.operands[0].value ||
          instruction.operands[0].geometry->numel() < kSmall);
}

// Goes through the published entries up to the end of the window that the front one is in.
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
    // RULE: what a Fetch or a Call reads is whole when it runs, so a window ends before it.
    // Collectives of all ranks run in one order, which no window changes.
    const bool run = entry.kind == Entry::Kind::kRun;
    const bool alone = entry.kind == Entry::Kind::kFetch || entry.kind == Entry::Kind::kCall ||
                       entry.kind == Entry::Kind::kGroup ||
                       (run && executor_.op_of(entry.instruction).collective);
    if (alone && scanned_ > 0) {
      boundary_ = scanned_;
      since_mark_ = 0;
      return;
    }
    ++scan_at_;
    ++scanned_;
    ++since_mark_;
    const bool mark = alone || (run && !executor_.op_of(entry.instruction).mutates.empty());
    if (mark || since_mark_ >= kWindowEntries) {
      boundary_ = scanned_;
      since_mark_ = 0;
      return;
    }
  }
}

// A window runs whole as a plan, or instruction by instruction up to its mark. Only where the
// instructions are large is a part of one planned as well: then its plan costs nothing beside them.
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
  broken_ = true;  // were it left half-way, or is there no memory for a plan
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
  loop_.reserve(size);  // no unit of it is larger
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

// The next unit of the window's plan. True when it was little work.
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
    apart_ = true;  // also when it goes on later, where it lacks room half-way
    for (const std::uint32_t step : unit.steps) {
      Entry& entry = *window_[step];
      if (entry.done) continue;
      const Next what = collectives_.empty() ? Next::kRun : next(entry);
      if (what == Next::kStop || (what == Next::kRun && !run_entry(entry))) return false;
      entry.done = true;
    }
  }
  for (const std::uint32_t step : unit.steps) {
    // What it held is given back now, not when its turn at the front comes.
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
