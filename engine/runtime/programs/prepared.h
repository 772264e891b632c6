// Prepared: a program with facts for its runs that are computed once: which steps of a block run as
// one loop, in which order, and where each value is read for the last time.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/passes/loop.h"
#include "engine/program/interner.h"
#include "engine/program/program.h"
#include "engine/runtime/device.h"

namespace teletensor::runtime {

class Prepared {
 public:
  // Facts that are the same for each run of a step.
  struct StepFacts {
    bool random = false;
    // Interned: equal layouts have equal pointers. By operand (null: not a tensor) and by result.
    std::vector<const core::Geometry*> operands, results;
  };
  struct Facts {
    std::vector<passes::Unit> units;  // in the order in which they run
    // By unit: true for a loop that its device cannot run. Updated by the session task when it
    // finds out.
    mutable std::vector<bool> never;
    // By unit: the block's values that are not needed after it. A value that an inner block reads
    // is needed until the step that contains the inner block.
    std::vector<std::vector<program::ValueId>> dying;
    std::vector<program::ValueId> results;  // the block's results that it makes itself
    std::vector<StepFacts> steps;
  };

  Prepared(std::shared_ptr<const program::Program> program, const ops::Catalog& catalog,
           const Devices& devices);
  const program::Program& program() const { return *program_; }
  const std::shared_ptr<const program::Program>& shared() const { return program_; }
  const Facts& facts(const program::Block& block) const { return facts_.at(&block); }
  // The groups of its collectives, by the session's numbers.
  const std::vector<std::uint64_t>& groups() const { return groups_; }
  // The memory of the facts, in bytes, without the program.
  std::uint64_t bytes() const { return bytes_; }

 private:
  class Scan;

  std::shared_ptr<const program::Program> program_;
  program::Interner interner_;
  std::unordered_map<const program::Block*, Facts> facts_;
  std::vector<std::uint64_t> groups_;
  std::uint64_t bytes_ = 0;
};

}  // namespace teletensor::runtime
