#include "engine/runtime/groups/session_groups.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace teletensor::runtime {

using core::Status;

// ---------------------------------------------------------------- functions of the session task

const core::Result<SessionGroups::MemberRef>* SessionGroups::find(std::uint64_t number) const {
  const auto found = joined_.find(number);
  return found == joined_.end() ? nullptr : &found->second.member;
}

Groups::Member* SessionGroups::known(std::uint64_t number) const {
  const auto found = joined_.find(number);
  if (found == joined_.end()) return nullptr;
  const Joined& joined = found->second;
  Groups::Member* const member = own(joined);
  const bool waits = member != nullptr && joined.again && has(joined.name, number);
  return waits && member->over() ? nullptr : member;
}

Groups::Member* SessionGroups::own(const Joined& joined) const {
  if (!joined.member.ok()) return nullptr;
  const std::uint64_t taken_over_at = taken_over_at_.load(std::memory_order_relaxed);
  if (taken_over_at != 0 && joined.at <= taken_over_at) return nullptr;
  return joined.member->get();
}

Status SessionGroups::join(std::uint64_t seq, std::uint64_t number, Groups::Join join,
                           Status refusal) {
  std::string name = join.name;
  const bool again = join.again = has(name, number);
  auto member = member_of(number, of_client(seq, std::move(join)), std::move(refusal));
  const Status status = member.status();
  if (member.ok()) remember(*member);
  joined_.insert_or_assign(number, Joined{std::move(member), seq, std::move(name), again});
  return status;
}

bool SessionGroups::has(const std::string& name, std::uint64_t but) const {
  return std::any_of(joined_.begin(), joined_.end(), [&](const auto& entry) {
    return entry.first != but && entry.second.name == name && own(entry.second) != nullptr;
  });
}

Groups::Join SessionGroups::of_client(std::uint64_t seq, Groups::Join join) const {
  join.attended = [this, seq, has_client = std::move(join.attended)] {
    const std::uint64_t taken_over_at = taken_over_at_.load(std::memory_order_relaxed);
    return (taken_over_at == 0 || seq > taken_over_at) && (!has_client || has_client());
  };
  return join;
}

core::Result<SessionGroups::MemberRef> SessionGroups::member_of(std::uint64_t number,
                                                                Groups::Join join, Status refusal) {
  if (!refusal.ok()) return refusal;
  const std::string what = "joining group \"" + join.name + "\": ";
  if (shuts_down_) return core::invalid(what + "the daemon shuts down");
  if (groups_ == nullptr) return core::unimplemented("this daemon has no groups");
  if (joined_.size() >= kMaxGroups && !joined_.contains(number)) {
    return Status(
        core::Code::kFailedPrecondition,
        what + "the session is in " + std::to_string(kMaxGroups) + " groups, which is the maximum");
  }
  try {
    return groups_->join(std::move(join));
  } catch (const std::exception& error) {  // the daemon has no memory or cannot start a thread
    return Status(core::Code::kResourceExhausted, std::string("joining a group: ") + error.what());
  }
}

void SessionGroups::leave(std::uint64_t number) {
  if (number == kAllGroups) {
    joined_.clear();
  } else {
    joined_.erase(number);
  }
}

void SessionGroups::end(std::span<const std::uint64_t> numbers, const std::string& why) {
  for (const std::uint64_t number : numbers) {
    const auto* const member = find(number);
    if (member != nullptr && member->ok()) (**member)->leave(why);
  }
}

std::vector<program::Image::Group> SessionGroups::images() const {
  std::vector<program::Image::Group> images;
  for (const auto& [number, joined] : joined_) {
    if (!joined.member.ok()) continue;
    if (auto image = (*joined.member)->image()) {
      image->number = number;
      images.push_back(std::move(*image));
    }
  }
  return images;
}

void SessionGroups::restore(Groups::Join join, const program::Image::Group& group) {
  core::Result<MemberRef> member(core::unimplemented("this daemon has no groups"));
  const bool again = join.again = has(group.name, group.number);
  if (groups_ != nullptr) member = groups_->restore(of_client(0, std::move(join)), group);
  if (member.ok()) remember(*member);
  joined_.insert_or_assign(group.number, Joined{std::move(member), 0, group.name, again});
}

// ---------------------------------------------------------------- functions for any thread

void SessionGroups::remember(const MemberRef& member) {
  core::MutexLock lock(mu_);
  std::erase_if(members_, [](const auto& known) { return known.expired(); });
  members_.push_back(member);
}

std::vector<SessionGroups::MemberRef> SessionGroups::members() const {
  std::vector<MemberRef> members;
  core::MutexLock lock(mu_);
  for (const auto& known : members_) {
    if (auto member = known.lock()) members.push_back(std::move(member));
  }
  return members;
}

bool SessionGroups::any() const {
  core::MutexLock lock(mu_);
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& known) { return !known.expired(); });
}

void SessionGroups::end_all(const std::string& why) const {
  for (const auto& member : members()) member->leave(why);
}

void SessionGroups::shut_down() {
  shuts_down_ = true;
  end_all(kShutsDown);
}

bool SessionGroups::wanted() const {
  const auto all = members();
  return std::any_of(all.begin(), all.end(), [](const auto& each) { return each->wanted(); });
}

bool SessionGroups::busy() const {
  const auto all = members();
  return std::any_of(all.begin(), all.end(), [](const auto& each) { return each->busy(); });
}

void SessionGroups::end_waits() const {
  for (const auto& member : members()) member->end_waits();
}

}  // namespace teletensor::runtime
