// Preparation: the operands and results of the instruction that runs, as its kernel gets them.
//
// In place: a result that overwrites an operand takes over the old value's storage if nothing else
// refers to it (names, tape, queue and downloads all hold references). Otherwise the storage is
// copied first. An operand that overlaps the written region with a different layout is copied
// beforehand.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/program/instruction.h"
#include "engine/runtime/execute/execution_context.h"

namespace teletensor::runtime {

// Used by the session task only, inside an Attempt.
class Preparation {
 public:
  using StorageRef = InstructionMemory::StorageRef;

  explicit Preparation(ExecutionContext& context) : context_(context), memory_(context.memory) {}

  // Begins an instruction with this number of results on a device.
  void begin(std::size_t device, std::size_t results) {
    device_ = device;
    slots_.resize(results);
  }
  // Gathers the operands, which must be on the device and in memory.
  core::Status gather_operands(const program::Instruction& instruction, const ops::OpDef& op);
  // Returns true if the storage of an operand is published. Its lock must be held from here on.
  bool shared() const { return shared_; }
  // Provides a storage for each result.
  core::Status prepare_results(const program::Instruction& instruction, const ops::OpDef& op);
  // Returns true if the kernel overwrites a storage that has contents.
  bool overwrites() const { return overwrites_; }
  // Copies what must be copied before the kernel runs.
  core::Status copy_before(const program::Instruction& instruction, const ops::OpDef& op,
                           backends::Parallel& parallel, backends::Scratch& scratch);
  // Copies the results that the kernel has written to other memory. Called after the kernel.
  core::Status copy_after(const program::Instruction& instruction, backends::Parallel& parallel,
                          backends::Scratch& scratch);
  std::span<const backends::TensorArg> in() const { return in_; }
  std::span<const backends::TensorArg> out() const { return out_; }

  // The storage of a result, for instructions that run without a kernel.
  StorageRef& storage(std::size_t result) { return slots_[result].storage; }
  // Gives the results their contents.
  void commit(const program::Instruction& instruction);
  // Forgets the instruction.
  void clear();

  // Bytes that were copied because another reference needed an old value, or because operands
  // overlapped the result with a different layout. Any thread.
  std::uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }

 private:
  using Instruction = program::Instruction;

  // The preparation of one result.
  struct Slot {
    Slot() {}            // not defaulted: resize() would first clear the whole slot
    StorageRef storage;  // the value's contents after success
    program::Value* stolen_from = nullptr;  // the value that owns `storage` until success
    bool copy_old = false;                  // copy the overwritten storage into it first
    bool clone_first = false;               // copy operand 0 into the result's layout first
    bool through = false;  // `storage` is published and is also the storage of the old value
    // The new contents of the old value, if this session still reads it (for its tape).
    StorageRef before;
    StorageRef temporary;  // the kernel writes here, then the result is copied
    core::Layout temporary_layout;
  };
  struct Separated {  // an operand that was copied beforehand
    StorageRef storage;
    core::Geometry packed, geometry;
  };

  core::Status prepare_new(const Instruction& i, const ops::OpDef& op, std::size_t result);
  core::Status prepare_overwrite(const Instruction& i, const ops::OpDef& op, std::size_t result);
  core::Status prepare_temporary(const Instruction& i, const ops::OpDef& op, std::size_t result);
  core::Status prepare_through(const Instruction& i, const ops::OpDef& op, std::size_t result);
  core::Status separate_operands(const Instruction& i, const ops::OpDef& op, int overwritten);
  core::Status allocate(const ops::OpDef& op, std::size_t bytes, std::uint64_t seq,
                        StorageRef* storage);
  void count_copied(std::size_t bytes) {
    copied_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  Device& device() const { return context_.devices.at(device_); }

  ExecutionContext& context_;
  InstructionMemory& memory_;
  std::size_t device_ = 0;
  std::vector<backends::TensorArg> in_, out_;
  std::vector<Slot> slots_;
  std::deque<Separated> separated_;
  bool shared_ = false, overwrites_ = false;
  bool prefills_ = false;   // a slot has contents to copy before the kernel runs
  bool temporary_ = false;  // a slot has a temporary
  std::atomic<std::uint64_t> copied_bytes_{0};
};

// Called before a storage is written: bounds that a kernel derived for an operand in it would
// describe the old contents.
void forget_bounds(memory::Storage& storage, std::span<backends::TensorArg> operands);

}  // namespace teletensor::runtime
