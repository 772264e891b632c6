#include "engine/runtime/groups.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "engine/collective/participant.h"
#include "engine/core/threads.h"

namespace teletensor::runtime {

using collective::Action;
using collective::Buffer;
using collective::Job;
using collective::Number;
using collective::Slice;
using core::Code;
using core::Status;

namespace {

constexpr collective::Rank kMostRanks = 1024;
// How late a deadline may be noticed.
constexpr std::chrono::milliseconds kLookEvery{500};

std::vector<std::vector<collective::Rank>> one_place(collective::Rank ranks) {
  std::vector<std::vector<collective::Rank>> all(1);
  for (collective::Rank rank = 0; rank < ranks; ++rank) all[0].push_back(rank);
  return all;
}

}  // namespace

// A group from its first join to its end.
class Groups::Epoch {
 public:
  explicit Epoch(const Join& join)
      : group_(join.ranks, one_place(join.ranks)),
        participant_(group_, 0, join.name, collective::Limits(), {}),
        ranks_(join.ranks) {
    core::MutexLock lock(mu_);
    for (collective::Rank rank = 0; rank < join.ranks; ++rank) {
      participant_.describe_rank(rank, "has not joined");
    }
  }

  collective::Rank ranks() const { return group_.ranks(); }

  // False: the rank is taken, or the epoch is over.
  bool join(const Join& join) {
    core::MutexLock lock(mu_);
    RankState& rank = ranks_[join.rank];
    if (participant_.ended() || rank.joined) return false;
    rank.joined = true;
    rank.timeout = join.timeout;
    participant_.describe_rank(join.rank, join.who);
    return true;
  }
  // True where no rank is left.
  bool leave(collective::Rank rank) {
    lose(rank, "has left the group");
    core::MutexLock lock(mu_);
    ranks_[rank].joined = false;
    return std::none_of(ranks_.begin(), ranks_.end(), [](const auto& r) { return r.joined; });
  }

  void deposit(collective::Rank rank, Part part, Adder& adder) {
    settle(rank, &adder, [&]() TT_REQUIRES(mu_) {
      begin(rank);
      const collective::Call call = part.call;
      if (is_transfer(call)) return transfer(rank, call, std::make_shared<Part>(std::move(part)));
      RankState& own = ranks_[rank];
      std::shared_ptr<Parts>& parts = parts_[++own.number];
      if (!parts) parts = std::make_shared<Parts>();
      parts->insert_or_assign(rank, std::move(part));
      const Status status = participant_.deposit(rank, own.number, call);
      if (status.ok()) return;
      // The other ranks need not wait for a call that cannot be.
      own.ended = status;
      participant_.lost(rank, status.message());
    });
    core::MutexLock lock(mu_);
    RankState& own = ranks_[rank];
    if (std::exchange(own.send, 0) != 0 && !own.ended) own.ended = Status();
  }

  void decline(collective::Rank rank, collective::Call call, const Status& why, Adder& adder) {
    settle(rank, &adder, [&]() TT_REQUIRES(mu_) {
      const collective::Failed failed{why.code(), why.message()};
      begin(rank);
      if (is_transfer(call)) {
        transfer(rank, call, nullptr, failed);
      } else if (!participant_.deposit(rank, ++ranks_[rank].number, std::move(call), failed).ok()) {
        participant_.lost(rank, why.message());
      }
      // The rank goes on at once, also where its part of a transfer stays open for the other rank.
      RankState& own = ranks_[rank];
      own.send = own.receive = 0;
      own.ended = why;
    });
  }

  void await_sends(collective::Rank rank) {
    core::MutexLock lock(mu_);
    begin(rank);
    RankState& own = ranks_[rank];
    own.awaits_sends = true;
    if (own.sends.empty()) own.ended = Status();
  }

  bool wait(collective::Rank rank, Waiter* waiter) {
    core::MutexLock lock(mu_);
    if (ranks_[rank].ended) return false;
    ranks_[rank].waiter = waiter;
    return true;
  }

  bool ended(collective::Rank rank) {
    core::MutexLock lock(mu_);
    return ranks_[rank].ended.has_value();
  }

  Status take(collective::Rank rank) {
    core::MutexLock lock(mu_);
    return *ranks_[rank].ended;
  }

  collective::Rank sender(collective::Rank rank) {
    core::MutexLock lock(mu_);
    return ranks_[rank].sender;
  }

  void give_up(collective::Rank rank, const std::string& why) {
    settle(rank, nullptr, [&]() TT_REQUIRES(mu_) {
      if (!ranks_[rank].ended) participant_.lost(rank, why);
    });
  }

