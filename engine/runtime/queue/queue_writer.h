// QueueWriter: appends entries to a session's queue. The session task sees an entry after
// Back::publish(), or when its chunk is full.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/program/interner.h"
#include "engine/runtime/device.h"
#include "engine/runtime/failures.h"
#include "engine/runtime/programs/planned_programs.h"
#include "engine/runtime/queue/chunk_pool.h"
#include "engine/runtime/queue/queue.h"
#include "engine/runtime/queue/queue_load.h"

namespace teletensor::runtime {

// Used by the frame consumer, except for the functions marked "any thread".
class QueueWriter {
 public:
  // Number of interned items at which a new interner begins.
  static constexpr std::size_t kMaxInterned = 4096;

  // The session to which the queue belongs.
  class Session {
   public:
    virtual ~Session() = default;
    // Publishes a full chunk.
    virtual void publish_full(Chunk* chunk) = 0;
    // The number of the last command of which all entries have run.
    virtual std::uint64_t completed_upto() const = 0;
    // Charges the session for lane time.
    virtual void charge_ns(std::uint64_t ns) = 0;
  };

  QueueWriter(Session& session, const ops::Catalog& catalog, const Devices& devices,
              const Failures& failures, ChunkPool& chunks, QueueLoad& load)
      : session_(session),
        catalog_(catalog),
        devices_(devices),
        failures_(failures),
        chunks_(chunks),
        load_(load) {}
  ~QueueWriter() { clear(); }
  QueueWriter(const QueueWriter&) = delete;
  QueueWriter& operator=(const QueueWriter&) = delete;

  // Returns a new entry of command `seq`, which may begin a new interner.
  Entry& append(std::uint64_t seq);
  // Returns a cleared instruction, to be filled in place before the next call.
  program::Instruction& instruction(std::uint64_t seq) { return append(seq).instruction; }
  // The interner of the instruction that was requested last, or for the operand of a fetch, that of
  // the next entry.
  program::Interner& interner() { return *interner_; }
  void constant(std::uint64_t seq, const core::Dims& shape, std::string bytes,
                program::ValueRef value);
  void uploaded(std::uint64_t seq, core::Ref<memory::Storage> storage, program::ValueRef value);
  void fetch(std::uint64_t seq, bool bulk, program::Operand operand);
  // Result 0 becomes the tensor of operand 0, published as `facts` describe. Without an operand, a
  // name is withdrawn. A failure is a root error that affects no value.
  void publish_tensor(std::uint64_t seq, Publications::Facts facts, program::Operand operand,
                      program::ValueRef value);
  // Joins the group that the session gave this number, or leaves it if there is no `join`. For a
  // group that the session is in, `join` only changes the timeout.
  void change_group(std::uint64_t seq, std::uint64_t number, std::optional<Groups::Join> join);
  // Makes `value` fail with this status, or, while entries are refused, with that refusal. Returns
  // the failure.
  FailureRef failed(std::uint64_t seq, core::Status status, program::ValueRef value);
  // Runs a program as a single command. A program is planned when it is called for the first time;
  // planning counts as lane time.
  void call(std::uint64_t seq, program::Invocation invocation);
  // Makes a call fail as a root; values that it would have written are unchanged.
  void failed_call(std::uint64_t seq, core::Status status, program::Invocation invocation);
  // Runs a repetition of a template, whose last instruction is that of command `last_seq`. Its
  // template refers to the present interner.
  void repeat(std::unique_ptr<program::TemplateCall> call, std::uint64_t last_seq);
  PlannedPrograms& planned() { return planned_; }
  const PlannedPrograms& planned() const { return planned_; }

  // Makes all later entries except fetches fail with this status without running. OK: later entries
  // run again.
  void refuse(core::Status status);
  bool refusing() const { return !refuse_.ok(); }
  // Ends the use of the refusal's failure if it has this root.
  void forget(std::uint64_t root);

  // The number of the last command that has an entry.
  std::uint64_t appended_upto() const { return appended_; }
  // Drops the entries of commands after `seq` that were not published.
  void take_back(std::uint64_t seq);
  // Returns the chunk of the entries that were not published; null if there are none.
  Chunk* take_open();
  // Continues after the commands of another queue. Must be called before any other function.
  void begin_at(std::uint64_t consumed) { appended_ = consumed; }
  // Drops the entries that were not published, for a session that ends.
  void clear();

  // The number of interners that no entry refers to any more and that were destroyed. Any thread.
  std::uint64_t interner_ends() const { return interner_ends_.load(std::memory_order_relaxed); }

 private:
  // Appends an entry that has failed as a root, to which the caller adds its value.
  Entry& append_failed(std::uint64_t seq, core::Status status);
  void renew_interner();
  Entry& add_entry(std::uint64_t seq, std::size_t size);

  Session& session_;
  const ops::Catalog& catalog_;
  const Devices& devices_;
  const Failures& failures_;
  ChunkPool& chunks_;
  QueueLoad& load_;
  Chunk* open_ = nullptr;
  core::Status refuse_;
  FailureRef refusal_;  // its root is the first entry that was refused and not raised since
  std::unique_ptr<program::Interner> interner_ = std::make_unique<program::Interner>();
  std::unique_ptr<program::Interner> old_interner_;
  // The queue refers to the old interner until the command with this number has run.
  std::uint64_t old_interner_until_ = 0;
  std::uint64_t appended_ = 0;
  PlannedPrograms planned_;
  std::atomic<std::uint64_t> interner_ends_{0};
};

}  // namespace teletensor::runtime
