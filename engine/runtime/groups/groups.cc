#include "engine/runtime/groups/groups.h"

#include <algorithm>
#include <utility>

#include "engine/core/threads.h"
#include "engine/program/text.h"
#include "engine/runtime/groups/group_epoch.h"

namespace teletensor::runtime {

using collective::rank_text;
using core::Code;
using core::Status;
using Kind = PeerMessage::Kind;

namespace {

constexpr collective::Rank kMaxRanks = 1024;
// The maximum delay until an exceeded deadline is noticed.
constexpr std::chrono::milliseconds kLookEvery{500};

// Returns why two registrations of a group exclude each other; empty if they do not.
std::string conflict(const PeerMessage& own, const std::string& here, const PeerMessage& other,
                     const std::string& there) {
  const bool same = own.ranks == other.ranks && own.elastic == other.elastic;
  if (own.rank != other.rank && same) return {};
  const char* const difference = own.ranks != other.ranks ? kOtherSize : kOtherKind;
  return joined_text(own.rank, own.ranks, own.text) + " is in " + here + ", and " +
         joined_text(other.rank, other.ranks, other.text) + " in " + there +
         (same ? "" : std::string(": ") + difference);
}

PeerMessage about(Kind kind, const EpochId& epoch, std::string text = {}) {
  PeerMessage message;
  message.kind = kind;
  message.epoch = epoch;
  message.text = std::move(text);
  return message;
}

}  // namespace

class Groups::Rank final : public Groups::Member {
 public:
  Rank(Groups& groups, Key key, EpochRef epoch, collective::Rank rank)
      : groups_(groups), key_(std::move(key)), epoch_(std::move(epoch)), rank_(rank) {}
  ~Rank() override {
    epoch_->leave(rank_, "has left the group");
    groups_.withdraw(epoch_);
    epoch_->forget(rank_);
    groups_.left(epoch_, key_);
  }
  collective::Rank rank() const override { return rank_; }
  collective::Rank ranks() const override { return epoch_->ranks(); }
  bool elastic() const override { return epoch_->elastic(); }
  std::optional<Ticket> begin() override { return epoch_->begin(rank_); }
  Ticket deposit(Part part) override { return epoch_->deposit(rank_, std::move(part)); }
  void decline(collective::Call call, const Status& why) override {
    epoch_->decline(rank_, call, why);
  }
  Ticket await_sends() override { return epoch_->await_sends(rank_); }
  bool ended(Ticket ticket) override { return epoch_->ended(rank_, ticket); }
  bool wait(Ticket ticket, Waiter* waiter) override { return epoch_->wait(rank_, ticket, waiter); }
  Outcome take(Ticket ticket) override { return epoch_->take(rank_, ticket); }
  void give_up(const std::string& why) override {
    epoch_->give_up(rank_, why);
    groups_.withdraw(epoch_);
  }
  void leave(const std::string& why) override {
    epoch_->lose(rank_, why);
    groups_.withdraw(epoch_);
  }
  void set_timeout(std::chrono::milliseconds timeout) override {
    epoch_->set_timeout(rank_, timeout);
  }
  bool wanted() override { return epoch_->at_rest().wanted(rank_); }
  bool busy() override { return epoch_->at_rest().busy(); }
  bool over() override { return epoch_->closed(); }
  std::optional<program::Image::Group> image() override {
    auto image = epoch_->at_rest().image(rank_);
    core::MutexLock lock(groups_.mu_);
    if (image) image->stamp = groups_.stamp_;
    return image;
  }
  void end_waits() override { epoch_->at_rest().end_waits(rank_); }

