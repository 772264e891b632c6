// EntryFailures: which queue entries fail without running, and the report of all failures to the
// client.
#pragma once

#include <cstdint>

#include "engine/core/status.h"
#include "engine/program/instruction.h"
#include "engine/runtime/back/back_events.h"
#include "engine/runtime/execute/executor.h"
#include "engine/runtime/failures.h"
#include "engine/runtime/queue/queue.h"

namespace teletensor::runtime {

// Used by the session task, except for forget().
class EntryFailures {
 public:
  EntryFailures(Executor& executor, BackEvents& events) : executor_(executor), events_(events) {}

  // Returns true if the entry fails without running.
  bool refuses(const Entry& entry) const {
    return entry.refused || executor_.interrupts().has(entry.instruction.seq);
  }
  // The error of such an entry; OK if the entry runs.
  core::Status refusal(const Entry& entry) const;
  // Makes an instruction, constant or upload fail that does not run.
  void fail(Entry& entry);
  // Makes the failure of an entry that was refused. *root is set if it is the first entry that
  // fails because of that refusal.
  FailureRef refused(const Entry& entry, bool* root);
  // Makes the failure of an interrupted command. *root is set as above.
  FailureRef interrupted(std::uint64_t seq, bool* root);
  // The frame consumer forgets a root that the client has raised. Precondition: the queue is
  // drained.
  void forget(std::uint64_t root);

  // Records a failed instruction. Terminates the process if the error cannot be reported.
  void record(const program::Instruction& instruction, const FailureRef& failure,
              bool root) noexcept;
  // Reports the failure of a command that has no value.
  void record(std::uint64_t seq, core::Status status);

 private:
  Executor& executor_;
  BackEvents& events_;
  FailureRef refused_;  // the failure of the last refused entry
  struct Cancelled {
    FailureRef failure;       // of cancelled entries
    std::uint64_t below = 0;  // the interrupt to which it belongs (Interrupts::below)
  };
  Cancelled cancelled_;
};

}  // namespace teletensor::runtime
