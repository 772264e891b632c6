// Generates commands as a hostile client would send them: well-formed according to the catalog's
// signatures, with a mixture of reasonable and extreme values.
#pragma once

#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "engine/ops/op.h"
#include "engine/program/command.h"

namespace teletensor::fuzz {

class Hostile {
 public:
  explicit Hostile(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

  // Small tensors of every dtype and of ranks 0 to 4, some of them empty, as operands. Their
  // handles are those from `before` + 1 on; earlier handles are not used any more.
  std::vector<program::Command> constants(program::HandleId before);
  // An op of the catalog. `handles` are the ids 1 to n, some of which may be released.
  program::Apply apply(const ops::Catalog& catalog, program::HandleId handles);
  // A command of another kind.
  program::Command other(program::HandleId handles, std::uint64_t seq);

 private:
  program::HandleId handle(program::HandleId handles) {
    return before_ + 1 + below(handles - before_);
  }
  core::DType dtype() { return core::kAllDTypes[below(std::size(core::kAllDTypes))]; }
  std::int64_t integer();
  double real();
  core::Number number();
  core::Attribute attribute(const ops::Parameter& parameter);

  std::mt19937_64 random_;
  program::HandleId before_ = 0;
};

}  // namespace teletensor::fuzz
