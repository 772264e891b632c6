// Participant: the state machine of one daemon's ranks in one epoch of a group.
//
// Its functions take events, and take() returns actions. It has no threads, no clock and no memory
// for elements: its owner keeps buffers, runs jobs, delivers the messages of each link in order and
// exactly once (see Link), and says when time has passed. Where expect() or receive() returns an
// error, the peer is at fault, and its link should end. After kEnded all events are ignored.
//
// The states of a number are: announced (all ranks of this place have deposited it), decided (the
// votes of all places are known), complete (results are written), finished (no other place waits
// for this one) and retired (it has finished at all places). Nothing is written before a number is
// decided, so the failure of one rank is the same error on every rank, and the next number follows.
// participant_receive.cc, participant_late.cc and participant_cut.cc have parts of it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/collective/cut.h"
#include "engine/collective/exchange.h"
#include "engine/collective/point_to_point.h"

namespace teletensor::collective {

class Participant {
 public:
  // Why and when collectives end. Numbers after `last` fail with the status.
  struct Ending {
    Number last = 0;
    core::Status status;
    Rank left = kNoRank;  // the rank that has left; kNoRank: transfers have ended as well
    bool final() const { return left == kNoRank; }
  };
  // The state that a daemon at rest writes to its image and begins with after a restart.
  struct Image {
    Number number = 0;      // all numbers up to this one have run on all ranks
    Number generation = 0;  // of the cut, or 0 in a new epoch
    PointToPoint::Image point_to_point;
    std::optional<Ending> ending;
  };

  // The group outlives it. `name` is the group's name in texts of errors.
  Participant(const Group& group, Place place, std::string name, const Limits& limits, Image image);

  // It cannot be copied, because its parts refer to each other.
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  // Deposits a rank's next collective: `number` is one more than that of its last one. The owner
  // has the operand and the memory of the result, unless `failed` says why the rank cannot take
  // part. InvalidArgument: the call cannot match those of other ranks, because its root is not in
  // the group for example, or it has more than 2^48 bytes. AlreadyExists: the rank has deposited
  // this number earlier, and that deposit is unchanged.
  core::Status deposit(Rank rank, Number number, Call call, Failed failed = {});
  // Deposits a send or a receive. The owner chooses `token`, which no open one has.
  core::Status deposit_point_to_point(Rank rank, std::uint64_t token, Call call,
                                      Failed failed = {});

  // The payload of a message is about to be received; returns where it is to be written. Where the
  // connection is cut in the middle of the payload, the message is sent again, and this is called
  // again.
  core::Result<Slice> expect(Place from, const Message& message);
  // A message was received, and its payload is at the slice that expect() returned.
  core::Status receive(Place from, const Message& message, const Slice& at = {});
  void reduced(std::uint64_t job);

  // Sets the text that errors on other ranks show for the present state of `rank`, such as "its
  // queue is empty".
  void describe_rank(Rank rank, std::string text) {
    doing_[rank] = shortened(std::move(text), kMaxNote);
  }
  // A deposit has waited for long: asks the other places for which ranks they wait.
  void patience_passed(Number number);
  // Ends the epoch, unless the number is complete or comes after a cut. The deadlines of numbers
  // after a cut do not pass; held_too_long() bounds that time.
  void deadline_passed(Number number);
  void deadline_passed_point_to_point(std::uint64_t token);
  void held_too_long();
  // A rank, or the daemon that has it, is lost for good: ends the epoch. A rank of this place that
  // has completed the numbers up to `last` lets all places complete these before.
  void lost(Rank rank, const std::string& text, Number last = 0);
  // The daemon of a place is lost for good. As lost(), unless all of its ranks have left.
  void lost_place(Place place, const std::string& text);
  // A rank of this place leaves the group after its number `last`. All places complete the numbers
  // up to `last`, and later ones fail. Sends and receives of other ranks continue, and the epoch
  // ends when all ranks have left. A rank whose own sends or receives are not complete is lost.
  void leave(Rank rank, Number last, const std::string& text);

  // Each brings all ranks of the group to rest between two numbers (see Cut) until its end. A
  // drain and an interrupt of one place may overlap: the end of one leaves the other as it is.
  void drain();
  void end_drain();
  void interrupt();
  // Ends the interrupt that keeps the group at rest, or cancels one that does not keep it yet.
  void end_interrupt();
  // For a daemon that is about to stop, again and again: drains as soon as that may bring the group
  // to rest, and ends a drain that has come too early. `still`: nothing is open that ranks of this
  // place have deposited. True: at rest; the owner may take the image, and then ignores all events.
  bool come_to_rest(bool still);
  // The last cut was of no use, because ranks of a place that is about to stop need further
  // deposits of other places' ranks before these are still.
  bool repeats() const { return cut_.repeats(); }
  // A place has restarted from its image.
  void restarted(Place place);
  // Precondition: rests(); or the group has one place, which has finished all numbers and transfers
  // that were deposited.
  Image image() const;
  // Counts the cuts. Two places that rest in the same one have the same generation.
  Number generation() const { return cut_.generation(); }

  std::vector<Action> take() { return out_.take(); }
  bool ended() const { return ended_; }
  // Why collectives end; none: no rank has left or is lost.
  const std::optional<Ending>& ending() const { return ending_; }
  bool has_left(Rank rank) const { return point_to_point_.has_left(rank); }
  // The epoch has ended for what the message is about. The owner drops the message's payload, and
  // calls receive() without one: the message says how far its sender is.
  bool over(const Message& message) const;
  // All numbers up to this one have finished: no message needs their operands and results any more,
  // but for those that the owner has been asked to send.
  Number finished() const { return out_.done; }
  bool held() const { return cut_.holding(); }
  // The group stays at rest until the drain, or the interrupt, of this place ends.
  bool drains() const { return cut_.drains; }
  bool rests() const { return cut_.rests(); }
  bool interrupts() const { return cut_.interrupts; }
  // How many numbers, messages and transfers have entries in its tables: 0 when all are over.
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
    std::vector<std::optional<Deposit>> deposits;  // in the order of the place's ranks
    Fold announce, explain;
    std::optional<Exchange> exchange;
    std::vector<Early> early;  // partial sums that came before the number is decided
    bool decided = false, complete = false, finished = false, asked = false;
    std::map<Rank, std::string> late;  // late ranks, and what other places say that they do
    std::set<Place> askers, queried;   // places to be answered; all places that have asked
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
  Number last_before_cut() const;
  void reach_rest();
  bool may_release();
  bool has_open_deposits() const;
  void drop_behind_cut();
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

  std::map<Number, Slot> slots_;  // of all numbers that are not retired
  std::uint64_t next_staging_ =
      Exchange::kOwnStaging;        // index of the staging of the next partial sums received
  std::map<Place, Buffer> coming_;  // staging that expect() returned and receive() has not taken
  Number announced_ = 0;            // all numbers up to this one are announced
  Number everywhere_ = 0, retired_ = 0;
  std::map<Rank, std::string> doing_;
  std::optional<Ending> ending_;
  Fold leaving_;                 // of the places, whose ranks have all left
  std::set<Place> left_places_;  // that have told this one so themselves
  bool ended_ = false;
};

}  // namespace teletensor::collective
