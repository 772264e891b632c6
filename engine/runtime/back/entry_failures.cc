#include "engine/runtime/back/entry_failures.h"

#include <utility>

#include "engine/core/memory/reserve.h"

namespace teletensor::runtime {

using core::Status;
using program::Instruction;

namespace {

constexpr char kInterruptedEarly[] = "interrupted before it ran";

}  // namespace

Status EntryFailures::refusal(const Entry& entry) const {
  if (entry.refused) return entry.refused->status;
  if (!executor_.interrupts().has(entry.instruction.seq)) return {};
  return Status(core::Code::kCancelled, kInterruptedEarly);
}

void EntryFailures::fail(Entry& entry) {
  Instruction& instruction = entry.instruction;
  FailureRef failure;
  bool root = false;
  for (const program::Operand& operand : instruction.operands) {
    if (operand.value && operand.value->failure) failure = operand.value->failure;
  }
  if (!failure) {
    failure = entry.refused ? refused(entry, &root) : interrupted(instruction.seq, &root);
  }
  if (entry.kind == Entry::Kind::kRun) {
    executor_.collectives().decline(instruction, failure->status);
  }
  executor_.fail(instruction, failure);
  record(instruction, failure, root);
}

FailureRef EntryFailures::refused(const Entry& entry, bool* root) {
  *root = std::exchange(refused_, entry.refused) != entry.refused;
  return entry.refused;
}

FailureRef EntryFailures::interrupted(std::uint64_t seq, bool* root) {
  const std::uint64_t below = executor_.interrupts().below();
  *root = !cancelled_.failure || cancelled_.below != below;
  if (*root) {
    cancelled_.below = below;
    cancelled_.failure =
        executor_.failures().make(seq, Status(core::Code::kCancelled, kInterruptedEarly));
  }
  return cancelled_.failure;
}

void EntryFailures::forget(std::uint64_t root) {
  if (cancelled_.failure && cancelled_.failure->seq == root) cancelled_.failure = nullptr;
}

void EntryFailures::record(const Instruction& instruction, const FailureRef& failure,
                           bool root) noexcept {
  const core::UsesReserve reserve;
  bool rebinds = false;
  for (const program::ResultSlot& result : instruction.results) rebinds |= result.overwrites >= 0;
  executor_.failures().add(instruction.seq, *failure, rebinds);
  if (root) events_.on_failed(*failure);
}

void EntryFailures::record(std::uint64_t seq, Status status) {
  Instruction none;
  none.seq = seq;
  record(none, executor_.failures().make(seq, std::move(status)), true);
}

}  // namespace teletensor::runtime
