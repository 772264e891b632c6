// CollectiveCalls: the collectives of one session: the operand that the session's rank contributes
// to a group, and the result that it receives (groups.h).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "engine/core/status.h"
#include "engine/program/instruction.h"
#include "engine/runtime/execute/execution_context.h"
#include "engine/runtime/execute/value_transfers.h"
#include "engine/runtime/groups/groups.h"
#include "engine/runtime/groups/session_groups.h"

namespace teletensor::runtime {

// Used by the session task only.
class CollectiveCalls {
 public:
  using StorageRef = InstructionMemory::StorageRef;

  // An operation of a group that a rank of this session has begun and that has not ended.
  struct Open {
    std::shared_ptr<Groups::Member> member;  // null if there is none
    Groups::Ticket ticket = 0;
    RowMajor operand;
    memory::Pinned result;
    StorageRef source;        // of a receive: receives the number of the sending rank
    std::uint64_t bytes = 0;  // bytes of its operand and its results
    bool told = false;        // the session will be notified of the end
  };

  CollectiveCalls(ExecutionContext& context, ValueTransfers& transfers, const SessionGroups& groups)
      : context_(context), transfers_(transfers), groups_(groups) {}

  // Starts a collective on a device. If it has ended, `result` gets the storage of result 0, and
  // `sender` that of result 1 if there is one. Otherwise opened() or forming() tells why not, or
  // the memory of the instruction is starved, or the status is the failure.
  core::Status start(program::Instruction& instruction, const ops::OpDef& op, std::size_t device,
                     StorageRef* result, StorageRef* sender);
  // Returns true if the last instruction is a collective that has not ended. Its results have
  // neither contents nor failure until close().
  bool opened() const { return opened_.member != nullptr; }
  Open take_opened() { return std::exchange(opened_, {}); }
  // If the result has a member, the last instruction did not run, because not all ranks of the
  // group have joined. It can be tried again once that operation has ended.
  Open& forming() { return forming_; }
  bool waits_for_ranks() const { return forming_.member != nullptr; }
  // Returns the final status of a collective. If it is OK, its results have their contents.
  // Precondition: the collective has ended.
  static core::Status close(program::Instruction& instruction, Open open);
  // Tells the other ranks that this session does not take part in a collective, because of `why`.
  void decline(const program::Instruction& instruction, const core::Status& why);
  // The group whose ranks all take part in the instruction; null if it is not a collective or its
  // group could not be joined.
  const Groups::Member* meets(const program::Instruction& instruction) const;
  // Returns true if the instruction copies one whole tensor over another, so that both can use one
  // storage if its source is the result of a collective. Precondition: operand 1 is such a result.
  bool may_share(const program::Instruction& instruction) const;
  // Carries out such a copy by sharing the storage. Precondition: operand 1 has contents.
  static void share(program::Instruction& instruction);

 private:
  core::Result<std::shared_ptr<Groups::Member>> member_of(
      const program::Instruction& instruction) const;
  core::Status begin(const std::shared_ptr<Groups::Member>& member, const ops::OpDef& op);
  core::Status deposit(program::Instruction& instruction, const ops::OpDef& op, std::size_t device,
                       Open* open);

  ExecutionContext& context_;
  ValueTransfers& transfers_;
  const SessionGroups& groups_;
  Open forming_, opened_;
};

}  // namespace teletensor::runtime
