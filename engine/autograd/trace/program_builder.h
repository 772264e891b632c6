// ProgramBuilder: builds a Program from instructions over values. Values get their numbers in the
// order in which they occur. The storage of a parameter may begin inside the storage of the value
// that it stands for.
//
// In a program each value has one dtype. If an instruction reads a value as another dtype, the
// program reads a copy of it; if an instruction writes a value as another dtype, the program writes
// into a copy, which then serves as the storage.
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

class ProgramBuilder {
 public:
  ProgramBuilder() : program_(std::make_shared<program::Program>()) {}

  program::Program& program() { return *program_; }
  std::shared_ptr<const program::Program> take() { return std::move(program_); }

  program::ValueId id_of(const program::Value& value);
  bool has(const program::Value& value) const { return ids_.contains(&value); }
  std::int64_t base_of(program::ValueId id) const { return base_[id]; }
  program::View view(const program::Value& value, const core::Geometry& geometry,
                     core::DType dtype);
  // Returns the index of this source line in `origins`; 0 for an empty line.
  std::uint32_t origin(const std::string& line);

  // Adds a parameter whose storage begins at element `base` of the value's storage. Returns its
  // index.
  std::uint32_t parameter(const program::Value& value, const core::Geometry& geometry,
                          std::int64_t base, std::int64_t elements);
  // Returns the value that replaces the storage of parameter `p` (the first of its value) and has
  // the contents of `value`.
  program::ValueId rebound(std::uint32_t p, const program::Value& value);
  void literal(const program::Value& value, const std::string& bytes);
  // `numbers` maps a tag to the index of the program's number. Tags that are not in the map become
  // constants.
  core::Status step(const program::Instruction& instruction,
                    const std::map<std::uint32_t, std::uint32_t>& numbers, std::uint32_t origin);
  // Adds the steps of a called program. `begun` is the ordinal of the first random step of the
  // trace.
  void call(const program::Invocation& call, std::uint64_t begun, const ops::Catalog& catalog);

 private:
  program::ValueId add(core::DType dtype, core::Device device, std::int64_t elements,
                       std::int64_t base);
  // Adds a step that copies the value as another dtype, as far as its bytes make whole elements.
  program::ValueId copied_as(program::ValueId value, core::DType dtype);

  std::shared_ptr<program::Program> program_;
  std::map<const program::Value*, program::ValueId> ids_;
  std::map<std::pair<program::ValueId, core::DType>, program::ValueId> read_as_;
  std::vector<std::int64_t> base_;
  std::map<std::string, std::uint32_t> origins_;
};

}  // namespace teletensor::autograd
