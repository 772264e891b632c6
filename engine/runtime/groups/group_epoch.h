// GroupEpoch: the part of a group in this daemon, from its first join to its end.
//
// It is the owner of a participant (engine/collective): it keeps the operands, results and staging
// memory of open operations, and runs the additions. It sends messages to other daemons through the
// fabric. A group without other daemons counts as formed from the start.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/collective/participant.h"
#include "engine/runtime/groups/groups.h"

namespace teletensor::runtime {

class GroupEpoch {
 public:
  using Waiter = Groups::Waiter;
  using Part = Groups::Part;
  using Ticket = Groups::Ticket;

  // `fabric` is null if all ranks are in this daemon.
  GroupEpoch(const Groups::Join& join, Groups::Adder& adder, Fabric* fabric);
  // Continues the group of an image, once its ranks have returned and restored() was called.
  // Precondition: the image has places, which were validated.
  GroupEpoch(const program::Image::Group& image, Groups::Adder& adder, Fabric* fabric);

  // The number never changes, so it is read without the lock.
  collective::Rank ranks() const TT_ANNOTATION(no_thread_safety_analysis) {
    return static_cast<collective::Rank>(ranks_.size());
  }
  bool ended();
  // A rank has left or is lost: no rank can join, and no new collective can complete.
  bool closed();
  bool formed();
  bool has_ranks();  // true if ranks of this daemon have not left
  // The facts except the user; while the group forms, also without the ranks of other daemons.
  GroupFacts facts();
  std::vector<std::string> daemons();  // in the order of places; empty: not formed yet

  // ---- Forming

  // Returns false if the rank is taken, or the group has formed or ended.
  bool join(const Groups::Join& join);
  // Forms the group from these places; this daemon is place `own`. The ranks wait for go().
  // Precondition: the group has neither formed nor ended.
  void form(const EpochId& id, std::vector<PeerMessage::Place> places, collective::Place own);
  // Lets the ranks begin.
  void go();
  // Ends a group that has not formed, with the message "group "g": `why`".
  void abandon(const std::string& why);
  // The reason why the group was abandoned; none if it was not.
  std::optional<std::string> abandoned();

  // ---- Functions for the ranks of this daemon (see Groups::Member)

  std::optional<Ticket> begin(collective::Rank rank);
  Ticket deposit(collective::Rank rank, Part part);
  void decline(collective::Rank rank, const collective::Call& call, const core::Status& why);
  Ticket await_sends(collective::Rank rank);
  bool ended(collective::Rank rank, Ticket ticket);
  bool wait(collective::Rank rank, Ticket ticket, Waiter* waiter);
  Groups::Outcome take(collective::Rank rank, Ticket ticket);
  void set_timeout(collective::Rank rank, std::chrono::milliseconds timeout);
  void give_up(collective::Rank rank, const std::string& why);
  void leave(collective::Rank rank, const std::string& why);
  // Handles a rank that has begun the group anew: ends this epoch after the rank's last collective.
  void replace(collective::Rank rank, const std::string& why);
  // Returns true if the rank is a session of this daemon that has not left.
  bool has(collective::Rank rank);
  // Called after leave(): drops everything that belongs to the rank.
  void forget(collective::Rank rank);

  // ---- Rest and restarts (see Groups)

  bool wanted(collective::Rank rank);
  bool busy();
  bool rest();
  void end_moving(const std::string& why);
  bool hold_open(const std::string& why);
  void end_waits(collective::Rank rank);
  std::optional<program::Image::Group> image(collective::Rank rank);
  std::uint64_t stamp() const { return stamp_; }  // from the image; 0: the group was not restored
  // Returns false if the group has ended, or if no rank of this daemon with that number is awaited.
  bool come_back(const Groups::Join& join);
  void restored();
  // The information that is sent when the two daemons connect; none if the group has ended or has
  // no rank in that daemon.
  std::optional<PeerMessage::Kept> kept_with(const std::string& daemon);
  // Handles the first message after the two daemons have connected. `kept` is the other daemon's
  // information about this group; none: it does not know the group.
  void met(const std::string& daemon, const std::optional<PeerMessage::Kept>& kept);

