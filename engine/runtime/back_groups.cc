// The back's part in groups (groups.h): joining and leaving them, and waiting for other ranks.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/back.h"

namespace teletensor::runtime {

using core::Status;

namespace {

constexpr char kInterrupted[] = "was interrupted";
constexpr char kShutsDown[] = "has a daemon that shuts down";

}  // namespace

// Each collective of a group that could not be joined has that error.
void Back::run_group(Entry& entry) {
  Entry::Group& group = *entry.group;
  if (!group.join) return executor_.leave(group.number);
  Status status = refusal(entry);
  if (status.ok() && groups_end_) {
    status = core::invalid("joining group \"" + group.join->name + "\": the daemon shuts down");
  }
  if (status.ok() && groups_ == nullptr) status = core::unimplemented("this daemon has no groups");
  if (status.ok() && executor_.groups() >= kMostGroups) {
    status = Status(core::Code::kResourceExhausted,
                    "joining group \"" + group.join->name + "\": the session is in " +
                        std::to_string(kMostGroups) + " groups, which is the maximum");
  }
  core::Result<std::shared_ptr<Groups::Member>> member(status);
  if (status.ok()) {
    try {
      member = groups_->join(std::move(*group.join));
    } catch (const std::exception& error) {  // the daemon has no memory, or no thread
      member =
          Status(core::Code::kResourceExhausted, std::string("joining a group: ") + error.what());
    }
  }
  if (member.ok()) {
    core::MutexLock lock(mu_);
    std::erase_if(members_, [](const auto& known) { return known.expired(); });
    members_.push_back(*member);
  } else {
    record_failure(entry, member.status());
  }
  executor_.join(group.number, std::move(member));
}

// The session stops before a collective that waits for other ranks. Returns false where the
// collective has ended by now.
bool Back::wait_for_group() {
  const std::shared_ptr<Groups::Member> member = executor_.waits();
  const std::uint64_t seq = current_->front().instruction.seq;
  {
    core::MutexLock lock(mu_);
    group_wait_ = {};
    group_wait_.member = member;
    group_wait_.seq = seq;
  }
  if (!member->wait(this)) {
    core::MutexLock lock(mu_);
    group_wait_ = {};
    return false;
  }
  {
    core::MutexLock lock(mu_);
    if (group_wait_.member == member && group_wait_.seq == seq) group_wait_.told = true;
  }
  // An interrupt or a stop that came before group_wait_ was set has not seen the wait.
  if (stopping_ || groups_end_) {
    member->leave(stopping_ ? kSessionEnds : kShutsDown);
  } else if (seq < cancel_below_.load(std::memory_order_relaxed)) {
    member->give_up(kInterrupted);
  }
  return true;
}

void Back::met() {
  {
    core::MutexLock lock(mu_);
    if (group_wait_.lent) {
      group_wait_.met = true;
      return;
    }
    group_wait_ = {};
  }
  lanes_.ready(this);
}

void Back::interrupt_group(std::uint64_t upto) {
  std::shared_ptr<Groups::Member> member;
  {
    core::MutexLock lock(mu_);
    if (group_wait_.seq <= upto) member = group_wait_.member;
  }
  if (member) member->give_up(kInterrupted);
}

void Back::leave_groups(const std::string& why) {
  std::vector<std::shared_ptr<Groups::Member>> members;
  {
    core::MutexLock lock(mu_);
    for (const auto& known : members_) {
      if (auto member = known.lock()) members.push_back(std::move(member));
    }
  }
  for (const auto& member : members) member->leave(why);
}

void Back::end_groups() {
  groups_end_ = true;
  leave_groups(kShutsDown);
}

}  // namespace teletensor::runtime
