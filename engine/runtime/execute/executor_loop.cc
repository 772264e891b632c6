// Executor's loops: several instructions that run as one.
#include <algorithm>

#include "engine/runtime/execute/executor.h"
#include "engine/runtime/execute/executor_parts.h"

namespace teletensor::runtime {

using backends::LoopRole;
using backends::TensorArg;
using core::Status;
using program::Operand;
using program::ResultSlot;
using program::Value;

// The index of the step that makes the value; -1 if it comes from outside the loop.
int Executor::LoopState::maker(const Value* value) const {
  const std::uint32_t step = value->loop_step;
  return step < made.size() && made[step] == value ? static_cast<int>(step) : -1;
}

// The number of references that the loop's own steps have to a value.
std::uint32_t Executor::LoopState::own(const Value* value) const {
  std::uint32_t count = 0;
  for (const Instruction* step : steps) {
    for (const Operand& operand : step->operands) count += operand.value.get() == value;
    for (const ResultSlot& result : step->results) count += result.value.get() == value;
  }
  return count;
}

bool Executor::run_loop(std::span<Instruction* const> instructions, bool* never) {
  *never = false;
  for (const Instruction* instruction : instructions) {
    for (const Operand& operand : instruction->operands) {
      if (operand.value && operand.value->failure) return false;
    }
  }
  Profile::Timer timer(profile_, instructions[0]->seq, instructions[0]->op,
                       static_cast<std::uint32_t>(instructions.size()));
  const Try chance(*this);
  Status status;
  try {
    status = execute_loop(instructions);
  } catch (const std::bad_alloc&) {
    status = Status(core::Code::kResourceExhausted, "loop: the daemon process is out of memory");
  }
  if (status.ok()) {
    for (std::size_t s = 0; s < instructions.size(); ++s) {
      Slot& slot = slots_[s];
      if (slot.stolen_from != nullptr) slot.stolen_from->contents = nullptr;
      instructions[s]->results[0].value->contents = std::move(slot.storage);
      describe(*instructions[s]);
    }
  }
  if (!status.ok()) timer.forget();  // they then run one by one
  *never = status.code() == core::Code::kUnimplemented;
  clear();
  if (!status.ok() && has_starved(status)) {
    for (const Instruction* instruction : instructions) need_operands(*instruction);
  }
  return status.ok();
}

Status Executor::execute_loop(std::span<Instruction* const> instructions) {
  LoopState& loop = loop_;
  loop.steps.assign(instructions.begin(), instructions.end());
  loop.made.clear();
  loop.uses.assign(instructions.size(), 1);  // one for its result slot
  const core::Device on = instructions[0]->results[0].value->device;
  const int found = devices_.find(on);
  if (found < 0) return core::internal("loop: a step is on a device that the daemon does not have");
  device_ = static_cast<std::size_t>(found);
  std::size_t operands = 0;
  bool shared = false;
  const core::Geometry* layout = nullptr;
  for (const Instruction* instruction : instructions) {
    operands += instruction->operands.size();
    Value& made = *instruction->results[0].value;
    made.loop_step = static_cast<std::uint32_t>(loop.made.size());
    loop.made.push_back(&made);
    if (device().backend().role(instruction->op) == LoopRole::kElement) {
      layout = instruction->results[0].geometry;
    }
  }
  in_.resize(operands);
  slots_.resize(instructions.size());
  loop.calls.clear();
  std::size_t at = 0;
  for (const Instruction* instruction : instructions) {
    backends::LoopStep& call = loop.calls.emplace_back();
    call.op = &catalog_.at(instruction->op);
    call.kernel = device().kernel(instruction->op);
    call.role = device().backend().role(instruction->op);
    call.counts = {instruction->counts.data(), instruction->counts.size()};
    call.attributes = instruction->attributes;
    call.in = std::span<const TensorArg>(in_).subspan(at, instruction->operands.size());
    for (const Operand& operand : instruction->operands) {
      TensorArg& arg = in_[at++];
      arg = {};
      if (operand.kind == Operand::Kind::kAbsent) continue;
      arg.dtype = operand.dtype;
      arg.number = operand.number;
      arg.kind = TensorArg::Kind::kNumber;
      if (operand.kind == Operand::Kind::kNumber) continue;
      arg.kind = TensorArg::Kind::kTensor;
      arg.geometry = operand.geometry;
      const Value& value = *operand.value;
      if (!(value.device == on)) return core::internal("loop: its operands are on two devices");
      const int maker = loop.maker(&value);
      if (maker >= 0) {
        if (maker + 1 >= static_cast<int>(loop.calls.size())) {
          return core::internal("loop: a step reads a later step");
        }
        arg.data = nullptr;
        arg.number.integer = maker;
        ++loop.uses[static_cast<std::size_t>(maker)];
      } else if (value.contents) {
        arg.data = storage_of(value)->data();
        storage_of(value)->touch(now_);
        if (arg.data == nullptr) [[unlikely]]
          TT_RETURN_IF_ERROR(require(value, "loop"));
        shared |= storage_of(value)->sharing() != nullptr;
      } else {
        return core::internal("loop: an operand has no contents");
      }
    }
  }
  SharedLocks locks(devices_, lock_wait_.request());
  if (shared) [[unlikely]] {
    std::uint64_t first = instructions[0]->seq;
    for (const Instruction* instruction : instructions) {
      first = std::min(first, instruction->seq);
      for (const ResultSlot& result : instruction->results) {
        // Run one by one, so that each write is visible and atomic by itself.
        if (result.overwrites >= 0 && result.value->through) {
          return Status(core::Code::kFailedPrecondition, "loop: writes a published tensor");
        }
      }
      for (const Operand& operand : instruction->operands) {
        if (operand.value && operand.value->contents) locks.add(*operand.value, false);
      }
    }
    TT_RETURN_IF_ERROR(lock_wait_.acquire(locks, first));
  }
  bool stealing = false;
  for (std::size_t s = 0; s < instructions.size(); ++s) {
    const ResultSlot& result = instructions[s]->results[0];
    TensorArg& out = loop.calls[s].out;
    out.kind = TensorArg::Kind::kTensor;
    out.dtype = result.value->dtype;
    out.geometry = result.geometry;
    out.data = nullptr;
    // A value that only this loop reads is not stored.
    if (result.value->references() == loop.uses[s] && loop.calls[s].role == LoopRole::kElement) {
      continue;
    }
    const std::size_t bytes = bytes_of(result.value->elements, result.value->dtype);
    if (!steal(s, layout, bytes)) {
      TT_RETURN_IF_ERROR(
          allocate(loop.calls[s].op->name, bytes, instructions[s]->seq, &slots_[s].storage));
    }
    stealing |= slots_[s].stolen_from != nullptr;
    if (has_accelerator_) forget_bounds(*slots_[s].storage);
    out.data = slots_[s].storage->data();
  }
  const std::uint64_t seq = instructions[0]->seq;
  PartsOnLanes parallel(lanes_, stealing ? nullptr : this, seq);
  ScratchMemory scratch(*this, seq);
  TT_RETURN_IF_ERROR(device().backend().run_loop(loop.calls, parallel, scratch));
  if (parallel.was_cancelled()) return Status(core::Code::kCancelled, "loop: interrupted");
  return {};
}

// Step s may overwrite a value from outside that only steps up to s read, each at the position
// where it writes.
bool Executor::steal(std::size_t s, const core::Geometry* layout, std::size_t bytes) {
  LoopState& loop = loop_;
  const ResultSlot& result = loop.steps[s]->results[0];
  if (loop.calls[s].role != LoopRole::kElement || result.geometry != layout) return false;
  if (bytes < kWorthReusing && result.overwrites < 0) return false;
  for (std::size_t k = 0; k <= s; ++k) {
    for (const Operand& operand : loop.steps[k]->operands) {
      if (operand.kind != Operand::Kind::kTensor || operand.geometry != layout) continue;
      Value& value = *operand.value;
      if (operand.dtype != value.dtype) continue;
      if (value.dtype != result.value->dtype || value.elements != result.value->elements ||
          loop.maker(&value) >= 0 || value.contents->references() != 1 ||
          storage_of(value)->sharing() != nullptr || value.references() != loop.own(&value)) {
        continue;
      }
      bool fits = true;
      for (std::size_t j = 0; j < loop.steps.size(); ++j) {
        fits = fits && slots_[j].stolen_from != &value;
        for (const Operand& other : loop.steps[j]->operands) {
          if (other.value.get() != &value) continue;
          fits = fits && j <= s && other.geometry == layout && other.dtype == value.dtype;
        }
      }
      if (!fits) continue;
      slots_[s].storage = StorageRef(storage_of(value));
      slots_[s].stolen_from = &value;
      return true;
    }
  }
  return false;
}

}  // namespace teletensor::runtime