 private:
  Groups& groups_;
  const Key key_;
  const EpochRef epoch_;
  const collective::Rank rank_;
};

Groups::~Groups() {
  {
    core::MutexLock lock(mu_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

Fabric::Receiver& Groups::connect(Fabric& fabric) {
  fabric_ = &fabric;
  return *this;
}

core::Result<std::shared_ptr<Groups::Member>> Groups::join(Join join) {
  const std::string what = "joining group \"" + join.name + "\"";
  if (join.ranks == 0 || join.ranks > kMaxRanks) {
    return core::invalid(what + ": a group has 1 to " + std::to_string(kMaxRanks) + " ranks, not " +
                         std::to_string(join.ranks));
  }
  if (join.rank >= join.ranks) {
    return core::invalid(what + ": there is no rank " + std::to_string(join.rank) +
                         " in a group of " + std::to_string(join.ranks));
  }
  if (join.user.empty()) {
    return Status(Code::kPermissionDenied, what +
                                               ": needs an authenticated user: connect through the "
                                               "daemon's Unix socket or with a token");
  }
  const Key key(join.user, join.name);
  const core::Result<bool> next = agree(key, join);
  if (!next.ok()) return next.status();
  EpochRef epoch, earlier;
  {
    core::MutexLock lock(mu_);
    if (!watcher_.joinable()) watcher_ = core::start_thread([this] { watch(); });
    const auto known = epochs_.find(key);
    if (known != epochs_.end()) {
      const EpochRef& last = known->second;
      if (last->ranks() == join.ranks && last->join(join)) {
        epoch = last;
      } else if ((*next && last->continues()) || (last->closed() && !last->has(join.rank))) {
        earlier_.emplace_back(key, last);
      } else {
        earlier = last;
      }
    }
    if (!epoch) {
      const EpochId id{fabric_ == nullptr ? 0 : fabric_->incarnation(), ++formed_};
      epoch = std::make_shared<GroupEpoch>(join, id, adder_, fabric_);
      (void)epoch->join(join);
      epochs_.insert_or_assign(key, epoch);
    }
  }
  changed_.notify_all();
  if (earlier) {
    earlier->replace(std::min(join.rank, earlier->ranks() - 1),
                     "has been replaced: " + join.who + " has joined as rank " +
                         std::to_string(join.rank) + " of " + std::to_string(join.ranks));
    withdraw(earlier);
  }
  auto member = std::make_shared<Rank>(*this, key, epoch, join.rank);
  if (fabric_ != nullptr) {
    std::string why;
    {
      core::MutexLock lock(mu_);
      why = enter(epoch, join);
    }
    if (!why.empty()) {
      epoch->abandon(why);
      withdraw(epoch);
    }
  }
  return std::shared_ptr<Member>(std::move(member));
}

// Refuses a rank that wants another number of ranks or another kind of group than the connected
// programs of the group. Returns true if the rank waits for the next epoch of an elastic group.
core::Result<bool> Groups::agree(const Key& key, const Join& join) {
  EpochRef last;
  {
    core::MutexLock lock(mu_);
    last = present(key);
  }
  if (!last) return false;
  if (last->ranks() == join.ranks && last->elastic() == join.elastic) {
    if (join.again) return last->continues();
    return last->continues_without(join.rank, "has been replaced: " + join.who + " has joined");
  }
  const Status refusal = last->refuse_other(join);
  withdraw(last);
  if (!refusal.ok()) return refusal;
  return false;
}

std::vector<GroupFacts> Groups::all() {
  core::MutexLock lock(mu_);
  std::vector<GroupFacts> all;
  for (const auto& [key, epoch] : epochs_) all.push_back(facts_of(key, epoch));
  for (const auto& [key, epoch] : earlier_) all.push_back(facts_of(key, epoch));
  return all;
}

GroupFacts Groups::facts_of(const Key& key, const EpochRef& epoch) const {
  GroupFacts facts = epoch->facts();
  facts.user = key.first;
  if (fabric_ == nullptr || forming(key) != epoch) return facts;
  for (const auto& [rank, member] : known_ranks(key, epoch)) {
    if (member.first == fabric_->name()) continue;
    facts.members.push_back({rank, member.first, remotes_.at(member).text, false});
  }
  return facts;
}

void Groups::left(const EpochRef& epoch, const Key& key) {
  core::MutexLock lock(mu_);
  const auto found = epochs_.find(key);
  if (epoch->has_ranks()) return;
  if (found != epochs_.end() && found->second == epoch) epochs_.erase(found);
  std::erase_if(earlier_, [&](const auto& entry) { return entry.second == epoch; });
}

void Groups::watch() {
  mu_.lock();
  while (!stopping_) {
    if (epochs_.empty() && running_.empty() && earlier_.empty()) {
      changed_.wait(mu_);
      continue;
    }
    changed_.wait_for(mu_, kLookEvery);
    std::vector<std::pair<EpochRef, std::string>> epochs;
    for (const auto& [key, epoch] : epochs_) epochs.emplace_back(epoch, missing(key, epoch));
    for (const auto& [key, epoch] : earlier_) epochs.emplace_back(epoch, "");
    // An epoch without ranks is kept until the other daemons have received what they need of it.
    std::erase_if(running_, [](const auto& entry) {
      return entry.second->ended() && !entry.second->has_ranks();
    });
    mu_.unlock();
    for (const auto& [epoch, missing] : epochs) {
      epoch->look(Clock::now(), missing);
      withdraw(epoch);
    }
    epochs.clear();
    mu_.lock();
  }
  mu_.unlock();
}

// ---------------------------------------------------------------- forming over several daemons

void Groups::tell_all(const PeerMessage& message) {
  for (const std::string& peer : fabric_->peers()) fabric_->send(peer, message);
}

std::string Groups::enter(const EpochRef& epoch, const Join& join) {
  if (epoch->ended()) return {};
  PeerMessage registration;
  registration.kind = Kind::kRegister;
  registration.user = join.user;
  registration.name = join.name;
  registration.rank = join.rank;
  registration.ranks = join.ranks;
  registration.elastic = join.elastic;
  registration.ticket = ++tickets_;
  registration.text = program::shortened(join.who, collective::kMaxNote);
  locals_[registration.ticket] = {epoch, registration};
  tell_all(registration);
  for (const auto& [from, other] : remotes_) {
    if (other.user != join.user || other.name != join.name) continue;
    std::string why = conflict(registration, fabric_->name(), other, from.first);
    if (!why.empty()) return why;
  }
  form({join.user, join.name});
  return {};
}

// Answers a registration that does not fit a running group. The registrations of the group are
// withdrawn, therefore the peer gets one of them again, and its withdrawal. An answer has the
// ticket 0 and is not answered, because the peer may run a group of this name as well.
void Groups::tell_running(const std::string& peer, const PeerMessage& message) {
  if (message.ticket == 0) return;
  const EpochRef epoch = present({message.user, message.name});
  if (!epoch || !epoch->formed()) return;
  if (epoch->ranks() == message.ranks && epoch->elastic() == message.elastic) return;
  const auto rank = epoch->attended();
  if (!rank) return;
  PeerMessage answer = message;
  answer.ranks = epoch->ranks();
  answer.elastic = epoch->elastic();
  answer.rank = rank->first;
  answer.text = program::shortened(rank->second, collective::kMaxNote);
  answer.ticket = 0;
  fabric_->send(peer, std::move(answer));
  fabric_->send(peer, about(Kind::kWithdraw, {}));
}

void Groups::withdraw(const EpochRef& epoch) {
  if (fabric_ == nullptr) return;
  const auto why = epoch->abandoned();
  if (!why) return;
  core::MutexLock lock(mu_);
  take_back(epoch, *why);
}

// Withdraws the registrations of the epoch's ranks. `why` is empty if the group has formed.
void Groups::take_back(const EpochRef& epoch, const std::string& why) {
  for (auto at = locals_.begin(); at != locals_.end();) {
    if (at->second.epoch != epoch) {
      ++at;
      continue;
    }
    PeerMessage message = about(Kind::kWithdraw, {}, why);
    message.ticket = at->first;
    tell_all(message);
    at = locals_.erase(at);
  }
}

Groups::EpochRef Groups::present(const Key& key) const {
  const auto found = std::find_if(earlier_.rbegin(), earlier_.rend(), [&](const auto& entry) {
    return entry.first == key && entry.second->continues();
  });
  if (found != earlier_.rend()) return found->second;
  const auto last = epochs_.find(key);
  return last == epochs_.end() ? nullptr : last->second;
}

Groups::EpochRef Groups::forming(const Key& key) const {
  const auto found = epochs_.find(key);
  const bool forms = found != epochs_.end() && !found->second->formed() && !found->second->ended();
  return forms ? found->second : nullptr;
}

// The daemon and the ticket of each rank that has joined.
std::map<collective::Rank, std::pair<std::string, std::uint64_t>> Groups::known_ranks(
    const Key& key, const EpochRef& epoch) const {
  std::map<collective::Rank, std::pair<std::string, std::uint64_t>> known;
  for (const auto& [ticket, local] : locals_) {
    if (local.epoch == epoch) known[local.registration.rank] = {fabric_->name(), ticket};
  }
  for (const auto& [from, registration] : remotes_) {
    if (registration.user == key.first && registration.name == key.second &&
        registration.ranks == epoch->ranks() && registration.elastic == epoch->elastic()) {
      known.try_emplace(registration.rank, from);
    }
  }
  return known;
}

std::string Groups::missing(const Key& key, const EpochRef& epoch) const {
  if (fabric_ == nullptr || forming(key) != epoch) return {};
  const auto known = known_ranks(key, epoch);
  constexpr int kNamed = 16;
  std::string text;
  int count = 0;
  for (collective::Rank rank = 0; rank < epoch->ranks(); ++rank) {
    if (known.contains(rank)) continue;
    if (++count <= kNamed) text += (text.empty() ? "" : ", ") + rank_text(rank);
  }
  if (count > kNamed) text += " and " + std::to_string(count - kNamed) + " more";
  const std::string disconnected = count > 0 ? fabric_->disconnected() : "";
  return disconnected.empty() ? text : text + "; daemons without a connection: " + disconnected;
}

// Forms the group if rank 0 is here and all other ranks are known.
void Groups::form(const Key& key) {
  const EpochRef epoch = forming(key);
  if (!epoch) return;
  const auto known = known_ranks(key, epoch);
  if (known.size() != epoch->ranks() || known.at(0).first != fabric_->name()) return;
  PeerMessage message = about(Kind::kForm, {fabric_->incarnation(), ++formed_});
  message.user = key.first;
  message.name = key.second;
  message.ranks = epoch->ranks();
  std::map<std::string, std::size_t> place_of;
  for (const auto& [rank, member] : known) {
    const auto [at, is_new] = place_of.try_emplace(member.first, message.places.size());
    if (is_new) message.places.push_back({member.first, {}});
    message.places[at->second].members.push_back({rank, member.second});
  }
  epoch->form(message.epoch, message.places, 0);
  take_back(epoch, {});
  if (message.places.size() == 1) return epoch->go();
  running_[message.epoch] = epoch;
  Forming& forming = forming_[message.epoch];
  forming.epoch = epoch;
  for (std::size_t place = 1; place < message.places.size(); ++place) {
    forming.missing.push_back(message.places[place].daemon);
    for (const auto& member : message.places[place].members) {
      remotes_.erase({message.places[place].daemon, member.ticket});
    }
    fabric_->send(message.places[place].daemon, message);
  }
}

Status Groups::registered(const std::string& peer, const PeerMessage& message) {
  if (message.ranks == 0 || message.ranks > kMaxRanks || message.rank >= message.ranks ||
      message.user.empty()) {
    return core::invalid("a registration has no user, or a rank that its group does not have");
  }
  const Key key(message.user, message.name);
  EpochRef epoch;
  std::string why;
  {
    core::MutexLock lock(mu_);
    const auto of_peer = remotes_.lower_bound({peer, 0});
    constexpr std::ptrdiff_t kMaxOfPeer = std::ptrdiff_t{1} << 16;
    if (std::distance(of_peer, remotes_.lower_bound({peer + '\0', 0})) >= kMaxOfPeer) {
      return core::invalid("a daemon has more registrations of ranks than are allowed");
    }
    // A registration that was sent just when the daemons connected may be received twice.
    remotes_.insert_or_assign({peer, message.ticket}, message);
    epoch = forming(key);
    for (const auto& [ticket, local] : locals_) {
      if (local.epoch != epoch || !why.empty()) continue;
      why = conflict(local.registration, fabric_->name(), message, peer);
    }
    if (why.empty()) form(key);
    tell_running(peer, message);
  }
  if (why.empty()) return {};
  epoch->abandon(why);
  withdraw(epoch);
  return {};
}

void Groups::withdrawn(const std::string& peer, const PeerMessage& message) {
  EpochRef epoch;
  {
    core::MutexLock lock(mu_);
    const auto found = remotes_.find({peer, message.ticket});
    if (found == remotes_.end()) return;
    const PeerMessage registration = std::move(found->second);
    remotes_.erase(found);
    epoch = message.text.empty() ? nullptr : forming({registration.user, registration.name});
    if (!epoch || epoch->ranks() != registration.ranks) return;
  }
  epoch->abandon(message.text);
  withdraw(epoch);
}

// Checks whether this daemon can take part in `epoch` as the message describes. Returns an empty
// string and sets `place` to this daemon's place, or returns the reason against it.
std::string Groups::take_part(const EpochRef& epoch, const PeerMessage& message,
                              collective::Place* place) {
  if (!epoch || epoch->ranks() != message.ranks) return "no rank is waiting for the group";
  const auto own = std::find_if(message.places.begin(), message.places.end(),
                                [&](const auto& p) { return p.daemon == fabric_->name(); });
  std::size_t waiting = 0;
  for (const auto& [ticket, local] : locals_) waiting += local.epoch == epoch ? 1 : 0;
  if (own->members.size() != waiting) return "its ranks have changed";
  for (const PeerMessage::Member& member : own->members) {
    const auto local = locals_.find(member.ticket);
    if (local == locals_.end() || local->second.epoch != epoch ||
        local->second.registration.rank != member.rank) {
      return "its ranks have changed";
    }
  }
  *place = static_cast<collective::Place>(own - message.places.begin());
  return {};
}

Status Groups::formed(const std::string& peer, const PeerMessage& message) {
  // Check that each rank is in exactly one place, and that places are in the order of their lowest
  // ranks.
  std::vector<bool> has(message.ranks);
  std::size_t count = 0, own = 0;
  collective::Rank lowest = 0;
  for (const PeerMessage::Place& place : message.places) {
    own += place.daemon == fabric_->name() ? 1 : 0;
    if (place.members.empty() || (count > 0 && place.members.front().rank <= lowest)) {
      return core::invalid("the daemons of a group are not in the order of their ranks");
    }
    lowest = place.members.front().rank;
    collective::Rank last = lowest;
    for (const PeerMessage::Member& member : place.members) {
      if (member.rank >= message.ranks || has[member.rank] || member.rank < last) {
        return core::invalid("the ranks of a group are not in ascending order");
      }
      last = member.rank;
      has[member.rank] = true;
      ++count;
    }
  }
  if (message.ranks == 0 || message.ranks > kMaxRanks || count != message.ranks || own != 1 ||
      message.places.front().daemon != peer) {
    return core::invalid("the description of a group is inconsistent");
  }
  core::MutexLock lock(mu_);
  if (running_.contains(message.epoch)) return core::invalid("the same group was announced twice");
  collective::Place place = 0;
  const EpochRef epoch = forming({message.user, message.name});
  const std::string why = take_part(epoch, message, &place);
  if (why.empty()) {
    epoch->form(message.epoch, message.places, place);
    take_back(epoch, {});
    running_[message.epoch] = epoch;
  }
  fabric_->send(peer, about(Kind::kReady, message.epoch, why));
  return {};
}

void Groups::ready(const std::string& peer, const PeerMessage& message) {
  EpochRef begins, refused;
  {
    core::MutexLock lock(mu_);
    const auto found = forming_.find(message.epoch);
    if (found == forming_.end() || std::erase(found->second.missing, peer) == 0) return;
    EpochRef& which = message.text.empty() ? begins : refused;
    if (!message.text.empty() || found->second.missing.empty()) {
      which = found->second.epoch;
      forming_.erase(found);
    }
    if (begins) {
      const PeerMessage go = about(Kind::kGo, message.epoch);
      for (const std::string& daemon : begins->daemons()) {
        if (daemon != fabric_->name()) fabric_->send(daemon, go);
      }
    }
  }
  if (begins) begins->go();
  if (refused) refused->lose(peer, "cannot join: " + peer + ": " + message.text);
}

// ---------------------------------------------------------------- rest and restarts

std::vector<Groups::EpochRef> Groups::all_epochs() {
  core::MutexLock lock(mu_);
  std::vector<EpochRef> all;
  for (const auto& [key, epoch] : epochs_) all.push_back(epoch);
  for (const auto& [key, epoch] : earlier_) all.push_back(epoch);
  return all;
}

bool Groups::rest() {
  {
    core::MutexLock lock(mu_);
    if (stamp_ == 0) {
      stamp_ =
          static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
    }
  }
  bool all_rest = true;
  for (const EpochRef& epoch : all_epochs()) {
    const bool rests = epoch->at_rest().rest();
    all_rest = all_rest && rests;
  }
  return all_rest;
}

void Groups::end_moving(const std::string& why) {
  for (const EpochRef& epoch : all_epochs()) {
    epoch->at_rest().end_moving(why);
    withdraw(epoch);
  }
}

bool Groups::hold_open(const std::string& why) {
  bool all_held = true;
  for (const EpochRef& epoch : all_epochs()) {
    const bool held = epoch->at_rest().hold_open(why);
    all_held = all_held && held;
    withdraw(epoch);
  }
  return all_held;
}

// Checks an image that was read from a file, which is not trusted.
Status Groups::restorable(const program::Image::Group& group) const {
  std::vector<bool> has(group.ranks);
  std::size_t count = 0;
  collective::Rank lowest = 0;
  for (const auto& place : group.places) {
    if (place.ranks.empty() || (count > 0 && place.ranks.front() <= lowest)) {
      return core::invalid("the daemons of a saved group are not in the order of their ranks");
    }
    lowest = place.ranks.front();
    collective::Rank last = lowest;
    for (const collective::Rank rank : place.ranks) {
      if (rank >= group.ranks || has[rank] || rank < last) {
        return core::invalid("the ranks of a saved group are not in ascending order");
      }
      last = rank;
      has[rank] = true;
      ++count;
    }
  }
  if (count != group.ranks || group.place >= group.places.size()) {
    return core::invalid("the description of a saved group is inconsistent");
  }
  const std::vector<std::uint32_t>& own = group.places[group.place].ranks;
  for (const collective::Rank rank : group.joined) {
    if (std::count(own.begin(), own.end(), rank) == 0) {
      return core::invalid("a saved group has a rank of another daemon among its own");
    }
  }
  std::size_t left = own.size();
  for (const auto& lost : group.lost) {
    if (lost.rank >= group.ranks || !group.elastic ||
        std::count(group.joined.begin(), group.joined.end(), lost.rank) > 0) {
      return core::invalid("a saved group has lost a rank that it cannot have lost");
    }
    left -= std::count(own.begin(), own.end(), lost.rank) > 0 ? 1 : 0;
  }
  if (left == 0 || left > own.size()) {
    return core::invalid("a saved group has lost all ranks of its daemon");
  }
  if (group.places.size() == 1) return {};
  const auto lacks = [&](const std::string& why) {
    return Status(Code::kDeadlineExceeded, "group \"" + group.name + "\": " + why);
  };
  if (fabric_ == nullptr) return lacks("the daemon has restarted without peers");
  const std::vector<std::string> peers = fabric_->peers();
  for (std::size_t i = 0; i < group.places.size(); ++i) {
    const std::string& daemon = group.places[i].daemon;
    if (i == group.place ? daemon != fabric_->name()
                         : std::count(peers.begin(), peers.end(), daemon) == 0) {
      return lacks("the daemon has restarted with other peers or under another name");
    }
  }
  return {};
}

core::Result<std::shared_ptr<Groups::Member>> Groups::restore(Join join,
                                                              const program::Image::Group& group) {
  if (group.places.empty()) return this->join(std::move(join));
  if (group.ranks > kMaxRanks) return core::invalid("a saved group has too many ranks");
  TT_RETURN_IF_ERROR(restorable(group));
  const Key key(join.user, group.name);
  EpochRef epoch;
  {
    core::MutexLock lock(mu_);
    if (!watcher_.joinable()) watcher_ = core::start_thread([this] { watch(); });
    const EpochId id{group.former, group.epoch};
    formed_ = std::max(formed_, id.number);
    epoch = known_epoch(key, id);
    if (!epoch) {
      epoch = std::make_shared<GroupEpoch>(group, adder_, fabric_);
      if (!epochs_.emplace(key, epoch).second) earlier_.emplace_back(key, epoch);
      if (group.places.size() > 1) running_[id] = epoch;
      returning_.push_back(epoch);
    }
  }
  changed_.notify_all();
  if (epoch->at_rest().stamp() != group.stamp || !epoch->at_rest().come_back(join)) {
    return Status(Code::kDeadlineExceeded,
                  "group \"" + group.name + "\": its ranks were saved at different times");
  }
  return std::shared_ptr<Member>(std::make_shared<Rank>(*this, key, epoch, group.rank));
}

Groups::EpochRef Groups::known_epoch(const Key& key, const EpochId& id) const {
  const auto last = epochs_.find(key);
  if (last != epochs_.end() && last->second->id() == id) return last->second;
  const auto found = std::find_if(earlier_.begin(), earlier_.end(), [&](const auto& entry) {
    return entry.first == key && entry.second->id() == id;
  });
  return found == earlier_.end() ? nullptr : found->second;
}

void Groups::restored() {
  std::vector<EpochRef> returning;
  {
    core::MutexLock lock(mu_);
    returning.swap(returning_);
    for (const auto& [id, epoch] : running_) {
      for (const std::string& daemon : epoch->daemons()) {
        // tell_kept() must send its message before any message of the group.
        if (daemon != fabric_->name() && told_.insert(daemon).second) tell_kept(daemon);
      }
    }
  }
  for (const EpochRef& epoch : returning) epoch->at_rest().restored();
}

// ---------------------------------------------------------------- messages of peers

Status Groups::received(const std::string& peer, const PeerMessage& message, Pieces payload) {
  EpochRef epoch;
  switch (message.kind) {
    case Kind::kRegister:
      return registered(peer, message);
    case Kind::kWithdraw:
      withdrawn(peer, message);
      return {};
    case Kind::kForm:
      return formed(peer, message);
    case Kind::kReady:
      ready(peer, message);
      return {};
    case Kind::kKept:
      returned(peer, message);
      return {};
    case Kind::kGo:
    case Kind::kGroup: {
      core::MutexLock lock(mu_);
      const auto found = running_.find(message.epoch);
      if (found != running_.end()) epoch = found->second;
    }
  }
  if (!epoch) return {};  // the group has ended here
  if (message.kind == Kind::kGroup) {
    Status status = epoch->received(peer, message.message, payload);
    // A third daemon may have sent the two daemons different information: end the group, but keep
    // their link.
    if (status.ok() || epoch->daemons().size() < 3) return status;
    epoch->lose(peer, "has a daemon whose message does not fit the group: " + status.message());
    return {};
  }
  if (epoch->daemons().front() != peer) {
    return core::invalid("the start of a group that another daemon formed");
  }
  epoch->go();
  return {};
}

void Groups::tell_kept(const std::string& peer) {
  PeerMessage message;
  message.kind = Kind::kKept;
  for (const auto& [id, epoch] : running_) {
    if (const auto kept = epoch->at_rest().kept_with(peer)) message.kept.push_back(*kept);
  }
  fabric_->send(peer, std::move(message));
}

void Groups::returned(const std::string& peer, const PeerMessage& message) {
  std::map<EpochId, PeerMessage::Kept> kept;
  for (const PeerMessage::Kept& each : message.kept) kept.emplace(each.epoch, each);
  std::map<EpochId, EpochRef> running;
  {
    core::MutexLock lock(mu_);
    running = running_;
    std::erase_if(forming_, [&](const auto& entry) {
      return std::count(entry.second.missing.begin(), entry.second.missing.end(), peer) > 0;
    });
  }
  for (const auto& [id, epoch] : running) {
    const auto found = kept.find(id);
    epoch->at_rest().met(peer, found == kept.end() ? std::nullopt : std::optional(found->second));
  }
}

void Groups::drop(const std::string& peer, const std::string& why) {
  std::vector<EpochRef> epochs;
  {
    core::MutexLock lock(mu_);
    told_.erase(peer);
    std::erase_if(remotes_, [&](const auto& entry) { return entry.first.first == peer; });
    for (const auto& [id, epoch] : running_) epochs.push_back(epoch);
    std::erase_if(forming_, [&](const auto& entry) {
      return std::count(entry.second.missing.begin(), entry.second.missing.end(), peer) > 0;
    });
  }
  for (const EpochRef& epoch : epochs) epoch->lose(peer, why);
}

// Groups that have formed learn of the connection from the peer's kKept message.
void Groups::met(const std::string& peer) {
  core::MutexLock lock(mu_);
  std::erase_if(remotes_, [&](const auto& entry) { return entry.first.first == peer; });
  if (told_.erase(peer) == 0) tell_kept(peer);
  for (const auto& [ticket, local] : locals_) fabric_->send(peer, local.registration);
}

void Groups::lost(const std::string& peer, const std::string& why) {
  drop(peer, "has lost its daemon: " + peer + ": " + why);
}

}  // namespace teletensor::runtime
