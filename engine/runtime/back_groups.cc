// Back's part in groups (groups.h): joining and leaving them, and open collectives.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/back.h"

namespace teletensor::runtime {

using core::Status;
using program::Operand;

namespace {

constexpr char kInterrupted[] = "was interrupted";
constexpr char kShutsDown[] = "has a daemon that shuts down";

std::string stopped(const program::Failure& why) { return "has stopped: " + why.status.message(); }

}  // namespace

// The member whose timeout the entry changes, if it joins a group that the session is already in;
// otherwise null.
Groups::Member* Back::known_member(const Entry& entry) const {
  if (!entry.group->join) return nullptr;
  const auto known = executor_.joined().find(entry.group->number);
  const auto joined = joined_at_.find(entry.group->number);
  const std::uint64_t joined_at = joined == joined_at_.end() ? 0 : joined->second;
  const std::uint64_t taken_over_at = taken_over_at_.load(std::memory_order_relaxed);
  if (taken_over_at != 0 && joined_at <= taken_over_at) return nullptr;  // an earlier client joined
  return known != executor_.joined().end() && known->second.ok() ? known->second->get() : nullptr;
}

void Back::leave_group(std::uint64_t number) {
  if (number == kAllGroups) {
    joined_at_.clear();
    return executor_.leave_all();
  }
  joined_at_.erase(number);
  executor_.leave(number);
}

// If joining fails, each collective of the group fails with that error.
void Back::run_group(Entry& entry) {
  Entry::Group& group = *entry.group;
  if (!group.join) return leave_group(group.number);
  if (Groups::Member* const known = known_member(entry)) {
    return known->set_timeout(group.join->timeout);
  }
  Status status = refusal(entry);
  if (status.ok() && groups_end_) {
    status = core::invalid("joining group \"" + group.join->name + "\": the daemon shuts down");
  }
  if (status.ok() && groups_ == nullptr) status = core::unimplemented("this daemon has no groups");
  if (status.ok() && executor_.groups() >= kMaxGroups) {
    status = Status(core::Code::kResourceExhausted,
                    "joining group \"" + group.join->name + "\": the session is in " +
                        std::to_string(kMaxGroups) + " groups, which is the maximum");
  }
  core::Result<std::shared_ptr<Groups::Member>> member(status);
  if (status.ok()) {
    try {
      member = groups_->join(std::move(*group.join));
    } catch (const std::exception& error) {  // the daemon has no memory or cannot start a thread
      member =
          Status(core::Code::kResourceExhausted, std::string("joining a group: ") + error.what());
    }
  }
  if (member.ok()) {
    core::MutexLock lock(mu_);
    std::erase_if(members_, [](const auto& known) { return known.expired(); });
    members_.push_back(*member);
    joined_at_[group.number] = entry.instruction.seq;
  } else {
    record_failure(entry, member.status());
  }
  executor_.join(group.number, std::move(member));
}

// ---------------------------------------------------------------- open collectives

void Back::keep_open(program::Instruction instruction, bool of_program) {
  OpenCollective& added = collectives_.emplace_back();
  added.instruction = std::move(instruction);
  keep_geometry(added, added.instruction);
  // The attributes of a program's step belong to the call as well.
  if (executor_.origin() != nullptr) added.origin = *executor_.origin();
  if (of_program) {
    added.attributes = std::make_unique<core::Attributes>(*added.instruction.attributes);
    added.instruction.attributes = added.attributes.get();
  }
  added.open = executor_.take_opened();
  added.group = executor_.meets(added.instruction);
  added.kept = std::make_unique<Groups::Kept>(*groups_, added.open.bytes);
  // The group has the contents of the operand.
  const Operand& operand = added.instruction.operands[0];
  added.operand_dtype = operand.dtype;
  added.operand_shape = operand.geometry->shape;
  added.instruction.operands.clear();
  executor_.set_open(true);
  const std::uint64_t seq = added.instruction.seq;
  {
    core::MutexLock lock(mu_);
    opened_.emplace(seq, added.open.member);
  }
  end_if_stopped(*added.open.member, seq);
}

// The geometry of a program's step belongs to the call, which may end earlier.
void Back::keep_geometry(OpenCollective& open, program::Instruction& instruction) {
  for (program::ResultSlot& result : instruction.results) {
    if (result.geometry != nullptr) {
      result.geometry = &open.geometries.emplace_back(*result.geometry);
    }
  }
}

void Back::close_ended() {
  for (auto at = collectives_.begin(); at != collectives_.end();) {
    if (!at->open.member->ended(at->open.ticket)) {
      ++at;
      continue;
    }
    {
      core::MutexLock lock(mu_);
      const auto [first, last] = opened_.equal_range(at->instruction.seq);
      opened_.erase(std::find_if(
          first, last, [&](const auto& known) { return known.second == at->open.member; }));
    }
    Status status = executor_.close(at->instruction, std::move(at->open));
    if (!status.ok() && !at->origin.empty()) status = Executor::located(status, at->origin);
    if (status.ok()) {
      for (program::Instruction& copy : at->copies) executor_.share(copy);
    } else {
      fail_open(*at, status);
    }
    at = collectives_.erase(at);
  }
  executor_.set_open(!collectives_.empty());
}

// A collective that was ended by an interrupt fails like an instruction that the interrupt
// prevented.
void Back::fail_open(OpenCollective& ended, const core::Status& status) {
  const std::uint64_t seq = ended.instruction.seq;
  bool root = true;
  FailureRef failure;
  if (seq < cancel_below_.load(std::memory_order_relaxed)) {
    failure = cancelled_failure(seq, &root);
  } else {
    failure = executor_.failures().make(seq, status);
  }
  executor_.fail(ended.instruction, failure);
  record(ended.instruction, failure, root);
  for (program::Instruction& copy : ended.copies) {
    executor_.fail(copy, failure);
    record(copy, failure, false);
  }
}

Back::OpenCollective* Back::find_open(const Operand& operand) {
  if (!operand.value || operand.value->contents || operand.value->failure) return nullptr;
  const auto makes = [&](const program::Instruction& instruction) {
    return std::any_of(instruction.results.begin(), instruction.results.end(),
                       [&](const auto& result) { return result.value == operand.value; });
  };
  for (OpenCollective& each : collectives_) {
    if (makes(each.instruction) || std::any_of(each.copies.begin(), each.copies.end(), makes)) {
      return &each;
    }
  }
  return nullptr;  // made by a step of the same loop
}

Back::OpenCollective* Back::find_open(std::span<const Operand> operands) {
  if (collectives_.size() >= kMaxOpen) return &collectives_.front();
  for (const Operand& operand : operands) {
    if (OpenCollective* const found = find_open(operand)) return found;
  }
  return nullptr;
}

// A rank that runs ahead must leave memory to slower ranks. It may always run ahead by one
// collective in each group, so groups that are used in different orders do not block each other.
Back::OpenCollective* Back::find_memory_blocker(const program::Instruction& instruction) {
  const std::uint64_t total = executor_.pool(kHostIndex).device().budget().total();
  if (groups_->kept() < total / kOpenPart) return nullptr;
  const Groups::Member* const group = executor_.meets(instruction);
  if (group == nullptr) return nullptr;
  const auto found = std::find_if(collectives_.begin(), collectives_.end(),
                                  [&](const auto& each) { return each.group == group; });
  return found == collectives_.end() ? nullptr : &*found;
}

Back::OpenCollective* Back::find_open(const Entry& entry) {
  if (entry.kind == Entry::Kind::kGroup && !collectives_.empty() &&
      known_member(entry) == nullptr) {
    return &collectives_.front();
  }
  if (entry.call) return find_open(std::span(entry.call->inputs()));
  return find_open(std::span(entry.instruction.operands));
}

// Makes the session task stop until `found` has ended. Returns false if it has ended by now.
bool Back::stop_for(OpenCollective* found) {
  if (found->open.member->ended(found->open.ticket)) {
    close_ended();
    return false;
  }
  blocker_ = found;
  return true;
}

Back::Next Back::next(Entry& entry) {
  if (entry.kind == Entry::Kind::kRun) return next(entry.instruction, entry.refused != nullptr);
  while (OpenCollective* const found = find_open(entry)) {
    if (stop_for(found)) return Next::kStop;
  }
  return Next::kRun;
}

Back::Next Back::next(program::Instruction& instruction, bool refused) {
  const auto& operands = instruction.operands;
  refused = refused || instruction.seq < cancel_below_.load(std::memory_order_relaxed);
  while (OpenCollective* const found = refused ? nullptr : find_memory_blocker(instruction)) {
    if (stop_for(found)) return Next::kStop;
  }
  while (OpenCollective* const found = find_open(std::span(operands))) {
    if (found->open.member->ended(found->open.ticket)) {
      close_ended();
      continue;
    }
    if (!refused && operands.size() == 2 &&
        operands[1].value == found->instruction.results[0].value &&
        find_open(operands[0]) == nullptr && executor_.may_share(instruction)) {
      keep_geometry(*found, found->copies.emplace_back(std::move(instruction)));
      return Next::kRan;
    }
    blocker_ = found;
    return Next::kStop;
  }
  return Next::kRun;
}

// ---------------------------------------------------------------- calls of programs

class Back::CallOf final : public ProgramRun::Caller {
 public:
  CallOf(Back& back, Entry& entry, core::Clock::time_point until)
      : back_(back), entry_(entry), until_(until) {}

