#include "engine/runtime/execute/loop_runner.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/core/memory/reserve.h"
#include "engine/runtime/execute/preparation.h"
#include "engine/runtime/execute/value_storage.h"

namespace teletensor::runtime {

using backends::LoopRole;
using backends::TensorArg;
using core::Status;
using program::Operand;
using program::ResultSlot;
using program::Value;

LoopRunner::LoopRunner(ExecutionContext& context) : context_(context), memory_(context.memory) {
  for (std::size_t i = 0; i < context.devices.size(); ++i) {
    for (std::size_t op = 0; op < context.catalog.size(); ++op) {
      supported_ = supported_ || context.devices.at(i).backend().role(static_cast<ops::OpId>(op)) !=
                                     LoopRole::kNone;
    }
  }
}

int LoopRunner::maker(const Value* value) const {
  const std::uint32_t step = value->loop_step;
  return step < made_.size() && made_[step] == value ? static_cast<int>(step) : -1;
}

std::uint32_t LoopRunner::own_references(const Value* value) const {
  std::uint32_t count = 0;
  for (const Instruction* step : steps_) {
    for (const Operand& operand : step->operands) count += operand.value.get() == value;
    for (const ResultSlot& result : step->results) count += result.value.get() == value;
  }
  return count;
}

bool LoopRunner::run(std::span<Instruction* const> instructions, bool* never) {
  *never = false;
  for (const Instruction* instruction : instructions) {
    for (const Operand& operand : instruction->operands) {
      if (operand.value && operand.value->failure) return false;
    }
  }
  Profile::Timer timer(context_.profile, instructions[0]->seq, instructions[0]->op,
                       static_cast<std::uint32_t>(instructions.size()));
  const Attempt attempt(context_);
  Status status;
  try {
    const core::UsesReserve forbidden(false);
    status = execute(instructions);
  } catch (const std::bad_alloc&) {
    status = Status(core::Code::kResourceExhausted, "loop: the daemon process is out of memory");
  }
  if (status.ok()) {
    for (std::size_t s = 0; s < instructions.size(); ++s) {
      Slot& slot = slots_[s];
      if (slot.stolen_from != nullptr) slot.stolen_from->contents = nullptr;
      instructions[s]->results[0].value->contents = std::move(slot.storage);
      describe_results(*instructions[s]);
    }
  }
  if (!status.ok()) timer.forget();  // they then run one by one
  *never = status.code() == core::Code::kUnimplemented;
  slots_.clear();
  if (!status.ok() && memory_.has_starved(status)) {
    for (const Instruction* instruction : instructions) memory_.need(*instruction);
  }
  return status.ok();
}

Status LoopRunner::execute(std::span<Instruction* const> instructions) {
  steps_.assign(instructions.begin(), instructions.end());
  made_.clear();
  uses_.assign(instructions.size(), 1);  // one for its result slot
  const core::Device on = instructions[0]->results[0].value->device;
  const int found = context_.devices.find(on);
  if (found < 0) return core::internal("loop: a step is on a device that the daemon does not have");
  device_ = static_cast<std::size_t>(found);
  Device& device = context_.devices.at(device_);
  std::size_t operands = 0;
  for (const Instruction* step : steps_) {
    operands += step->operands.size();
    Value& made = *step->results[0].value;
    made.loop_step = static_cast<std::uint32_t>(made_.size());
    made_.push_back(&made);
  }
  in_.resize(operands);
  slots_.resize(steps_.size());
  bool shared = false, stealing = false;
  TT_RETURN_IF_ERROR(gather_operands(on, &shared));
  const core::Geometry* layout = nullptr;
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    if (calls_[s].role == LoopRole::kElement) layout = steps_[s]->results[0].geometry;
  }
  SharedLocks locks(context_.devices, context_.lock_wait.request());
  if (shared) [[unlikely]]
    TT_RETURN_IF_ERROR(lock(locks));
  TT_RETURN_IF_ERROR(prepare_results(layout, &stealing));
  const std::uint64_t seq = steps_[0]->seq;
  PartsOnLanes parallel(context_.lanes, stealing ? nullptr : &context_.interrupts, seq);
  ScratchMemory scratch(memory_, device_, seq);
  TT_RETURN_IF_ERROR(device.backend().run_loop(calls_, parallel, scratch));
  if (parallel.was_cancelled()) return Status(core::Code::kCancelled, "loop: interrupted");
  return {};
}

