// Groups: sessions of one or several daemons that run collectives together.
//
// A session joins a group as one of its ranks. The state machine of engine/collective decides which
// collectives belong together and which additions are made (see GroupEpoch). A group whose ranks
// are all in this daemon needs no messages: the session that deposits the last operand computes the
// result for all ranks, on its lane. A rank may have several open collectives: its session
// continues, and waits without a lane only when it reads a result (see Back). With peers (see
// Fabric), the ranks of a group may be sessions of several daemons, and a rank's first collective
// waits until all ranks have joined.
//
// The group keeps the tensor that a rank sends until the receiving rank asks for it, so two ranks
// that both send to each other first do not block each other.
//
// A rank that is lost, is interrupted or exceeds the timeout ends the group: all open and all later
// operations of every rank fail with that cause. A rank may also leave: then later collectives
// fail, and so do sends to this rank and receives from it, but the remaining ranks can still send
// to each other. The sessions keep their tensors, and can join a new group.
//
// An elastic group has only collectives whose results are equal on all ranks. A rank that is lost
// or interrupted takes part in the collectives that it has deposited. Then the group continues
// without it: in sums its operand is absent, averages divide by the remaining ranks, and its row of
// an all_gather is zero. All daemons of the group must agree on this, so the loss of a daemon ends
// the group.
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
#include "engine/runtime/groups/fabric.h"
#include "engine/runtime/groups/group_facts.h"
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
    // Reports that a wait is over. Called once for each wait, on any thread.
    virtual void met() = 0;
  };

  // Identifies an operation that a rank has deposited, until its outcome is taken. Never 0.
  using Ticket = std::uint64_t;

  // A rank without which an elastic group has continued.
  struct Lost {
    collective::Rank rank = 0;
    std::string why;               // follows "rank n " in a sentence
    collective::Number after = 0;  // the last collective in which the rank took part
  };

  // The outcome of a deposited operation.
  struct Outcome {
    core::Status status;
    collective::Rank sender = 0;  // for a receive: the rank that sent the tensor
  };

  // An operation of a rank. The contents are on the host; empty if the call has none.
  struct Part {
    collective::Call call;
    RowMajor operand, result;
  };

  // Computes for all ranks of this daemon. Any thread.
  class Adder {
   public:
    using Address = std::function<char*(const collective::Slice&)>;
    virtual ~Adder() = default;
    // Runs jobs that do not depend on each other.
    virtual core::Status add(std::span<const collective::Job> jobs, const Address& address) = 0;
    // Allocates memory on the host for partial sums; null if there is none.
    virtual core::Ref<memory::Storage> allocate(std::size_t bytes) = 0;
  };

  // A rank of a group. Used by one thread at a time, except for give_up() and leave().
  class Member {
   public:
    virtual ~Member() = default;  // the rank leaves
    virtual collective::Rank rank() const = 0;
    virtual collective::Rank ranks() const = 0;
    virtual bool elastic() const = 0;
    // Returns none if the rank may deposit, or if the group has ended. Otherwise not all ranks have
    // joined, and the returned ticket waits for them.
    virtual std::optional<Ticket> begin() = 0;
    // Deposits the rank's next collective, send or receive. A send ends at once: the group keeps
    // its operand until it is received. Precondition: begin() has returned none. After image() a
    // deposit stays open.
    virtual Ticket deposit(Part part) = 0;
    // Reports that the rank cannot take part in its next collective, which then fails on all ranks,
    // or in a send or receive, which then fails on the other rank.
    virtual void decline(collective::Call call, const core::Status& why) = 0;
    // Begins an operation that ends when everything that the rank has sent is received.
    // Precondition: as for deposit().
    virtual Ticket await_sends() = 0;
    virtual bool ended(Ticket ticket) = 0;
    // Registers a waiter; only one for each ticket. Returns true if it will be called once, and
    // false if the operation has already ended.
    virtual bool wait(Ticket ticket, Waiter* waiter) = 0;
    // Returns the outcome and invalidates the ticket. Precondition: the operation has ended.
    virtual Outcome take(Ticket ticket) = 0;
    // Ends the group if an operation that the rank has deposited has not ended; an elastic group
    // continues without the rank. Any thread.
    virtual void give_up(const std::string& why) = 0;
    // Lets the rank leave: later collectives of the group fail with the reason "rank n `why`".
    // Collectives that have ended for this rank succeed for the other ranks too. If an operation of
    // the rank has not ended or has not been received, the group ends. An elastic group continues
    // without the rank, unless the member is destroyed without this call. Any thread.
    virtual void leave(const std::string& why) = 0;
    // Sets the timeout of the rank's later deposits.
    virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
    // Returns true if another rank waits for this rank's next collective. Any thread.
    virtual bool wanted() = 0;
    // Returns true if an operation of the group is open, here or on another daemon that shuts
    // down. Any thread.
    virtual bool busy() = 0;
    // Returns true if no later collective of the group's epoch can complete.
    virtual bool over() = 0;
    // The state with which the rank continues after a restart, without the session's number of the
    // group; none if the group has ended. The group does not change any more after this call.
    // Precondition: rest() returned true, or hold_open() was called.
    virtual std::optional<program::Image::Group> image() = 0;
    // Calls the waiters of this rank if the group does not change any more, because its session
    // ends. Any thread.
    virtual void end_waits() = 0;
  };

  // Counts the memory that open collectives of a session use, for as long as the object exists.
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
  // Bytes used by open collectives of all sessions. Any thread.
  std::uint64_t kept() const { return kept_.load(std::memory_order_relaxed); }

  struct Join {
    std::string user, name;  // together they identify the group
    collective::Rank rank = 0, ranks = 1;
    std::chrono::milliseconds timeout{0};  // for a collective, counted from its deposit
    std::string who;                       // "session 7 (training)", for error messages
    // The group continues without ranks that are lost; equal on all ranks.
    bool elastic = false;
    // Returns true if the program that joins is connected; null: it always is. Called on any thread
    // and under locks, until the member is destroyed.
    std::function<bool()> attended{};
    // Called once for each rank that an elastic group has lost, when the outcome of a collective
    // without that rank is taken, by the thread that takes it.
    std::function<void(const Lost&)> on_lost{};
    // The program is this rank of the group already, and stays that: while the present epoch of the
    // elastic group continues without some ranks, this rank waits for the next one with all ranks.
    bool again = false;
  };

  // `adder` must outlive this object.
  explicit Groups(Adder& adder) : adder_(adder) {}
  // Precondition: there are no members.
  ~Groups() override;
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  // Joins a group, which the first rank creates. If the rank is taken, the group begins anew: a
  // program that is started again does not wait for the remaining ranks of its previous run, which
  // are informed. A rank that joins again after it has left also begins the group anew, and the
  // ranks that have not left may finish their transfers. With another number of ranks, a rank is
  // refused while programs of the group are connected, and ends the group if it still waits for
  // ranks; otherwise it begins the group anew. A rank that an elastic group has lost waits for the
  // next epoch of the group, while the present one continues without it. The next epoch forms like
  // the first one when all ranks have joined it: the lost ones, and the others `again`.
  core::Result<std::shared_ptr<Member>> join(Join join);
  // The groups of this daemon's sessions. Any thread.
  std::vector<GroupFacts> all();

  // Brings all groups to rest; it is called repeatedly. Returns true if they are at rest on all
  // daemons, or have ended. Precondition: a rank of this daemon without open operations deposits
  // nothing until it is wanted or the group is busy.
  bool rest();
  // Ends the groups that are not at rest, with the reason "rank n `why`".
  void end_moving(const std::string& why);
  // Lets no group change any more, although collectives are open: their images are those of groups
  // in which these are not called yet. A deposit after this call stays open. Groups for which that
  // is not possible end like those of end_moving(). Returns false while groups with ranks in other
  // daemons wait for these to come to rest; it is called again then.
  bool hold_open(const std::string& why);
  // Like join(), for a rank that is restored from an image. The group continues after restored(),
  // when all its ranks of this daemon are present.
  core::Result<std::shared_ptr<Member>> restore(Join join, const program::Image::Group& group);
  // Called when no further rank will be restored. Ends the groups that lack a rank of this daemon.
  void restored();

  // Allows groups with ranks in other daemons from now on. The fabric must outlive all members, and
  // must call the returned receiver. Precondition: no rank has joined.
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

  void watch();  // runs on a thread that checks deadlines
  void left(const EpochRef& epoch, const Key& key);
  GroupFacts facts_of(const Key& key, const EpochRef& epoch) const TT_REQUIRES(mu_);
  void tell_all(const PeerMessage& message) TT_REQUIRES(mu_);
  core::Result<bool> agree(const Key& key, const Join& join);
  // Returns why the rank cannot join because of a rank of another daemon; empty if it can.
  std::string enter(const EpochRef& epoch, const Join& join) TT_REQUIRES(mu_);
  void tell_running(const std::string& peer, const PeerMessage& message) TT_REQUIRES(mu_);
  // Withdraws the registrations of an abandoned epoch.
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
  // The epoch of a group that continues while its next one forms, or otherwise the latest one; null
  // if there is none.
  EpochRef present(const Key& key) const TT_REQUIRES(mu_);
  std::map<collective::Rank, std::pair<std::string, std::uint64_t>> known_ranks(
      const Key& key, const EpochRef& epoch) const TT_REQUIRES(mu_);
  std::string missing(const Key& key, const EpochRef& epoch) const TT_REQUIRES(mu_);
  std::vector<EpochRef> all_epochs() TT_EXCLUDES(mu_);
  // The epoch of the group with this id; null if it is not known.
  EpochRef known_epoch(const Key& key, const EpochId& id) const TT_REQUIRES(mu_);
  core::Status restorable(const program::Image::Group& group) const;
  // Sends the peer the list of this daemon's groups that have ranks on the peer.
  void tell_kept(const std::string& peer) TT_REQUIRES(mu_);
  void returned(const std::string& peer, const PeerMessage& message);

  Adder& adder_;
  std::atomic<std::uint64_t> kept_{0};
  Fabric* fabric_ = nullptr;  // null if there are no peers
  core::Mutex mu_;
  core::CondVar changed_;
  std::map<Key, EpochRef> epochs_ TT_GUARDED_BY(mu_);  // the latest epoch of each group
  // Earlier epochs that still have ranks.
  std::vector<std::pair<Key, EpochRef>> earlier_ TT_GUARDED_BY(mu_);
  // ---- for groups with ranks in several daemons
  std::map<EpochId, EpochRef> running_ TT_GUARDED_BY(mu_);
  std::map<EpochId, Forming> forming_ TT_GUARDED_BY(mu_);
  std::map<std::uint64_t, Local> locals_ TT_GUARDED_BY(mu_);  // registrations by ticket
  std::map<std::pair<std::string, std::uint64_t>, PeerMessage> remotes_
      TT_GUARDED_BY(mu_);  // registrations of peers, by (peer, ticket)
  std::uint64_t tickets_ TT_GUARDED_BY(mu_) = 0, formed_ TT_GUARDED_BY(mu_) = 0;
  std::vector<EpochRef> returning_ TT_GUARDED_BY(mu_);  // restored epochs, until restored()
  // Peers that restored() has already told, until they connect.
  std::set<std::string> told_ TT_GUARDED_BY(mu_);
  std::uint64_t stamp_ TT_GUARDED_BY(mu_) = 0;  // identifies the images of this daemon's groups
  bool stopping_ TT_GUARDED_BY(mu_) = false;
  std::thread watcher_ TT_GUARDED_BY(mu_);
};

}  // namespace teletensor::runtime
