// Random programs (engine/program/program.h): valid ones of every kind of step, and what a hostile
// client would make of them.
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

  // Of steps as infer allows them, branches, bounded loops, in-place steps, random steps, numbers
  // of the call, views, literals. verify() accepts almost all.
  program::Program make();
  // One or a few changes of its structure: ids, layouts, types, kinds, blocks, counts.
  void spoil(program::Program& program);
  // Changes of its bytes, whose checksum is put right again (mostly).
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
  // Appends a step that infer accepts; false where it found none.
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

// The bytes of a program's body with a checksum that fits.
std::string with_checksum(std::string_view body);
// The contents of a storage of so many elements: small numbers, valid for every dtype.
std::string contents(Hostile& random, core::DType dtype, std::int64_t elements);

}  // namespace teletensor::fuzz
