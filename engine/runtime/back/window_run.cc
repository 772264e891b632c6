#include "engine/runtime/back/window_run.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/core/memory/reserve.h"

namespace teletensor::runtime {

using program::Instruction;

namespace {

constexpr std::int64_t kSmall = 1 << 14;

// Returns false if the entry was interrupted, or has failed because of an interrupted one.
bool has_run(const Entry& entry) {
  const auto& results = entry.instruction.results;
  return std::none_of(results.begin(), results.end(), [](const auto& result) {
    return result.value && result.value->failure &&
           result.value->failure->status.code() == core::Code::kCancelled;
  });
}

}  // namespace

bool WindowRun::is_small(const Instruction& instruction) {
  return instruction.results.size() == 1 && instruction.results[0].geometry->numel() < kSmall &&
         (instruction.operands.empty() || !instruction.operands[0].value ||
          instruction.operands[0].geometry->numel() < kSmall);
}

bool WindowRun::begin(Backlog& backlog, std::uint64_t interner_ends) {
  const std::size_t size = backlog.window();
  const Entry& front = backlog.front();
  const bool part = !backlog.whole();
  if (!executor_.loops().supported()) return false;
  // Also for a plan, in case it stops half-way, or there is no memory for it.
  backlog.split();
  if (size < 2 || front.kind == Entry::Kind::kFetch ||
      (part && (front.kind != Entry::Kind::kRun || is_small(front.instruction)))) {
    return false;
  }
  try {
    const core::UsesReserve forbidden(false);
    plan(backlog, size, interner_ends);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void WindowRun::plan(const Backlog& backlog, std::size_t size, std::uint64_t interner_ends) {
  backlog.list(size, window_);
  instructions_.clear();
  for (Entry* const entry : window_) {
    instructions_.push_back(entry->kind == Entry::Kind::kRun ? &entry->instruction : nullptr);
  }
  loop_.reserve(size);  // no unit of the window is larger
  // The plans contain pointers into an interner that was destroyed.
  if (std::exchange(interner_ends_, interner_ends) != interner_ends) plans_.clear();
  plan_ = &plans_.plan(instructions_);
  unit_ = 0;
}

bool WindowRun::run(bool* small, std::size_t* entries) {
  *small = false;
  const passes::Unit& unit = plan_->units[unit_];
  *entries = unit.steps.size();
  bool is_little = unit.steps.size() < kEntriesPerClock;
  bool together = unit.loop() && !plan_->never[unit_] && !apart_;
  loop_.clear();
  for (const std::uint32_t step : unit.steps) {
    const Entry& entry = *window_[step];
    is_little = is_little && entry.kind == Entry::Kind::kRun && is_small(entry.instruction);
    together = together && session_.is_plain(entry);
    loop_.push_back(instructions_[step]);
  }
  bool never = false;
  if (together && executor_.loops().run(loop_, &never)) {
    PlanStats::add(plans_.stats().loops);
    PlanStats::add(plans_.stats().loop_steps, loop_.size());
  } else {
    if (executor_.stopped()) return false;
    if (never) plan_->never[unit_] = true;
    apart_ = true;  // also when it continues later, after it lacked memory half-way
    for (const std::uint32_t step : unit.steps) {
      Entry& entry = *window_[step];
      if (entry.done) continue;
      if (!session_.run_alone(entry)) return false;
      entry.done = true;
    }
  }
  for (const std::uint32_t step : unit.steps) {
    if (has_run(*window_[step])) executor_.interrupts().ran(window_[step]->instruction.seq);
    // Release the references now, not when the entry reaches the front.
    Entry& entry = *window_[step];
    entry.instruction.operands.clear();
    entry.instruction.results.clear();
    entry.done = true;
  }
  apart_ = false;
  if (++unit_ == plan_->units.size()) plan_ = nullptr;
  *small = is_little;
  return true;
}

}  // namespace teletensor::runtime
