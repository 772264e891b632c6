// ValueTransfers: moves the contents of values between devices, from the host into storages, and
// into row-major memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/core/status.h"
#include "engine/program/instruction.h"
#include "engine/runtime/execute/execution_context.h"

namespace teletensor::runtime {

// Used by the session task only, inside an Attempt.
class ValueTransfers {
 public:
  using StorageRef = InstructionMemory::StorageRef;

  explicit ValueTransfers(ExecutionContext& context) : context_(context), memory_(context.memory) {}

  // Copies operand 0 of a to_device instruction into a new storage on the device `to`.
  core::Status to_device(const program::Instruction& instruction, std::size_t to,
                         StorageRef* result);
  // Gives a value its contents: `storage`, or if that is null a new storage with these bytes from
  // the host.
  core::Status fill(program::Value& value, std::string_view bytes, StorageRef storage,
                    std::uint64_t seq);
  // Prepares a publication: result 0 gets the contents of operand 0 in a storage that nothing else
  // uses. If this fails, the result has the contents in a storage that must not be published, or
  // none if the instruction can be tried again.
  core::Status separate(program::Instruction& instruction);
  // Returns the operand's elements as row-major bytes: in the value's own storage if they have this
  // layout, otherwise in a new storage. `what` begins the text of an error.
  core::Status pack(const program::Operand& operand, std::string_view what, std::uint64_t seq,
                    RowMajor* result);

 private:
  // Copies within one device.
  core::Status copy(std::size_t device, const View& from, const View& to, std::uint64_t seq);
  Device& device(std::size_t index) const { return context_.devices.at(index); }

  ExecutionContext& context_;
  InstructionMemory& memory_;
};

}  // namespace teletensor::runtime