  bool stop() override {
    if (back_.stopping_.load(std::memory_order_relaxed)) return true;
    bool root = false;
    if (entry_.refused) {
      root = std::exchange(back_.refused_, entry_.refused) != entry_.refused;
      back_.cancel_call(entry_, entry_.refused, root, stopped(*entry_.refused));
    } else if (entry_.instruction.seq < back_.cancel_below_.load(std::memory_order_relaxed)) {
      const FailureRef failure = back_.cancelled_failure(entry_.instruction.seq, &root);
      back_.cancel_call(entry_, failure, root, kInterrupted);
    }
    return core::Clock::now() >= until_;
  }
  void failed(const program::Instruction& instruction, const FailureRef& failure,
              bool root) override {
    back_.record(instruction, failure, root);
  }
  void opened(program::Instruction instruction) override {
    back_.keep_open(std::move(instruction), true);
  }
  Next next(program::Instruction& instruction) override {
    return back_.next(instruction, entry_.refused != nullptr);
  }
  bool ready(std::span<const Operand> operands) override {
    while (OpenCollective* const found = back_.find_open(operands)) {
      if (back_.stop_for(found)) return false;
    }
    return true;
  }

 private:
  Back& back_;
  Entry& entry_;
  const core::Clock::time_point until_;
};

// Returns false if it was cancelled earlier.
bool Back::cancel_call(Entry& entry, const FailureRef& failure, bool root, const std::string& why) {
  if (!entry.call->cancel(failure)) return false;
  if (entry.call->leaves_out()) executor_.end_groups(entry.call->groups(), why);
  record(entry.instruction, failure, root);
  return true;
}

// Runs a call of a program for at most its time on the lane. Returns false if the call has not
// ended by then.
bool Back::run_call(Entry& entry, core::Clock::time_point until) {
  CallOf caller(*this, entry, until);
  try {
    return entry.call->run(executor_, plans_.stats(), caller);
  } catch (const std::bad_alloc&) {
    const auto failure = executor_.failures().make(
        entry.instruction.seq,
        Status(core::Code::kResourceExhausted, "call: the daemon process is out of memory"));
    // If it was cancelled earlier, there is no memory to report the failure either.
    if (!cancel_call(entry, failure, true, stopped(*failure))) throw;
    return false;
  }
}

// Requests a notification at the end. Returns true if met() will be called, false if it has ended
// by now.
bool Back::request_notification(Executor::Open& open) {
  if (open.told) return !open.member->ended(open.ticket);
  {
    core::MutexLock lock(mu_);
    ++pending_notifications_;
  }
  open.told = open.member->wait(open.ticket, this);
  if (open.told) return true;
  core::MutexLock lock(mu_);
  --pending_notifications_;
  return false;
}

// The session stops until `open` has ended. Returns false if the session can continue now.
bool Back::wait_for(Executor::Open& open, std::uint64_t seq) {
  if (!request_notification(open)) return false;
  // After the lock is released, another lane may run this session.
  const std::shared_ptr<Groups::Member> member = open.member;
  {
    core::MutexLock lock(mu_);
    if (std::exchange(woken_, false)) return false;
    group_wait_ = {member, seq};
  }
  end_if_stopped(*member, seq);
  return true;
}

// Repeats an interrupt or stop that happened before the wait was registered.
void Back::end_if_stopped(Groups::Member& member, std::uint64_t seq) {
  if (stopping_ || groups_end_) {
    member.leave(stopping_ ? kSessionEnds : kShutsDown);
  } else if (seq < cancel_below_.load(std::memory_order_relaxed)) {
    member.give_up(kInterrupted);
  }
}

void Back::met() {
  bool ready = false;
  {
    core::MutexLock lock(mu_);
    --pending_notifications_;
    if (group_wait_.lent) {
      group_wait_.met = true;
    } else if (group_wait_.member) {
      group_wait_ = {};
      ready = true;
    } else if (scheduled_) {
      woken_ = true;
    } else {
      ready = scheduled_ = true;
    }
    if (stopping_) idle_.notify_all();
  }
  if (ready) lanes_.ready(this);
}

void Back::interrupt_groups(std::uint64_t upto) {
  std::vector<std::shared_ptr<Groups::Member>> members;
  {
    core::MutexLock lock(mu_);
    if (group_wait_.member && group_wait_.seq <= upto) members.push_back(group_wait_.member);
    for (const auto& [seq, member] : opened_) {
      if (seq <= upto) members.push_back(member);
    }
  }
  for (const auto& member : members) member->give_up(kInterrupted);
}

bool Back::has_groups() {
  core::MutexLock lock(mu_);
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& known) { return !known.expired(); });
}

