// Groups: sessions that run collectives together, of this daemon or of several.
//
// A session joins a group as one of its ranks. The state machine of engine/collective decides which
// collectives belong together and which additions are made (see GroupEpoch). A group whose ranks
// are all in this daemon needs no message: the session that brings the last operand computes the
// result for all ranks, on its lane. A rank may have several collectives open at once: the other
// sessions run on, and wait without a lane only where they read a result (see Back).
// With peers (see Fabric) the ranks of a group may be sessions of several daemons, and a rank's
// first collective waits until all ranks have joined.
//
// The group keeps the tensor that a rank sends until the receiving rank asks for it, so two ranks
// that send to each other first do not wait for each other.
//
// A rank that is lost, is interrupted or exceeds the timeout ends the group: all that is open on
// any rank, and all later operations, fail with that cause. A rank may also leave: then later
// collectives fail, and so do sends to this rank and receives from it, but other ranks can still
// send to each other. The sessions keep their tensors, and can join a new group.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/collective/message.h"
#include "engine/core/mutex.h"
#include "engine/memory/storage.h"
#include "engine/program/image.h"
#include "engine/runtime/fabric.h"
#include "engine/runtime/group_facts.h"
#include "engine/runtime/transfer.h"

namespace teletensor::runtime {

class GroupEpoch;

class Groups : private Fabric::Receiver {
 public:
  using Clock = std::chrono::steady_clock;

  // A session that waits for a collective.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // A wait is over. Called once for each wait, on any thread.
    virtual void met() = 0;
  };

  // Names what a rank has deposited, until it is taken. Never 0.
  using Ticket = std::uint64_t;

  // How something ended that was deposited.
  struct Outcome {
    core::Status status;
    collective::Rank sender = 0;  // of a receive: the rank that sent the tensor
  };

  // Contents are on the host; empty: the call has none.
  struct Part {
    collective::Call call;
    RowMajor operand, result;
  };

  // Computes for all ranks of this daemon. Any thread.
  class Adder {
   public:
    using Address = std::function<char*(const collective::Slice&)>;
    virtual ~Adder() = default;
    // Jobs that do not depend on each other.
    virtual core::Status add(std::span<const collective::Job> jobs, const Address& address) = 0;
    // Memory on the host for partial sums; null: there is none.
    virtual core::Ref<memory::Storage> allocate(std::size_t bytes) = 0;
  };

  // A rank of a group. One thread at a time uses it, but for give_up() and leave().
  class Member {
   public:
    virtual ~Member() = default;  // the rank leaves
    virtual collective::Rank rank() const = 0;
    virtual collective::Rank ranks() const = 0;
    // None where the rank may deposit, or where the group has ended. Else not all ranks have
    // joined, and the ticket's wait is for them.
    virtual std::optional<Ticket> begin() = 0;
    // The rank's next collective, send or receive. Precondition: begin() has returned none. A send
    // ends here: the group keeps its operand until it is received. After image() a deposit fails.
    virtual Ticket deposit(Part part) = 0;
    // The rank cannot take part in its next collective, which fails on all ranks, or in a send or
    // receive, which fails on the other rank.
    virtual void decline(collective::Call call, const core::Status& why) = 0;
    // Ends when all that the rank has sent has been received. Precondition as of deposit().
    virtual Ticket await_sends() = 0;
    virtual bool ended(Ticket ticket) = 0;
    // False: it has ended by now. True: the waiter will be told, once. One wait for each ticket.
    virtual bool wait(Ticket ticket, Waiter* waiter) = 0;
    // Precondition: it has ended. The ticket is no longer valid.
    virtual Outcome take(Ticket ticket) = 0;
    // The group ends where something that the rank has deposited has not ended. Any thread.
    virtual void give_up(const std::string& why) = 0;
    // The rank leaves: later collectives of the group fail, because "rank n `why`". Collectives
    // that have ended for this rank end well for the others too. Where something that the rank has
    // deposited has not ended, or has not been received, the group ends. Any thread.
    virtual void leave(const std::string& why) = 0;
    // Of what the rank deposits from here on.
    virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
    // Does another rank wait for the rank's next collective? Any thread.
    virtual bool wanted() = 0;
    // Is something open in the group, here or on a daemon that shuts down as well? Any thread.
    virtual bool busy() = 0;
    // What the rank goes on with after a restart, but for the session's number; none: the group has
    // ended. From here on nothing changes in the group. Precondition: rest() was true.
    virtual std::optional<program::Image::Group> image() = 0;
  };

  // Counts memory that the open collectives of a session keep, as long as it lives.
  class Kept {
   public:
    Kept(Groups& groups, std::uint64_t bytes) : groups_(groups), bytes_(bytes) {
      groups_.kept_.fetch_add(bytes_, std::memory_order_relaxed);
    }
    ~Kept() { groups_.kept_.fetch_sub(bytes_, std::memory_order_relaxed); }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

   private:
    Groups& groups_;
    const std::uint64_t bytes_;
  };
  // Bytes that open collectives of all sessions keep. Any thread.
  std::uint64_t kept() const { return kept_.load(std::memory_order_relaxed); }

  struct Join {
    std::string user, name;  // together they name the group
    collective::Rank rank = 0, ranks = 1;
    std::chrono::milliseconds timeout{0};  // for a collective, from its deposit on
    std::string who;                       // "session 7 (training)", for the text of errors
  };

