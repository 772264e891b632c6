// Session's frame consumer: passes the commands of a frame through the front end to the queue of
// the back end, on any thread that can continue, and charges names, tape and queue.
#include <algorithm>
#include <thread>
#include <utility>

#include "engine/core/with_memory.h"
#include "engine/session/session.h"

namespace teletensor::session {

using core::Code;
using core::Status;

namespace {

constexpr int kCommandsPerPublish = 64;
constexpr int kNodesPerResume = 16;

}  // namespace

void Session::submit(std::uint64_t first_seq, std::uint64_t first_id,
                     std::vector<program::Command> commands, std::function<void(Status)> done,
                     bool thin) {
  Status refused;
  bool waits = false;
  {
    core::MutexLock lock(mu_);
    // The image from which the session was restored was taken in the middle of this frame.
    if (next_seq_ == restored_at_ && first_seq < next_seq_ && first_id <= next_id_ &&
        first_seq + commands.size() > next_seq_) {
      commands.erase(commands.begin(),
                     commands.begin() + static_cast<std::ptrdiff_t>(next_seq_ - first_seq));
      first_seq = next_seq_;
      first_id = next_id_;
    }
    if (!broken_.ok()) {
      refused = broken_;
    } else if (consuming_ && !(still_ && !frame_.done)) {
      refused = Status(Code::kFailedPrecondition, "the previous frame is still being consumed");
    } else if (first_seq != next_seq_) {
      refused = Status(Code::kFailedPrecondition, "frame starts with command " +
                                                      std::to_string(first_seq) + ", expected " +
                                                      std::to_string(next_seq_));
    } else if (first_id != next_id_) {
      refused =
          Status(Code::kFailedPrecondition, "frame starts with handle " + std::to_string(first_id) +
                                                ", expected " + std::to_string(next_id_));
    } else if (!commands.empty()) {
      consuming_ = true;
      next_seq_ += commands.size();
      accepted_upto_ = next_seq_ - 1;
      back_.profile().arrived(first_seq, commands.size());
      frame_ = {first_seq, std::move(commands), 0, std::exchange(done, nullptr), thin};
      waits = still_;
    }
  }
  if (done) return done(std::move(refused));
  if (!waits) pump();
}

void Session::pump() {
  // Another thread reports progress to the front end.
  while (!try_take_front()) std::this_thread::yield();
  {
    core::MutexLock lock(mu_);
    blocked_ = false;
  }
  run_frame_consumer();
}

// Precondition: this thread owns the front end; it is the frame consumer until it gives it back. If
// the back end was asked to call on_continue(), another thread continues the frame, and this one
// only returns.
void Session::run_frame_consumer() {
  bool over = true;
  Status status = core::with_memory("a session's queue", [&] {
    Status refused;
    over = consume_frame(refused);
    return refused;
  });
  if (over) finish_frame(std::move(status));
}

// Returns false if another thread continues the frame.
bool Session::consume_frame(Status& status) {
  // Published before the values, so that a client that reads a value finds current counts.
  const auto publish = [this](bool here = false) {
    handles_ = front_.handles();
    {
      core::MutexLock lock(mu_);
      amounts_ = front_.amounts();
    }
    back_.publish(frame_.consumed(), here);
  };
  int unpublished = 0;
  while (frame_.position < frame_.commands.size()) {
    if (closing_) {
      give_front_back();
      return false;
    }
    if (stops_ && !front_.busy()) {
      publish();
      unpublished = 0;
      if (pause()) {
        give_front_back();
        return false;
      }
    }
    const bool raise =
        !front_.busy() && std::holds_alternative<program::Raise>(frame_.commands[frame_.position]);
    const bool charged =
        within_limits() && ((unpublished > 0 && !back_.queue().refusing()) || charge_bookkeeping());
    const bool drain =
        raise || (!charged && !back_.queue().refusing());  // the queue is charged as well
    if (drain || back_.load().full()) {
      publish();
      unpublished = 0;
      if (drain ? back_.wait_until_drained() : back_.wait_for_room()) {
        {
          core::MutexLock lock(mu_);
          blocked_ = !front_.busy();
        }
        give_front_back();
        return false;
      }
    }
    if (!charged || back_.queue().refusing()) {
      if (status = refuse_or_resume(); !status.ok()) return true;
    }
    if (status = consume_command(); !status.ok()) {
      back_.queue().take_back(frame_.consumed());
      publish();
      return true;
    }
    if (++unpublished >= kCommandsPerPublish) {
      publish();
      unpublished = 0;
    }
  }
  publish(true);
  return true;
}

void Session::give_front_back() {
  // A read-modify-write: a thread that found the front end taken earlier has published its progress
  // to this thread.
  front_taken_.exchange(false, std::memory_order_acq_rel);
}

// Values that a Raise could restore are kept until their commands have run; this frees them also in
// a session that sends no more frames.
void Session::forget_completed() {
  while (true) {
    const std::uint64_t completed = back_.completed_upto();
    if (completed <= forgotten_ || back_.failures().open() > 0 || !try_take_front()) return;
    forget_upto(completed);
    give_front_back();
  }
}

void Session::forget_upto(std::uint64_t completed) {
  front_.completed(completed);
  forgotten_ = completed;
  (void)charge_bookkeeping();  // the next command repeats a refusal
}

bool Session::charge_bookkeeping() {
  const std::uint64_t used = chargeable();
  bookkeeping_.store(bookkeeping(), std::memory_order_relaxed);
  return charge_.pay(used);
}

namespace {

bool makes_names(const program::Command& command) {
  if (const auto* apply = std::get_if<program::Apply>(&command)) return !apply->inplace;
  if (const auto* call = std::get_if<program::Call>(&command)) return call->made > 0;
  if (const auto* refused = std::get_if<program::Refused>(&command)) return refused->made > 0;
  if (const auto* backward = std::get_if<program::Backward>(&command)) return backward->made > 0;
  return std::holds_alternative<program::Constant>(command) ||
         std::holds_alternative<program::Repeated>(command) ||
         std::holds_alternative<program::Uploaded>(command) ||
         std::holds_alternative<program::Saved>(command) ||
         std::holds_alternative<program::Published>(command);
}

}  // namespace

bool Session::handles_fit() const {
  const std::uint64_t limit = limits_.handles, used = front_.handles();
  if (limit == 0 || used < limit) return true;
  return used == limit && (front_.busy() || !makes_names(frame_.commands[frame_.position]));
}

namespace {

std::string names_and_tape(const autograd::Front& front) {
  return "names and tape (" + std::to_string(front.handles()) + " tensors, " +
         std::to_string(front.tape_nodes()) + " recorded operations)";
}

// As names_and_tape(), with the late errors, the programs and the unread results if they take much.
std::string charged_things(const autograd::Front& front, const runtime::Back& back,
                           std::uint64_t unread) {
  std::string text = names_and_tape(front);
  if (const std::uint64_t errors = back.failures().bytes(); errors > Session::kFreeBookkeeping) {
    text += " and late errors (" + std::to_string(errors) + " bytes)";
  }
  const std::uint64_t programs = front.totals().memory + back.queue().planned().bytes();
  if (programs > Session::kFreeBookkeeping) {
    text += " and " + std::to_string(front.amounts().programs) + " functions (" +
            std::to_string(programs) + " bytes with their plans)";
  }
  if (unread > Session::kFreeBookkeeping) {
    text += " and results that the client has not read (" + std::to_string(unread) + " bytes)";
  }
  return text;
}

}  // namespace

Status Session::beyond_limits() const {
  if (!handles_fit()) {
    return program::over_limit("tensors", &program::Amounts::handles, front_.handles(), 1,
                               limits_.handles, "delete some");
  }
  return program::over_limit(names_and_tape(front_), &program::Amounts::tape_bytes, bookkeeping(),
                             0, limits_.tape_bytes,
                             "delete tensors, or call backward() or detach() on what is recorded");
}

// The end of a session whose names cannot be refused, because its client has made them already: a
// command that the client has sent keeps its numbers whether or not it runs.
Status Session::beyond_the_overdraft(const Status& refused, std::uint64_t unpaid) const {
  return Status(refused.code(),
                refused.message() + "; the session ends at command " +
                    std::to_string(frame_.consumed() + 1) +
                    ": what its client has sent since needs " + memory::readable_bytes(unpaid) +
                    " for names of instructions that do not run, and for those the daemon has " +
                    memory::readable_bytes(memory::Overdraft::kTotal) +
                    " in all, of which a user gets half of what other users leave");
}

// Precondition: nothing is queued, or entries are refused already.
Status Session::refuse_or_resume() {
  if (back_.failures().open() == 0) forget_upto(back_.completed_upto());
  const bool fits = within_limits();
  if (!fits) {
    const std::uint64_t handles = limits_.handles, tape = limits_.tape_bytes;
    if ((handles != 0 && front_.handles() > handles + kMaxExcess) ||
        (tape != 0 && bookkeeping() > tape + kMaxTapeExcess)) {
      return beyond_limits();
    }
    if (!back_.queue().refusing()) back_.queue().refuse(beyond_limits());
  }
  if (!back_.queue().refusing()) count_planned();  // forgets plans that nothing can call any more
  if (charge_bookkeeping()) {
    if (fits && back_.queue().refusing()) back_.queue().refuse({});
    return {};
  }
  const std::uint64_t unpaid = charge_.unpaid(chargeable());
  const bool covered = charge_.owe(unpaid);
  if (covered && back_.queue().refusing()) return {};
  Status status = host_pool().refusal(charged_things(front_, back_, listener_->unread_bytes()),
                                      std::max(unpaid, Charge::kStep));
  if (!covered) return beyond_the_overdraft(status, unpaid);
  back_.queue().refuse(std::move(status));
  return {};
}

Status Session::consume_command() {
  const bool meets = stops_ && !front_.busy() && may_meet(frame_.commands[frame_.position]);
  if (meets) {
    core::MutexLock lock(mu_);
    may_go_ = false;
  }
  Status status = core::with_memory("a session's names", [&] {
    if (front_.busy()) return front_.resume(kNodesPerResume);
    return front_.execute(frame_.consumed() + 1, std::move(frame_.commands[frame_.position]),
                          frame_.thin);
  });
  if (status.ok() && !front_.busy()) ++frame_.position;
  return status;
}

// Returns true if the command may contain a collective or change a group.
bool Session::may_meet(const program::Command& command) const {
  const auto collective = [this](const program::Apply& apply) {
    return apply.op < catalog_.size() && catalog_.at(apply.op).collective;
  };
  if (const auto* apply = std::get_if<program::Apply>(&command)) return collective(*apply);
  if (const auto* repeated = std::get_if<program::Repeated>(&command)) {
    return collective(repeated->known->apply);
  }
  return std::holds_alternative<program::Call>(command) ||
         std::holds_alternative<program::Backward>(command) ||
         std::holds_alternative<program::Join>(command) ||
         std::holds_alternative<program::Leave>(command);
}

// Returns true if the session pauses before its next command until come_to_rest() lets it continue.
bool Session::pause() {
  core::MutexLock lock(mu_);
  paused_ = !may_go_;
  return paused_;
}

Status Session::call(std::uint64_t seq, program::Invocation invocation) {
  for (const program::Literal& literal : invocation.program->literals) {
    const core::Device device = invocation.program->values[literal.value].device;
    if (devices_.find(device) < 0) {
      return devices_.missing("call", device);
    }
  }
  if (!back_.queue().planned().is_new(*invocation.program)) {
    back_.queue().call(seq, std::move(invocation));
    return {};
  }
  count_planned();
  const std::uint64_t planned = planned_ms_.load(std::memory_order_relaxed);
  const bool checked = front_.is_checked(*invocation.program);
  if (!checked || planned >= limits_.plan_ms) {
    Status refusal = program::over_limit(
        checked ? "call" : "call of a program that was not checked for lack of time",
        &program::Amounts::plan_ms, planned, 0, limits_.plan_ms,
        "drop functions, or results of theirs, that you no longer use");
    back_.queue().failed_call(seq, std::move(refusal), std::move(invocation));
    return {};
  }
  back_.queue().call(seq, std::move(invocation));
  count_planned();
  return {};
}

void Session::count_planned() {
  planned_ms_.store(
      (front_.totals().checked_ns + back_.queue().planned().forget_unused()) / 1'000'000,
      std::memory_order_relaxed);
}

void Session::finish_frame(Status status) noexcept {
  const std::size_t failures = back_.failures().open();
  if (status.ok() && (failures > kMaxFailures ||
                      (failures > 0 && frame_.consumed() - forgotten_ > kMaxCommandsKept))) {
    status = Status(Code::kResourceExhausted, "too many errors that the client did not raise");
  }
  (void)charge_bookkeeping();
  handles_ = front_.handles();
  const std::uint64_t next_id = front_.next_id();
  const program::Amounts amounts = front_.amounts();
  if (std::exchange(programs_, amounts.programs) > amounts.programs) count_planned();
  const auto done = std::move(frame_.done);
  frame_ = {};
  give_front_back();
  {
    core::MutexLock lock(mu_);
    consuming_ = false;
    next_id_ = next_id;
    amounts_ = amounts;
    if (!status.ok()) broken_ = status;
  }
  forget_completed();
  done(std::move(status));
  give_to_successor();
  pause_for_snapshot();
}

}  // namespace teletensor::session
