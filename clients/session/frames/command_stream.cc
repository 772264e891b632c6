#include "clients/session/frames/command_stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "clients/session/stream/stream.h"

namespace teletensor::client {

using core::MutexLock;
using core::Status;

CommandStream::CommandStream(const SessionLimits& limits, Recorder& recorder,
                             std::function<void()> on_pause)
    : limits_(limits),
      on_pause_(std::move(on_pause)),
      origin_(limits.meta),
      outgoing_(limits, recorder) {}

// In the child of a fork a stream cannot be destroyed, because its threads do not exist.
CommandStream::~CommandStream() {
  if (origin_.is_parents()) {
    new std::shared_ptr<Stream>(std::move(link_));
  } else {
    link_.reset();
  }
}

void CommandStream::start_at(std::uint64_t next_seq, program::HandleId next_id,
                             std::uint64_t completed_upto) {
  MutexLock lock(mutex_);
  completed_ = completed_upto;
  outgoing_.start_at(next_seq, next_id);
}

Status CommandStream::status() const {
  MutexLock lock(mutex_);
  if (!lost_.ok()) return lost_;
  if (closed_) return Status(core::Code::kUnavailable, "the session is closed [closed]");
  return {};
}

void CommandStream::drop_value(std::uint64_t fetch) {
  if (origin_.is_parents()) return;
  MutexLock lock(mutex_);
  received_.fetches.drop(fetch);
}

void CommandStream::wake() {
  if (origin_.is_parents()) return;
  MutexLock lock(mutex_);
  changed_.notify_all();
}

void CommandStream::wake_sender() {
  if (link_) {
    link_->call_writer();
  } else if (std::exchange(sender_sleeps_, false)) {
    work_.notify_one();
  }
}

void CommandStream::limit_rest() {
  if (origin_.is_parents()) return;
  MutexLock lock(mutex_);
  if (link_) link_->limit_rest();
}

bool CommandStream::next_frame(std::string& frame, double seconds, std::uint64_t stream) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(seconds));
  MutexLock lock(mutex_);
  while (lost_.ok() && stream == stream_ && !outgoing_.sendable()) {
    if (closed_ && outgoing_.empty()) return false;
    const auto left = until - Clock::now();
    if (left <= Clock::duration::zero()) {
      frame.clear();
      return true;
    }
    sender_sleeps_ = true;
    (void)work_.wait_for(mutex_, left);
    sender_sleeps_ = false;
  }
  if (!lost_.ok() || stream != stream_) return false;
  frame = *outgoing_.take();
  changed_.notify_all();
  return true;
}

std::vector<FrameRef> CommandStream::unconfirmed() const {
  MutexLock lock(mutex_);
  return outgoing_.sent().unconfirmed();
}

std::shared_ptr<StreamEnd> CommandStream::attach(std::unique_ptr<Call> call) {
  std::shared_ptr<Stream> next = std::make_shared<Stream>(*this, std::move(call)), before;
  {
    MutexLock lock(mutex_);
    before = std::exchange(link_, next);
    changed_.notify_all();
  }
  if (before) before->end();
  return next->outcome();
}

void CommandStream::detach() {
  if (origin_.is_parents()) return;
  std::shared_ptr<Stream> link;
  {
    MutexLock lock(mutex_);
    link = link_;
  }
  if (link) link->end();
}

bool CommandStream::wait_for(const std::function<bool()>& ready, std::chrono::milliseconds most) {
  using Clock = std::chrono::steady_clock;
  std::shared_ptr<Stream> link;  // Released after the session's lock.
  MutexLock lock(mutex_);
  Clock::time_point until{};
  while (!ready()) {
    const Clock::time_point now = Clock::now();
    if (until == Clock::time_point{}) until = now + most;
    if (now >= until) return false;
    if (link != link_) {
      // A new stream exists: return, so that the old one is released without the lock.
      if (link) return false;
      link = link_;
    }
    if (!link) {
      changed_.wait_for(mutex_, until - now);
    } else if (!link->help(until - now)) {
      ++link->waiters;
      changed_.wait_for(mutex_, until - now);
      --link->waiters;
    }
  }
  return true;
}

