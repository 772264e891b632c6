// InstructionMemory: the memory that the instructions of one session allocate, on all devices, and
// what the last instruction lacked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/memory/pool.h"
#include "engine/program/instruction.h"
#include "engine/runtime/device.h"
#include "engine/runtime/tiers.h"

namespace teletensor::runtime {

// Used by the session task only, except for allocate_scratch(), which kernels call.
//
// With `patient`, an instruction that lacks memory, or whose operands were moved away, does not
// run: starved() is true, and it can be tried again once take_need() is satisfied. Without it, or
// after set_last_chance(), the instruction fails.
class InstructionMemory {
 public:
  using StorageRef = core::Ref<memory::Storage>;

  // `owner` > 0 identifies the session; `quota` applies to each device (0: the device's budget).
  InstructionMemory(Devices& devices, memory::OwnerId owner, std::uint64_t quota);
  ~InstructionMemory() { drop_grant(); }

  memory::Pool& pool(std::size_t device) const { return *pools_[device]; }
  // Returns true if storages of this device can be moved elsewhere when its memory is short.
  bool moves(std::size_t device) const;
  void set_patient(bool patient) { patient_ = patient; }
  void set_last_chance() { last_chance_ = true; }
  // While the session has open collectives, an instruction that lacks memory may wait for their end
  // instead of failing: then full() is true together with starved().
  void set_open(bool open) { open_ = open; }
  bool has_open() const { return open_; }
  // Sets the current time for Storage::used_at().
  void set_now(std::uint32_t now);
  // Passes bytes by device, which are reserved with the pools, to the next attempt. The attempt
  // releases the reservation before it allocates; drop_grant() releases it as well.
  void grant(std::vector<std::uint64_t> bytes) { granted_ = std::move(bytes); }
  void drop_grant();

  // An attempt to run an instruction, or a loop, is between these calls.
  void begin_attempt();
  // A last chance applies to one attempt, unless the attempt starved.
  void end_attempt() {
    if (!starved_) last_chance_ = false;
  }
  bool starved() const { return starved_; }
  bool full() const { return full_; }
  // Returns what the starved instruction needs, and forgets it.
  Tiers::Need take_need();

  // Allocates a storage. `what` begins the text of an error.
  core::Status allocate(std::size_t device, std::string_view what, std::size_t bytes,
                        std::uint64_t seq, StorageRef* storage);
  // Allocates temporary memory of a kernel, on any thread, one call at a time. Null if there is no
  // room, which has_starved() then takes into account.
  StorageRef allocate_scratch(std::size_t device, std::size_t bytes, std::uint64_t seq);
  void touch(memory::Storage& storage) const { storage.touch(now_); }
  // Requires the contents to be in memory, and marks them as used.
  core::Status require(const program::Value& value, std::string_view what);
  // Returns the storage to read a value from, and sets `device` to its device. If the device is
  // lost but the storage was moved away earlier, the contents are read from the host.
  core::Status find(const program::Value& value, std::string_view what, std::uint64_t seq,
                    StorageRef* storage, std::size_t* device);
  // Adds the operands to what the starved instruction needs.
  void need(const program::Value& value);
  void need(const program::Instruction& instruction);
  // Returns true if the instruction that ended with this status can be tried again.
  bool has_starved(const core::Status& status);

 private:
  // Returns null if there is no memory. `lacks` is set if the accounts have no room, so that moving
  // other storages away may help.
  StorageRef take(std::size_t device, std::size_t bytes, std::uint64_t seq, bool session_task,
                  bool* lacks);
  bool may_wait(std::size_t device, std::size_t bytes);
  core::Status starve(std::size_t device, std::size_t bytes);

  Devices& devices_;
  std::vector<memory::PoolHandle> pools_;  // by device
  bool patient_ = false, last_chance_ = false, starved_ = false;
  bool open_ = false, full_ = false;
  std::uint32_t now_ = 0;
  Tiers::Need need_;
  std::vector<std::uint64_t> granted_;
  std::vector<std::size_t> taken_;  // bytes taken by the current attempt, by device
  struct Lacked {
    std::size_t bytes = 0, device = 0;
  };
  Lacked lacked_;  // a failed request for temporary memory of a kernel
};

}  // namespace teletensor::runtime
