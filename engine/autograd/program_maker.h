// ProgramMaker: makes a Program of instructions over values. Values are numbered as they come; the
// storages of parameters may begin inside those of the values that they stand for.
//
// A program's value has one dtype. What the instructions read of one as another dtype, the program
// reads of a copy; what they write as another, it writes into a copy, which goes on as the storage.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/ops/op.h"
#include "engine/program/instruction.h"
#include "engine/program/program.h"

namespace teletensor::autograd {

class ProgramMaker {
 public:
  ProgramMaker() : program_(std::make_shared<program::Program>()) {}

  program::Program& program() { return *program_; }
  std::shared_ptr<const program::Program> take() { return std::move(program_); }

  program::ValueId id_of(const program::Value& value);
  bool has(const program::Value& value) const { return ids_.contains(&value); }
  std::int64_t base_of(program::ValueId id) const { return base_[id]; }
  program::View view(const program::Value& value, const core::Geometry& geometry,
                     core::DType dtype);
  // The number in origins of this line of source; 0 for none.
  std::uint32_t origin(const std::string& line);

  // A parameter whose storage begins `base` elements into the value's; its place.
  std::uint32_t parameter(const program::Value& value, const core::Geometry& geometry,
                          std::int64_t base, std::int64_t elements);
  // What overwrites parameter `p`, the first of its value, with what `value` holds.
  program::ValueId rebound(std::uint32_t p, const program::Value& value);
  void literal(const program::Value& value, const std::string& bytes);
  // `numbers`: a tag's place. Tags that are not there are constants.
  core::Status step(const program::Instruction& instruction,
                    const std::map<std::uint32_t, std::uint32_t>& numbers, std::uint32_t origin);
  // A called program's steps. `begun`: the ordinal that the trace's first random step has.
  void call(const program::Invocation& call, std::uint64_t begun, const ops::Catalog& catalog);

 private:
  program::ValueId add(core::DType dtype, core::Device device, std::int64_t elements,
                       std::int64_t base);
  // A copy of the value as another dtype, as much of it as is whole elements of that.
  program::ValueId copied_as(program::ValueId value, core::DType dtype);

  std::shared_ptr<program::Program> program_;
  std::map<const program::Value*, program::ValueId> ids_;
  std::map<std::pair<program::ValueId, core::DType>, program::ValueId> read_as_;
  std::vector<std::int64_t> base_;
  std::map<std::string, std::uint32_t> origins_;
};

}  // namespace teletensor::autograd
