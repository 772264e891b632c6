// GroupEpoch: the part of a group in this daemon, from its first join to its end: how it forms, the
// calls of its ranks, the messages of other daemons, and deadlines. EpochState has the state and
// carries out what the participant decides; GroupRest has the rest before a restart. A group
// without other daemons counts as formed from the start. Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime/groups/epoch_state.h"
#include "engine/runtime/groups/group_rest.h"

namespace teletensor::runtime {

class GroupEpoch {
 public:
  using Waiter = Groups::Waiter;
  using Part = Groups::Part;
  using Ticket = Groups::Ticket;

  // `fabric` is null if all ranks are in this daemon, and then the epoch has this id.
  GroupEpoch(const Groups::Join& join, const EpochId& id, Groups::Adder& adder, Fabric* fabric);
  // Continues the group of an image (GroupRest::continue_from).
  GroupEpoch(const program::Image::Group& image, Groups::Adder& adder, Fabric* fabric);

  GroupRest& at_rest() { return rest_; }
  collective::Rank ranks() const { return state_.count(); }
  bool elastic() const { return state_.elastic; }
  // Identifies the epoch among those of the group, once it has formed.
  EpochId id();
  bool ended();
  // A rank has left or is lost: no rank can join, and no new collective can complete.
  bool closed();
  bool formed();
  bool has_ranks();  // true if ranks of this daemon have not left
  // The facts except the user; while the group forms, also without the ranks of other daemons.
  GroupFacts facts();
  std::vector<std::string> daemons();  // in the order of places; empty: not formed yet

  // ---- Forming

  // Returns false if the rank is taken, or the group has formed or ended.
  bool join(const Groups::Join& join);
  // Returns the error of a session that joins with another number of ranks, or another kind of
  // group, although programs of this epoch are connected. Then the epoch ends too if it waits for
  // ranks.
  core::Status refuse_other(const Groups::Join& join);
  // Returns true if the group is elastic and continues when it loses a rank.
  bool continues();
  // Returns true if the group is elastic and continues although a program joins this rank again. If
  // the rank is one of this daemon and not lost yet, it is lost now, because of `why`.
  bool continues_without(collective::Rank rank, const std::string& why);
  // A rank of this daemon whose program is connected, as (rank, who). None if there is none, or
  // the group has ended.
  std::optional<std::pair<collective::Rank, std::string>> attended();
  // Forms the group from these places; this daemon is place `own`. The ranks wait for go().
  // Precondition: the group has neither formed nor ended.
  void form(const EpochId& id, std::vector<PeerMessage::Place> places, collective::Place own);
  // Lets the ranks begin.
  void go();
  // Ends a group that has not formed, with the message "group "g": `why`".
  void abandon(const std::string& why);
  // The reason why the group was abandoned; none if it was not.
  std::optional<std::string> abandoned();

  // ---- Functions for the ranks of this daemon (see Groups::Member)

  std::optional<Ticket> begin(collective::Rank rank);
  Ticket deposit(collective::Rank rank, Part part);
  void decline(collective::Rank rank, const collective::Call& call, const core::Status& why);
  Ticket await_sends(collective::Rank rank);
  bool ended(collective::Rank rank, Ticket ticket);
  bool wait(collective::Rank rank, Ticket ticket, Waiter* waiter);
  Groups::Outcome take(collective::Rank rank, Ticket ticket);
  void set_timeout(collective::Rank rank, std::chrono::milliseconds timeout);
  void give_up(collective::Rank rank, const std::string& why);
  void leave(collective::Rank rank, const std::string& why);
  // Handles a rank that is lost: an elastic group continues without it, and otherwise it leaves.
  void lose(collective::Rank rank, const std::string& why);
  // Handles a rank that has begun the group anew: ends this epoch after the rank's last collective.
  void replace(collective::Rank rank, const std::string& why);
  // Returns true if the rank is a session of this daemon that has not left.
  bool has(collective::Rank rank);
  // Called after leave(): drops everything that belongs to the rank.
  void forget(collective::Rank rank);

  // ---- Messages and deadlines

  // Returns InvalidArgument if the daemon violates the protocol.
  core::Status received(const std::string& daemon, const collective::Message& message,
                        Pieces payload);
  // Ends the group, with the reason "rank n `why`", if it has ranks in that daemon that have not
  // left.
  void lose(const std::string& daemon, const std::string& why);
  // Ends operations that exceed their deadlines. `missing` lists the ranks that have not joined,
  // for the message.
  void look(Groups::Clock::time_point now, const std::string& missing);

 private:
  using Open = RankOperations::Open;
  using Waiters = EpochState::Waiters;

  // Returns true if the rank is one of this daemon whose program is connected.
  bool is_attended(collective::Rank rank) const TT_REQUIRES(state_.mu);
  // The lowest rank that attended() may return.
  std::optional<collective::Rank> attended_rank() const TT_REQUIRES(state_.mu);
  void open_part(collective::Rank rank, Open& open, Part part) TT_REQUIRES(state_.mu);
  void open_declined(collective::Rank rank, const GroupRank::Declined& declined)
      TT_REQUIRES(state_.mu);
  // Starts a transfer and returns its token, or the error if it is invalid.
  core::Result<std::uint64_t> transfer(collective::Rank rank, const collective::Call& call,
                                       std::shared_ptr<Part> part,
                                       const collective::Failed& failed = {})
      TT_REQUIRES(state_.mu);
  // Returns false if the operation's deadline has ended the group.
  bool look(const GroupRank& rank, const Open& open, Groups::Clock::time_point now,
            const std::string& missing, Waiters& met) TT_REQUIRES(state_.mu);

  EpochState state_;
  GroupRest rest_;
  Ticket tickets_ TT_GUARDED_BY(state_.mu) = 0;
  Groups::Clock::time_point looked_ TT_GUARDED_BY(state_.mu) = Groups::Clock::now();
};

}  // namespace teletensor::runtime
