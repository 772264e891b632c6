// Participant: the state machine of one daemon's ranks in one epoch of a group.
//
// Its functions process events, and take() returns actions. It has no threads, no clock and no
// memory for elements: its owner keeps buffers, runs jobs, delivers the messages of each link in
// order and exactly once (see Link), and reports when time has passed. If expect() or receive()
// returns an error, the peer has violated the protocol, and its link should be closed. After kEnded
// all events are ignored.
//
// The states of a collective (which messages and actions identify by its number) are: announced
// (all ranks of this place have deposited it), decided (the votes of all places are known),
// complete (results are written), finished (no other place waits for this one) and retired (it has
// finished at all places). Nothing is written before a collective is decided, so the failure of one
// rank is the same error on every rank, and the next collective follows. participant_receive.cc,
// participant_late.cc and participant_cut.cc contain parts of it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/collective/cut.h"
#include "engine/collective/exchange/exchange.h"
#include "engine/collective/exchange/point_to_point.h"
#include "engine/program/text.h"

namespace teletensor::collective {

class Participant {
 public:
  // The reason and the number at which collectives end. Collectives after `last` fail with the
  // status.
  struct Ending {
    Number last = 0;
    core::Status status;
    Rank left = kNoRank;  // the rank that has left; kNoRank: transfers have ended as well
    bool final() const { return left == kNoRank; }
  };
  // The state that a daemon at rest writes to its image and begins with after a restart.
  struct Image {
    Number number = 0;      // all collectives up to this number have run on all ranks
    Number generation = 0;  // generation of the cut, or 0 in a new epoch
    PointToPoint::Image point_to_point;
    std::optional<Ending> ending;
  };

  // `group` must outlive this object. `name` is the group's name in error messages.
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
    doing_[rank] = program::shortened(std::move(text), kMaxNote);
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
  // Returns true if the last cut was of no use, because ranks of a place that is about to stop need
  // further deposits of other places' ranks before their own deposits are finished.
  bool repeats() const { return cut_.repeats(); }
  // Reports that a place has restarted from its image.
  void restarted(Place place);
  // Precondition: rests(); or the group has one place, which has
  // finished all collectives and transfers that were deposited.
  Image image() const;
  // The number of cuts so far. Two places that rest in the same cut have the same generation.
  Number generation() const { return cut_.generation(); }

  std::vector<Action> take() { return out_.take(); }
  bool ended() const { return ended_; }
  // The reason why collectives end; none if no rank has left or is lost.
  const std::optional<Ending>& ending() const { return ending_; }
  bool has_left(Rank rank) const { return point_to_point_.has_left(rank); }
  // Returns true if the epoch has ended for the subject of the message. The owner then drops the
  // message's payload and calls receive() without one, because the message still reports its
  // sender's progress.
  bool over(const Message& message) const;
  // All collectives up to this number have finished: their operands and results are needed only by
  // messages that the owner was already asked to send.
  Number finished() const { return out_.done; }
  bool held() const { return cut_.holding(); }
  // The group stays at rest until the drain or the interrupt of this place ends.
  bool drains() const { return cut_.drains; }
  bool rests() const { return cut_.rests(); }
  bool interrupts() const { return cut_.interrupts; }
  // The number of entries in its tables for collectives, messages and transfers: 0 when all are
  // over.
  std::size_t open() const { return slots_.size() + coming_.size() + point_to_point_.open(); }

 private:
  struct Deposit {
    Call call;
    Failed failed;
  };
  struct Early {
    Place from;
    Message message;
    Slice at;
  };
  struct Slot {
    // One for each of the place's ranks, in their order.
    std::vector<std::optional<Deposit>> deposits;
    Fold announce, explain;
    std::optional<Exchange> exchange;
    std::vector<Early> early;  // partial sums that arrived before the collective was decided
    bool decided = false, complete = false, finished = false, asked = false;
    std::map<Rank, std::string> late;  // late ranks, and their states as reported by other places
    std::set<Place> askers, queried;   // places that must be answered; all places that have asked
    void withdraw();                   // ends the exchange of a collective that is not decided
  };

  Slot& slot(Number number);
  bool deposited(const Slot& slot) const;
  bool may_announce(Number number, const Slot& slot) const;
  void advance();
  void announce(Number number, Slot& slot);
  void make_exchange(Number number, Slot& slot);
  bool progress(Number number, Slot& slot);
  bool decide(Number number, Slot& slot);
  void start_explaining(Slot& slot);
  void fail(Number number, Slot& slot, const core::Status& status);
  void complete(Number number, Slot& slot, const core::Status& status);
  std::string explanation(Number number, const Vote& vote) const;
  void retire();
  void tell_progress();
  void send_votes(Purpose purpose, Number number, Fold& fold);
  void send_vote(Place to, Purpose purpose, Number number, int level, const Fold& fold);

  core::Status receive_vote(Place from, const Message& message);
  core::Status receive_data(Place from, const Message& message, const Slice& at);
  core::Status receive_query(Place from, Number number);
  core::Status receive_state(const Message& message);
  core::Status check_early(Place from, const Message& message, const Slot& slot) const;
  void discard(Place from);
  void drop_early(Slot& slot);
  bool acceptable(Number number) const;
  bool early(const Message& message, const Slot& slot) const;
  core::Status check(Rank rank, const Call& call) const;
  core::Status check(const Message& message) const;

  std::map<Rank, std::string> certainly_late(const Slot& slot) const;
  std::vector<std::pair<Rank, std::string>> late(const Slot& slot) const;
  void ask(Number number, Slot& slot);
  void answer(Number number, Slot& slot);
  const core::Status* end_of(Number number) const;
  std::string text_about(Rank rank, const std::string& text) const;
  void end(Number last, core::Code code, const std::string& text, Rank left = kNoRank,
           std::optional<Place> teller = std::nullopt);
  void end(Ending ending, std::optional<Place> teller);
  void tell_end(Place to);
  void advance_leaving();
  void finish_end();

  void advance_cut();
  bool lower_cut();
  Number last_before_cut() const;
  void reach_rest();
  bool may_release();
  bool has_open_deposits() const;
  void tell_rest(bool interrupted);

  const Group& group_;
  const Place place_;
  const std::string name_;
  const Limits limits_;
  const Spread spread_;
  const std::vector<Place> neighbours_;
  Outbox out_;
  PointToPoint point_to_point_;
  Cut cut_;

  std::map<Number, Slot> slots_;  // all collectives that are not retired
  std::uint64_t next_staging_ =
      Exchange::kOwnStaging;  // index of the staging of the next partial sums received
  // Staging that expect() returned and receive() has not taken yet.
  std::map<Place, Buffer> coming_;
  Number announced_ = 0;  // all collectives up to this number are announced
  Number everywhere_ = 0, retired_ = 0;
  std::map<Rank, std::string> doing_;
  std::optional<Ending> ending_;
  Fold leaving_;                 // the vote of the places whose ranks have all left
  std::set<Place> left_places_;  // places that have reported to this one that they left
  bool ended_ = false;
};

}  // namespace teletensor::collective