  void lose(collective::Rank rank, const std::string& why) {
    settle(rank, nullptr, [&]() TT_REQUIRES(mu_) { participant_.lost(rank, why); });
  }

  // Ends what is beyond its time.
  void look(Clock::time_point now) {
    settle(0, nullptr, [&]() TT_REQUIRES(mu_) {
      for (const RankState& rank : ranks_) {
        if (rank.ended || rank.deadline > now) continue;
        if (rank.receive != 0) return participant_.deadline_passed_point_to_point(rank.receive);
        if (!rank.awaits_sends) return participant_.deadline_passed(rank.number);
        return participant_.deadline_passed_point_to_point(*rank.sends.begin());
      }
    });
  }

 private:
  struct RankState {
    bool joined = false;
    std::chrono::milliseconds timeout{0};
    Number number = 0;              // of the last collective; 0: none
    std::uint64_t receive = 0;      // the token of a receive that has not ended
    std::uint64_t send = 0;         // the token of a send that is being deposited
    std::set<std::uint64_t> sends;  // tokens of what has not been received
    bool awaits_sends = false;
    collective::Rank sender = 0;             // of the last receive
    std::optional<Status> ended = Status();  // how what was deposited ended
    Clock::time_point deadline{};
    Waiter* waiter = nullptr;
  };
  using Parts = std::map<collective::Rank, Part>;
  struct Transfer {
    collective::Rank rank;
    std::shared_ptr<Part> part;  // null: it was declined
  };
  // The memory that jobs read and write. It outlives the collective, which may end while they run.
  struct Held {
    std::vector<std::shared_ptr<const void>> parts;
    std::vector<core::Ref<memory::Storage>> staging;
    std::map<Buffer, char*> addresses;
  };

  static bool is_transfer(const collective::Call& call) {
    return call.op == collective::Op::kSend || call.op == collective::Op::kRecv;
  }
  void begin(collective::Rank rank) TT_REQUIRES(mu_) {
    RankState& own = ranks_[rank];
    own.ended.reset();
    own.awaits_sends = false;
    own.deadline = Clock::now() + own.timeout;
  }
  void transfer(collective::Rank rank, const collective::Call& call, std::shared_ptr<Part> part,
                const collective::Failed& failed = {}) TT_REQUIRES(mu_);
  void transferred(const Action& action, std::vector<Waiter*>& met) TT_REQUIRES(mu_);

  // Tells the participant of an event of a rank, and does what it asks for until that is nothing.
  // Only deposit() and decline() lead to jobs.
  template <class Event>
  void settle(collective::Rank rank, Adder* adder, Event&& event);
  void obey(Action& action, Adder* adder, std::vector<Job>& jobs, std::vector<Waiter*>& met)
      TT_REQUIRES(mu_);
  static Status run(Adder* adder, const std::vector<Job>& jobs, const Held& held);
  static void finish(RankState& rank, const Status& status, std::vector<Waiter*>& met);
  Held hold(const std::vector<Job>& jobs) TT_REQUIRES(mu_);

