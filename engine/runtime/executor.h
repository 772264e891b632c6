// Executor: runs one instruction after the other for one session. The session's strand only.
//
// An instruction is atomic. All memory is reserved before any side effect; what fails leaves its
// operands as they were. Results of a failed instruction, and of one with a failed operand, carry
// the root's Failure, and where they were to rebind a value, that value as `good`.
//
// In place: a result that overwrites an operand takes over the old value's storage when nobody else
// holds it (names, tape, queue, downloads are all references). Else the storage is copied first. An
// operand that lies over the written region in another arrangement is copied beforehand.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/memory/pool.h"
#include "engine/program/instruction.h"
#include "engine/runtime/device.h"
#include "engine/runtime/groups.h"
#include "engine/runtime/lanes.h"
#include "engine/runtime/profile.h"
#include "engine/runtime/tiers.h"
#include "engine/runtime/transfer.h"

namespace teletensor::runtime {

using FailureRef = std::shared_ptr<const program::Failure>;

class Executor {
 public:
  using StorageRef = core::Ref<memory::Storage>;

  // `owner` > 0 names the session; `quota` holds on each device (0: the device's budget).
  Executor(const ops::Catalog& catalog, Devices& devices, Lanes& lanes, memory::OwnerId owner,
           std::uint64_t quota);
  ~Executor();

  // Runs it; afterwards every result has contents or a failure. Null, or that failure; *root is set
  // when this instruction is its root.
  FailureRef run(program::Instruction& instruction, bool* root);
  // The same for instructions that are one loop (passes/loop.h), in their order. False: nothing has
  // happened, and they are to be run one by one (which also finds out what is wrong); with *never,
  // instructions of this kind can be no loop here.
  bool run_loop(std::span<program::Instruction* const> instructions, bool* never);
  // As if it had failed.
  void fail(program::Instruction& instruction, const FailureRef& failure);

  // Gives a value without an instruction its contents: `storage`, or where that is null a new one
  // with these bytes from the host. Null, or the failure (its own root) that the value carries
  // then.
  FailureRef bind(program::Value& value, std::string_view bytes, core::Ref<memory::Storage> storage,
                  std::uint64_t seq);
  // Reports tell the storages of the results by dtype and shape from here on.
  static void describe(const program::Instruction& instruction);
  // Before it is published: result 0 gets the contents of operand 0 in a storage that nothing else
  // uses. On failure it has them all the same, in a storage that is not to be published.
  core::Status separate(program::Instruction& instruction);
  // The operand's row-major bytes: in place where they lie so (`storage` then holds the value's),
  // else in a new storage.
  core::Status row_major(const program::Operand& operand, std::uint64_t seq, RowMajor* result);

  // The session's groups by its own numbers. A group that cannot be joined has that error for each
  // of its collectives.
  void join(std::uint64_t group, core::Result<std::shared_ptr<Groups::Member>> member);
  void leave(std::uint64_t group);
  void leave_all() { groups_.clear(); }
  // These groups end, because "rank n `why`".
  void end_groups(std::span<const std::uint64_t> groups, const std::string& why);
  std::size_t groups() const { return groups_.size(); }
  const std::map<std::uint64_t, core::Result<std::shared_ptr<Groups::Member>>>& joined() const {
    return groups_;
  }
  // A collective that does not run, because of `why`: the other ranks are told.
  void decline(const program::Instruction& instruction, const core::Status& why);
  // What a rank of this session waits for in its group.
  struct Open {
    std::shared_ptr<Groups::Member> member;  // null: there is none
    Groups::Ticket ticket = 0;
    memory::Pinned result;
    StorageRef source;        // of a receive: for the number of the rank that sent
    std::uint64_t bytes = 0;  // of its operand and its results
    bool told = false;        // the session will be told of the end
  };
  // The group whose ranks all take part in the instruction; null: it is no collective, or its group
  // could not be joined.
  const Groups::Member* meets(const program::Instruction& instruction) const;
  // The instruction that was run last is a collective that has not ended. Its results have neither
  // contents nor failure until close().
  bool opened() const { return opened_.member != nullptr; }
  Open take_opened() { return std::exchange(opened_, {}); }
  // How a collective has ended. OK: its results have their contents now. Precondition: it has
  // ended.
  core::Status close(program::Instruction& instruction, Open open);
  // Copies a whole tensor over another whole one, so that with a collective's result as its source
  // the two may have one storage. Precondition: operand 1 is such a result.
  bool may_share(const program::Instruction& instruction) const;
  // Such a copy, as if it had run. Precondition: operand 1 has contents.
  void share(program::Instruction& instruction);

  // With a member: what was tried has not happened, because not all ranks of the group have joined.
  // It can be tried again once that has ended.
  Open& forming() { return forming_; }

