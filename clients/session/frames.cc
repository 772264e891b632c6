// The transport of a session: sends frames, receives progress, and sends frames again to a daemon
// that has lost them.
#include <algorithm>
#include <chrono>

#include "clients/session/session.h"
#include "clients/session/stream.h"

namespace teletensor::client {

using core::MutexLock;

namespace {

// Maximum number of bytes that may be read before they are acknowledged. The daemon keeps them
// until then.
constexpr std::size_t kMaxUnacknowledged = 1 << 20;

}  // namespace

bool Session::sendable() const {
  if (sent_.repeats()) return true;
  if (all_taken()) return unacknowledged_ > kMaxUnacknowledged;
  const bool full = !frames_.empty();
  const std::size_t next = full ? frames_.front().frame->size() : writer_.size();
  // Commands are issued within the credits of the daemon at that time. Frames that are replayed to
  // another daemon may exceed its credits.
  const std::uint64_t last = full ? frames_.front().last_seq : writer_.next_seq() - 1;
  return sent_bytes_ + next <= credit_bytes_ && last <= credit_upto_;
}

FrameRef Session::take_frame() {
  if (sent_.repeats()) return sent_.repeat();
  const bool last = frames_.empty();
  // A frame without commands, which only acknowledges messages.
  const bool empty = last && writer_.empty();
  if (last) {
    close_frame();
    unacknowledged_ = 0;
  }
  const FrameRef frame = frames_.front().frame;
  if (recorder_.on()) {
    recorder_.add(Recorder::SentFrame{core::now_ns(), frames_.front().last_seq, frame->size()});
  }
  waiting_bytes_ -= frame->size();
  sent_bytes_ += frame->size();
  if (!empty) sent_.add(std::move(frames_.front()));
  frames_.pop_front();
  return frame;
}

bool Session::next_frame(std::string& frame, double seconds, std::uint64_t stream) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(seconds));
  MutexLock lock(mutex_);
  while (lost_.ok() && stream == stream_ && !sendable()) {
    if (closed_ && all_taken()) return false;
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
  frame = *take_frame();
  changed_.notify_all();
  return true;
}

std::vector<FrameRef> Session::unconfirmed() const {
  MutexLock lock(mutex_);
  return sent_.unconfirmed();
}

std::shared_ptr<StreamEnd> Session::attach(std::unique_ptr<Call> call) {
  std::shared_ptr<Stream> next = std::make_shared<Stream>(*this, std::move(call)), before;
  {
    MutexLock lock(mutex_);
    before = std::exchange(link_, next);
    changed_.notify_all();
  }
  if (before) before->end();
  return next->outcome();
}

void Session::detach() {
  if (origin_.is_parents()) return;
  std::shared_ptr<Stream> link;
  {
    MutexLock lock(mutex_);
    link = link_;
  }
  if (link) link->end();
}

bool Session::wait_for(const std::function<bool()>& ready, std::chrono::milliseconds most) {
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

std::uint64_t Session::take_up(std::uint64_t attach, std::uint64_t received_upto) {
  MutexLock lock(mutex_);
  attach_ = attach;
  sent_.repeat_after(received_upto);
  ++stream_;
  if (link_) link_->retire();
  changed_.notify_all();
  work_.notify_all();
  return stream_;
}

void Session::retain() {
  MutexLock lock(mutex_);
  sent_.retain();
}

void Session::mark_fragile() {
  MutexLock lock(mutex_);
  fragile_upto_ = seq_ + 1;
}

std::uint64_t Session::replay_from() const {
  MutexLock lock(mutex_);
  return limits_.keeps ? std::max(sent_.dropped_upto(), fragile_upto_) + 1 : 0;
}

std::uint64_t Session::replay(std::uint64_t attach, std::uint64_t received_upto,
                              std::uint64_t credit_upto, std::uint64_t credit_bytes,
                              std::uint64_t bytes_received) {
  MutexLock lock(mutex_);
  attach_ = attach;
  for (SentFrame& next : sent_.take_after(received_upto)) {
    waiting_bytes_ += next.frame->size();
    frames_.push_front(std::move(next));
  }
  sent_bytes_ = bytes_received;
  credit_bytes_ = credit_bytes;
  credit_upto_ = credit_upto;
  replay_upto_ = completed_;
  ++stream_;
  if (link_) link_->retire();
  changed_.notify_all();
  work_.notify_all();
  return stream_;
}

std::uint64_t Session::progress_upto() const {
  MutexLock lock(mutex_);
  return progress_upto_;
}

Status Session::on_progress(std::string_view bytes) {
  wire::Progress progress;
  TT_RETURN_IF_ERROR(wire::decode_progress(bytes, progress));
  MutexLock lock(mutex_);
  // This message was received before.
  if (progress.number != 0 && progress.number <= progress_upto_) return {};
  progress_upto_ = progress.number;
  unacknowledged_ += bytes.size();
  // Errors are stored first, because a thread that sees completed_ without the lock must not miss
  // them.
  for (wire::ErrorEvent& error : progress.errors) {
    if (error.root <= replay_upto_) return diverged(error);
    fragile_upto_ = std::max(fragile_upto_, error.root);
    errors_.add(std::move(error));
  }
  completed_ = std::max(completed_.load(), progress.completed_upto);
  errors_.complete(completed_);
  credit_upto_ = std::max(credit_upto_.load(), progress.credit_upto);
  credit_bytes_ = std::max(credit_bytes_, progress.credit_bytes);
  sent_.confirm(progress.completed_upto, progress.snapshot_upto);
  for (wire::FetchedValue& value : progress.fetched) {
    fetches_.receive(std::move(value), replay_upto_);
  }
  for (wire::RaisedEvent& raised : progress.raised) {
    if (raised.seq > replay_upto_) raises_.receive(std::move(raised));
  }
  changed_.notify_all();
  if (sendable()) wake_sender();
  return {};
}

// Precondition: the lock is held. A replayed command has failed although it had succeeded before.
// What the client has read since the snapshot is not what the daemon has, so the session is lost.
Status Session::diverged(const wire::ErrorEvent& error) {
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

void Session::lost(Status why) {
  if (origin_.is_parents()) return;
  MutexLock lock(mutex_);
  // A session that was closed has ended normally.
  if (lost_.ok() && !closed_) lost_ = std::move(why);
  over_ = true;
  changed_.notify_all();
  wake_sender();
}

void Session::close() {
  if (origin_.is_parents()) return;
  MutexLock lock(mutex_);
  closed_ = over_ = true;
  changed_.notify_all();
  wake_sender();
}

std::uint64_t Session::completed_upto() const { return completed_; }

}  // namespace teletensor::client
