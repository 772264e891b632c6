#include "clients/session/frames/outgoing.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "engine/core/clock.h"

namespace teletensor::client {

namespace {

// Maximum number of bytes that may be read before they are acknowledged. The daemon keeps them
// until then.
constexpr std::size_t kMaxUnacknowledged = 1 << 20;

}  // namespace

Outgoing::Outgoing(const SessionLimits& limits, Recorder& recorder)
    : limits_(limits.frame),
      recorder_(recorder),
      sent_(limits.keeps, limits.retained_bytes),
      credit_bytes_(limits.credit_bytes),
      credit_upto_(limits.credit_upto) {
  writer_.set_protocol(limits.protocol);
  writer_.begin(1, 1);
}

void Outgoing::append(const wire::ApplyView& apply, std::uint32_t made) {
  const std::size_t items = wire::items_of(apply);
  if (writer_.full(limits_, 256 + 10 * items, 64 + items)) close_frame();
  writer_.append(apply, made);
}

void Outgoing::append(const program::Command& command, std::uint32_t made) {
  std::size_t large = limits_.inline_bytes;
  if (const auto* d = std::get_if<program::Define>(&command)) large = d->bytes.size();
  const std::size_t items = wire::items_of(command);
  if (writer_.full(limits_, 256 + large + 10 * items, 4096 + items)) close_frame();
  writer_.append(command, made);
}

void Outgoing::close_frame() {
  const std::uint64_t next_seq = writer_.next_seq();
  const program::HandleId next_id = writer_.next_id();
  frames_.push_back(
      {next_seq - 1, std::make_shared<const std::string>(writer_.finish(progress_upto_, attach_))});
  waiting_bytes_ += frames_.back().frame->size();
  writer_.begin(next_seq, next_id);
}

bool Outgoing::sendable() const {
  if (sent_.repeats()) return true;
  if (empty()) return unacknowledged_ > kMaxUnacknowledged;
  const bool full = !frames_.empty();
  const std::size_t next = full ? frames_.front().frame->size() : writer_.size();
  // Commands are issued within the credits of the daemon at that time. Frames that are replayed to
  // another daemon may exceed its credits.
  const std::uint64_t last = full ? frames_.front().last_seq : writer_.next_seq() - 1;
  return sent_bytes_ + next <= credit_bytes_ && last <= credit_upto_;
}

FrameRef Outgoing::take() {
  if (sent_.repeats()) return sent_.repeat();
  const bool last = frames_.empty();
  const bool without_commands = last && writer_.empty();
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
  if (!without_commands) sent_.add(std::move(frames_.front()));
  frames_.pop_front();
  return frame;
}

void Outgoing::repeat(std::uint64_t attach, std::uint64_t received_upto) {
  attach_ = attach;
  sent_.repeat_after(received_upto);
}

void Outgoing::replay(std::uint64_t attach, std::uint64_t received_upto, std::uint64_t credit_upto,
                      std::uint64_t credit_bytes, std::uint64_t bytes_received) {
  attach_ = attach;
  for (SentFrame& next : sent_.take_after(received_upto)) {
    waiting_bytes_ += next.frame->size();
    frames_.push_front(std::move(next));
  }
  sent_bytes_ = bytes_received;
  credit_bytes_ = credit_bytes;
  credit_upto_ = credit_upto;
}

bool Outgoing::acknowledge(std::uint64_t number, std::size_t bytes) {
  if (number != 0 && number <= progress_upto_) return false;
  progress_upto_ = number;
  unacknowledged_ += bytes;
  return true;
}

void Outgoing::confirm(const wire::Progress& progress) {
  credit_upto_ = std::max(credit_upto_.load(), progress.credit_upto);
  credit_bytes_ = std::max(credit_bytes_, progress.credit_bytes);
  sent_.confirm(progress.completed_upto, progress.snapshot_upto);
}

}  // namespace teletensor::client
