// Template: elementwise instructions of one layout that a session repeats, one after the other. The
// front end recognises them in the stream (autograd/known/templates.h), and the back end runs them
// as one entry of its queue. TemplateCall: one repetition, or a part of it, with its values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/geometry.h"
#include "engine/core/inline_vector.h"
#include "engine/core/recycled.h"
#include "engine/core/ref.h"
#include "engine/program/instruction.h"

namespace teletensor::program {

// Immutable once the back end has prepared it. Any thread may destroy it.
class Template final : public core::Shared {
 public:
  static constexpr std::size_t kMaxSteps = 32, kMaxInputs = 8;

  struct Operand {
    enum class Kind : std::uint8_t { kStep, kInput, kNumber };
    Kind kind = Kind::kNumber;
    std::uint8_t index = 0;  // of the step that computes it, or of the input
    core::Number number;     // if kNumber
  };
  struct Step {
    OpId op = 0;
    core::DType dtype = core::DType::kF32;  // of the result
    core::InlineVector<Operand, 3> operands;
    const core::Attributes* attributes = nullptr;  // interned
  };
  // What the back end derives from the steps.
  class Prepared {
   public:
    virtual ~Prepared() = default;
  };

  core::Device device;
  // The layout of all inputs and results: dense, from the start of the storage. Interned.
  const core::Geometry* geometry = nullptr;
  std::int64_t elements = 0;        // of the storage of a result
  std::vector<core::DType> inputs;  // at most kMaxInputs
  std::vector<Step> steps;          // at most kMaxSteps
  std::unique_ptr<const Prepared> prepared;
  std::size_t bytes = 0;  // approximate memory, set with `prepared`
};

struct TemplateCall final : core::Recycled<TemplateCall> {
  core::Ref<const Template> repeated;
  // The steps that run. A repetition whose commands came in several frames has a call for each.
  std::uint8_t first = 0, end = 0;
  std::uint64_t first_seq = 0;  // of the command of step `first`
  // By step: the number of commands between that of step `first` and its own.
  std::array<std::uint16_t, Template::kMaxSteps> commands;
  std::array<ValueRef, Template::kMaxInputs> inputs;  // null: not read by these steps
  // By step. From `first` on: null if the client has released the result before the last of these
  // steps. In front of it: the result of an earlier call, null if it is not read.
  std::array<ValueRef, Template::kMaxSteps> results;

  std::size_t size() const { return end - first; }  // number of steps that run
  std::uint64_t seq(std::size_t step) const { return first_seq + commands[step]; }
};

}  // namespace teletensor::program
