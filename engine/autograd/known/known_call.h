// KnownCalls: how an instruction that computes one new tensor was executed for operands of some
// layouts. A front end keeps them with an instruction that its client repeats, and executes the
// instruction again without inference if the operands have such layouts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/autograd/graph.h"
#include "engine/core/inline_vector.h"
#include "engine/program/command.h"
#include "engine/program/interner.h"

namespace teletensor::autograd {

class KnownCall {
 public:
  // An operand or the result. The geometry belongs to the interner.
  struct Tensor {
    const core::Geometry* geometry = nullptr;
    core::DType dtype = core::DType::kF32;
    core::Device device;
    friend bool operator==(const Tensor&, const Tensor&) = default;
  };

  // Interns the layouts of the call.
  KnownCall(const Call& call, const ops::OpDef& def, Handle& result, program::Interner& interner);

  // Returns true if the operands, one per argument and null for those that are no tensors, have
  // these layouts. `interner` is the number of the interner that the queue uses now.
  bool fits(std::span<Handle* const> operands, std::uint64_t interner) const;
  // The same for operands of these layouts, without those that are no tensors.
  bool fits(std::span<const Tensor> operands, std::uint64_t interner) const;
  // Whether an operand, or any operand of a call, requires a gradient. kView means that the tape
  // has to find out, because the operand is a view whose history may be that of its base.
  enum class History : std::uint8_t { kNone, kGradient, kView };
  static History history_of(const Handle& h) {
    if (h.is_view()) return History::kView;
    return h.flag || h.node != nullptr ? History::kGradient : History::kNone;
  }
  // Returns kGradient if the call is recorded for these operands, and kNone if it is not.
  History history_of(std::span<Handle* const> operands) const;
  // Returns true if the call is recorded for operands that require a gradient.
  bool records() const { return records_; }
  const Tensor& result_tensor() const { return result_; }
  const core::Attributes* attributes() const { return attributes_; }
  core::Layout result() const { return {result_.dtype, result_.device, *result_.geometry}; }
  // The number of elements of the result's storage.
  std::int64_t elements() const { return elements_; }
  // Fills an empty instruction, which computes `result`. `interner` is that of the instruction.
  void fill(const program::Apply& apply, std::span<Handle* const> operands, Handle& result,
            program::Interner& interner, program::Instruction& instruction) const;

 private:
  std::uint64_t interner_;
  core::InlineVector<Tensor, 2> tensors_;  // one per operand that is a tensor
  Tensor result_;
  const core::Attributes* attributes_;
  std::int64_t elements_;
  bool records_;  // if an operand requires a gradient
};

class KnownCalls final : public program::KnownApply::Facts {
 public:
  // Maximum number of combinations of layouts.
  static constexpr std::size_t kMaxCalls = 4;

  // Returns true if a call of this op with these operands depends on nothing but the instruction
  // and the layouts of the operands.
  static bool may_know(const ops::OpDef& def, std::span<const ops::Var> arguments,
                       const Handles& results);

  // Returns null if no call fits.
  const KnownCall* find(std::span<Handle* const> operands, std::uint64_t interner) const {
    for (const KnownCall& call : calls_) {
      if (call.fits(operands, interner)) return &call;
    }
    return nullptr;
  }
  const KnownCall* find(std::span<const KnownCall::Tensor> operands, std::uint64_t interner) const {
    for (const KnownCall& call : calls_) {
      if (call.fits(operands, interner)) return &call;
    }
    return nullptr;
  }
  // Learns from a call that has succeeded, and for which find() had returned null. Of calls beyond
  // kMaxCalls it learns a few only, because learning costs more than an inference.
  void learn(const Call& call, const ops::OpDef& def, Handle& result, program::Interner& interner);

 private:
  static constexpr std::uint32_t kRareness = 64;

  core::InlineVector<KnownCall, 1> calls_;
  std::uint32_t missed_ = 0;  // calls that were not found
};

}  // namespace teletensor::autograd
