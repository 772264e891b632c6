#include "server/session/outbox.h"

#include <algorithm>
#include <utility>

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {
// Estimated cost of a value in addition to its data, in bytes.
constexpr std::size_t kValueOverhead = 256;
std::size_t size_of(const wire::FetchedValue& value) {
  return value.data.size() + value.status.message().size() + kValueOverhead;
}
}  // namespace

Outbox::Outbox(const Limits& limits, bool keeps, std::uint64_t attach)
    : limits_(limits),
      keeps_(keeps),
      told_{0, limits.credit_instructions, limits.credit_bytes},
      attach_(attach),
      kept_(limits.outbox_bytes) {}

core::Result<bool> Outbox::received(std::uint64_t first_seq, std::uint64_t count,
                                    std::size_t bytes) {
  MutexLock lock(mutex_);
  if (keeps_ && first_seq <= received_ && first_seq + count - 1 <= received_) return false;
  // The snapshot was taken in the middle of this frame.
  if (first_seq <= received_ && received_ == restored_) {
    count -= received_ + 1 - first_seq;
    first_seq = received_ + 1;
  }
  if (first_seq != received_ + 1) {
    return Status(Code::kFailedPrecondition, "frame out of order: it starts at command " +
                                                 std::to_string(first_seq) + ", expected " +
                                                 std::to_string(received_ + 1));
  }
  if (received_ + count > told_.credit_upto) {
    return Status(Code::kResourceExhausted,
                  "frame beyond the credits: command " + std::to_string(received_ + count) +
                      ", granted up to " + std::to_string(told_.credit_upto));
  }
  if (bytes_received_ + bytes > told_.credit_bytes) {
    return Status(Code::kResourceExhausted,
                  "frame beyond the credits: " + std::to_string(bytes_received_ + bytes) +
                      " bytes sent, granted " + std::to_string(told_.credit_bytes));
  }
  received_ += count;
  bytes_received_ += bytes;
  if (received_ <= completed_) {
    bytes_completed_ = bytes_received_;  // An empty frame that follows completed commands.
  } else {
    frames_.push_back({received_, bytes_received_});
  }
  return true;
}

void Outbox::begin_at(std::uint64_t received, std::uint64_t completed) {
  MutexLock lock(mutex_);
  received_ = received;
  completed_ = told_.completed = completed;
  told_.credit_upto = credit_upto();
}

void Outbox::completed(std::uint64_t seq) {
  MutexLock lock(mutex_);
  complete(seq);
}

void Outbox::written(std::uint64_t seq) {
  MutexLock lock(mutex_);
  written_ = seq;
  tell_written_ = true;
}

Outbox::Credits Outbox::credits() const {
  MutexLock lock(mutex_);
  return {told_.credit_upto, told_.credit_bytes, bytes_received_};
}

void Outbox::complete(std::uint64_t seq) {
  completed_ = std::max(completed_, seq);
  while (!frames_.empty() && frames_.front().last_seq <= completed_) {
    bytes_completed_ = frames_.front().upto;
    frames_.pop_front();
  }
}

Status Outbox::fetched(wire::FetchedValue value) {
  MutexLock lock(mutex_);
  value.status = LateErrors::shortened(std::move(value.status));
  values_.bytes += size_of(value);
  if (values_.bytes > limits_.outbox_bytes) {
    return Status(Code::kResourceExhausted, "the client has left " + std::to_string(values_.bytes) +
                                                " bytes of values unread");
  }
  // Commands run in order, so a value implies that all earlier commands are done. Reporting both in
  // one message saves a message. A description does not wait for earlier commands.
  if (!value.description) complete(value.seq);
  values_.unsent.push_back(std::move(value));
  return {};
}

void Outbox::error(wire::ErrorEvent error) {
  MutexLock lock(mutex_);
  errors_.add(std::move(error));
}

void Outbox::raised(wire::RaisedEvent raised) {
  MutexLock lock(mutex_);
  errors_.add(std::move(raised));
}

void Outbox::rank_lost(wire::LostRankEvent lost) {
  MutexLock lock(mutex_);
  errors_.add(std::move(lost));
}

std::uint64_t Outbox::bytes() const {
  MutexLock lock(mutex_);
  return values_.bytes + errors_.bytes() + kept_.bytes();
}