  // ---- Messages and deadlines

  // Returns InvalidArgument if the daemon violates the protocol.
  core::Status received(const std::string& daemon, const collective::Message& message,
                        Pieces payload);
  // Ends the group, with the reason "rank n `why`", if it has ranks in that daemon that have not
  // left.
  void lose(const std::string& daemon, const std::string& why);
  // Ends operations that exceed their deadlines. `missing` lists the ranks that have not joined,
  // for the message.
  void look(Groups::Clock::time_point now, const std::string& missing);

 private:
  struct Declined {
    collective::Call call;
    collective::Failed failed;
  };
  // An operation that a rank has deposited and whose result it has not taken.
  struct Open {
    enum class Kind : std::uint8_t { kBegin, kCollective, kSend, kReceive, kAwaitSends };
    Kind kind = Kind::kCollective;
    collective::Number number = 0;  // set for kCollective
    std::uint64_t token = 0;        // key in transfers_, set for kSend and kReceive
    std::optional<core::Status> ended;
    collective::Rank sender = 0;  // set for kReceive
    Groups::Clock::time_point began{}, deadline{};
    Waiter* waiter = nullptr;
  };
  struct RankState {
    bool joined = false;
    std::string who;
    std::chrono::milliseconds timeout{0};
    collective::Number number = 0;  // number of the last collective; 0: none
    std::map<Ticket, Open> open;
    std::set<std::uint64_t> sends;  // tokens of sends that have not been received
    // The reason why a send was not received; await_sends() reports and clears it.
    std::optional<core::Status> lost_send;
    std::vector<Declined> declined;  // calls declined before the group has formed
    bool waits() const;
  };
  using Parts = std::map<collective::Rank, Part>;
  struct Transfer {
    collective::Rank rank;
    std::shared_ptr<Part> part;  // null: it was declined
  };
  // References to the memory of slices. They outlive the collective, which may end while a job or a
  // message still needs the memory.
  struct Held {
    std::vector<std::shared_ptr<const void>> parts;
    std::vector<core::Ref<memory::Storage>> staging;
    std::map<collective::Buffer, char*> addresses;
    char* at(const collective::Slice& slice) const {
      return addresses.at(slice.buffer) + slice.offset;
    }
  };
  struct Work {
    std::vector<collective::Job> jobs;
    Held held;  // the memory that the jobs use: a later action may free it
  };
  using Waiters = std::vector<Waiter*>;

  Ticket start(collective::Rank rank, Open::Kind kind) TT_REQUIRES(mu_);
  void open_part(collective::Rank rank, Open& open, Part part) TT_REQUIRES(mu_);
  void open_declined(collective::Rank rank, const Declined& declined) TT_REQUIRES(mu_);
  // Starts a transfer and returns its token, or the error if it is invalid.
  core::Result<std::uint64_t> transfer(collective::Rank rank, const collective::Call& call,
                                       std::shared_ptr<Part> part,
                                       const collective::Failed& failed = {}) TT_REQUIRES(mu_);
  void transferred(const collective::Action& action, Waiters& met) TT_REQUIRES(mu_);

  // Ends a group that has not formed.
  void end_forming(const std::string& why, Waiters& met) TT_REQUIRES(mu_);

