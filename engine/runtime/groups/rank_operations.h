// RankOperations: the operations that one rank of this daemon has deposited in a group and whose
// outcomes it has not taken. Guarded by the lock of the group's epoch (EpochState).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "engine/collective/participant.h"
#include "engine/runtime/groups/groups.h"

namespace teletensor::runtime {

class RankOperations {
 public:
  using Ticket = Groups::Ticket;
  // Waiters whose waits are over. They are called without the lock.
  using Waiters = std::vector<Groups::Waiter*>;

  struct Open {
    enum class Kind : std::uint8_t { kBegin, kCollective, kSend, kReceive, kAwaitSends };
    Kind kind = Kind::kCollective;
    collective::Number number = 0;  // set for kCollective
    std::uint64_t token = 0;        // of GroupMemory, set for kSend and kReceive
    std::optional<core::Status> ended;
    collective::Rank sender = 0;  // set for kReceive
    Groups::Clock::time_point began{}, deadline{};
    Groups::Waiter* waiter = nullptr;
  };

  // Starts an operation. `ticket` must be new.
  Open& start(Ticket ticket, Open::Kind kind, std::chrono::milliseconds timeout);
  // Starts an operation that ends when everything that the rank has sent is received. It fails with
  // the reason for which an earlier send was not received, which is then forgotten.
  void await_sends(Ticket ticket, std::chrono::milliseconds timeout);
  Open& at(Ticket ticket) { return open_.at(ticket); }
  const std::map<Ticket, Open>& all() const { return open_; }
  // Returns the outcome and forgets the operation. Precondition: it has ended.
  Groups::Outcome take(Ticket ticket);
  bool waits() const;  // true if an operation has not ended
  // Number of operations that have not ended.
  std::size_t unfinished() const;
  // Number of collectives after `number` that have not ended.
  collective::Number open_after(collective::Number number) const;

  // Records a send, or forgets one that the group has refused.
  void sends(std::uint64_t token) { sends_.insert(token); }
  void does_not_send(std::uint64_t token) { sends_.erase(token); }
  // The oldest send that is not received. Precondition: await_sends() waits.
  std::uint64_t oldest_send() const { return *sends_.begin(); }

  void finish_collective(collective::Number number, const core::Status& status, Waiters& met);
  // Ends the operation of a transfer (Action::Kind::kComplete).
  void transferred(const collective::Action& action, Waiters& met);
  // Ends the operations of this kind, or all operations.
  void finish_all(Open::Kind kind, const core::Status& status, Waiters& met);
  void finish_all(const core::Status& status, Waiters& met);
  void forget_sends() { sends_.clear(); }
  // Extends the deadlines, which do not pass while the group is held.
  void postpone(Groups::Clock::duration passed);

 private:
  static void finish(Open& open, const core::Status& status, Waiters& met);

  std::map<Ticket, Open> open_;
  std::set<std::uint64_t> sends_;  // tokens of sends that have not been received
  // The reason why a send was not received; await_sends() reports and clears it.
  std::optional<core::Status> lost_send_;
};

}  // namespace teletensor::runtime