bool Outbox::due() const {
  if (send_on_attach_ || tell_written_ || !values_.unsent.empty() || !errors_.empty()) return true;
  if (completed_ > told_.completed &&
      (completed_ == received_ || core::Clock::now() - told_.at >= limits_.progress_every)) {
    return true;
  }
  return credit_upto() - told_.credit_upto > limits_.credit_instructions / 4 ||
         credit_bytes() - told_.credit_bytes > limits_.credit_bytes / 4;
}

wire::Progress Outbox::gather() {
  wire::Progress progress;
  send_on_attach_ = false;
  if (std::exchange(tell_written_, false)) progress.snapshot_upto = written_;
  progress.completed_upto = told_.completed = completed_;
  told_.at = core::Clock::now();
  progress.received_upto = received_;
  progress.credit_upto = told_.credit_upto = credit_upto();
  progress.credit_bytes = told_.credit_bytes = credit_bytes();
  progress.errors = errors_.take_errors();
  progress.raised = errors_.take_raised();
  progress.lost_ranks = errors_.take_lost_ranks();
  for (std::size_t bytes = 0; !values_.unsent.empty() && bytes < limits_.progress_bytes;) {
    const std::size_t size = size_of(values_.unsent.front());
    bytes += size;
    values_.bytes -= size;
    progress.fetched.push_back(std::move(values_.unsent.front()));
    values_.unsent.pop_front();
  }
  return progress;
}

Outbox::Sealed Outbox::seal() {
  MutexLock sending(sending_);
  Sealed sealed;
  while (true) {
    wire::Progress progress;
    {
      MutexLock lock(mutex_);
      sealed.bytes_received = bytes_completed_;
      if (values_.unsent.empty() && errors_.empty()) break;
      progress = gather();
    }
    progress.number = ++number_;
    kept_.keep(number_, std::make_shared<const std::string>(wire::encode_progress(progress)),
               /*sent=*/false);
  }
  sealed.number = number_;
  sealed.kept = kept_.all();
  return sealed;
}

void Outbox::restore(Sealed sealed, std::uint64_t received, std::uint64_t completed) {
  MutexLock sending(sending_);
  number_ = sealed.number;
  for (auto& [number, message] : sealed.kept) kept_.keep(number, message, /*sent=*/true);
  MutexLock lock(mutex_);
  received_ = restored_ = written_ = received;
  completed_ = told_.completed = completed;
  bytes_received_ = bytes_completed_ = sealed.bytes_received;
  told_.credit_upto = credit_upto();
  told_.credit_bytes = credit_bytes();
}

void Outbox::close() {
  MutexLock sending(sending_);
  closed_ = true;
}

Outbox::Message Outbox::take(std::uint64_t attach) {
  MutexLock sending(sending_);
  if (closed_ || attach != attach_) return nullptr;
  if (Message again = kept_.next()) return again;
  wire::Progress progress;
  {
    MutexLock lock(mutex_);
    if (!due()) return nullptr;
    progress = gather();
  }
  progress.number = ++number_;
  auto message = std::make_shared<const std::string>(wire::encode_progress(progress));
  if (keeps_ && !(progress.fetched.empty() && progress.errors.empty() && progress.raised.empty())) {
    kept_.keep(progress.number, message, /*sent=*/true);
  }
  return message;
}

void Outbox::acknowledged(std::uint64_t number) {
  MutexLock sending(sending_);
  kept_.forget_upto(number);
}

bool Outbox::rewind(std::uint64_t number, std::uint64_t attach) {
  MutexLock sending(sending_);
  attach_ = attach;
  // After a restart, the messages in between contained only counters.
  number_ = std::max(number_, number);
  const bool complete = kept_.rewind(number);
  MutexLock lock(mutex_);
  send_on_attach_ = true;
  tell_written_ = written_ != 0;
  return complete;
}

std::uint64_t Outbox::received_upto() const {
  MutexLock lock(mutex_);
  return received_;
}
std::uint64_t Outbox::completed_upto() const {
  MutexLock lock(mutex_);
  return completed_;
}

core::Clock::time_point Outbox::idle_since() const {
  MutexLock lock(mutex_);
  const bool told = told_.completed == received_ && !send_on_attach_;
  return told ? told_.at : core::Clock::time_point{};
}

}  // namespace teletensor::server
