// Executor: runs the instructions of one session, one after another. Used by the session task only.
//
// An instruction is atomic: all memory is reserved before any side effect, and an instruction that
// fails leaves its operands unchanged. The results of a failed instruction, and of one with a
// failed operand, carry the root's Failure; a result that would have rebound a value also carries
// that value as `good`.
//
// In place: a result that overwrites an operand takes over the old value's storage if nothing else
// refers to it (names, tape, queue and downloads all hold references). Otherwise the storage is
// copied first. An operand that overlaps the written region with a different layout is copied
// beforehand.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/memory/pool.h"
#include "engine/program/instruction.h"
#include "engine/runtime/back/session_groups.h"
#include "engine/runtime/device.h"
#include "engine/runtime/execute/interrupts.h"
#include "engine/runtime/failures.h"
#include "engine/runtime/groups/groups.h"
#include "engine/runtime/lanes/lanes.h"
#include "engine/runtime/lock_wait.h"
#include "engine/runtime/profile.h"
#include "engine/runtime/tiers.h"
#include "engine/runtime/transfer.h"

namespace teletensor::runtime {

class Executor {
 public:
  using StorageRef = core::Ref<memory::Storage>;

  // `owner` > 0 identifies the session; `quota` applies to each device (0: the device's budget).
  Executor(const ops::Catalog& catalog, Devices& devices, Lanes& lanes, memory::OwnerId owner,
           std::uint64_t quota, LockWait& lock_wait, const SessionGroups& groups);
  ~Executor();

  // Runs the instruction; afterwards every result has contents or a failure. Returns null or that
  // failure; *root is set if this instruction is the root of the failure.
  FailureRef run(program::Instruction& instruction, bool* root);
  // Runs instructions that form one loop (passes/loop.h), in their order. Returns false, without
  // side effects, if they must be run one by one (which also reports their errors). *never is set
  // if instructions of this kind can never be a loop on this device.
  bool run_loop(std::span<program::Instruction* const> instructions, bool* never);
  // Makes the results fail as if the instruction had failed.
  void fail(program::Instruction& instruction, const FailureRef& failure);

  // Gives a value its contents without an instruction: `storage`, or if that is null a new storage
  // with these bytes from the host. Returns null, or the failure (with itself as root) that the
  // value then carries.
  FailureRef bind(program::Value& value, std::string_view bytes, core::Ref<memory::Storage> storage,
                  std::uint64_t seq);
  // Records the dtype and shape of the results in their storages, for reports.
  static void describe(const program::Instruction& instruction);
  // Prepares a publication: result 0 gets the contents of operand 0 in a storage that nothing else
  // uses. If this fails, the result has the contents in a storage that must not be published.
  core::Status separate(program::Instruction& instruction);
  // Returns the operand's elements as row-major bytes: in the value's own storage if they have this
  // layout, otherwise in a new storage.
  core::Status row_major(const program::Operand& operand, std::uint64_t seq, RowMajor* result);

  // Tells the other ranks that this session does not take part in a collective, because of `why`.
  void decline(const program::Instruction& instruction, const core::Status& why);
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
  // The group whose ranks all take part in the instruction; null if it is not a collective or its
  // group could not be joined.
  const Groups::Member* meets(const program::Instruction& instruction) const;
  // Returns true if the last instruction is a collective that has not ended. Its results have
  // neither contents nor failure until close().
  bool opened() const { return opened_.member != nullptr; }
  Open take_opened() { return std::exchange(opened_, {}); }
  // Returns the final status of a collective. If it is OK, its results have their contents.
  // Precondition: the collective has ended.
  core::Status close(program::Instruction& instruction, Open open);
  // Returns true if the instruction copies one whole tensor over another, so that both can use one
  // storage if its source is the result of a collective. Precondition: operand 1 is such a result.
  bool may_share(const program::Instruction& instruction) const;
  // Carries out such a copy by sharing the storage. Precondition: operand 1 has contents.
  void share(program::Instruction& instruction);

  // If the result has a member, the last instruction did not run, because not all ranks of the
  // group have joined. It can be tried again once that operation has ended.
  Open& forming() { return forming_; }

  // With `patient`, an instruction that lacks memory, or whose operands were moved away, does not
  // run: starved() is true, and it can be tried again once take_need() is satisfied. (run() and
  // bind() then return null, run_loop() false, the other functions an error.) Without it, or after
  // set_last_chance(), the instruction fails.
  void set_patient(bool patient) { patient_ = patient; }
  void set_last_chance() { last_chance_ = true; }
  bool starved() const { return starved_; }
  // While the session has open collectives, an instruction that lacks memory may wait for their end
  // instead of failing: then full() is true together with starved().
  void set_open(bool open) { open_ = open; }
  bool has_open() const { return open_; }
  bool full() const { return full_; }
  // Returns true if the last instruction did not run and must be tried again.
  bool stopped() const { return starved_ || lock_wait_.blocked() || forming_.member != nullptr; }
  Tiers::Need take_need();
  // Returns true if storages of this device can be moved elsewhere when its memory is short.
  bool moves(std::size_t device) const;
  // Passes bytes by device, which are reserved with the pools, to the next attempt. The attempt
  // releases the reservation before it allocates; drop_grant() releases it as well.
  void grant(std::vector<std::uint64_t> bytes) { granted_ = std::move(bytes); }
  void drop_grant();
  // Sets the current time for Storage::used_at().
  void set_now(std::uint32_t now);

