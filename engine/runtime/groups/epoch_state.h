// EpochState: what the parts of a group epoch use together. It is the owner of a participant
// (engine/collective): it carries out the participant's actions, which move memory, run additions,
// send messages to other daemons through the fabric, and end the operations of ranks.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/collective/participant.h"
#include "engine/runtime/groups/group_memory.h"
#include "engine/runtime/groups/groups.h"
#include "engine/runtime/groups/rank_operations.h"

namespace teletensor::runtime {

// A rank of a group, which has joined if it is a session of this daemon.
struct GroupRank {
  struct Declined {
    collective::Call call;
    collective::Failed failed;
  };
  bool joined = false;
  std::string who;
  // See Groups::Join; null if the rank has not joined.
  std::function<bool()> attended;
  std::function<void(const Groups::Lost&)> on_lost;
  std::chrono::milliseconds timeout{0};
  collective::Number number = 0;   // number of the last collective; 0: none
  std::vector<Declined> declined;  // calls declined before the group has formed
  // Why the rank is lost, in an elastic group: it can neither deposit nor join again.
  std::optional<core::Status> lost;
  std::size_t told = 0;  // number of losses that the rank was told (EpochState::lost)
  RankOperations operations;

  // Returns true if the rank has called something that has not ended.
  bool busy() const { return operations.waits() || !declined.empty(); }
};

// The reason why ranks of groups of different sizes cannot join one group.
inline constexpr char kOtherSize[] = "the numbers of ranks differ";
inline constexpr char kOtherKind[] = "one is elastic, and the other is not";
// Describes a rank that has joined: "rank 1 of 3 (session "b")".
std::string joined_text(collective::Rank rank, collective::Rank ranks, const std::string& who);

struct EpochState {
  using Waiters = RankOperations::Waiters;

  // `of_fabric` is null if all ranks are in this daemon.
  EpochState(std::string of_name, collective::Rank count, bool is_elastic, Groups::Adder& of_adder,
             Fabric* of_fabric)
      : name(std::move(of_name)),
        elastic(is_elastic),
        adder(of_adder),
        fabric(of_fabric),
        ranks(count),
        memory(of_adder) {}

  // The number never changes, so it is read without the lock.
  collective::Rank count() const TT_ANNOTATION(no_thread_safety_analysis) {
    return static_cast<collective::Rank>(ranks.size());
  }
  bool ended() const TT_REQUIRES(mu) {
    return abandoned || (participant && participant->epoch_end().ended());
  }
  // A rank has left or is lost: no rank can join, and no new collective can complete.
  bool closed() const TT_REQUIRES(mu) {
    return abandoned || (participant && participant->epoch_end().ending());
  }
  // Returns true if an operation of this daemon's ranks is open.
  bool busy() const TT_REQUIRES(mu);
  // Returns true if ranks have neither joined nor been lost after that.
  bool waits_for_ranks() const TT_REQUIRES(mu);
  // Returns true if the group continues when it loses a rank: it is elastic, and has had all ranks.
  bool heals() const TT_REQUIRES(mu);
  // Returns true if no other daemon has ranks of the group.
  bool alone() const TT_REQUIRES(mu) { return !participant || places.size() == 1; }
  std::optional<collective::Place> place_of(const std::string& daemon) const TT_REQUIRES(mu);
  // The error of operations after the group was abandoned.
  core::Status abandonment() const TT_REQUIRES(mu);

  // Creates the participant of this daemon, which is place `own` of `places`.
  void place_ranks(collective::Place here, collective::Participant::Image image) TT_REQUIRES(mu);
  // Ends a group that has not formed.
  void end_forming(const std::string& why, Waiters& met) TT_REQUIRES(mu);
  // Lets a rank leave. Without `may_go_on`, the group ends after the rank's last collective.
  void part(collective::Rank rank, const std::string& why, bool may_go_on, Waiters& met)
      TT_REQUIRES(mu);
  // Lets the group continue without the rank, whose open operations end. Precondition: heals().
  void depart(collective::Rank rank, const std::string& why, Waiters& met) TT_REQUIRES(mu);

  // Runs event(met) under the lock, then carries out the participant's actions until there are
  // none. Afterwards, without the lock, notifies the waiters in `met`. Does nothing once the image
  // is taken.
  template <class Event>
  void settle(Event&& event);
  struct Work {
    std::vector<collective::Job> jobs;
    GroupMemory::Held held;  // the memory that the jobs use: a later action may free it
  };
  void carry_out(collective::Action& action, Work& work, Waiters& met) TT_REQUIRES(mu);

  const std::string name;
  const bool elastic;  // the group continues without ranks that are lost
  Groups::Adder& adder;
  Fabric* const fabric;  // null if there are no other daemons
  core::Mutex mu;
  EpochId id TT_GUARDED_BY(mu);
  std::vector<PeerMessage::Place> places TT_GUARDED_BY(mu);
  collective::Place own TT_GUARDED_BY(mu) = 0;    // place of this daemon
  collective::Rank lowest TT_GUARDED_BY(mu) = 0;  // lowest rank of this daemon that is not lost
  std::optional<collective::Participant> participant TT_GUARDED_BY(mu);  // none: not formed yet
  bool going TT_GUARDED_BY(mu) = false;  // Whether the ranks may begin.
  // The reason why the group ended before it had formed.
  std::optional<std::string> abandoned TT_GUARDED_BY(mu);
  std::vector<GroupRank> ranks TT_GUARDED_BY(mu);
  // The ranks without which the group has continued, in the order of the losses.
  std::vector<Groups::Lost> lost TT_GUARDED_BY(mu);
  GroupMemory memory TT_GUARDED_BY(mu);
  collective::Number run_to TT_GUARDED_BY(mu) = 0;  // the cut, while the group is held
  bool kept TT_GUARDED_BY(mu) = false;              // the image is taken: nothing changes any more

 private:
  // The analysis of locks does not know that the lock which the event requires is this `mu`.
  template <class Event>
  void call(Event& event, Waiters& met) TT_REQUIRES(mu) TT_ANNOTATION(no_thread_safety_analysis) {
    event(met);
  }
  void send(collective::Action& action) TT_REQUIRES(mu);
  void lose(const collective::Action& action) TT_REQUIRES(mu);
  core::Status run(const Work& work);
  void end_all(const core::Status& status, Waiters& met) TT_REQUIRES(mu);
};

template <class Event>
void EpochState::settle(Event&& event) {
  Waiters met;
  {
    core::MutexLock lock(mu);
    if (kept) return;
    call(event, met);
    while (participant) {
      Work work;
      for (collective::Action& action : participant->take()) carry_out(action, work, met);
      if (memory.lacks()) {
        memory.clear_lack();
        participant->lost(lowest, "has no memory for the partial sums");
        continue;
      }
      // Finished operands are needed by no message and no job; unfinished ones hold references to
      // their memory.
      memory.finished(participant->finished());
      if (work.jobs.empty()) break;
      mu.unlock();
      const core::Status status = run(work);
      mu.lock();
      if (!status.ok()) participant->lost(lowest, "cannot add: " + status.message());
      for (const collective::Job& job : work.jobs) participant->reduced(job.id);
    }
  }
  for (Groups::Waiter* const waiter : met) waiter->met();
}

}  // namespace teletensor::runtime
