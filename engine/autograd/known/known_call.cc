#include "engine/autograd/known/known_call.h"

#include <algorithm>
#include <utility>

namespace teletensor::autograd {

using ops::Var;

namespace {

KnownCall::Tensor described(Handle& h, program::Interner& interner) {
  return {h.geometry_in(interner), h.layout.dtype, h.layout.device};
}

}  // namespace

KnownCall::KnownCall(const Call& call, const ops::OpDef& def, Handle& result,
                     program::Interner& interner)
    : interner_(interner.number()),
      result_(described(result, interner)),
      attributes_(interner.attributes(*call.attributes)),
      elements_(result.layout.geometry.storage_end()),
      records_(call.record && def.vjp != nullptr && core::is_inexact(result.layout.dtype)) {
  for (const Var& argument : call.arguments) {
    if (argument.is_tensor()) tensors_.push_back(described(handle_of(argument), interner));
  }
}

bool KnownCall::fits(std::span<Handle* const> operands, std::uint64_t interner) const {
  if (interner_ != interner) return false;
  std::size_t at = 0;
  for (Handle* h : operands) {
    if (h == nullptr) continue;
    const Tensor& tensor = tensors_[at++];
    if (h->layout.dtype != tensor.dtype || !(h->layout.device == tensor.device)) return false;
    if (h->interned.interner != interner) {
      if (!(h->geometry() == *tensor.geometry)) return false;
      h->interned = {tensor.geometry, interner};
    } else if (h->interned.geometry != tensor.geometry) {
      return false;
    }
  }
  return true;
}

KnownCall::History KnownCall::history_of(std::span<Handle* const> operands) const {
  History history = History::kNone;
  if (!records_) return history;
  for (const Handle* h : operands) {
    if (h != nullptr) history = std::max(history, history_of(*h));
  }
  return history;
}

bool KnownCall::fits(std::span<const Tensor> operands, std::uint64_t interner) const {
  return interner_ == interner && std::ranges::equal(operands, tensors_);
}

void KnownCall::fill(const program::Apply& apply, std::span<Handle* const> operands, Handle& result,
                     program::Interner& interner, program::Instruction& instruction) const {
  // The queue may have begun a new interner with this instruction.
  const bool renewed = interner.number() != interner_;
  instruction.op = apply.op;
  instruction.attributes = renewed ? interner.attributes(apply.attributes) : attributes_;
  for (const std::uint32_t count : apply.counts) instruction.counts.push_back(count);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    program::Operand& operand = instruction.operands.emplace_back();
    if (Handle* h = operands[i]) {
      h->fill(operand, interner);
    } else if (apply.arguments[i].kind == program::Argument::Kind::kNumber) {
      operand.kind = program::Operand::Kind::kNumber;
      operand.number = apply.arguments[i].number;
    }
  }
  if (!renewed) result.interned = {result_.geometry, interner_};
  program::ResultSlot& slot = instruction.results.emplace_back();
  slot.value = result.cell->value;
  slot.geometry = result.geometry_in(interner);
}

bool KnownCalls::may_know(const ops::OpDef& def, std::span<const Var> arguments,
                          const Handles& results) {
  // This excludes client_node, which the graph executes in its own way: it has no `infer`.
  if (def.infer == nullptr || def.view != nullptr || !def.mutates.empty() || def.collective ||
      results.size() != 1) {
    return false;
  }
  return !infers_from_storage(arguments);
}

void KnownCalls::learn(const Call& call, const ops::OpDef& def, Handle& result,
                       program::Interner& interner) {
  ++missed_;
  if (calls_.size() < kMaxCalls) {
    calls_.emplace_back(call, def, result, interner);
  } else if (missed_ % kRareness == 0) {
    calls_[missed_ / kRareness % kMaxCalls] = KnownCall(call, def, result, interner);
  }
}

}  // namespace teletensor::autograd