  // With patience, what lacks room or has operands elsewhere has not happened: starved() is true,
  // and it can be tried again once take_need() is met. (run() and bind() then return null,
  // run_loop() false, the others an error.) Without, and on its last chance, it fails.
  void set_patient(bool patient) { patient_ = patient; }
  void set_last_chance() { last_chance_ = true; }
  bool starved() const { return starved_; }
  // While the session has open collectives, what lacks room may wait for their end instead of
  // failing: then full() is true with starved().
  void set_open(bool open) { open_ = open; }
  bool has_open() const { return open_; }
  bool full() const { return full_; }
  // What was tried has not happened.
  bool stopped() const { return starved_ || forming_.member != nullptr; }
  Tiers::Need take_need();
  // Can what lies on this device move elsewhere, where its memory is short?
  bool moves(std::size_t device) const;
  // Bytes by device, reserved with its pools, for what is tried next. Given back there, or here.
  void grant(std::vector<std::uint64_t> bytes) { granted_ = std::move(bytes); }
  void drop_grant();
  // The time of what follows, for Storage::used_at().
  void set_now(std::uint32_t now);

  Devices& devices() const { return devices_; }
  // Has any device loops at all?
  bool has_loops() const { return has_loops_; }
  const ops::OpDef& op_of(const program::Instruction& i) const { return catalog_.at(i.op); }
  const ops::Catalog& catalog() const { return catalog_; }
  // The line of source that the next instructions come from, for errors; null: unknown. Not owned.
  void set_origin(const std::string* origin) { origin_ = origin; }
  const std::string* origin() const { return origin_; }
  // An error of what comes from that line.
  static core::Status located(const core::Status& status, const std::string& origin);
  memory::Pool& pool(std::size_t device) const { return *pools_[device]; }
  // What it runs, while that is turned on. Any thread.
  Profile& profile() { return profile_; }
  // Running kernels of commands below this one are asked to stop. Any thread.
  void cancel_below(std::uint64_t seq) { cancel_below_.store(seq, std::memory_order_relaxed); }
  bool cancelled(std::uint64_t seq) const {
    return seq < cancel_below_.load(std::memory_order_relaxed);
  }
  // What a plan costs that took so much of the host's time: where its devices were busy for longer,
  // theirs. The strand.
  std::uint64_t cost(std::uint64_t host_ns);
  // A program runs from now on, or has ended: what it asks of GPUs may be handed over together.
  void gather(bool on);
  // Bytes that were copied because somebody held an old value or operands lay crosswise.
  std::uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }

 private:
  class ScratchMemory;
  class PartsOnLanes;
  class Try;

  using Instruction = program::Instruction;

  // What becomes of one result.
  struct Slot {
    Slot() {}                               // not defaulted: resize() would clear all of it first
    StorageRef storage;                     // the value's contents after success
    program::Value* stolen_from = nullptr;  // whose contents `storage` is until then
    bool copy_old = false;                  // the overwritten storage is copied into it first
    bool clone_first = false;               // operand 0 is copied into the result's layout first
    bool through = false;                   // `storage` is the published one, which the old value
                                            // has as well
    StorageRef before;                      // what the old value gets in its place, where this
                                            // session still reads it (its tape)
    StorageRef temporary;                   // the kernel writes here, then it is copied
    core::Layout temporary_layout;
  };

  // Of the running loop; kept to reuse its memory.
  struct LoopState {
    std::vector<Instruction*> steps;
    std::vector<const program::Value*> made;  // by step
    std::vector<std::uint32_t> uses;          // of it by the loop itself
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
  // Null: there is none. `lacks`: by the accounts, so that moving others away may help.
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
  const memory::OwnerId owner_;
  std::vector<memory::PoolHandle> pools_;  // by device
  const CopyKernels copies_;
  const int to_device_, copy_;  // op ids, -1 in a catalog without them
  bool has_loops_ = false, has_accelerator_ = false;
  std::atomic<std::uint64_t> cancel_below_{0};
  std::atomic<std::uint64_t> copied_bytes_{0};
  Profile profile_;

  std::map<std::uint64_t, core::Result<std::shared_ptr<Groups::Member>>> groups_;
  Open forming_, opened_;

  const std::string* origin_ = nullptr;
  bool patient_ = false, last_chance_ = false, starved_ = false;
  bool open_ = false, full_ = false;
  std::uint32_t now_ = 0;
  Tiers::Need need_;
  std::vector<std::uint64_t> granted_;
  std::vector<std::size_t> taken_;              // by what is being tried, of each device
  std::size_t lacked_ = 0, lacked_device_ = 0;  // by a kernel's temporary memory
  // Of the running instruction; kept to reuse their memory.
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
