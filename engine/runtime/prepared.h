// Prepared: a program with what its runs want to know of it, found once: which steps of a block run
// as one loop, in which order, and where each value is read for the last time.
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
  // What is the same whenever a step runs.
  struct StepFacts {
    bool random = false;
    // Interned: equal layouts have equal pointers. By operand (null: no tensor) and by result.
    std::vector<const core::Geometry*> operands, results;
  };
  struct Facts {
    std::vector<passes::Unit> units;  // in the order in which they run
    // By unit: a loop that its device cannot run. The strand's, who finds out.
    mutable std::vector<bool> never;
    // By unit: the block's values that die with it. What an inner block reads dies with the step
    // that holds that block.
    std::vector<std::vector<program::ValueId>> dying;
    std::vector<program::ValueId> results;  // those of the block's results that it has made
    std::vector<StepFacts> steps;
  };

  Prepared(std::shared_ptr<const program::Program> program, const ops::Catalog& catalog,
           const Devices& devices);
  const program::Program& program() const { return *program_; }
  const std::shared_ptr<const program::Program>& shared() const { return program_; }
  const Facts& facts(const program::Block& block) const { return facts_.at(&block); }
  // The session's numbers of the groups whose collectives it has.
  const std::vector<std::uint64_t>& groups() const { return groups_; }

 private:
  class Scan;

  std::shared_ptr<const program::Program> program_;
  program::Interner interner_;
  std::unordered_map<const program::Block*, Facts> facts_;
  std::vector<std::uint64_t> groups_;
};

}  // namespace teletensor::runtime
