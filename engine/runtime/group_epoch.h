// GroupEpoch: a group from its first join to its end, as far as it is in this daemon.
//
// It keeps what the participant (engine/collective) needs from an owner: the operands, the results
// and the staging of what is open, and the additions. Its messages go to other daemons by the
// fabric. A group without other daemons is formed from the start.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/collective/participant.h"
#include "engine/runtime/groups.h"

namespace teletensor::runtime {

class GroupEpoch {
 public:
  using Waiter = Groups::Waiter;
  using Part = Groups::Part;
  using Ticket = Groups::Ticket;

  // `fabric` is null where all ranks are in this daemon.
  GroupEpoch(const Groups::Join& join, Groups::Adder& adder, Fabric* fabric);
  // The group of an image goes on, when its ranks have come back and after restored().
  // Precondition: the image has places, which are right.
  GroupEpoch(const program::Image::Group& image, Groups::Adder& adder, Fabric* fabric);

  collective::Rank ranks() const { return static_cast<collective::Rank>(ranks_.size()); }
  bool ended();
  // A rank has left or is lost: no rank can join, and no new collective can complete.
  bool closed();
  bool formed();
  bool has_ranks();  // of this daemon, that have not left
  // All but the user, and without the ranks of other daemons while it forms.
  GroupFacts facts();
  std::vector<std::string> daemons();  // in the order of places; empty: it has not formed

  // ---- Forming

  // False: the rank is taken, or the group has formed or ended.
  bool join(const Groups::Join& join);
  // The group is formed of these places, of which this daemon is `own`. Its ranks wait for go().
  // Precondition: it has neither formed nor ended.
  void form(const EpochId& id, std::vector<PeerMessage::Place> places, collective::Place own);
  // The ranks may begin.
  void go();
  // Ends a group that has not formed: "group "g": `why`".
  void abandon(const std::string& why);
  // Why it was abandoned; none: it was not.
  std::optional<std::string> abandoned();

  // ---- Ranks of this daemon (see Groups::Member)

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
  // The rank has begun the group anew: ends the group after the rank's last collective.
  void replace(collective::Rank rank, const std::string& why);
  // Is the rank one of this daemon's sessions, which has not left?
  bool has(collective::Rank rank);
  // After leave(): nothing of the group is the rank's any more.
  void forget(collective::Rank rank);

  // ---- Rest, and restarts (see Groups)

  bool wanted(collective::Rank rank);
  bool busy();
  bool rest();
  void end_moving(const std::string& why);
  std::optional<program::Image::Group> image(collective::Rank rank);
  std::uint64_t stamp() const { return stamp_; }  // of the image; 0: the group was made here
  // False: the group has ended, or has no such rank of this daemon that has not come back.
  bool come_back(const Groups::Join& join);
  void restored();
  // What the daemon has to know of the group when it meets that peer; none: the group has ended, or
  // has no rank there.
  std::optional<PeerMessage::Kept> kept_with(const std::string& daemon);
  // The daemon and this one have met. `kept`: what that has of this group; none: it has nothing.
  void met(const std::string& daemon, const std::optional<PeerMessage::Kept>& kept);

  // ---- Peers, and time

  // InvalidArgument: the daemon breaks the protocol.
  core::Status received(const std::string& daemon, const collective::Message& message,
                        Pieces payload);
  // The group ends where it has ranks in that daemon that have not left: "rank n `why`".
  void lose(const std::string& daemon, const std::string& why);
  // Ends what is beyond its time. `missing` are the ranks that have not joined, for the text.
  void look(Groups::Clock::time_point now, const std::string& missing);

 private:
  struct Declined {
    collective::Call call;
    collective::Failed failed;
  };
  // An operation that a rank has deposited and not taken.
  struct Open {
    enum class Kind : std::uint8_t { kBegin, kCollective, kSend, kReceive, kAwaitSends };
    Kind kind = Kind::kCollective;
    collective::Number number = 0;  // kCollective
    std::uint64_t token = 0;        // kSend, kReceive: in transfers_
    std::optional<core::Status> ended;
    collective::Rank sender = 0;  // kReceive
    Groups::Clock::time_point began{}, deadline{};
    Waiter* waiter = nullptr;
  };
  struct RankState {
    bool joined = false;
    std::string who;
    std::chrono::milliseconds timeout{0};
    collective::Number number = 0;  // of the last collective; 0: none
    std::map<Ticket, Open> open;
    std::set<std::uint64_t> sends;          // tokens of what has not been received
    std::optional<core::Status> lost_send;  // why a send was not received, until await_sends()
    std::vector<Declined> declined;         // before the group has formed
    bool waits() const;
  };
  using Parts = std::map<collective::Rank, Part>;
  struct Transfer {
    collective::Rank rank;
    std::shared_ptr<Part> part;  // null: it was declined
  };
  // The memory of slices. It outlives the collective, which may end while a job or a message needs
  // it.
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
    Held held;  // the memory that they name: an action that follows may free it
  };
  using Waiters = std::vector<Waiter*>;

