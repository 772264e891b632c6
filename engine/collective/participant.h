// Participant: the state machine of one daemon's ranks in one epoch of a group.
//
// Its functions process events, and take() returns actions. It has no threads, no clock and no
// memory for elements: its owner keeps buffers, runs jobs, delivers the messages of each link in
// order and exactly once (see Link), and reports when time has passed. If expect() or receive()
// returns an error, the peer has violated the protocol, and its link should be closed. After kEnded
// all events are ignored.
//
// An elastic group has only collectives with equal results on all ranks (replicated()), and
// continues without ranks that are lost.
//
// The parts of a participant are its collectives (Collectives), its sends and receives
// (PointToPoint), the rest of the group (Cut) and the end of the epoch (EpochEnd). The states of a
// collective, which messages and actions identify by its number, are: announced (all ranks of this
// place have deposited it), decided (the votes of all places are known), complete (results are
// written), finished (no other place waits for this one) and retired (it has finished at all
// places). Nothing is written before a collective is decided, so the failure of one rank is the
// same error on every rank, and the next collective follows.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/collective/collectives.h"
#include "engine/collective/cut.h"
#include "engine/collective/epoch_end.h"
#include "engine/collective/exchange/point_to_point.h"
#include "engine/program/text.h"

namespace teletensor::collective {

// Owns the parts of one place's state in an epoch, and passes events to them. When a function
// returns, all steps that its event has made possible have been taken.
class Participant {
 public:
  // The state that a daemon at rest writes to its image and begins with after a restart.
  struct Image {
    Number number = 0;      // all collectives up to this number have run on all ranks
    Number generation = 0;  // generation of the cut, or 0 in a new epoch
    PointToPoint::Image point_to_point;
    std::optional<Ending> ending;
  };

  // `name` is the group's name in error messages.
  Participant(const Group& group, Place place, std::string name, const Limits& limits, Image image);

  // Not copyable, because its parts refer to each other.
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  // Deposits a rank's next collective: `number` is one more than that of its previous one. The
  // owner has the operand and the memory of the result, unless `failed` says why the rank cannot
  // take part. Returns InvalidArgument if the call cannot match those of other ranks, for example
  // because its root is not in the group or because it exceeds 2^48 bytes. Returns AlreadyExists if
  // the rank has deposited this number earlier; that deposit is unchanged.
  core::Status deposit(Rank rank, Number number, Call call, Failed failed = {});
  // Deposits a send or a receive. The owner chooses `token`, which must differ from those of all
  // open ones.
  core::Status deposit_point_to_point(Rank rank, std::uint64_t token, Call call,
                                      Failed failed = {});

  // Returns the location to which the payload of a message must be written before it is received.
  // If the connection is cut during the payload, the message is sent again, and this is called
  // again.
  core::Result<Slice> expect(Place from, const Message& message);
  // Processes a message whose payload is at the slice that expect() returned.
  core::Status receive(Place from, const Message& message, const Slice& at = {});
  void reduced(std::uint64_t job);

  // Sets the text that errors on other ranks show for the present state of `rank`, such as "its
  // queue is empty".
  void describe_rank(Rank rank, std::string text) {
    context_.doing[rank] = program::shortened(std::move(text), kMaxNote);
  }
  // Called when a deposit has waited for a long time: asks the other places for which ranks they
  // wait.
  void patience_passed(Number number);
  // Ends the epoch, unless the collective is complete or after a cut. Deadlines of collectives
  // after a cut do not pass; held_too_long() bounds that time.
  void deadline_passed(Number number);
  void deadline_passed_point_to_point(std::uint64_t token);
  void held_too_long();
  // Reports that a rank or its daemon is permanently lost, which ends the epoch. For a rank of this
  // place that has completed the collectives up to `last`, all places may complete these first.
  void lost(Rank rank, const std::string& text, Number last = 0);
  // Reports that the daemon of a place is permanently lost. Like lost(), unless all of its ranks
  // have left.
  void lost_place(Place place, const std::string& text);
  // Lets a rank of this place leave the group after its collective `last`. All places complete the
  // collectives up to `last`, and later ones fail. Sends and receives of other ranks continue, and
  // the epoch ends when all ranks have left. A rank whose own sends or receives are incomplete
  // counts as lost.
  void leave(Rank rank, Number last, const std::string& text);

  // Lets an elastic group continue without a rank of this place, which is lost. The rank takes part
  // in the collectives up to `last`, the last one that it has deposited. When these have finished
  // here, all places come to rest after the same collective, drop the rank (kLost), and go on; its
  // place in sums stays empty, and averages divide by the ranks that are there. All places must
  // agree, so a group of which a part is unreachable never continues in two parts. Later deposits
  // of the rank are refused. Precondition: the group is elastic and has at most one level.
  void depart(Rank rank, Number last, const std::string& text);

  // A drain or an interrupt brings all ranks of the group to rest between two collectives (see Cut)
  // until it ends. A drain and an interrupt of one place may overlap: the end of one does not end
  // the other.
  void drain();
  void end_drain();
  void interrupt();
  // Ends the interrupt that keeps the group at rest, or cancels one that does not do so yet.
  void end_interrupt();
  // For a daemon that is about to stop; it calls this repeatedly. Drains as soon as that may bring
  // the group to rest, and ends a drain that began too early. `still` says that no deposit of this
  // place's ranks is open. With `open`, it does not wait for that, nor for ranks that do not reach
  // the cut (see Cut); deposits after the cut stay open. Returns true at rest: the owner may take
  // the image, and then ignores all events. Precondition of `open`: the group has one level.
  bool come_to_rest(bool still, bool open = false);
  // Reports that a place has restarted from its image.
  void restarted(Place place);
  // Precondition: cut().rests(); or the group has one place, which has
  // finished all collectives and transfers that were deposited.
  Image image() const;
  // The ranks that are not lost and their places, and the ranks that the group still has to lose.
  const Context& context() const { return context_; }
  // How far the group is brought to rest.
  const Cut& cut() const { return cut_; }
  // Why collectives end, and whether the epoch has ended.
  const EpochEnd& epoch_end() const { return end_; }

  std::vector<Action> take() { return context_.out.take(); }
  bool has_left(Rank rank) const { return point_to_point_.has_left(rank); }
  // All collectives up to this number have finished: their operands and results are needed only by
  // messages that the owner was already asked to send.
  Number finished() const { return context_.out.done; }
  // The number of entries in its tables for collectives, messages and transfers: 0 when all are
  // over.
  std::size_t open() const { return collectives_.open() + point_to_point_.open(); }

 private:
  void advance();
  core::Status receive_vote(Place from, const Message& message);
  core::Status receive_about(Place from, const Message& message, const Slice& at);
  core::Status check(Rank rank, const Call& call) const;
  core::Status check(const Message& message) const;

  void end(Number last, core::Code code, const std::string& text, Rank left = kNoRank,
           std::optional<Place> teller = std::nullopt);
  void advance_leaving();
  void finish_end();

  void advance_cut();
  bool lower_cut();
  Number last_before_cut() const;
  bool has_open_deposits() const;
  void end_without_ranks();

  Context context_;
  PointToPoint point_to_point_;
  Cut cut_;
  Collectives collectives_;
  EpochEnd end_;
};

}  // namespace teletensor::collective