std::uint64_t CommandStream::next_stream() {
  ++stream_;
  if (link_) link_->retire();
  changed_.notify_all();
  work_.notify_all();
  return stream_;
}

std::uint64_t CommandStream::take_up(std::uint64_t attach, std::uint64_t received_upto) {
  MutexLock lock(mutex_);
  outgoing_.repeat(attach, received_upto);
  return next_stream();
}

void CommandStream::retain() {
  MutexLock lock(mutex_);
  outgoing_.sent().retain();
}

void CommandStream::mark_fragile(std::uint64_t seq) {
  MutexLock lock(mutex_);
  fragile_upto_ = seq;
}

std::uint64_t CommandStream::replay_from() const {
  MutexLock lock(mutex_);
  return limits_.keeps ? std::max(outgoing_.sent().dropped_upto(), fragile_upto_) + 1 : 0;
}

std::uint64_t CommandStream::replay(std::uint64_t attach, std::uint64_t received_upto,
                                    std::uint64_t credit_upto, std::uint64_t credit_bytes,
                                    std::uint64_t bytes_received) {
  MutexLock lock(mutex_);
  outgoing_.replay(attach, received_upto, credit_upto, credit_bytes, bytes_received);
  replay_upto_ = completed_;
  return next_stream();
}

std::uint64_t CommandStream::progress_upto() const {
  MutexLock lock(mutex_);
  return outgoing_.progress_upto();
}

Status CommandStream::on_progress(std::string_view bytes) {
  wire::Progress progress;
  TT_RETURN_IF_ERROR(wire::decode_progress(bytes, progress));
  MutexLock lock(mutex_);
  // This message was received before.
  if (!outgoing_.acknowledge(progress.number, bytes.size())) return {};
  // Errors are stored first, because a thread that sees completed_ without the lock must not miss
  // them.
  for (wire::ErrorEvent& error : progress.errors) {
    if (error.root <= replay_upto_) return diverged(error);
    fragile_upto_ = std::max(fragile_upto_, error.root);
    received_.errors.add(std::move(error));
  }
  for (wire::LostRankEvent& lost : progress.lost_ranks) {
    received_.lost_ranks.push_back(std::move(lost));
  }
  completed_ = std::max(completed_.load(), progress.completed_upto);
  received_.errors.complete(completed_);
  outgoing_.confirm(progress);
  for (wire::FetchedValue& value : progress.fetched) {
    received_.fetches.receive(std::move(value), replay_upto_);
  }
  for (wire::RaisedEvent& raised : progress.raised) {
    if (raised.seq > replay_upto_) received_.raises.receive(std::move(raised));
  }
  changed_.notify_all();
  if (outgoing_.sendable()) wake_sender();
  return {};
}

// Precondition: the lock is held. A replayed command has failed although it had succeeded before.
// What the client has read since the snapshot is not what the daemon has, so the session is lost.
Status CommandStream::diverged(const wire::ErrorEvent& error) {
  if (lost_.ok()) {
    lost_ = Status(core::Code::kUnavailable,
                   "the session is lost: the daemon was restarted and has done again what had "
                   "run since its snapshot, up to command " +
                       std::to_string(error.root) + ", which failed this time (" +
                       error.status.message() + "); command " + std::to_string(replay_upto_) +
                       " had run. Session.accept_rollback() goes on with what there is "
                       "[rollback]");
  }
  over_ = true;
  changed_.notify_all();
  wake_sender();
  return lost_;
}

void CommandStream::lost(Status why) {
  if (origin_.is_parents()) return;
  MutexLock lock(mutex_);
  // A session that was closed has ended normally.
  if (lost_.ok() && !closed_) lost_ = std::move(why);
  over_ = true;
  changed_.notify_all();
  wake_sender();
}

void CommandStream::close() {
  if (origin_.is_parents()) return;
  MutexLock lock(mutex_);
  closed_ = over_ = true;
  changed_.notify_all();
  wake_sender();
}

}  // namespace teletensor::client
