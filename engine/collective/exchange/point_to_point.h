// PointToPoint: the sends and receives of the ranks of one place.
//
// Sends from one rank to another with one tag are numbered, and are received in that order. The
// sender offers, the receiver accepts, the sender sends the data, the receiver writes it into its
// result and reports that it is done; only then the send is complete. So both sides have the same
// outcome, and a daemon that restarted offers its incomplete sends again.
//
// A rank may leave when all its sends and receives are complete. Only its own place knows that, and
// tells the places that offer it a send, and those that ask because one of their ranks waits for a
// send from it. As messages arrive in order, a place that is told so has received everything that
// the rank has sent.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/collective/exchange/exchange.h"

namespace teletensor::collective {

// The reason why a rank cannot take part, or kOk.
struct Failed {
  core::Code code = core::Code::kOk;
  std::string text;
};

class PointToPoint {
 public:
  struct Key {
    Rank from = 0, to = 0;
    std::int64_t tag = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  // The state that is kept over a restart: for each key the number of sends that were sent and
  // received, the failures among the last sends, and the ranks that are known to have left.
  struct Image {
    std::map<Key, Number> sent, received;
    std::map<std::pair<Key, Number>, Failed> failures;
    std::map<Rank, Failed> left;
  };

  PointToPoint(const Group& group, Place place, const Limits& limits, Outbox& out, Image image)
      : group_(group), place_(place), limits_(limits), out_(out), image_(std::move(image)) {}

  // call.op is kSend or kRecv; `token` identifies the deposit, its buffer and its completion.
  void deposit(Rank rank, std::uint64_t token, Call call, Failed failed);
  core::Result<Slice> expect(Place from, const Message& message) const;
  core::Status receive(Place from, const Message& message);
  bool reduced(std::uint64_t job);
  // While held, no transfer begins.
  void hold(bool held);
  // Returns true if no transfer is in progress.
  bool at_rest() const;
  void restarted(Place place);
  void end(const core::Status& status);
  // Returns true if a send or a receive of the rank is incomplete.
  bool owes(Rank rank) const;
  // Lets a rank of this place leave. Precondition: owes() returns false for it.
  void leave(Rank rank, Failed why);
  // Reports that the place of this rank will not send any more messages. Precondition: all ranks of
  // that place have left.
  void forsaken(Rank rank, const Failed& why);
  // Reports that some rank of the group has left. From now on, this place asks whether the ranks
  // have left from which its ranks wait to receive.
  void expect_leaving();
  bool has_left(Rank rank) const { return image_.left.contains(rank); }
  // Describes an incomplete deposit; empty if no deposit has the token.
  std::string waiting(std::uint64_t token) const;
  const Image& image() const { return image_; }
  // The number of entries in its tables.
  std::size_t open() const;

 private:
  struct Send {
    std::uint64_t token = 0;
    Call call;
    Failed failed;
    bool offered = false, accepted = false;
  };
  struct Receive {
    std::uint64_t token = 0;
    Rank rank = 0;
    Call call;
    Failed failed;
    bool accepted = false;
    Key key;
    Number order = 0;
    std::int64_t missing = 0;
  };
  struct Offer {
    Message message;
    std::uint64_t arrival = 0;
  };

  void offer();
  void match();
  void accept(Receive& receive, const Message& offer);
  void finish(Receive& receive, const Failed& failed);
  void transfer(const Key& key, Number order, Send& send);
  void complete(std::uint64_t token, const core::Status& status, Rank sender = kNoRank,
                bool lost = false);
  // Fails the sends to ranks that have left, and the receives from them.
  void fail_sends();
  void fail_receives();
  const Failed* unreachable(const Receive& receive) const;
  void ask(const Receive& receive);
  void tell_left(Rank rank, Place to);
  static Message message_about(const Key& key, Number order, Kind kind);
  void tell(const Key& key, Number order, Kind kind, Rank to, const Failed& failed = {},
            std::vector<Claim> claims = {});
  core::Status deliver(Place from, const Message& message);
  core::Status receive_offer(Place from, const Key& key, const Message& message);
  core::Status receive_answer(const Key& key, const Message& message);
  core::Status receive_ask(Place from, const Message& message);
  core::Status receive_left(Place from, const Message& message);
  void deliver_own();
  Receive* find(const Key& key, Number order);

  const Group& group_;
  const Place place_;
  const Limits& limits_;
  Outbox& out_;
  Image image_;
  bool held_ = false;
  std::map<Key, std::map<Number, Send>> sends_;
  std::list<Receive> receives_;                    // in the order of their deposits
  std::map<Key, std::map<Number, Offer>> offers_;  // offers that no receive has accepted
  std::map<std::uint64_t, std::pair<Key, Number>> copies_;
  std::vector<Message> own_;  // messages to ranks of this place
  bool leaving_ = false;      // some rank of the group has left
  std::set<Rank> asked_;      // ranks about which this place asked whether they have left
  std::map<Rank, std::set<Place>> askers_;  // places that want to be told when the rank has left
  // Places that were told that a rank of this place has left.
  std::set<std::pair<Rank, Place>> told_;
  std::uint64_t arrivals_ = 0;
};

}  // namespace teletensor::collective
