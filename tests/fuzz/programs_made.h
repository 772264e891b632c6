// Random programs (engine/program/program.h): valid ones with every kind of step, and the same
// programs with faults as a hostile client would send them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/ops/op.h"
#include "engine/program/program.h"
#include "hostile.h"

namespace teletensor::fuzz {

class ProgramBuilder {
 public:
  ProgramBuilder(Hostile& random, const ops::Catalog& catalog)
      : random_(random), catalog_(catalog) {}

  // Makes a program of steps that infer accepts, branches, bounded loops, in-place steps, random
  // steps, numbers of the call, views and literals. verify() accepts almost all of them.
  program::Program make();
  // Makes one or a few changes to its structure: ids, layouts, types, kinds, blocks, counts.
  void spoil(program::Program& program);
  // Makes changes to its bytes; mostly, the checksum is corrected.
  std::string spoil(std::string bytes);

 private:
  struct Scope {
    std::vector<program::View> views;
    int depth = 0;
  };
  program::View value(core::DType dtype, const core::Geometry& geometry, std::int64_t elements);
  program::View any_view(const program::View& view);
  const program::View& pick(const Scope& scope);
  program::View literal(core::DType dtype, std::string bytes, const core::Dims& shape);
  // Appends a step that infer accepts; returns false if it found none.
  bool op_step(program::Block& block, Scope& scope);
  bool infer(program::Step& step, std::vector<core::Layout>& results) const;
  void unary(program::Block& block, Scope& scope, const char* op, const program::View& x);
  void branch(program::Block& block, Scope& scope);
  void loop(program::Block& block, Scope& scope);
  void steps(program::Block& block, Scope& scope, std::uint64_t count);
  std::string bytes_of(core::DType dtype, std::int64_t elements);

  Hostile& random_;
  const ops::Catalog& catalog_;
  program::Program program_;
};

// The bytes of a program's body with a valid checksum.
std::string with_checksum(std::string_view body);
// The contents of a storage with this number of elements: small numbers, valid for every dtype.
std::string contents(Hostile& random, core::DType dtype, std::int64_t elements);

}  // namespace teletensor::fuzz
