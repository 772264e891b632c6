// InferredLayouts remembers the layouts that inference found for recent calls, because programs
// call the same ops with operands of the same layouts again and again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/ops/op.h"

namespace teletensor::ops {

// The parts of a call on which its inference depends. The call must have no list arguments.
struct InferredCall {
  OpId op = 0;
  core::DType default_dtype = core::DType::kF32;
  std::span<const Var> arguments;
  const core::Attributes& attributes;
};

// Not thread-safe. Its memory is bounded: a call replaces an earlier one that has the same place.
class InferredLayouts {
 public:
  // Returns the layout of the only result of an equal call: same op, attributes and default dtype,
  // operands with the same layouts or the same number. Null if there is none. Valid until the next
  // add().
  const core::Layout* find(const InferredCall& call) const;
  // Remembers that inference has accepted the call, and the layout of its only result. Calls with
  // more than kOperands operands, or with absent ones, are ignored.
  void add(const InferredCall& call, const core::Layout& result);

 private:
  static constexpr std::size_t kEntries = 32, kOperands = 2;

  struct Operand {
    bool is_number = false;
    core::Layout layout;  // of a tensor
    core::Number number;
    bool matches(const Var& argument) const;
  };
  struct Entry {
    OpId op;
    core::DType default_dtype;
    std::size_t operands;
    std::array<Operand, kOperands> operand;
    core::Attributes attributes;
    core::Layout result;
  };

  static std::size_t place_of(const InferredCall& call);

  std::array<std::unique_ptr<Entry>, kEntries> entries_;
};

}  // namespace teletensor::ops