  // Runs event(met) under the lock, then carries out the participant's actions until there are
  // none. Afterwards, without the lock, notifies the waiters in `met`.
  template <class Event>
  void settle(Event&& event);
  void carry_out(collective::Action& action, Work& work, Waiters& met) TT_REQUIRES(mu_);
  void send(collective::Action& action) TT_REQUIRES(mu_);
  core::Status run(const Work& work);
  static void finish(Open& open, const core::Status& status, Waiters& met);
  static void finish_all(RankState& rank, Open::Kind kind, const core::Status& status,
                         Waiters& met);
  // Returns false if the operation's deadline has ended the group.
  bool look(const RankState& rank, const Open& open, Groups::Clock::time_point now,
            const std::string& missing, Waiters& met) TT_REQUIRES(mu_);
  void end_all(const core::Status& status, Waiters& met) TT_REQUIRES(mu_);
  void part(collective::Rank rank, const std::string& why, bool may_go_on, Waiters& met)
      TT_REQUIRES(mu_);
  void hold(const collective::Slice& slice, Held& held) TT_REQUIRES(mu_);
  void hold(const collective::Job& job, Held& held) TT_REQUIRES(mu_);
  std::optional<collective::Place> place_of(const std::string& daemon) const TT_REQUIRES(mu_);
  bool ended_locked() const TT_REQUIRES(mu_);
  bool closed_locked() const TT_REQUIRES(mu_);
  bool busy_locked() const TT_REQUIRES(mu_);
  bool may_hold_open() const TT_REQUIRES(mu_);
  void place_ranks(collective::Place own, collective::Participant::Image image) TT_REQUIRES(mu_);
  core::Status abandonment() const TT_REQUIRES(mu_);

  const std::string name_;
  Groups::Adder& adder_;
  Fabric* const fabric_;  // null if there are no other daemons
  core::Mutex mu_;
  EpochId id_ TT_GUARDED_BY(mu_);
  std::vector<PeerMessage::Place> places_ TT_GUARDED_BY(mu_);
  collective::Rank lowest_ TT_GUARDED_BY(mu_) = 0;  // lowest rank of this daemon
  std::optional<collective::Group> group_ TT_GUARDED_BY(mu_);
  std::optional<collective::Participant> participant_ TT_GUARDED_BY(mu_);  // none: not formed yet
  bool going_ TT_GUARDED_BY(mu_) = false;
  // The reason why the group ended before it had formed.
  std::optional<std::string> abandoned_ TT_GUARDED_BY(mu_);
  std::vector<RankState> ranks_ TT_GUARDED_BY(mu_);
  std::map<collective::Number, std::shared_ptr<Parts>> parts_ TT_GUARDED_BY(mu_);
  std::map<std::uint64_t, Transfer> transfers_ TT_GUARDED_BY(mu_);  // transfers by their token
  std::uint64_t tokens_ TT_GUARDED_BY(mu_) = 0;
  Ticket tickets_ TT_GUARDED_BY(mu_) = 0;
  std::map<collective::Buffer, core::Ref<memory::Storage>> staging_ TT_GUARDED_BY(mu_);
  bool no_memory_ TT_GUARDED_BY(mu_) = false;
  Groups::Clock::time_point looked_ TT_GUARDED_BY(mu_) = Groups::Clock::now();

  const std::uint64_t stamp_ = 0;
  // Ranks of the restored image that have not joined again.
  std::set<collective::Rank> awaited_ TT_GUARDED_BY(mu_);
  collective::Number run_to_ TT_GUARDED_BY(mu_) = 0;  // the cut, while the group is held
  bool kept_ TT_GUARDED_BY(mu_) = false;  // the image is taken: nothing changes any more
};

template <class Event>
void GroupEpoch::settle(Event&& event) {
  Waiters met;
  {
    core::MutexLock lock(mu_);
    if (kept_) return;
    event(met);
    while (participant_) {
      Work work;
      for (collective::Action& action : participant_->take()) carry_out(action, work, met);
      if (std::exchange(no_memory_, false)) {
        participant_->lost(lowest_, "has no memory for the partial sums");
        continue;
      }
      // Finished operands are needed by no message and no job; unfinished ones hold references to
      // their memory.
      parts_.erase(parts_.begin(), parts_.upper_bound(participant_->finished()));
      if (work.jobs.empty()) break;
      mu_.unlock();
      const core::Status status = run(work);
      mu_.lock();
      if (!status.ok()) participant_->lost(lowest_, "cannot add: " + status.message());
      for (const collective::Job& job : work.jobs) participant_->reduced(job.id);
    }
  }
  for (Waiter* const waiter : met) waiter->met();
}

}  // namespace teletensor::runtime
