#include "engine/session/frame_consumer.h"

#include <algorithm>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "engine/core/with_memory.h"

namespace teletensor::session {

using core::Code;
using core::Status;

namespace {

constexpr int kCommandsPerPublish = 64;
constexpr int kNodesPerResume = 16;

// Why the session ends, with the number of the command that it ends at.
Status at_command(std::uint64_t seq, const Status& status) {
  return Status(status.code(), "command " + std::to_string(seq) + ": " + status.message());
}

}  // namespace

void FrameConsumer::pump() {
  take_front();  // another thread may be reporting progress to the front end
  set_blocked(false);
  run();
}

// Precondition: this thread owns the front end; it is the frame consumer until it gives it back. If
// the back end was asked to call on_continue(), another thread continues the frame, and this one
// only returns.
void FrameConsumer::run() {
  bool over = true;
  Status status = core::with_memory("a session's queue", [&] {
    Status refused;
    over = consume_frame(refused);
    return refused;
  });
  if (over) finish_frame(std::move(status));
}

// Returns false if another thread continues the frame.
bool FrameConsumer::consume_frame(Status& status) {
  // The counts are published before the values, so that a client that reads a value finds current
  // counts.
  const auto publish = [this](bool here = false) {
    publish_counts();
    back_.publish(frame_.consumed(), here);
  };
  const runtime::QueueWriter& queue = back_.queue();
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
    const program::Command* const next = next_command();
    const bool raise = next != nullptr && std::holds_alternative<program::Raise>(*next);
    const bool charged = bookkeeping_.fits(next) &&
                         ((unpublished > 0 && !queue.refusing()) || bookkeeping_.charge());
    const bool drain = raise || (!charged && !queue.refusing());  // the queue is charged as well
    if (drain || back_.load().full()) {
      publish();
      unpublished = 0;
      if (drain ? back_.wait_until_drained() : back_.wait_for_room()) {
        set_blocked(!front_.busy());
        give_front_back();
        return false;
      }
    }
    if (!charged || queue.refusing()) {
      if (back_.failures().open() == 0) forget_upto(back_.completed_upto());
      status = bookkeeping_.refuse_or_resume(next, frame_.consumed() + 1);
      if (!status.ok()) {
        status = at_command(frame_.consumed() + 1, status);
        return true;
      }
    }
    const std::size_t before = frame_.position;
    if (status = consume_commands(); !status.ok()) {
      status = at_command(frame_.consumed() + 1, status);
      back_.queue().take_back(frame_.consumed());
      publish();
      return true;
    }
    // A part of a command counts as one.
    unpublished += std::max(1, static_cast<int>(frame_.position - before));
    if (unpublished >= kCommandsPerPublish) {
      publish();
      unpublished = 0;
    }
  }
  publish(true);
  return true;
}

namespace {

// Returns true if the command may contain a collective or change a group.
bool may_meet(const ops::Catalog& catalog, const program::Command& command) {
  const auto collective = [&](const program::Apply& apply) {
    return apply.op < catalog.size() && catalog.at(apply.op).collective;
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

}  // namespace

// Executes the next command, or continues it, or executes several commands that repeat a template.
Status FrameConsumer::consume_commands() {
  if (stops_ && !front_.busy() && may_meet(back_.executor().catalog(), *next_command())) {
    core::MutexLock lock(mu_);
    may_go_ = false;
  }
  std::size_t repeated = 0;
  Status status = core::with_memory("a session's names", [&] {
    if (front_.busy()) return front_.resume(kNodesPerResume);
    const std::uint64_t seq = frame_.consumed() + 1;
    if (may_repeat()) {
      repeated = front_.repeat(seq, std::span(frame_.commands).subspan(frame_.position));
      if (repeated > 0) return Status();
    }
    return front_.execute(seq, std::move(frame_.commands[frame_.position]), frame_.thin);
  });
  if (repeated > 0) {
    repeated_.store(this->repeated() + repeated, std::memory_order_relaxed);
    frame_.position += repeated;
    return status;
  }
  if (std::holds_alternative<program::Join>(frame_.commands[frame_.position])) forbid_templates();
  if (status.ok() && !front_.busy()) ++frame_.position;
  return status;
}

void FrameConsumer::finish_frame(Status status) noexcept {
  const core::UsesReserve reserve;
  const std::size_t failures = back_.failures().open();
  if (status.ok() && (failures > kMaxFailures ||
                      (failures > 0 && frame_.consumed() - forgotten_ > kMaxCommandsKept))) {
    status = at_command(frame_.consumed(), Status(Code::kResourceExhausted,
                                                  "too many errors that the client did not raise"));
  }
  (void)bookkeeping_.charge();
  publish_counts();
  bookkeeping_.count_plans_if_fewer(front_.amounts().programs);
  const program::HandleId next_id = front_.next_id();
  auto done = std::move(frame_.done);
  frame_ = {};
  give_front_back();
  session_->on_consumed(std::move(status), next_id, std::move(done));
}

// ---------------------------------------------------------------- the front end

void FrameConsumer::take_front() {
  while (!try_take_front()) std::this_thread::yield();
}

void FrameConsumer::give_front_back() {
  // A read-modify-write: a thread that found the front end taken earlier has published its progress
  // to this thread.
  front_taken_.exchange(false, std::memory_order_acq_rel);
}

void FrameConsumer::forget_completed() {
  while (true) {
    const std::uint64_t completed = back_.completed_upto();
    if (completed <= forgotten_ || back_.failures().open() > 0 || !try_take_front()) return;
    forget_upto(completed);
    give_front_back();
  }
}

void FrameConsumer::forget_upto(std::uint64_t completed) {
  front_.completed(completed);
  forgotten_ = completed;
  (void)bookkeeping_.charge();  // the next command repeats a refusal
}

bool FrameConsumer::kept_contents(std::unordered_set<const void*>& contents) {
  if (!try_take_front()) return false;
  front_.kept_contents(contents);
  give_front_back();
  forget_completed();
  return true;
}

void FrameConsumer::publish_counts() {
  handles_ = front_.handles();
  core::MutexLock lock(mu_);
  amounts_ = front_.amounts();
}

program::Amounts FrameConsumer::amounts() const {
  core::MutexLock lock(mu_);
  return amounts_;
}

// ---------------------------------------------------------------- stops before commands

// Returns true if the consumer pauses before the next command until allow_collective().
bool FrameConsumer::pause() {
  core::MutexLock lock(mu_);
  paused_ = !may_go_;
  return paused_;
}

void FrameConsumer::set_blocked(bool blocked) {
  core::MutexLock lock(mu_);
  blocked_ = blocked;
}

bool FrameConsumer::is_paused() const {
  core::MutexLock lock(mu_);
  return paused_;
}

bool FrameConsumer::is_stopped() const {
  core::MutexLock lock(mu_);
  return paused_ || blocked_;
}

bool FrameConsumer::allow_collective() {
  core::MutexLock lock(mu_);
  may_go_ = true;
  return std::exchange(paused_, false);
}

bool FrameConsumer::forbid_collective() {
  core::MutexLock lock(mu_);
  may_go_ = false;
  return paused_ || (blocked_ && back_.state().has_waiter());
}

}  // namespace teletensor::session
