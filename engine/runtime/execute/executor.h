// Executor: runs the instructions of one session, one after another. Used by the session task only.
//
// An instruction is atomic: all memory is reserved before any side effect, and an instruction that
// fails leaves its operands unchanged. The results of a failed instruction, and of one with a
// failed operand, carry the root's Failure; a result that would have rebound a value also carries
// that value as `good`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/program/instruction.h"
#include "engine/runtime/execute/collective_calls.h"
#include "engine/runtime/execute/execution_context.h"
#include "engine/runtime/execute/loop_runner.h"
#include "engine/runtime/execute/preparation.h"
#include "engine/runtime/execute/template_runner.h"
#include "engine/runtime/execute/value_transfers.h"
#include "engine/runtime/failures.h"
#include "engine/runtime/groups/session_groups.h"

namespace teletensor::runtime {

class Executor {
 public:
  using StorageRef = core::Ref<memory::Storage>;

  // `owner` > 0 identifies the session; `quota` applies to each device (0: the device's budget).
  Executor(const ops::Catalog& catalog, Devices& devices, Lanes& lanes, memory::OwnerId owner,
           std::uint64_t quota, LockWait& lock_wait, const SessionGroups& groups);
  ~Executor();

  // Runs the instruction; afterwards every result has contents or a failure, unless stopped() or
  // collectives().opened(). Returns null or that failure; *root is set if this instruction is the
  // root of the failure.
  FailureRef run(program::Instruction& instruction, bool* root);
  // Makes the results fail as if the instruction had failed.
  void fail(program::Instruction& instruction, const FailureRef& failure);
  // Gives a value its contents without an instruction (ValueTransfers::fill). Returns null, also if
  // stopped(), or the failure (with itself as root) that the value then carries.
  FailureRef bind(program::Value& value, std::string_view bytes, StorageRef storage,
                  std::uint64_t seq);
  // See ValueTransfers::separate.
  core::Status separate(program::Instruction& instruction);
  // Returns the operand's elements as row-major bytes: in the value's own storage if they have this
  // layout, otherwise in a new storage.
  core::Status row_major(const program::Operand& operand, std::uint64_t seq, RowMajor* result);
  // Returns true if the last instruction did not run and must be tried again.
  bool stopped() const {
    return memory().starved() || context_.lock_wait.blocked() || collectives_.waits_for_ranks();
  }

  // Runs instructions that form one loop.
  LoopRunner& loops() { return loops_; }
  // Runs the repetitions of templates.
  TemplateRunner& templates() { return templates_; }
  CollectiveCalls& collectives() { return collectives_; }
  const CollectiveCalls& collectives() const { return collectives_; }
  InstructionMemory& memory() { return context_.memory; }
  const InstructionMemory& memory() const { return context_.memory; }
  memory::Pool& pool(std::size_t device) const { return context_.memory.pool(device); }

  Devices& devices() const { return context_.devices; }
  const ops::Catalog& catalog() const { return context_.catalog; }
  // Sets the source line of the next instructions, for errors; null: not known. Not owned.
  void set_origin(const std::string* origin) { origin_ = origin; }
  const std::string* origin() const { return origin_; }
  // Adds the source line to an error.
  static core::Status located(const core::Status& status, const std::string& origin);
  // Any thread.
  Failures& failures() { return failures_; }
  const Failures& failures() const { return failures_; }
  // Records what runs, if it is turned on. Any thread.
  Profile& profile() { return context_.profile; }
  // The commands that must not run. Running kernels of these are asked to stop. Any thread.
  Interrupts& interrupts() { return context_.interrupts; }
  const Interrupts& interrupts() const { return context_.interrupts; }
  // The cost of a plan that took `host_ns` on the host: the devices' time if they were busy for
  // longer. Session task only.
  std::uint64_t cost(std::uint64_t host_ns);
  // Marks the beginning and the end of a program. In between, operations for GPUs may be submitted
  // together.
  void gather(bool on);
  // See Preparation::copied_bytes.
  std::uint64_t copied_bytes() const { return preparation_.copied_bytes(); }

 private:
  core::Status execute(program::Instruction& instruction, const ops::OpDef& op);
  core::Status call_kernel(program::Instruction& instruction, const ops::OpDef& op);
  Device& device() const { return context_.devices.at(device_); }

  const memory::OwnerId owner_;
  ExecutionContext context_;
  ValueTransfers transfers_{context_};
  CollectiveCalls collectives_;
  LoopRunner loops_{context_};
  TemplateRunner templates_{context_};
  Preparation preparation_{context_};
  Failures failures_;
  const std::string* origin_ = nullptr;
  std::size_t device_ = 0;  // of the running instruction
};

}  // namespace teletensor::runtime