  const collective::Group group_;
  core::Mutex mu_;
  collective::Participant participant_ TT_GUARDED_BY(mu_);
  std::vector<RankState> ranks_ TT_GUARDED_BY(mu_);
  std::map<Number, std::shared_ptr<Parts>> parts_ TT_GUARDED_BY(mu_);
  std::map<std::uint64_t, Transfer> transfers_ TT_GUARDED_BY(mu_);  // by token
  std::uint64_t tokens_ TT_GUARDED_BY(mu_) = 0;
  std::map<Buffer, core::Ref<memory::Storage>> staging_ TT_GUARDED_BY(mu_);
  bool no_memory_ TT_GUARDED_BY(mu_) = false;
};

template <class Event>
void Groups::Epoch::settle(collective::Rank rank, Adder* adder, Event&& event) {
  std::vector<Waiter*> met;
  {
    core::MutexLock lock(mu_);
    event();
    while (true) {
      std::vector<Job> jobs;
      for (Action& action : participant_.take()) obey(action, adder, jobs, met);
      if (std::exchange(no_memory_, false)) {
        participant_.lost(rank, "has no memory for the partial sums");
        continue;
      }
      if (jobs.empty()) break;
      const Held held = hold(jobs);
      mu_.unlock();
      const Status status = run(adder, jobs, held);
      mu_.lock();
      if (!status.ok()) participant_.lost(rank, "cannot add: " + status.message());
      for (const Job& job : jobs) participant_.reduced(job.id);
    }
  }
  for (Waiter* const waiter : met) waiter->met();
}

Status Groups::Epoch::run(Adder* adder, const std::vector<Job>& jobs, const Held& held) {
  if (adder == nullptr) return core::internal("additions without a collective");
  try {
    return adder->add(
        jobs, [&](const Slice& slice) { return held.addresses.at(slice.buffer) + slice.offset; });
  } catch (const std::exception& error) {
    return Status(Code::kResourceExhausted, error.what());
  }
}

void Groups::Epoch::finish(RankState& rank, const Status& status, std::vector<Waiter*>& met) {
  if (rank.ended) return;
  rank.ended = status;
  if (rank.waiter != nullptr) met.push_back(std::exchange(rank.waiter, nullptr));
}

void Groups::Epoch::transfer(collective::Rank rank, const collective::Call& call,
                             std::shared_ptr<Part> part, const collective::Failed& failed) {
  RankState& own = ranks_[rank];
  const std::uint64_t token = ++tokens_;
  const bool sends = call.op == collective::Op::kSend;
  if (sends) own.sends.insert(token);
  (sends ? own.send : own.receive) = token;
  transfers_[token] = {rank, std::move(part)};
  const Status status = participant_.deposit_point_to_point(rank, token, call, failed);
  if (status.ok()) return;
  transfers_.erase(token);
  own.sends.erase(token);
  own.send = own.receive = 0;
  own.ended = status;
}

void Groups::Epoch::transferred(const Action& action, std::vector<Waiter*>& met) {
  const auto found = transfers_.find(action.token);
  if (found == transfers_.end()) return;
  RankState& own = ranks_[found->second.rank];
  transfers_.erase(found);
  if (own.receive == action.token) {
    own.receive = 0;
    own.sender = action.rank;
    return finish(own, action.status, met);
  }
  own.sends.erase(action.token);
  // The sender is told of the group's end alone. A tensor that does not fit its receiver would be
  // an error of the sender only where the receiver has come first.
  if (participant_.ended()) return finish(own, action.status, met);
  if (own.awaits_sends && own.sends.empty()) finish(own, {}, met);
}

void Groups::Epoch::obey(Action& action, Adder* adder, std::vector<Job>& jobs,
                         std::vector<Waiter*>& met) {
  switch (action.kind) {
    case Action::Kind::kReserve: {
      auto storage = adder->allocate(static_cast<std::size_t>(action.bytes));
      no_memory_ |= !storage;
      if (storage) staging_.insert_or_assign(action.buffer, std::move(storage));
      return;
    }
    case Action::Kind::kFree:
      staging_.erase(action.buffer);
      return;
    case Action::Kind::kReduce:
      jobs.push_back(std::move(action.job));
      return;
    case Action::Kind::kComplete:
      if (action.token != 0) return transferred(action, met);
      if (ranks_[action.rank].number == action.number) {
        finish(ranks_[action.rank], action.status, met);
      }
      if (participant_.ended()) parts_.erase(action.number);  // else kRetire follows
      return;
    case Action::Kind::kRetire:
      parts_.erase(action.number);
      return;
    case Action::Kind::kEnded:
      for (RankState& rank : ranks_) {
        finish(rank, action.status, met);
        rank.sends.clear();
        rank.receive = 0;
      }
      parts_.clear();
      transfers_.clear();
      staging_.clear();
      return;
    case Action::Kind::kSend:  // these are of several places
    case Action::Kind::kRunTo:
    case Action::Kind::kAtRest:
    case Action::Kind::kGoOn:
      return;
  }
}

Groups::Epoch::Held Groups::Epoch::hold(const std::vector<Job>& jobs) {
  Held held;
  const auto add = [&](const Slice& slice) {
    const Buffer& buffer = slice.buffer;
    char*& address = held.addresses[buffer];
    if (address != nullptr) return;
    if (buffer.kind == Buffer::Kind::kStaging) {
      held.staging.push_back(staging_.at(buffer));
      address = static_cast<char*>(held.staging.back()->data());
      return;
    }
    if (buffer.kind == Buffer::Kind::kSent || buffer.kind == Buffer::Kind::kReceived) {
      const std::shared_ptr<Part>& part = transfers_.at(buffer.index).part;
      held.parts.push_back(part);
      address = (buffer.kind == Buffer::Kind::kSent ? part->operand : part->result).data();
      return;
    }
    const std::shared_ptr<Parts>& parts = parts_.at(buffer.number);
    held.parts.push_back(parts);
    const Part& part = parts->at(static_cast<collective::Rank>(buffer.index));
    address = (buffer.kind == Buffer::Kind::kOperand ? part.operand : part.result).data();
  };
  for (const Job& job : jobs) {
    for (const Job::Source& source : job.sources) add(source.at);
    for (const Job::Output& output : job.outputs) {
      for (const Slice& to : output.to) add(to);
    }
  }
  return held;
}

// ---------------------------------------------------------------- members

class Groups::Rank final : public Groups::Member {
 public:
  Rank(Groups& groups, Key key, std::shared_ptr<Epoch> epoch, collective::Rank rank)
      : groups_(groups), key_(std::move(key)), epoch_(std::move(epoch)), rank_(rank) {}
  ~Rank() override {
    if (epoch_->leave(rank_)) groups_.left(*epoch_, key_);
  }
  collective::Rank rank() const override { return rank_; }
  collective::Rank ranks() const override { return epoch_->ranks(); }
  void deposit(Part part, Adder& adder) override { epoch_->deposit(rank_, std::move(part), adder); }
  void decline(collective::Call call, const Status& why, Adder& adder) override {
    epoch_->decline(rank_, std::move(call), why, adder);
  }
  void await_sends() override { epoch_->await_sends(rank_); }
  bool ended() override { return epoch_->ended(rank_); }
  bool wait(Waiter* waiter) override { return epoch_->wait(rank_, waiter); }
  Status take() override { return epoch_->take(rank_); }
  collective::Rank sender() override { return epoch_->sender(rank_); }
  void give_up(const std::string& why) override { epoch_->give_up(rank_, why); }
  void lose(const std::string& why) override { epoch_->lose(rank_, why); }

