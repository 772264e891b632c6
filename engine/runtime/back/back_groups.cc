// Back's part in groups (groups.h): joining and leaving them, calls of programs with collectives,
// and waiting for other ranks.
#include <memory>
#include <string>
#include <utility>

#include "engine/runtime/back/back.h"

namespace teletensor::runtime {

using core::Status;
using program::Operand;

namespace {

constexpr char kInterrupted[] = "was interrupted";

std::string stopped(const program::Failure& why) { return "has stopped: " + why.status.message(); }

}  // namespace

void Back::run_group(Entry& entry) {
  Entry::Group& group = *entry.group;
  if (!group.join) return session_groups_.leave(group.number);
  if (Groups::Member* const known = session_groups_.known(group.number)) {
    return known->set_timeout(group.join->timeout);
  }
  Status status = session_groups_.join(entry.instruction.seq, group.number, std::move(*group.join),
                                       refusal(entry));
  if (!status.ok()) record_failure(entry, std::move(status));
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
    } else if (back_.executor_.interrupts().has(entry_.instruction.seq)) {
      const FailureRef failure = back_.interrupted(entry_.instruction.seq, &root);
      back_.cancel_call(entry_, failure, root, kInterrupted);
    }
    return core::Clock::now() >= until_;
  }
  void failed(const program::Instruction& instruction, const FailureRef& failure,
              bool root) override {
    back_.record(instruction, failure, root);
  }
  void opened(program::Instruction instruction) override {
    back_.collectives_.add(std::move(instruction), true);
  }
  Next next(program::Instruction& instruction) override {
    return back_.collectives_.next(instruction, entry_.refused != nullptr);
  }
  bool ready(std::span<const Operand> operands) override {
    return back_.collectives_.ready(operands);
  }

 private:
  Back& back_;
  Entry& entry_;
  const core::Clock::time_point until_;
};

// Returns false if it was cancelled earlier.
bool Back::cancel_call(Entry& entry, const FailureRef& failure, bool root, const std::string& why) {
  if (!entry.call->cancel(failure)) return false;
  if (entry.call->leaves_out()) session_groups_.end(entry.call->groups(), why);
  record(entry.instruction, failure, root);
  return true;
}

// Runs a call of a program for at most its time on the lane. Returns false if the call has not
// ended by then.
bool Back::run_call(Entry& entry, core::Clock::time_point until) {
  CallOf caller(*this, entry, until);
  try {
    return entry.call->run(executor_, window_.stats(), caller);
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
bool Back::request_notification(CollectiveCalls::Open& open) {
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
bool Back::wait_for(CollectiveCalls::Open& open, std::uint64_t seq) {
  if (!request_notification(open)) return false;
  // After the lock is released, another lane may run this session.
  const std::shared_ptr<Groups::Member> member = open.member;
  {
    core::MutexLock lock(mu_);
    if (std::exchange(woken_, false)) return false;
    group_wait_ = {member, seq};
  }
  opened(*member, seq);
  return true;
}

// Repeats an interrupt or stop that happened before the operation was registered.
void Back::opened(Groups::Member& member, std::uint64_t seq) {
  if (stopping_ || session_groups_.shuts_down()) {
    member.leave(stopping_ ? kSessionEnds : SessionGroups::kShutsDown);
  } else if (executor_.interrupts().reaches(seq)) {
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
  auto members = collectives_.members_upto(upto);
  {
    core::MutexLock lock(mu_);
    if (group_wait_.member && group_wait_.seq <= upto) members.push_back(group_wait_.member);
  }
  for (const auto& member : members) member->give_up(kInterrupted);
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
  return !scheduled_ && collectives_.none();
}

}  // namespace teletensor::runtime