  // The adder outlives it.
  explicit Groups(Adder& adder) : adder_(adder) {}
  // Precondition: no members.
  ~Groups() override;
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  // The first rank that joins makes the group. A rank that is there already, or another number of
  // ranks, begins the group anew: a program that is started again does not wait for what is left
  // of its last run, whose ranks are told. A rank that joins again after it has left begins the
  // group anew as well, and the ranks that have not left may finish their transfers.
  core::Result<std::shared_ptr<Member>> join(Join join);
  // The groups that sessions of this daemon are in. Any thread.
  std::vector<GroupFacts> all();

  // Brings all groups to rest, and is called again and again. True: they are at rest on all
  // daemons, or have ended. Precondition: a rank of this daemon that has nothing open deposits
  // nothing until it is wanted, or the group is busy.
  bool rest();
  // Ends the groups that are not at rest: "rank n `why`".
  void end_moving(const std::string& why);
  // As join(), for a rank of which an image was taken. The group goes on when all its ranks of this
  // daemon are there: after restored().
  core::Result<std::shared_ptr<Member>> restore(const std::string& user, const std::string& who,
                                                const program::Image::Group& group);
  // No rank comes any more that was in this daemon before its restart. Groups that lack one end.
  void restored();

  // From here on, groups may have ranks in other daemons. The fabric outlives all members, and
  // calls the receiver that is returned. Precondition: no rank has joined.
  Fabric::Receiver& connect(Fabric& fabric);

 private:
  class Rank;
  using Key = std::pair<std::string, std::string>;  // user, name
  using EpochRef = std::shared_ptr<GroupEpoch>;
  struct Local {  // a rank of this daemon whose group has not formed yet
    EpochRef epoch;
    PeerMessage registration;
  };
  struct Forming {  // a group that this daemon forms
    EpochRef epoch;
    std::vector<std::string> missing;  // daemons that have not answered
  };

  // Fabric::Receiver
  void met(const std::string& peer) override;
  core::Status received(const std::string& peer, const PeerMessage& message,
                        Pieces payload) override;
  void lost(const std::string& peer, const std::string& why) override;

  void watch();  // deadlines
  void left(const EpochRef& epoch, const Key& key);
  GroupFacts facts_of(const Key& key, const EpochRef& epoch) const TT_REQUIRES(mu_);
  void tell_all(const PeerMessage& message) TT_REQUIRES(mu_);
  void enter(const EpochRef& epoch, const Join& join) TT_REQUIRES(mu_);
  // Withdraws the registrations of an epoch that was abandoned.
  void withdraw(const EpochRef& epoch);
  void take_back(const EpochRef& epoch, const std::string& why) TT_REQUIRES(mu_);
  void drop(const std::string& peer, const std::string& why);
  core::Status registered(const std::string& peer, const PeerMessage& message);
  void withdrawn(const std::string& peer, const PeerMessage& message);
  void form(const Key& key) TT_REQUIRES(mu_);
  core::Status formed(const std::string& peer, const PeerMessage& message);
  std::string take_part(const EpochRef& epoch, const PeerMessage& message, collective::Place* place)
      TT_REQUIRES(mu_);
  void ready(const std::string& peer, const PeerMessage& message);
  EpochRef forming(const Key& key) const TT_REQUIRES(mu_);
  std::map<collective::Rank, std::pair<std::string, std::uint64_t>> known_ranks(
      const Key& key, const EpochRef& epoch) const TT_REQUIRES(mu_);
  std::string missing(const Key& key, const EpochRef& epoch) const TT_REQUIRES(mu_);
  std::vector<EpochRef> all_epochs() TT_EXCLUDES(mu_);
  core::Status restorable(const program::Image::Group& group) const;
  // Tells the peer of which groups with ranks there this daemon knows.
  void tell_kept(const std::string& peer) TT_REQUIRES(mu_);
  void returned(const std::string& peer, const PeerMessage& message);

  Adder& adder_;
  std::atomic<std::uint64_t> kept_{0};
  Fabric* fabric_ = nullptr;  // null: no peers
  core::Mutex mu_;
  core::CondVar changed_;
  std::map<Key, EpochRef> epochs_ TT_GUARDED_BY(mu_);                 // the last one of each group
  std::vector<std::pair<Key, EpochRef>> earlier_ TT_GUARDED_BY(mu_);  // those that still have ranks
  // Of groups over several daemons:
  std::map<EpochId, EpochRef> running_ TT_GUARDED_BY(mu_);
  std::map<EpochId, Forming> forming_ TT_GUARDED_BY(mu_);
  std::map<std::uint64_t, Local> locals_ TT_GUARDED_BY(mu_);  // by ticket
  std::map<std::pair<std::string, std::uint64_t>, PeerMessage> remotes_
      TT_GUARDED_BY(mu_);  // registrations of peers, by (peer, ticket)
  std::uint64_t tickets_ TT_GUARDED_BY(mu_) = 0, formed_ TT_GUARDED_BY(mu_) = 0;
  std::vector<EpochRef> returning_ TT_GUARDED_BY(mu_);  // until restored()
  std::set<std::string> told_ TT_GUARDED_BY(mu_);       // peers, by restored(), before they are met
  std::uint64_t stamp_ TT_GUARDED_BY(mu_) = 0;          // of the images of this daemon's groups
  bool stopping_ TT_GUARDED_BY(mu_) = false;
  std::thread watcher_ TT_GUARDED_BY(mu_);
};

}  // namespace teletensor::runtime
