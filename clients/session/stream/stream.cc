#include "clients/session/stream/stream.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

namespace teletensor::client {

using core::MutexLock;

namespace {

// Time without a read by another thread after which the keeper reads.
constexpr std::chrono::milliseconds kKeeperPause{50};

// A program that has issued a command recently will most likely issue another one, so the writer
// polls for this time and need not be woken. The exception is a thread that waits for a value: it
// sends what comes next itself, or wakes the writer.
constexpr std::chrono::milliseconds kLull{2};

// A program that starts to wait within kSoon after its first command, kTrusted times in a row, is
// expected to send its next commands itself. If it does not, the writer sends them after kLater; an
// alarm that is nearer than the system's clock tick would cost more than a wake-up.
constexpr std::chrono::microseconds kSoon{100};
constexpr int kTrusted = 4;
constexpr std::chrono::milliseconds kLater{4};
constexpr std::chrono::nanoseconds kAtOnce{1};

// Time for which a release waits to be sent together with another command.
constexpr std::chrono::milliseconds kIdle{200};

// Time for which the writer sleeps if nothing waits to be sent: until it is called.
constexpr std::chrono::hours kUntilCalled{24};

std::int64_t microseconds(Stream::Duration time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}

void drop_frame(void* owner) { delete static_cast<FrameRef*>(owner); }

}  // namespace

void WaitHabit::waits() {
  if (!std::exchange(issued_, false)) return;
  times_ = Clock::now() - began_ < kSoon ? std::min(times_ + 1, kTrusted) : 0;
}

bool WaitHabit::trusted() const { return times_ == kTrusted; }

Stream::Stream(CommandStream& commands, std::unique_ptr<Call> call)
    : commands_(commands), call_(std::move(call)), api_(call_->api()) {
  try {
    writer_thread_ = std::thread([this] { write_loop(); });
    keeper_thread_ = std::thread([this] { keep_loop(); });
  } catch (const std::system_error& error) {
    outcome_->set(core::Status(core::Code::kUnavailable,
                               std::string("no thread for a stream: ") + error.what()),
                  "");
    end();
  }
}

Stream::~Stream() { end(); }

bool Stream::help(Duration most) {
  if (over_ || stop_) return false;
  habit_.waits();
  if (!writing_ && !broken_ && commands_.outgoing().sendable()) {
    write_one(microseconds(most));
    return true;
  }
  if (reading_) return false;
  waits_ = true;
  read_one(microseconds(most));
  waits_ = false;
  return true;
}

void Stream::call_writer() {
  habit_.issued();
  const bool trusted =
      habit_.trusted() && !abandoned_ && !commands_.closed() && !commands_.outgoing().whole_frame();
  const Due due = trusted ? Due::kLater : Due::kNow;
  if (!writer_sleeps_ || due <= due_) return;
  due_ = due;
  alarm_.set(trusted ? std::chrono::nanoseconds(kLater) : kAtOnce);
}

void Stream::cancel_writer_wakeup() {
  if (std::exchange(due_, Due::kNothing) != Due::kNothing) alarm_.set(rest());
}

void Stream::limit_rest() {
  if (writer_sleeps_ && due_ == Due::kNothing) alarm_.set(kIdle);
}

Stream::Duration Stream::rest() const {
  return commands_.held_releases().any() ? Duration(kIdle) : Duration(kUntilCalled);
}

void Stream::write_one(std::int64_t most) {
  writing_ = true;
  auto* frame = new FrameRef(commands_.outgoing().take());
  if (!commands_.outgoing().sendable()) cancel_writer_wakeup();
  commands_.mutex().unlock();
  const tt_wire_part part{(*frame)->data(), (*frame)->size(), drop_frame, frame};
  api_.write(call_->get(), &part, 1);
  const int done = api_.written(call_->get(), most);
  commands_.mutex().lock();
  end_write(done);
}

void Stream::end_write(int done) {
  if (done == TT_WIRE_TIMEOUT) {
    abandoned_ = true;
  } else {
    writing_ = false;
    broken_ = broken_ || done == TT_WIRE_OVER;
  }
  if (abandoned_ || commands_.outgoing().sendable() || commands_.closed()) call_writer();
}

void Stream::read_one(std::int64_t most) {
  reading_ = true;
  ++reads_;
  commands_.mutex().unlock();
  tt_wire_message message{};
  const int done = api_.read(call_->get(), most, &message);
  core::Status broken;
  if (done == TT_WIRE_DONE) {
    std::string joined;
    std::string_view bytes;
    if (message.count == 1) {
      bytes = {static_cast<const char*>(message.parts[0].data), message.parts[0].size};
    } else {
      for (std::size_t i = 0; i < message.count; ++i) {
        joined.append(static_cast<const char*>(message.parts[i].data), message.parts[i].size);
      }
      bytes = joined;
    }
    broken = commands_.on_progress(bytes);
    api_.forget(&message);
    if (!broken.ok()) api_.cancel(call_->get());
  }
  const bool ended = done == TT_WIRE_OVER || !broken.ok();
  if (!broken.ok()) {
    outcome_->set(
        core::internal("the daemon sent an invalid progress message: " + broken.message()),
        "protocol");
  } else if (ended) {
    std::string word;
    core::Status status = call_->status(&word);
    outcome_->set(std::move(status), std::move(word));
  }
  commands_.mutex().lock();
  reading_ = false;
  if (ended) {
    over_ = true;
    keeper_.notify_all();
    alarm_.set(kAtOnce);
    commands_.changed().notify_all();
  }
  if (waiters > 0) commands_.changed().notify_all();
}

void Stream::write_loop() {
  MutexLock lock(commands_.mutex());
  while (!over_ && !stop_) {
    if (abandoned_) {
      abandoned_ = false;
      commands_.mutex().unlock();
      const int done = api_.written(call_->get(), -1);
      commands_.mutex().lock();
      end_write(done);
    } else if (!writing_ && !broken_ && commands_.outgoing().sendable()) {
      wrote_ = Clock::now();
      write_one(-1);
      if (!commands_.outgoing().whole_frame() && !over_ && !stop_) sleep(commands_.pace());
    } else if (!writing_ && !broken_ && commands_.closed() && commands_.outgoing().empty()) {
      writing_ = true;  // The flag stays set, because this was the last write.
      commands_.mutex().unlock();
      api_.write(call_->get(), nullptr, 0);
      api_.written(call_->get(), -1);
      commands_.mutex().lock();
    } else if (!waits_ && Clock::now() - wrote_ < kLull) {
      sleep(commands_.pace());
    } else {
      writer_sleeps_ = true;
      commands_.held_releases().rest(1);
      sleep(rest());
      commands_.held_releases().rest(-1);
      writer_sleeps_ = false;
      const bool called = std::exchange(due_, Due::kNothing) != Due::kNothing;
      if (!called) {
        commands_.mutex().unlock();
        commands_.pause();
        commands_.mutex().lock();
      }
    }
  }
}

void Stream::sleep(Duration time) {
  alarm_.set(time);
  commands_.mutex().unlock();
  alarm_.wait();
  commands_.mutex().lock();
}

void Stream::keep_loop() {
  MutexLock lock(commands_.mutex());
  std::uint64_t seen = reads_;
  while (!over_ && !stop_) {
    if (reading_ || waiters > 0 || (reads_ != seen && !commands_.closed())) {
      seen = reads_;
      keeper_.wait_for(commands_.mutex(), kKeeperPause);
      continue;
    }
    read_one(-1);
    seen = reads_;
  }
}

void Stream::end() {
  {
    MutexLock lock(commands_.mutex());
    if (std::exchange(stop_, true)) return;
    if (!over_) api_.cancel(call_->get());
    commands_.changed().notify_all();
    alarm_.set(kAtOnce);
  }
  keeper_.notify_all();
  for (std::thread* each : {&writer_thread_, &keeper_thread_}) {
    if (each->joinable()) each->join();
  }
  outcome_->set(core::Status(core::Code::kCancelled, "the stream was cut by its client"), "closed");
}

void StreamEnd::set(core::Status status, std::string word) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(over_, true)) return;
    status_ = std::move(status);
    word_ = std::move(word);
  }
  changed_.notify_all();
}

bool StreamEnd::wait(std::chrono::milliseconds most) {
  const auto until = std::chrono::steady_clock::now() + most;
  MutexLock lock(mutex_);
  while (!over_) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    changed_.wait_for(mutex_, left);
  }
  return true;
}

}  // namespace teletensor::client
