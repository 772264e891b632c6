// Program: instructions in single-assignment form over numbered values, with nested blocks for
// control flow. One form for all moments: a window of the queue, a captured function, a backward, a
// saved model. The passes (engine/passes) rewrite it, the runtime plans and runs it, serialize
// writes it down.
//
// A value is one storage identity at one moment, as in value.h, but known by its number; operands
// are views on it. Order is the order of execution: a step that overwrites a value comes after the
// readers of the old one. Types, layouts and numbers are all known: nothing is inferred at run
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/geometry.h"
#include "engine/core/inline_vector.h"
#include "engine/program/instruction.h"

namespace teletensor::program {

using ValueId = std::uint32_t;  // index into Program::values
inline constexpr ValueId kNoValue = ~0u;

// What a value is, without its contents.
struct ValueType {
  core::DType dtype = core::DType::kF32;
  core::Device device;
  std::int64_t elements = 0;  // of the whole storage
  friend bool operator==(const ValueType&, const ValueType&) = default;
};

// A view on a value.
struct View {
  ValueId value = kNoValue;
  core::Geometry geometry;
  friend bool operator==(const View&, const View&) = default;
};

struct StepOperand {
  Operand::Kind kind = Operand::Kind::kAbsent;
  View view;            // kTensor
  core::Number number;  // kNumber
  friend bool operator==(const StepOperand&, const StepOperand&) = default;
};

struct StepResult {
  View view;            // a new value, and the region of it that is written
  int overwrites = -1;  // as in ResultSlot: the operand whose value this one replaces
  friend bool operator==(const StepResult&, const StepResult&) = default;
};

struct Step;

// Steps with parameters. A value that a block makes is seen by the block and those inside it;
// values from outside are seen by their numbers.
struct Block {
  std::vector<View> parameters;
  std::vector<Step> steps;
  std::vector<View> results;
  friend bool operator==(const Block&, const Block&);
};

struct Step {
  enum class Kind : std::uint8_t {
    kOp,
    // operands[0]: a 0-d bool. blocks: then, else; their results are the step's.
    kIf,
    // blocks: condition (its result: a 0-d bool), body. Operands are what the first round's
    // parameters are; the body's results are the next round's; the last round's are the step's.
    // `counts`: operands (ascending) of which a record is kept, the values that they have when a
    // round's body begins. Behind the others results: those records, and then how many rounds there
    // were (a 0-d int64).
    kWhile,
    // operands: a record, a 0-d int64 n. Its one result is a new value, row-major: what round n
    // (from 0) began with, zeros where there is no such round.
    kPast,
  };
  Kind kind = Kind::kOp;
  OpId op = 0;  // kOp
  core::InlineVector<StepOperand, 3> operands;
  core::InlineVector<StepResult, 1> results;
  core::Attributes attributes;
  core::InlineVector<std::uint32_t, 2> counts;  // lengths of list arguments, in signature order
  std::vector<Block> blocks;
  std::uint32_t origin = 0;  // what errors name: see Program::origins
  friend bool operator==(const Step&, const Step&);
};

// What a record is: it has no elements, whatever it holds.
inline ValueType record_type(core::Device device) { return {core::DType::kU8, device, 0}; }
inline core::Geometry record_geometry() { return core::Geometry(core::Dims{0}); }

struct Literal {
  ValueId value = kNoValue;
  std::string bytes;  // row-major
  friend bool operator==(const Literal&, const Literal&) = default;
};

// A parameter whose value the program replaces: an in-place change that its caller sees. `value`
// comes from the parameter's through steps that overwrite. One entry a storage.
struct Rebind {
  std::uint32_t parameter = 0;  // index into body.parameters
  ValueId value = kNoValue;     // what the parameter's storage holds afterwards
  friend bool operator==(const Rebind&, const Rebind&) = default;
};

// A result that becomes the .grad of what the caller gives for a parameter.
struct Gradient {
  std::uint32_t parameter = 0, result = 0;  // indices into body's
  friend bool operator==(const Gradient&, const Gradient&) = default;
};

// A result that shares its memory, as a view does, with a parameter or with an earlier result. All
// others are on memory of their own, also where two have one value.
struct Alias {
  std::uint32_t result = 0;
  bool of_parameter = false;
  std::uint32_t index = 0;  // of that parameter or result
  friend bool operator==(const Alias&, const Alias&) = default;
};

// The parameters of `body` are what a call gives: tensors of these dtypes, devices, shapes and
// strides. Parameters that are views of one value are given tensors of one storage, equally far
// apart; where a storage begins is the call's business: its displacement is added to every view of
// that value and of the values that overwrite it.
struct Program {
  std::string name;
  std::vector<ValueType> values;
  std::vector<Literal> literals;
  Block body;
  std::vector<Rebind> rebinds;
  std::vector<Gradient> gradients;
  std::vector<Alias> aliases;                // ascending by result
  std::vector<core::Number> numbers;         // what a call gives besides: the kinds, and an example
  std::vector<std::string> parameter_names;  // as many as body.parameters
  // Lines of source, "file:line: text"; a step's origin is an index here, 0: unknown.
  std::vector<std::string> origins{std::string()};
  // Random steps have the attributes seed 0 and `ordinal` from 0; a call adds its own.
  std::uint64_t random_steps = 0;
  friend bool operator==(const Program&, const Program&) = default;
};

inline bool operator==(const Block& a, const Block& b) {
  return a.parameters == b.parameters && a.steps == b.steps && a.results == b.results;
}
inline bool operator==(const Step& a, const Step& b) {
  return a.kind == b.kind && a.op == b.op && a.operands == b.operands && a.results == b.results &&
         a.attributes == b.attributes && a.counts == b.counts && a.blocks == b.blocks &&
         a.origin == b.origin;
}

// One call of a program, or a loop of calls (see Call in command.h): what its parameters are, and
// which of the session's values its own become.
struct Invocation {
  static constexpr std::uint32_t kWhole = ~0u;
  struct Outcome {
    ValueId value = kNoValue;
    ValueRef becomes;
    // kWhole: of the last round. Else the index of a result, whose views of all rounds `becomes`
    // holds, one after the other, row-major.
    std::uint32_t result = kWhole;
  };
  std::shared_ptr<const Program> program;
  std::vector<Operand> inputs;  // by parameter
  std::vector<core::Number> numbers;
  std::int64_t seed = 0, ordinal = 0;
  std::uint32_t times = 0;
  std::vector<std::uint32_t> sliced;
  std::vector<Outcome> outcomes;
};

}  // namespace teletensor::program