std::vector<std::shared_ptr<Groups::Member>> Back::members() {
  std::vector<std::shared_ptr<Groups::Member>> members;
  core::MutexLock lock(mu_);
  for (const auto& known : members_) {
    if (auto member = known.lock()) members.push_back(std::move(member));
  }
  return members;
}

void Back::leave_groups(const std::string& why) {
  for (const auto& member : members()) member->leave(why);
}

// ---------------------------------------------------------------- rest

bool Back::is_quiet() const {
  core::MutexLock lock(mu_);
  return !scheduled_ || (group_wait_.member && !group_wait_.met);
}

bool Back::has_waiter() const {
  core::MutexLock lock(mu_);
  return waiting_ != Waiting::kNo;
}

bool Back::is_drained() const {
  core::MutexLock lock(mu_);
  return !scheduled_ && opened_.empty();
}

bool Back::is_wanted() {
  const auto all = members();
  return std::any_of(all.begin(), all.end(), [](const auto& each) { return each->wanted(); });
}

bool Back::groups_busy() {
  const auto all = members();
  return std::any_of(all.begin(), all.end(), [](const auto& each) { return each->busy(); });
}

std::vector<program::Image::Group> Back::group_images() const {
  std::vector<program::Image::Group> images;
  for (const auto& [number, member] : executor_.joined()) {
    if (!member.ok()) continue;
    if (auto image = (*member)->image()) {
      image->number = number;
      images.push_back(std::move(*image));
    }
  }
  return images;
}

void Back::restore_group(const std::string& user, const std::string& who,
                         const program::Image::Group& group) {
  core::Result<std::shared_ptr<Groups::Member>> member(
      core::unimplemented("this daemon has no groups"));
  if (groups_ != nullptr) member = groups_->restore(user, who, group);
  if (member.ok()) {
    core::MutexLock lock(mu_);
    members_.push_back(*member);
  }
  executor_.join(group.number, std::move(member));
}

void Back::end_groups() {
  groups_end_ = true;
  leave_groups(kShutsDown);
}

}  // namespace teletensor::runtime
