// Participant: one daemon's part in one epoch of a group: the state machine of its ranks.
//
// Events come in by the functions, actions go out by take(). No threads, no clock, no memory for
// elements: its owner keeps buffers, runs jobs, delivers messages in the order of each link exactly
// once (see Link), and says when time has passed. A Status that a function returns is the fault of
// the peer: its link should end. After kEnded all events are ignored.
//
// A number goes through: announced (all ranks here have deposited it) -> decided (the votes of all
// places are known: equal and none failed) -> complete (results stand) -> finished (nobody waits
// for this place) -> retired (it has finished everywhere). Nothing is written before it is decided,
// so one rank's failure is the same error on every rank, and the group goes on.
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
  // What a daemon writes down at rest, and begins with again.
  struct Image {
    Number number = 0;      // all up to this one have run on all ranks
    Number generation = 0;  // of the cut; 0: a new epoch
    PointToPoint::Image point_to_point;
  };

  // The group outlives it. `name`: for the text of errors.
  Participant(const Group& group, Place place, std::string name, const Limits& limits, Image image);

  // Its parts refer to each other.
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  // A rank's next collective: `number` is one more than that of its last one. The operand is there,
  // and the result's memory, unless the rank cannot take part. InvalidArgument: a call that no
  // other ranks can match, as a root that is not in the group, or of more than 2^48 bytes.
  // AlreadyExists: the rank has deposited this number, and that deposit stands.
  core::Status deposit(Rank rank, Number number, Call call, Failed failed = {});
  // A send or a receive; `token` is any number of the owner's.
  core::Status deposit_point_to_point(Rank rank, std::uint64_t token, Call call,
                                      Failed failed = {});

  // A message's payload is about to come: where it goes. Where the connection is cut in the middle
  // of the payload, the message comes again, and this is called again.
  core::Result<Slice> expect(Place from, const Message& message);
  // A message is here, and its payload at the slice that expect() named.
  core::Status receive(Place from, const Message& message, const Slice& at = {});
  void reduced(std::uint64_t job);

  // Sets the text that errors on other ranks show for the present state of `rank`, such as "its
  // queue is empty".
  void describe_rank(Rank rank, std::string text) {
    doing_[rank] = shortened(std::move(text), kMaxNote);
  }
  // A deposit waits for long: asks the others what they do.
  void patience_passed(Number number);
  // Ends the epoch, unless the number is complete, or stands behind a cut: then time stands still,
  // for as long as the owner lets a group be held.
  void deadline_passed(Number number);
  void deadline_passed_point_to_point(std::uint64_t token);
  void held_too_long();
  // A rank, or the daemon that has it, does not come back.
  void lost(Rank rank, const std::string& text);

  // Each brings all ranks of the group to rest between two numbers (see Cut) until its end. A
  // drain and an interrupt of one place may overlap: the end of one leaves the other as it is.
  void drain();
  void end_drain();
  void interrupt();
  // Ends the interrupt that keeps the group at rest, or takes back one that has not begun to.
  void end_interrupt();
  // A place came back with an image.
  void restarted(Place place);
  // Precondition: kAtRest was the last of kAtRest and kGoOn.
  Image image() const;

  std::vector<Action> take() { return out_.take(); }
  bool ended() const { return ended_.has_value(); }
  bool held() const { return cut_.holding(); }
  // The group stays at rest until the drain, or the interrupt, of this place ends.
  bool drains() const { return cut_.drains; }
  bool interrupts() const { return cut_.interrupts; }
  // Numbers, messages and transfers of which something is kept. At the end of all: none.
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
    std::vector<std::optional<Deposit>> deposits;  // by the order of the place's ranks
    Fold announce, explain;
    std::optional<Exchange> exchange;
    std::vector<Early> early;  // partial sums of places that are ahead
    bool decided = false, complete = false, finished = false, asked = false;
    std::map<Rank, std::string> late;  // what others have said of ranks that are late
    std::set<Place> askers, queried;   // to be answered; all that have asked
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

  std::map<Rank, std::string> late(const Slot& slot) const;
  void ask(Number number, Slot& slot);
  void answer(Number number, Slot& slot);
  void end(core::Code code, const std::string& text, std::optional<Place> teller);

  void advance_cut();
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

  std::map<Number, Slot> slots_;                        // of all numbers that are not retired
  std::uint64_t next_staging_ = Exchange::kOwnStaging;  // of partial sums that are received
  std::map<Place, Buffer> coming_;  // staging that expect() has named, and receive() has not had
  Number announced_ = 0;            // all up to this one; out_.done: finished
  Number everywhere_ = 0, retired_ = 0;
  std::map<Rank, std::string> doing_;
  std::optional<core::Status> ended_;
};

}  // namespace teletensor::collective