Status LoopRunner::gather_operands(core::Device on, bool* shared) {
  Device& device = context_.devices.at(device_);
  calls_.clear();
  std::size_t at = 0;
  for (const Instruction* step : steps_) {
    backends::LoopStep& call = calls_.emplace_back();
    call.op = &context_.catalog.at(step->op);
    call.kernel = device.kernel(step->op);
    call.role = device.backend().role(step->op);
    call.counts = {step->counts.data(), step->counts.size()};
    call.attributes = step->attributes;
    call.in = std::span<const TensorArg>(in_).subspan(at, step->operands.size());
    for (const Operand& operand : step->operands) {
      TensorArg& arg = in_[at++];
      arg = {};
      if (operand.kind == Operand::Kind::kAbsent) continue;
      arg.dtype = operand.dtype;
      if (operand.kind == Operand::Kind::kNumber) {
        arg.kind = TensorArg::Kind::kNumber;
        arg.number = operand.number;
        continue;
      }
      arg.kind = TensorArg::Kind::kTensor;
      arg.geometry = operand.geometry;
      const Value& value = *operand.value;
      if (!(value.device == on)) return core::internal("loop: its operands are on two devices");
      const int made_by = maker(&value);
      if (made_by >= 0) {
        if (made_by + 1 >= static_cast<int>(calls_.size())) {
          return core::internal("loop: a step reads a later step");
        }
        arg.data = nullptr;
        arg.number.integer = made_by;
        ++uses_[static_cast<std::size_t>(made_by)];
      } else if (value.contents) {
        arg.data = storage_of(value)->data();
        memory_.touch(*storage_of(value));
        if (arg.data == nullptr) [[unlikely]]
          TT_RETURN_IF_ERROR(memory_.require(value, "loop"));
        *shared |= storage_of(value)->sharing() != nullptr;
      } else {
        return core::internal("loop: an operand has no contents");
      }
    }
  }
  return {};
}

Status LoopRunner::lock(SharedLocks& locks) const {
  std::uint64_t first = steps_[0]->seq;
  for (const Instruction* step : steps_) {
    first = std::min(first, step->seq);
    for (const ResultSlot& result : step->results) {
      // Run one by one, so that each write is visible and atomic by itself.
      if (result.overwrites >= 0 && result.value->through) {
        return Status(core::Code::kFailedPrecondition, "loop: writes a published tensor");
      }
    }
    for (const Operand& operand : step->operands) {
      if (operand.value && operand.value->contents) locks.add(*operand.value, false);
    }
  }
  return context_.lock_wait.acquire(locks, first);
}

Status LoopRunner::prepare_results(const core::Geometry* layout, bool* stealing) {
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    const ResultSlot& result = steps_[s]->results[0];
    TensorArg& out = calls_[s].out;
    out.kind = TensorArg::Kind::kTensor;
    out.dtype = result.value->dtype;
    out.geometry = result.geometry;
    out.data = nullptr;
    // A value that only this loop reads is not stored.
    if (result.value->references() == uses_[s] && calls_[s].role == LoopRole::kElement) continue;
    const std::size_t bytes = bytes_of(result.value->elements, result.value->dtype);
    Slot& slot = slots_[s];
    if (!steal(s, layout, bytes)) {
      TT_RETURN_IF_ERROR(
          memory_.allocate(device_, calls_[s].op->name, bytes, steps_[s]->seq, &slot.storage));
    }
    *stealing |= slot.stolen_from != nullptr;
    if (context_.has_accelerator) forget_bounds(*slot.storage, in_);
    out.data = slot.storage->data();
  }
  return {};
}

// Step s may overwrite a value from outside that only steps up to s read, each at the position
// where it writes.
bool LoopRunner::steal(std::size_t s, const core::Geometry* layout, std::size_t bytes) {
  const ResultSlot& result = steps_[s]->results[0];
  if (calls_[s].role != LoopRole::kElement || result.geometry != layout) return false;
  if (bytes < kWorthReusing && result.overwrites < 0) return false;
  for (std::size_t k = 0; k <= s; ++k) {
    for (const Operand& operand : steps_[k]->operands) {
      if (operand.kind != Operand::Kind::kTensor || operand.geometry != layout) continue;
      Value& value = *operand.value;
      if (operand.dtype != value.dtype) continue;
      if (value.dtype != result.value->dtype || value.elements != result.value->elements ||
          maker(&value) >= 0 || value.contents->references() != 1 ||
          storage_of(value)->sharing() != nullptr || value.references() != own_references(&value)) {
        continue;
      }
      bool fits = true;
      for (std::size_t j = 0; j < steps_.size(); ++j) {
        fits = fits && slots_[j].stolen_from != &value;
        for (const Operand& other : steps_[j]->operands) {
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