  Ticket start(collective::Rank rank, Open::Kind kind) TT_REQUIRES(mu_);
  void open_part(collective::Rank rank, Open& open, Part part) TT_REQUIRES(mu_);
  void open_declined(collective::Rank rank, const Declined& declined) TT_REQUIRES(mu_);
  // The token of a transfer; its status where it cannot be.
  core::Result<std::uint64_t> transfer(collective::Rank rank, const collective::Call& call,
                                       std::shared_ptr<Part> part,
                                       const collective::Failed& failed = {}) TT_REQUIRES(mu_);
  void transferred(const collective::Action& action, Waiters& met) TT_REQUIRES(mu_);

  // Ends the group, which has not formed.
  void end_forming(const std::string& why, Waiters& met) TT_REQUIRES(mu_);

  // Runs event(met) under the lock, and does what the participant then asks for until that is
  // nothing. Afterwards, without the lock, the waiters in `met` are told.
  template <class Event>
  void settle(Event&& event);
  void obey(collective::Action& action, Work& work, Waiters& met) TT_REQUIRES(mu_);
  void send(collective::Action& action) TT_REQUIRES(mu_);
  core::Status run(const Work& work);
  static void finish(Open& open, const core::Status& status, Waiters& met);
  static void finish_all(RankState& rank, Open::Kind kind, const core::Status& status,
                         Waiters& met);
  // False: what this is about has ended the group.
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
  void place_ranks(collective::Place own, collective::Participant::Image image) TT_REQUIRES(mu_);
  core::Status abandonment() const TT_REQUIRES(mu_);

  const std::string name_;
  Groups::Adder& adder_;
  Fabric* const fabric_;  // null: there are no other daemons
  core::Mutex mu_;
  EpochId id_ TT_GUARDED_BY(mu_);
  std::vector<PeerMessage::Place> places_ TT_GUARDED_BY(mu_);
  collective::Rank lowest_ TT_GUARDED_BY(mu_) = 0;  // of this daemon
  std::optional<collective::Group> group_ TT_GUARDED_BY(mu_);
  std::optional<collective::Participant> participant_ TT_GUARDED_BY(mu_);  // none: not formed
  bool going_ TT_GUARDED_BY(mu_) = false;
  std::optional<std::string> abandoned_ TT_GUARDED_BY(mu_);  // why it ended before it had formed
  std::vector<RankState> ranks_ TT_GUARDED_BY(mu_);
  std::map<collective::Number, std::shared_ptr<Parts>> parts_ TT_GUARDED_BY(mu_);
  std::map<std::uint64_t, Transfer> transfers_ TT_GUARDED_BY(mu_);  // by token
  std::uint64_t tokens_ TT_GUARDED_BY(mu_) = 0;
  Ticket tickets_ TT_GUARDED_BY(mu_) = 0;
  std::map<collective::Buffer, core::Ref<memory::Storage>> staging_ TT_GUARDED_BY(mu_);
  bool no_memory_ TT_GUARDED_BY(mu_) = false;
  Groups::Clock::time_point looked_ TT_GUARDED_BY(mu_) = Groups::Clock::now();

  const std::uint64_t stamp_ = 0;
  std::set<collective::Rank> awaited_ TT_GUARDED_BY(mu_);  // of the image, that have not come back
  collective::Number run_to_ TT_GUARDED_BY(mu_) = 0;       // the cut, while the group is held
  bool kept_ TT_GUARDED_BY(mu_) = false;  // its image was taken: nothing changes any more
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
      for (collective::Action& action : participant_->take()) obey(action, work, met);
      if (std::exchange(no_memory_, false)) {
        participant_->lost(lowest_, "has no memory for the partial sums");
        continue;
      }
      // No message and no job needs what has finished; what is under way holds its memory.
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
