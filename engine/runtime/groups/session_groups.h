// SessionGroups: the groups in which a session is a rank (groups.h), by the session's own numbers
// of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/program/image.h"
#include "engine/runtime/groups/groups.h"

namespace teletensor::runtime {

class SessionGroups {
 public:
  using MemberRef = std::shared_ptr<Groups::Member>;
  static constexpr std::size_t kMaxGroups = program::Join::kMaxGroups;
  static constexpr std::uint64_t kAllGroups = UINT64_MAX;  // passed to leave all groups
  static constexpr char kShutsDown[] = "has a daemon that shuts down";

  // `groups` is null if the daemon does not support groups.
  explicit SessionGroups(Groups* groups) : groups_(groups) {}

  // ---- Functions of the session task.

  // Returns the member of a group, or the error with which joining it has failed. Null if the
  // session is not in the group.
  const core::Result<MemberRef>* find(std::uint64_t number) const;
  // Returns the member of a group that the session's present client has joined; null if it has not,
  // or if the group's next epoch, for which it waits, is over: then it joins again.
  Groups::Member* known(std::uint64_t number) const;
  // Joins a group by the command `seq`, unless `refusal` is an error. Returns the error if the
  // session has not joined; then each collective of the group fails with this error.
  core::Status join(std::uint64_t seq, std::uint64_t number, Groups::Join join,
                    core::Status refusal);
  void leave(std::uint64_t number);
  // Ends these groups, with the reason "rank n `why`".
  void end(std::span<const std::uint64_t> numbers, const std::string& why);
  // The groups that continue after a restart. Precondition: the session is drained, and at rest
  // with these groups.
  std::vector<program::Image::Group> images() const;
  // Rejoins a group of a restored session.
  void restore(Groups::Join join, const program::Image::Group& group);

  // ---- Functions for any thread.

  // The commands after `seq` are those of the session's next client. When it joins a group that an
  // earlier client has joined, it replaces that member.
  void take_over(std::uint64_t seq) { taken_over_at_.store(seq, std::memory_order_relaxed); }
  // Returns true if the session is in a group.
  bool any() const;
  // Ends all groups of the session, with the reason "rank n `why`".
  void end_all(const std::string& why) const;
  // Ends all groups of the session; from now on it joins none, because the daemon shuts down.
  void shut_down();
  bool shuts_down() const { return shuts_down_.load(std::memory_order_relaxed); }
  // Returns true if another rank waits for this session.
  bool wanted() const;
  // Returns true if an operation of one of the groups is open.
  bool busy() const;
  // Calls the waiters of groups that do not change any more.
  void end_waits() const;

 private:
  struct Joined {
    core::Result<MemberRef> member;
    std::uint64_t at = 0;  // the command that joined the group; 0: restored from a snapshot
    std::string name;
    bool again = false;  // see Groups::Join
  };

  core::Result<MemberRef> member_of(std::uint64_t number, Groups::Join join, core::Status refusal);
  // Returns `join` of the command `seq`, attended only by the client that has sent this command.
  Groups::Join of_client(std::uint64_t seq, Groups::Join join) const;
  // The member that the session's present client has made of a group; null if there is none.
  Groups::Member* own(const Joined& joined) const;
  // Returns true if the session's present client has joined a group of this name by another number.
  bool has(const std::string& name, std::uint64_t but) const;
  void remember(const MemberRef& member);
  std::vector<MemberRef> members() const;

  Groups* const groups_;
  std::atomic<bool> shuts_down_{false};
  std::atomic<std::uint64_t> taken_over_at_{0};  // the last command of an earlier client
  // Used by the session task only.
  std::map<std::uint64_t, Joined> joined_;  // by number

  mutable core::Mutex mu_;
  std::vector<std::weak_ptr<Groups::Member>> members_ TT_GUARDED_BY(mu_);  // some may have expired
};

}  // namespace teletensor::runtime
