// LoopRunner: runs several instructions of a session as one loop (passes/loop.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/status.h"
#include "engine/program/instruction.h"
#include "engine/runtime/execute/execution_context.h"

namespace teletensor::runtime {

// Used by the session task only.
class LoopRunner {
 public:
  explicit LoopRunner(ExecutionContext& context);

  // Returns true if any device supports loops.
  bool supported() const { return supported_; }
  // Runs the instructions in their order. Returns false, without side effects, if they must be run
  // one by one (which also reports their errors) or lack memory (InstructionMemory::starved).
  // *never is set if instructions of this kind can never be a loop on this device.
  bool run(std::span<program::Instruction* const> instructions, bool* never);

 private:
  using Instruction = program::Instruction;
  using StorageRef = InstructionMemory::StorageRef;

  // The storage of a step's result.
  struct Slot {
    StorageRef storage;                     // null if only the loop reads the value
    program::Value* stolen_from = nullptr;  // the value that owns `storage` until success
  };

  core::Status execute(std::span<Instruction* const> instructions);
  // Describes the steps for the backend. *shared is set if an operand's storage is published.
  core::Status gather_operands(core::Device on, bool* shared);
  core::Status lock(SharedLocks& locks) const;
  // Provides the storages of the results. *stealing is set if the loop overwrites one that has
  // contents.
  core::Status prepare_results(const core::Geometry* layout, bool* stealing);
  bool steal(std::size_t step, const core::Geometry* layout, std::size_t bytes);
  // The index of the step that makes the value; -1 if it comes from outside the loop.
  int maker(const program::Value* value) const;
  // The number of references that the loop's own steps have to a value.
  std::uint32_t own_references(const program::Value* value) const;

  ExecutionContext& context_;
  InstructionMemory& memory_;
  bool supported_ = false;
  // State of the running loop; kept to reuse its memory.
  std::size_t device_ = 0;
  std::vector<Instruction*> steps_;
  std::vector<const program::Value*> made_;  // the value that each step makes
  std::vector<std::uint32_t> uses_;          // uses of the made value inside the loop
  std::vector<backends::LoopStep> calls_;
  std::vector<backends::TensorArg> in_;
  std::vector<Slot> slots_;
};

}  // namespace teletensor::runtime
