// RankWaits: a session's waits for the other ranks of its groups, and their ends by interrupts.
#pragma once

#include <cstdint>

#include "engine/runtime/back/open_collectives.h"
#include "engine/runtime/back/task_state.h"
#include "engine/runtime/execute/collective_calls.h"
#include "engine/runtime/execute/interrupts.h"
#include "engine/runtime/groups/groups.h"
#include "engine/runtime/groups/session_groups.h"
#include "engine/runtime/lanes/lanes.h"

namespace teletensor::runtime {

class RankWaits final : private Groups::Waiter, public OpenCollectives::Observer {
 public:
  // The reason that other ranks are told when the session ends.
  static constexpr char kSessionEnds[] = "has ended its session";
  static constexpr char kInterrupted[] = "was interrupted";

  // `task` is the session task.
  RankWaits(TaskState& state, SessionGroups& groups, OpenCollectives& collectives,
            const Interrupts& interrupts, Lanes& lanes, Task* task)
      : state_(state),
        groups_(groups),
        collectives_(collectives),
        interrupts_(interrupts),
        lanes_(lanes),
        task_(task) {}

  // ---- Functions of the session task.

  // Requests that the task becomes ready when `open` ends. Returns false if it has ended by now.
  bool request(CollectiveCalls::Open& open);
  // The task waits until `open`, of command `seq`, has ended. Returns false if it can continue now.
  bool wait(CollectiveCalls::Open& open, std::uint64_t seq);
  // Repeats an interrupt or stop that happened before the operation was registered.
  void opened(Groups::Member& member, std::uint64_t seq) override;

  // Ends the open collectives of commands up to `upto`, and their groups. Any thread.
  void interrupt(std::uint64_t upto);

 private:
  void met() override;

  TaskState& state_;
  SessionGroups& groups_;
  OpenCollectives& collectives_;
  const Interrupts& interrupts_;
  Lanes& lanes_;
  Task* const task_;
};

}  // namespace teletensor::runtime