 private:
  Groups& groups_;
  const Key key_;
  const std::shared_ptr<Epoch> epoch_;
  const collective::Rank rank_;
};

// ---------------------------------------------------------------- groups

Groups::~Groups() {
  {
    core::MutexLock lock(mu_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

core::Result<std::shared_ptr<Groups::Member>> Groups::join(Join join) {
  const std::string what = "joining group \"" + join.name + "\"";
  if (join.ranks == 0 || join.ranks > kMostRanks) {
    return core::invalid(what + ": a group has 1 to " + std::to_string(kMostRanks) +
                         " ranks, not " + std::to_string(join.ranks));
  }
  if (join.rank >= join.ranks) {
    return core::invalid(what + ": there is no rank " + std::to_string(join.rank) +
                         " in a group of " + std::to_string(join.ranks));
  }
  if (join.user.empty()) {
    return Status(Code::kPermissionDenied,
                  what + ": needs to know who you are; use the daemon's socket, or a token");
  }
  const Key key(join.user, join.name);
  std::shared_ptr<Epoch> epoch, earlier;
  {
    core::MutexLock lock(mu_);
    if (!watcher_.joinable()) watcher_ = core::start_thread([this] { watch(); });
    const auto known = epochs_.find(key);
    if (known != epochs_.end()) {
      const bool fits = known->second->ranks() == join.ranks && known->second->join(join);
      (fits ? epoch : earlier) = known->second;
    }
    if (!epoch) {
      epoch = std::make_shared<Epoch>(join);
      (void)epoch->join(join);
      epochs_.insert_or_assign(key, epoch);
    }
  }
  changed_.notify_all();
  if (earlier) {
    earlier->lose(std::min(join.rank, earlier->ranks() - 1),
                  "has been replaced: " + join.who + " has joined as rank " +
                      std::to_string(join.rank) + " of " + std::to_string(join.ranks));
  }
  return std::shared_ptr<Member>(std::make_shared<Rank>(*this, key, std::move(epoch), join.rank));
}

void Groups::left(const Epoch& epoch, const Key& key) {
  core::MutexLock lock(mu_);
  const auto found = epochs_.find(key);
  if (found != epochs_.end() && found->second.get() == &epoch) epochs_.erase(found);
}

void Groups::watch() {
  mu_.lock();
  while (!stopping_) {
    if (epochs_.empty()) {
      changed_.wait(mu_);
      continue;
    }
    changed_.wait_for(mu_, kLookEvery);
    std::vector<std::shared_ptr<Epoch>> epochs;
    for (const auto& [key, epoch] : epochs_) epochs.push_back(epoch);
    mu_.unlock();
    for (const auto& epoch : epochs) epoch->look(Clock::now());
    epochs.clear();
    mu_.lock();
  }
  mu_.unlock();
}

}  // namespace teletensor::runtime
