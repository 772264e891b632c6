// Program: instructions in single-assignment form over numbered values, with nested blocks for
// control flow. The same form represents a window of the queue, a captured function, a backward and
// a saved model. The passes (engine/passes) rewrite it, the runtime plans and runs it, and
// serialize.h stores it.
//
// A value is the contents of one storage at one moment, as in value.h, but identified by a number;
// operands are views on it. Steps are in execution order: a step that overwrites a value comes
// after all readers of the old value. All types, layouts and numbers are known; nothing is inferred
// at run time.
#pragma once

#include <atomic>
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

// The type of a value, without its contents.
struct ValueType {
  core::DType dtype = core::DType::kF32;
  core::Device device;
  std::int64_t elements = 0;  // elements of the whole storage
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
  View view;            // if kTensor
  core::Number number;  // if kNumber
  friend bool operator==(const StepOperand&, const StepOperand&) = default;
};

struct StepResult {
  View view;            // a new value, and the region of it that the step writes
  int overwrites = -1;  // as in ResultSlot: index of the operand whose value this result replaces
  friend bool operator==(const StepResult&, const StepResult&) = default;
};

struct Step;

// A list of steps with parameters. A value that a step of the block makes is visible in the block
// and in its nested blocks. Values of outer blocks are referred to by their numbers.
struct Block {
  std::vector<View> parameters;
  std::vector<Step> steps;
  std::vector<View> results;
  friend bool operator==(const Block&, const Block&);
};

struct Step {
  enum class Kind : std::uint8_t {
    kOp,
    // A conditional. operands[0] is a 0-d bool. The blocks are then and else; their results are the
    // results of the step.
    kIf,
    // A loop. The blocks are the condition (whose result is a 0-d bool) and the body. The operands
    // are the body's parameters in the first round, the body's results are the parameters of the
    // next round, and the step's results are those of the last round. `counts` lists operands, in
    // ascending order, for which a record is kept: their values at the start of each round. If
    // there are any, those records and then the number of rounds (a 0-d int64) follow as further
    // results.
    kWhile,
    // Reads a record. The operands are a record and a 0-d int64 n. The one result is a new
    // row-major value: the recorded value at the start of round n (counted from 0), or zeros if
    // there was no such round.
    kPast,
  };
  Kind kind = Kind::kOp;
  OpId op = 0;  // if kOp
  core::InlineVector<StepOperand, 3> operands;
  core::InlineVector<StepResult, 1> results;
  core::Attributes attributes;
  core::InlineVector<std::uint32_t, 2> counts;  // lengths of list arguments, in signature order
  std::vector<Block> blocks;
  std::uint32_t origin = 0;  // source line for error messages: index into Program::origins
  friend bool operator==(const Step&, const Step&);
};

// The type that a record has as a value of a program. Its element count is always 0 and does not
// tell how many rounds the record contains.
inline ValueType record_type(core::Device device) { return {core::DType::kU8, device, 0}; }
inline core::Geometry record_geometry() { return core::Geometry(core::Dims{0}); }

struct Literal {
  ValueId value = kNoValue;
  std::string bytes;  // row-major
  friend bool operator==(const Literal&, const Literal&) = default;
};

// A parameter whose value the program replaces; the caller sees it as an in-place write. `value`
// results from the parameter's value through steps that overwrite it. There is one entry per
// storage.
struct Rebind {
  std::uint32_t parameter = 0;  // index into body.parameters
  ValueId value = kNoValue;     // the final contents of the parameter's storage
  friend bool operator==(const Rebind&, const Rebind&) = default;
};

// A result that becomes the .grad of the tensor that the caller passes for a parameter.
struct Gradient {
  std::uint32_t parameter = 0, result = 0;  // indices into the body's lists
  friend bool operator==(const Gradient&, const Gradient&) = default;
};

// A result that shares its memory, as a view does, with a parameter or an earlier result. Results
// without an entry have their own memory, even if two of them are the same value.
struct Alias {
  std::uint32_t result = 0;
  bool of_parameter = false;
  std::uint32_t index = 0;  // index of that parameter or result
  friend bool operator==(const Alias&, const Alias&) = default;
};

// The parameters of `body` describe the tensors that a call passes: their dtypes, devices, shapes
// and strides. For parameters that are views of one value, a call passes tensors of one storage
// with the same distance between them. Each call may use another start in that storage; this
// displacement is added to every view of the value and of the values that overwrite it.
struct Program {
  std::string name;
  std::vector<ValueType> values;
  std::vector<Literal> literals;
  Block body;
  std::vector<Rebind> rebinds;
  std::vector<Gradient> gradients;
  std::vector<Alias> aliases;  // ascending by result
  // Numbers that a call passes: their kinds, each with an example.
  std::vector<core::Number> numbers;
  std::vector<std::string> parameter_names;  // one per body.parameters
  // Lines of source as "file:line: text". A step's origin is an index into this list; index 0 means
  // unknown.
  std::vector<std::string> origins{std::string()};
  // The number of random steps. In the program they have the attributes seed 0 and `ordinal`
  // counted from 0; a call adds its own seed and first ordinal.
  std::uint64_t random_steps = 0;
  friend bool operator==(const Program&, const Program&) = default;
};

// The memory that a program takes, in bytes, without what the allocator adds.
std::uint64_t memory_of(const Program& program);
// Returns the program and adds its memory to `total` for as long as the program exists: a plan, a
// queued call or the tape may use it after its definition is gone.
std::shared_ptr<const Program> counted(Program program,
                                       std::shared_ptr<std::atomic<std::uint64_t>> total);

inline bool operator==(const Block& a, const Block& b) {
  return a.parameters == b.parameters && a.steps == b.steps && a.results == b.results;
}
inline bool operator==(const Step& a, const Step& b) {
  return a.kind == b.kind && a.op == b.op && a.operands == b.operands && a.results == b.results &&
         a.attributes == b.attributes && a.counts == b.counts && a.blocks == b.blocks &&
         a.origin == b.origin;
}

// One call of a program, or a loop of calls (see Call in command.h): the operands for its
// parameters, and the session's values that the program's values become.
struct Invocation {
  static constexpr std::uint32_t kWhole = ~0u;
  struct Outcome {
    ValueId value = kNoValue;
    ValueRef becomes;
    // kWhole: `becomes` gets the value of the last round. Otherwise the index of a result:
    // `becomes` gets the views of this result in all rounds, one after the other, row-major.
    std::uint32_t result = kWhole;
  };
  std::shared_ptr<const Program> program;
  std::vector<Operand> inputs;  // one per parameter
  std::vector<core::Number> numbers;
  std::int64_t seed = 0, ordinal = 0;
  std::uint32_t times = 0;
  std::vector<std::uint32_t> sliced;
  std::vector<Outcome> outcomes;
};

}  // namespace teletensor::program
