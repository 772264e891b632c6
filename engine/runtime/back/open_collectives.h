// OpenCollectives: the collectives of a session that have not ended. Their results have neither
// contents nor failure. An instruction that reads such a result must wait, except for a copy over a
// whole tensor, which is carried out when the collective has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/program/instruction.h"
#include "engine/runtime/back/entry_failures.h"
#include "engine/runtime/execute/executor.h"
#include "engine/runtime/groups/groups.h"
#include "engine/runtime/groups/session_groups.h"
#include "engine/runtime/programs/program_run.h"
#include "engine/runtime/queue/queue.h"

namespace teletensor::runtime {

struct OpenCollective {
  program::Instruction instruction;
  CollectiveCalls::Open open;
  std::vector<program::Instruction> copies;
  // Geometries of all its results, because the call that owns them may end earlier.
  std::deque<core::Geometry> geometries;
  core::DType operand_dtype = core::DType::kF32;
  core::Dims operand_shape;
  std::unique_ptr<core::Attributes> attributes;  // of a step of a program
  std::string origin;                            // the source line, if it is a step of a program
  const Groups::Member* group = nullptr;         // null for a transfer
  std::unique_ptr<Groups::Kept> kept;
};

// Used by the session task, except for the functions marked "any thread".
class OpenCollectives {
 public:
  using Next = ProgramRun::Next;
  static constexpr std::size_t kMaxOpen = 256;
  // Open collectives may use 1/4 of the host's memory.
  static constexpr std::uint64_t kOpenPart = 4;

  // The object that is told of each new open collective, which an earlier interrupt may have to
  // end.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void opened(Groups::Member& member, std::uint64_t seq) = 0;
  };

  // `groups` is null if the daemon does not support groups.
  OpenCollectives(Observer& observer, Executor& executor, EntryFailures& failures, Groups* groups,
                  const SessionGroups& joined)
      : observer_(observer),
        executor_(executor),
        failures_(failures),
        groups_(groups),
        joined_(joined) {}

  bool empty() const { return collectives_.empty(); }
  const std::deque<OpenCollective>& all() const { return collectives_; }  // by seq
  // Precondition: not empty.
  OpenCollective& oldest() { return collectives_.front(); }
  // Takes over the instruction that the executor has run last and that has not ended
  // (Executor::opened).
  void add(program::Instruction instruction, bool of_program);
  // Gives the results of the collectives that have ended their contents or failures.
  void close_ended();

  // Decides what to do with an entry or instruction: kRun: it can run. kRan: it was taken over.
  // kStop: the session must stop until take_blocker() has ended.
  Next next(Entry& entry);
  // `refused`: the instruction fails without running.
  Next next(program::Instruction& instruction, bool refused);
  // Returns true if no operand is the result of an open collective. Otherwise the session must stop
  // as after kStop.
  bool ready(std::span<const program::Operand> operands);
  // Returns true if the entry must wait for an open collective.
  bool must_wait(const Entry& entry) { return find(entry) != nullptr; }
  bool blocked() const { return blocker_ != nullptr; }
  // Returns the collective for which the session must stop, and forgets it; null if there is none.
  OpenCollective* take_blocker() { return std::exchange(blocker_, nullptr); }
  // Drops all collectives, for a session that ends.
  void clear();

  // Returns true if there is no open collective. Any thread.
  bool none() const;
  // The groups of the open collectives of commands up to `seq`. Any thread.
  std::vector<SessionGroups::MemberRef> members_upto(std::uint64_t seq) const;

 private:
  void fail(OpenCollective& ended, const core::Status& status);
  OpenCollective* find(const program::Operand& operand);
  OpenCollective* find(std::span<const program::Operand> operands);
  OpenCollective* find(const Entry& entry);
  // Returns the open collective that must end before the given collective may run, because the open
  // ones use too much memory; null if there is none.
  OpenCollective* find_memory_blocker(const program::Instruction& instruction);
  // Makes the session stop until `found` has ended. Returns false if it has ended by now.
  bool stop_for(OpenCollective* found);
  static void keep_geometry(OpenCollective& open, program::Instruction& instruction);

  Observer& observer_;
  Executor& executor_;
  EntryFailures& failures_;
  Groups* const groups_;
  const SessionGroups& joined_;
  std::deque<OpenCollective> collectives_;
  OpenCollective* blocker_ = nullptr;

  mutable core::Mutex mu_;
  std::multimap<std::uint64_t, SessionGroups::MemberRef> members_ TT_GUARDED_BY(mu_);  // by seq
};

}  // namespace teletensor::runtime
