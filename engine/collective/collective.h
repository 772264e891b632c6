// Collective: one collective of a group at one place, from the first deposit of its ranks until it
// has finished at all places.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/collective/epoch_end.h"
#include "engine/collective/exchange/exchange.h"
#include "engine/collective/exchange/point_to_point.h"
#include "engine/collective/outbox.h"
#include "engine/collective/vote.h"

namespace teletensor::collective {

// What is the same for all collectives of one place in one epoch. It belongs to the participant,
// which outlives them.
struct Context {
  Group group;  // changes when the group loses ranks
  const Place place;
  const std::string name;  // of the group, in error messages
  const Limits limits;
  Spread spread;
  Outbox out;
  // The texts that errors on other ranks show for the present state of ranks of this place.
  std::map<Rank, std::string> doing;
  Departures departures;

  const std::vector<Rank>& ranks() const { return group.ranks_of(place); }
  // The beginning of an error message about collective `number`.
  std::string title(Number number) const {
    return "group \"" + name + "\" #" + std::to_string(number) + ": ";
  }
  // An error message about a rank.
  std::string about(Rank rank, const std::string& text) const;
  // Continues without these ranks after collective `last`. Until leave_out_lost(), the place votes
  // with all places as before.
  void lose(const std::vector<Claim>& lost, Number last);
  // Exchanges no more votes with places that have lost all their ranks.
  void leave_out_lost() { spread = Spread(group, place); }
  // Sends the votes of a fold that are new, or all that `to` has been sent earlier.
  void send_votes(Purpose purpose, Number number, Fold& fold);
  void repeat_votes(Place to, Purpose purpose, Number number, const Fold& fold);

 private:
  void send_vote(Place to, Purpose purpose, Number number, int level, const Fold& fold);
};

// Owns the deposits of the place's ranks, the votes on them, and the exchange of their data. Its
// states follow one another: announced, decided, complete, finished. Nothing is written to results
// before it is decided, and each rank with a deposit gets exactly one completion.
class Collective {
 public:
  Collective(Context& context, Number number);

  // ---- deposits; `at` is the index of a rank among those of the place
  bool has_deposit(std::size_t at) const { return deposits_[at].has_value(); }
  bool has_deposits() const;  // of any rank
  bool deposited() const;     // of all ranks
  void deposit(std::size_t at, Call call, Failed failed);
  // Precondition: deposited().
  bool is_barrier() const { return deposits_.front()->call.op == Op::kBarrier; }

  // ---- steps. Precondition: deposited().
  void announce();
  // Takes the next steps that are possible. Returns whether there was one, or an error if a peer
  // has sent data that does not fit the call; then the epoch must end.
  core::Result<bool> progress();
  // All collectives up to this number have finished at all places, as far as the votes on this one
  // say.
  Number finished_everywhere() const { return finished_everywhere_; }
  bool complete() const { return complete_; }  // the results of the ranks of this place are written
  bool finished() const { return finished_; }  // and no other place waits for this one
  // The exchange of its data, or null before the announcement and after the end.
  Exchange* exchange() { return exchange_ ? &*exchange_ : nullptr; }

  // ---- ends before it is finished
  // Completes it with an error, unless it is complete, and frees all staging.
  void end(const core::Status& status);
  // At rest, after a cut before it: completes it as interrupted, or forgets its announcement, so
  // that it is announced again. withdraw() precedes both.
  void withdraw();
  void interrupt();
  void forget_announcement();
  // Drops the deposits of ranks that the group has lost since; `before` are the ranks that the
  // place had. forget_announcement() precedes it.
  void drop_lost(const std::vector<Rank>& before);

  // ---- messages of peers
  core::Status receive_vote(Place from, const Message& message);
  // Returns an error if the peer may not send this payload now.
  core::Status check(Place from, const Message& message);
  // Returns false if the collective has failed, so that the payload is not needed. The error means
  // that the peer has violated the protocol.
  core::Result<bool> receive(Place from, const Message& message, const Slice& at);
  core::Status receive_query(Place from);
  void receive_state(const Message& message);
  // The place has restarted and may send its query again.
  void restarted(Place place) { queried_.erase(place); }

  // ---- lateness
  // Asks the places whose votes are missing for which ranks they wait.
  void ask();
  // The text of a timeout, with the ranks that may be late.
  std::string timeout() const;

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

  bool early(const Message& message) const;
  core::Status decide();
  void start_explaining();
  std::vector<Call> calls() const;
  std::string explanation(const Vote& vote) const;
  void complete_with(const core::Status& status);
  void drop_early();
  std::map<Rank, std::string> certainly_late() const;
  std::vector<std::pair<Rank, std::string>> late() const;
  void answer();

  Context& context_;
  const Number number_;
  // One for each of the place's ranks, in their order.
  std::vector<std::optional<Deposit>> deposits_;
  Fold announce_, explain_;
  std::optional<Exchange> exchange_;
  std::vector<Early> early_;  // partial sums that arrived before the collective was decided
  bool decided_ = false, complete_ = false, finished_ = false, asked_ = false;
  Number finished_everywhere_ = 0;
  std::map<Rank, std::string> late_;  // late ranks, and their states as reported by other places
  std::set<Place> askers_, queried_;  // places that must be answered; all places that have asked
};

}  // namespace teletensor::collective