  Devices& devices() const { return devices_; }
  // Returns true if any device supports loops.
  bool has_loops() const { return has_loops_; }
  const ops::Catalog& catalog() const { return catalog_; }
  // Sets the source line of the next instructions, for errors; null: not known. Not owned.
  void set_origin(const std::string* origin) { origin_ = origin; }
  const std::string* origin() const { return origin_; }
  // Adds the source line to an error.
  static core::Status located(const core::Status& status, const std::string& origin);
  memory::Pool& pool(std::size_t device) const { return *pools_[device]; }
  // Any thread.
  Failures& failures() { return failures_; }
  const Failures& failures() const { return failures_; }
  // Records what runs, if it is turned on. Any thread.
  Profile& profile() { return profile_; }
  // The commands that must not run. Running kernels of these are asked to stop. Any thread.
  Interrupts& interrupts() { return interrupts_; }
  const Interrupts& interrupts() const { return interrupts_; }
  // The cost of a plan that took `host_ns` on the host: the devices' time if they were busy for
  // longer. Session task only.
  std::uint64_t cost(std::uint64_t host_ns);
  // Marks the beginning and the end of a program. In between, operations for GPUs may be submitted
  // together.
  void gather(bool on);
  // Bytes that were copied because another reference needed an old value, or because operands
  // overlapped the result with a different layout.
  std::uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }

 private:
  class ScratchMemory;
  class PartsOnLanes;
  class Try;

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

  // State of the running loop; kept to reuse its memory.
  struct LoopState {
    std::vector<Instruction*> steps;
    std::vector<const program::Value*> made;  // the value that each step makes
    std::vector<std::uint32_t> uses;          // uses of the made value inside the loop
    std::vector<backends::LoopStep> calls;
    int maker(const program::Value* value) const;
    std::uint32_t own(const program::Value* value) const;
  };

  core::Status execute(Instruction& instruction, const ops::OpDef& op);
  core::Status execute_loop(std::span<Instruction* const> instructions);
  bool steal(std::size_t step, const core::Geometry* layout, std::size_t bytes);
  core::Status transfer(Instruction& instruction);
  core::Status pack(const program::Operand& operand, std::string_view what, std::uint64_t seq,
                    RowMajor* result);
  core::Status meet(Instruction& instruction, const ops::OpDef& op);
  core::Result<std::shared_ptr<Groups::Member>> member_of(const Instruction& instruction) const;
  core::Status deposit(Instruction& instruction, const ops::OpDef& op, Open* open);
  core::Status begin(const std::shared_ptr<Groups::Member>& member, const ops::OpDef& op);
  // Returns null if there is no memory. `lacks` is set if the accounts have no room, so that moving
  // other storages away may help.
  StorageRef take(std::size_t device, std::size_t bytes, std::uint64_t seq, bool strand,
                  bool* lacks);
  bool may_wait(std::size_t device, std::size_t bytes);
  core::Status starve(std::size_t device, std::size_t bytes);
  core::Status find(const program::Value& value, std::string_view what, std::uint64_t seq,
                    StorageRef* storage);
  core::Status require(const program::Value& value, std::string_view what);
  void need_operands(const Instruction& instruction);
  bool has_starved(const core::Status& status);
  core::Status fill(program::Value& value, std::string_view bytes, StorageRef storage,
                    std::uint64_t seq);
  core::Status gather_operands(Instruction& instruction, const ops::OpDef& op);
  core::Status prepare_new(Instruction& i, const ops::OpDef& op, std::size_t result);
  core::Status prepare_overwrite(Instruction& i, const ops::OpDef& op, std::size_t result);
  core::Status prepare_temporary(Instruction& i, const ops::OpDef& op, std::size_t result);
  core::Status prepare_through(Instruction& i, const ops::OpDef& op, std::size_t result);
  void forget_bounds(memory::Storage& storage);
  core::Status separate_operands(Instruction& i, const ops::OpDef& op, int overwritten);
  core::Status fill_before(Instruction& i, backends::Parallel& parallel,
                           backends::Scratch& scratch);
  core::Status allocate(std::string_view what, std::size_t bytes, std::uint64_t seq,
                        StorageRef* storage);
  void commit(Instruction& instruction);
  void clear();
  Device& device() const { return devices_.at(device_); }

  const ops::Catalog& catalog_;
  Devices& devices_;
  Lanes& lanes_;
  LockWait& lock_wait_;
  const memory::OwnerId owner_;
  std::vector<memory::PoolHandle> pools_;  // by device
  const SessionGroups& groups_;
  const CopyKernels copies_;
  struct CopyOps {
    int to_device, copy;  // numbers of ops; -1 if the catalog lacks them
  };
  const CopyOps copy_ops_;
  bool has_loops_ = false, has_accelerator_ = false;
  Interrupts interrupts_;
  std::atomic<std::uint64_t> copied_bytes_{0};
  Profile profile_;
  Failures failures_;

  Open forming_, opened_;

  const std::string* origin_ = nullptr;
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
  // State of the running instruction; kept to reuse its memory.
  std::size_t device_ = 0;
  std::vector<backends::TensorArg> in_, out_;
  std::vector<Slot> slots_;
  bool shared_ = false;  // an operand's storage is published
  struct Separated {     // an operand that was copied beforehand
    StorageRef storage;
    core::Geometry packed, geometry;
  };
  std::deque<Separated> separated_;
  LoopState loop_;
};

}  // namespace teletensor::runtime
