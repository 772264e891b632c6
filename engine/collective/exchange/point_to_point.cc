#include "engine/collective/exchange/point_to_point.h"

#include <algorithm>

namespace teletensor::collective {
namespace {

std::int64_t item_of(const Call& call) {
  return static_cast<std::int64_t>(core::size_of(call.dtype));
}

// A hash of the parts of a call on which both sides of a transfer must agree.
std::uint64_t contents_of(const Call& call) {
  Call same;
  same.op = Op::kBroadcast;
  same.dtype = call.dtype;
  same.count = call.count;
  return fingerprint(same);
}

core::Status status_of(const Failed& failed) {
  return failed.code == core::Code::kOk ? core::Status() : core::Status(failed.code, failed.text);
}

}  // namespace

void PointToPoint::deposit(Rank rank, std::uint64_t token, Call call, Failed failed) {
  if (call.op == Op::kSend) {
    const Key key{rank, call.peer, call.tag};
    std::map<Number, Send>& queue = sends_[key];
    const Number last = queue.empty() ? 0 : queue.rbegin()->first;
    const Number order = std::max(image_.sent[key], last) + 1;
    queue[order] = {token, std::move(call), std::move(failed), false, false};
    offer();
  } else {
    receives_.push_back({token, rank, std::move(call), std::move(failed), false, {}, 0, 0});
    match();
  }
  deliver_own();
}

Message PointToPoint::message_about(const Key& key, Number order, Kind kind) {
  Message message;
  message.kind = kind;
  message.number = order;
  message.from = key.from;
  message.to = key.to;
  message.tag = key.tag;
  return message;
}

void PointToPoint::tell(const Key& key, Number order, Kind kind, Rank to, const Failed& failed,
                        std::vector<Claim> claims) {
  Message message = message_about(key, order, kind);
  message.vote.claims = std::move(claims);
  message.vote.code = failed.code;
  message.vote.failure = failed.text;
  if (group_.place_of(to) == place_) {
    own_.push_back(std::move(message));
  } else {
    out_.send(group_.place_of(to), std::move(message));
  }
}

void PointToPoint::offer() {
  if (held_) return;
  fail_sends();
  std::map<Place, std::size_t> offered;
  for (const auto& [key, queue] : sends_) {
    for (const auto& [order, send] : queue) offered[group_.place_of(key.to)] += send.offered;
  }
  for (auto& [key, queue] : sends_) {
    std::size_t& open = offered[group_.place_of(key.to)];
    for (auto& [order, send] : queue) {
      if (send.offered) continue;
      if (order > image_.sent[key] + limits_.ahead || open >= limits_.offers) break;
      send.offered = true;
      ++open;
      tell(key, order, Kind::kOffer, key.to, send.failed,
           {{key.from, contents_of(send.call), 1, describe(send.call)}});
    }
  }
}

void PointToPoint::match() {
  if (held_) return;
  for (auto at = receives_.begin(); at != receives_.end();) {
    Receive& receive = *at++;
    if (receive.accepted) continue;
    // The next offer of each key is a candidate; the candidate that arrived first is accepted.
    auto best = offers_.end();
    for (auto queue = offers_.begin(); queue != offers_.end(); ++queue) {
      const Key& key = queue->first;
      const bool from = receive.call.peer == kNoRank || receive.call.peer == key.from;
      if (!from || key.to != receive.rank || key.tag != receive.call.tag) continue;
      if (best == offers_.end() ||
          queue->second.begin()->second.arrival < best->second.begin()->second.arrival) {
        best = queue;
      }
    }
    if (best == offers_.end()) continue;
    const Message offer = best->second.begin()->second.message;
    best->second.erase(best->second.begin());
    if (best->second.empty()) offers_.erase(best);
    accept(receive, offer);
  }
  if (leaving_) fail_receives();
}

void PointToPoint::accept(Receive& receive, const Message& offer) {
  receive.key = {offer.from, offer.to, offer.tag};
  receive.order = offer.number;
  receive.accepted = true;
  receive.missing = receive.call.count;
  const Claim& claim = offer.vote.claims.front();
  Failed failed = receive.failed;
  if (claim.fingerprint != contents_of(receive.call)) {
    failed = {core::Code::kInvalidArgument, "rank " + std::to_string(offer.from) + " is in " +
                                                claim.text + ", rank " + std::to_string(offer.to) +
                                                " in " + describe(receive.call)};
  } else if (offer.vote.code != core::Code::kOk) {
    failed = {offer.vote.code, "rank " + std::to_string(offer.from) + ": " + offer.vote.failure};
  } else if (failed.code != core::Code::kOk) {
    failed.text = "rank " + std::to_string(offer.to) + ": " + failed.text;
  }
  if (failed.code != core::Code::kOk || receive.missing == 0) return finish(receive, failed);
  tell(receive.key, receive.order, Kind::kAccept, offer.from);
}

void PointToPoint::finish(Receive& receive, const Failed& failed) {
  const Key key = receive.key;
  const Number order = receive.order;
  Number& received =
      image_.received[key];  // a send without data may overtake an earlier one with data
  received = std::max(received, order);
  if (failed.code != core::Code::kOk) image_.failures[{key, order}] = failed;
  // A sender has at most `ahead` open offers, so it asks for no earlier failure.
  if (order > limits_.ahead) image_.failures.erase({key, order - limits_.ahead});
  complete(receive.token, status_of(failed), key.from);
  receives_.remove_if([&](const Receive& r) { return &r == &receive; });
  tell(key, order, Kind::kDone, key.from, failed);
}

void PointToPoint::complete(std::uint64_t token, const core::Status& status, Rank sender,
                            bool lost) {
  Action action;
  action.kind = Action::Kind::kComplete;
  action.token = token;
  action.rank = sender;
  action.status = status;
  action.lost = lost;
  out_.push(std::move(action));
}

PointToPoint::Receive* PointToPoint::find(const Key& key, Number order) {
  for (Receive& receive : receives_) {
    if (receive.accepted && receive.key == key && receive.order == order) return &receive;
  }
  return nullptr;
}

void PointToPoint::transfer(const Key& key, Number order, Send& send) {
  send.accepted = true;
  const std::int64_t item = item_of(send.call);
  const Buffer from{0, Buffer::Kind::kSent, send.token};
  if (group_.place_of(key.to) == place_) {
    Job job;
    job.dtype = send.call.dtype;
    job.elements = send.call.count;
    job.sources = {{{from, 0, send.call.count * item}, false}};
    const Buffer to{0, Buffer::Kind::kReceived, find(key, order)->token};
    job.outputs = {{0, {{to, 0, send.call.count * item}}, false, 1}};
    copies_[out_.reduce(std::move(job))] = {key, order};
    return;
  }
  const std::int64_t grain = std::max<std::int64_t>(1, limits_.segment / item);
  for (std::int64_t at = 0; at < send.call.count; at += grain) {
    Message message = message_about(key, order, Kind::kData);
    message.range = {at, std::min(at + grain, send.call.count)};
    const Slice slice{from, at * item, message.range.size() * item};
    out_.send(group_.place_of(key.to), std::move(message), {slice});
  }
}

bool PointToPoint::reduced(std::uint64_t job) {
  const auto found = copies_.find(job);
  if (found == copies_.end()) return false;
  const auto [key, order] = found->second;
  copies_.erase(found);
  finish(*find(key, order), {});
  deliver_own();
  return true;
}

core::Result<Slice> PointToPoint::expect(Place from, const Message& message) const {
  for (const Receive& receive : receives_) {
    if (!receive.accepted || receive.key != Key{message.from, message.to, message.tag} ||
        receive.order != message.number) {
      continue;
    }
    const std::int64_t item = item_of(receive.call), at = receive.call.count - receive.missing;
    if (group_.place_of(message.from) != from || message.range.begin != at ||
        message.range.size() <= 0 || message.range.size() > receive.missing ||
        message.payload != message.range.size() * item) {
      break;
    }
    return Slice{{0, Buffer::Kind::kReceived, receive.token}, at * item, message.payload};
  }
  return violation("data that no receive waits for");
}

core::Status PointToPoint::receive(Place from, const Message& message) {
  const core::Status status = deliver(from, message);
  deliver_own();
  return status;
}

void PointToPoint::deliver_own() {
  while (!own_.empty()) {
    const Message message = std::move(own_.front());
    own_.erase(own_.begin());
    const core::Status status = deliver(place_, message);
    if (!status.ok()) return;
  }
}

core::Status PointToPoint::deliver(Place from, const Message& message) {
  if (message.kind == Kind::kAsk) return receive_ask(from, message);
  if (message.kind == Kind::kLeft) return receive_left(from, message);
  const Key key{message.from, message.to, message.tag};
  if (!group_.has(key.from) || !group_.has(key.to)) return violation("an unknown rank");
  const bool sender = message.kind == Kind::kOffer || message.kind == Kind::kData;
  if (group_.place_of(sender ? key.from : key.to) != from ||
      group_.place_of(sender ? key.to : key.from) != place_) {
    return violation("a message that another rank should send");
  }
  if (message.kind == Kind::kOffer) return receive_offer(from, key, message);
  if (message.kind == Kind::kData) {
    Receive* found = find(key, message.number);
    if (found == nullptr || message.payload <= 0)
      return violation("data that no receive waits for");
    Receive& receive = *found;
    receive.missing -= message.range.size();
    if (receive.missing == 0) finish(receive, {});
    return {};
  }
  if (message.kind != Kind::kAccept && message.kind != Kind::kDone) {
    return violation("a message of an unknown kind");
  }
  return receive_answer(key, message);
}

core::Status PointToPoint::receive_offer(Place from, const Key& key, const Message& message) {
  if (message.vote.claims.size() != 1) return violation("an offer without a call");
  const auto last = image_.received.find(key);
  const Number received = last == image_.received.end() ? 0 : last->second;
  if (message.number <= received) {  // the sender restarted before it was informed
    const auto failure = image_.failures.find({key, message.number});
    tell(key, message.number, Kind::kDone, key.from,
         failure == image_.failures.end() ? Failed{} : failure->second);
    return {};
  }
  const auto queue = offers_.find(key);
  if (find(key, message.number) != nullptr ||
      (queue != offers_.end() && queue->second.contains(message.number))) {
    return violation("an offer twice");
  }
  std::size_t open = 0;
  for (const auto& [other, offers] : offers_) {
    open += group_.place_of(other.from) == from ? offers.size() : 0;
  }
  if (message.number - received > limits_.ahead || open >= limits_.offers) {
    return violation("too many offers");
  }
  if (has_left(key.to)) {
    tell_left(key.to, from);
    return {};
  }
  offers_[key][message.number] = {message, ++arrivals_};
  match();
  return {};
}

core::Status PointToPoint::receive_answer(const Key& key, const Message& message) {
  const auto queue = sends_.find(key);
  const auto send = queue == sends_.end() ? std::map<Number, Send>::iterator()
                                          : queue->second.find(message.number);
  if (queue == sends_.end() || send == queue->second.end() || !send->second.offered) {
    return violation("an answer to an offer that was not made");
  }
  if (message.kind == Kind::kAccept) {
    if (send->second.accepted) return violation("an answer twice");
    if (send->second.failed.code != core::Code::kOk) {
      return violation("an answer to a send that has failed");
    }
    transfer(key, message.number, send->second);
    return {};
  }
  complete(send->second.token, status_of({message.vote.code, message.vote.failure}));
  image_.sent[key] = std::max(image_.sent[key], message.number);
  queue->second.erase(send);
  if (queue->second.empty()) sends_.erase(queue);
  offer();
  return {};
}

void PointToPoint::hold(bool held) {
  held_ = held;
  offer();
  match();
  deliver_own();
}

bool PointToPoint::at_rest() const {
  const auto sending = [](const auto& entry) { return entry.second.accepted; };
  return std::none_of(receives_.begin(), receives_.end(),
                      [](const Receive& r) { return r.accepted; }) &&
         std::none_of(sends_.begin(), sends_.end(), [&](const auto& queue) {
           return std::any_of(queue.second.begin(), queue.second.end(), sending);
         });
}

void PointToPoint::restarted(Place place) {
  for (auto& [key, queue] : sends_) {
    if (group_.place_of(key.to) != place) continue;
    // The place has received everything that it had accepted, and says so when the send is offered
    // again.
    for (auto& [order, send] : queue) send.offered = send.accepted = false;
  }
  // The place offers its own sends again, including those accepted before it was connected.
  for (Receive& receive : receives_) {
    if (receive.accepted && group_.place_of(receive.key.from) == place) receive.accepted = false;
  }
  std::erase_if(offers_, [&](const auto& o) { return group_.place_of(o.first.from) == place; });
  std::erase_if(asked_, [&](Rank rank) { return group_.place_of(rank) == place; });
  std::erase_if(told_, [&](const auto& told) { return told.second == place; });
  for (auto& [rank, places] : askers_) places.erase(place);
  offer();
  match();
}

void PointToPoint::end(const core::Status& status) {
  for (const auto& [key, queue] : sends_) {
    for (const auto& [order, send] : queue) complete(send.token, status, kNoRank, true);
  }
  for (const Receive& receive : receives_) complete(receive.token, status, kNoRank, true);
  sends_.clear();
  receives_.clear();
  offers_.clear();
  copies_.clear();
}

// ---------------------------------------------------------------- ranks that leave

bool PointToPoint::owes(Rank rank) const {
  return std::any_of(receives_.begin(), receives_.end(),
                     [&](const Receive& r) { return r.rank == rank; }) ||
         std::any_of(sends_.begin(), sends_.end(),
                     [&](const auto& queue) { return queue.first.from == rank; });
}

void PointToPoint::leave(Rank rank, Failed why) {
  image_.left[rank] = std::move(why);
  std::set<Place> places = std::exchange(askers_[rank], {});
  for (auto queue = offers_.begin(); queue != offers_.end();) {
    const auto at = queue++;
    if (at->first.to != rank) continue;
    places.insert(group_.place_of(at->first.from));
    offers_.erase(at);
  }
  for (const Place place : places) tell_left(rank, place);
  expect_leaving();
}

void PointToPoint::forsaken(Rank rank, const Failed& why) {
  image_.left.emplace(rank, why);
  expect_leaving();
}

void PointToPoint::expect_leaving() {
  leaving_ = true;
  offer();
  match();
  deliver_own();
}

void PointToPoint::tell_left(Rank rank, Place to) {
  if (to == place_ || !told_.insert({rank, to}).second) return;
  Message message;
  message.kind = Kind::kLeft;
  message.from = rank;
  message.vote.code = image_.left.at(rank).code;
  message.vote.failure = image_.left.at(rank).text;
  out_.send(to, std::move(message));
}

// A rank leaves when it has received everything that it needs, so none of these sends is accepted.
void PointToPoint::fail_sends() {
  for (auto queue = sends_.begin(); queue != sends_.end();) {
    const auto at = queue++;
    const auto left = image_.left.find(at->first.to);
    if (left == image_.left.end()) continue;
    for (const auto& [order, send] : at->second) {
      complete(send.token, status_of(left->second), kNoRank, true);
      // A daemon that restarts does not know that an offer was dropped.
      image_.sent[at->first] = std::max(image_.sent[at->first], order);
    }
    sends_.erase(at);
  }
}

// The reason why no rank can send to this receive, or null. Precondition: `receive` was matched
// with all existing offers.
const Failed* PointToPoint::unreachable(const Receive& receive) const {
  const Failed* why = nullptr;
  for (const Rank rank : group_.present()) {
    const bool may_send =
        rank != receive.rank && (receive.call.peer == kNoRank || receive.call.peer == rank);
    if (!may_send) continue;
    const auto left = image_.left.find(rank);
    if (left == image_.left.end()) return nullptr;
    why = &left->second;
  }
  return why;
}

void PointToPoint::fail_receives() {
  for (auto at = receives_.begin(); at != receives_.end();) {
    const auto receive = at++;
    if (receive->accepted) continue;
    if (const Failed* const why = unreachable(*receive)) {
      complete(receive->token, status_of(*why), kNoRank, true);
      receives_.erase(receive);
    } else {
      ask(*receive);
    }
  }
}

void PointToPoint::ask(const Receive& receive) {
  for (const Rank rank : group_.present()) {
    const bool may_send = receive.call.peer == kNoRank || receive.call.peer == rank;
    if (!may_send || group_.place_of(rank) == place_ || has_left(rank)) continue;
    if (!asked_.insert(rank).second) continue;
    Message message;
    message.kind = Kind::kAsk;
    message.to = rank;
    out_.send(group_.place_of(rank), std::move(message));
  }
}

core::Status PointToPoint::receive_ask(Place from, const Message& message) {
  if (!group_.has(message.to) || group_.place_of(message.to) != place_) {
    return violation("a question about another place's rank");
  }
  if (has_left(message.to)) {
    tell_left(message.to, from);
  } else {
    askers_[message.to].insert(from);
  }
  return {};
}

core::Status PointToPoint::receive_left(Place from, const Message& message) {
  const Rank rank = message.from;
  if (!group_.has(rank) || group_.place_of(rank) != from) {
    return violation("that another place's rank has left");
  }
  if (message.vote.code == core::Code::kOk)
    return violation("a rank that has left without a reason");
  image_.left.emplace(rank, Failed{message.vote.code, message.vote.failure});
  expect_leaving();
  return {};
}

std::size_t PointToPoint::open() const {
  std::size_t open = sends_.size() + receives_.size() + offers_.size() + copies_.size();
  return open + own_.size();
}

std::string PointToPoint::waiting(std::uint64_t token) const {
  for (const auto& [key, queue] : sends_) {
    for (const auto& [order, send] : queue) {
      if (send.token == token) {
        return describe(send.call) + ": rank " + std::to_string(key.to) + " does not receive";
      }
    }
  }
  for (const Receive& receive : receives_) {
    if (receive.token != token) continue;
    const std::string who = receive.call.peer == kNoRank
                                ? "no rank sends"
                                : "rank " + std::to_string(receive.call.peer) + " does not send";
    return describe(receive.call) + ": " + who;
  }
  return {};
}

}  // namespace teletensor::collective
