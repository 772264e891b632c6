#include "engine/runtime/back/task_state.h"

namespace teletensor::runtime {

using core::MutexLock;

// ---------------------------------------------------------------- functions of the frame consumer

void TaskState::append(Chunk* chunk) {
  chunk->next = nullptr;
  (head_ == nullptr ? head_ : tail_->next) = chunk;
  tail_ = chunk;
}

bool TaskState::add(Chunk* chunk) {
  MutexLock lock(mu_);
  append(chunk);
  return !std::exchange(scheduled_, true);
}

TaskState::Published TaskState::publish(Chunk* open, std::uint64_t seq) {
  Published result;
  MutexLock lock(mu_);
  if (open != nullptr) append(open);
  published_ = seq;
  if (std::exchange(scheduled_, true)) return result;
  result.wake = head_ != nullptr;
  result.report = !result.wake;
  if (head_ == tail_) result.only = head_;
  return result;
}

bool TaskState::end_report() {
  MutexLock lock(mu_);
  const bool wake = std::exchange(woken_, false);
  if (!wake) scheduled_ = false;
  if (stopping_) idle_.notify_all();
  return wake;
}

bool TaskState::wait_for_room() {
  MutexLock lock(mu_);
  if (load_.has_room()) return false;
  waiting_ = Waiting::kRoom;
  return true;
}

bool TaskState::wait_until_drained() {
  MutexLock lock(mu_);
  if (!scheduled_ && collectives_.none()) return false;
  waiting_ = Waiting::kDrained;
  return true;
}

void TaskState::begin_at(std::uint64_t consumed, std::uint64_t completed) {
  completed_ = completed;
  MutexLock lock(mu_);
  published_ = consumed;
}

void TaskState::hold() {
  {
    MutexLock lock(mu_);
    scheduled_ = true;
  }
  held_ = true;
}

// ---------------------------------------------------------------- functions of the session task

void TaskState::enter() {
  MutexLock lock(mu_);
  ++inside_;
  woken_ = false;
}

void TaskState::leave() {
  MutexLock lock(mu_);
  --inside_;
  idle_.notify_all();
}

bool TaskState::take(Backlog& backlog) {
  MutexLock lock(mu_);
  if (head_ == nullptr) return false;
  backlog.add(std::exchange(head_, nullptr), std::exchange(tail_, nullptr));
  return true;
}

TaskState::Next TaskState::look(bool drained) const {
  MutexLock lock(mu_);
  Next next;
  next.more = !drained || head_ != nullptr;
  next.go_on = next.more && waiting_ == Waiting::kRoom && load_.has_room();
  return next;
}

TaskState::Next TaskState::rest(Next next) {
  MutexLock lock(mu_);
  // Entries may have arrived in the meantime, or commands without entries whose completion must be
  // reported by the task.
  if (!next.more && !stopping_ &&
      (head_ != nullptr || woken_ ||
       (collectives_.empty() && published_ > completed_.load(std::memory_order_relaxed)))) {
    next.more = true;
  }
  if (!next.more) {
    scheduled_ = false;
    next.go_on = !stopping_ && (waiting_ == Waiting::kRoom ||
                                (waiting_ == Waiting::kDrained && collectives_.empty()));
  }
  if (next.go_on) waiting_ = Waiting::kNo;
  return next;
}

std::uint64_t TaskState::ended_upto(const Backlog& backlog) const {
  MutexLock lock(mu_);
  Chunk* const next = backlog.empty() ? head_ : backlog.chunks();
  return next == nullptr ? published_ : next->front().instruction.seq - 1;
}

bool TaskState::advance(std::uint64_t completed) {
  if (completed <= completed_.load(std::memory_order_relaxed)) return false;
  completed_.store(completed, std::memory_order_release);
  return true;
}

void TaskState::expect_notification() {
  MutexLock lock(mu_);
  ++notifications_;
}

void TaskState::drop_notification() {
  MutexLock lock(mu_);
  --notifications_;
}

bool TaskState::wait_for_rank(std::shared_ptr<Groups::Member> member, std::uint64_t seq) {
  MutexLock lock(mu_);
  if (std::exchange(woken_, false)) return false;
  rank_wait_ = {std::move(member), seq};
  return true;
}

// ---------------------------------------------------------------- functions of the spiller

bool TaskState::freeze() {
  MutexLock lock(mu_);
  if (stopping_) return false;
  if (rank_wait_.member && !rank_wait_.met && !rank_wait_.lent) return rank_wait_.lent = true;
  if (lock_wait_.lend()) return true;
  return !std::exchange(scheduled_, true);
}

bool TaskState::thaw(const Backlog& backlog) {
  MutexLock lock(mu_);
  const bool lent = std::exchange(rank_wait_.lent, false);
  if (lent && !rank_wait_.met) return false;
  if (lent) rank_wait_ = {};
  const LockWait::Lent locks = lock_wait_.take_back();
  if (locks == LockWait::Lent::kWaits) return false;
  const bool more = lent || locks == LockWait::Lent::kOver || woken_ || head_ != nullptr ||
                    !backlog.empty() || waiting_ != Waiting::kNo ||
                    published_ > completed_.load(std::memory_order_relaxed);
  if (more && !stopping_) return true;
  rest_locked();
  return false;
}

bool TaskState::has_work() const {
  MutexLock lock(mu_);
  if (rank_wait_.lent) return rank_wait_.met || stopping_;
  const LockWait::Lent locks = lock_wait_.lent();
  if (locks != LockWait::Lent::kNo) return locks == LockWait::Lent::kOver || stopping_;
  return woken_ || head_ != nullptr || waiting_ != Waiting::kNo || stopping_;
}

// ---------------------------------------------------------------- functions for any thread

bool TaskState::notified() {
  MutexLock lock(mu_);
  --notifications_;
  bool ready = false;
  if (rank_wait_.lent) {
    rank_wait_.met = true;
  } else if (rank_wait_.member) {
    rank_wait_ = {};
    ready = true;
  } else if (scheduled_) {
    woken_ = true;
  } else {
    ready = scheduled_ = true;
  }
  if (stopping_) idle_.notify_all();
  return ready;
}

std::shared_ptr<Groups::Member> TaskState::waits_for(std::uint64_t upto) const {
  MutexLock lock(mu_);
  return rank_wait_.seq <= upto ? rank_wait_.member : nullptr;
}

bool TaskState::is_quiet() const {
  MutexLock lock(mu_);
  return !scheduled_ || (rank_wait_.member && !rank_wait_.met);
}

bool TaskState::is_drained() const {
  MutexLock lock(mu_);
  return !scheduled_ && collectives_.none();
}

bool TaskState::has_waiter() const {
  MutexLock lock(mu_);
  return waiting_ != Waiting::kNo;
}

Chunk* TaskState::published() const {
  MutexLock lock(mu_);
  return head_;
}

void TaskState::rest_locked() {
  scheduled_ = false;
  idle_.notify_all();
}

void TaskState::give_up() {
  MutexLock lock(mu_);
  rest_locked();
}

Chunk* TaskState::end() {
  MutexLock lock(mu_);
  while (scheduled_ || inside_ > 0 || notifications_ > 0) idle_.wait(mu_);
  return std::exchange(head_, nullptr);
}

}  // namespace teletensor::runtime
