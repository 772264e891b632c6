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
      told_credit_upto_(limits.credit_instructions),
      told_credit_bytes_(limits.credit_bytes),
      attach_(attach) {}

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
  if (received_ + count > told_credit_upto_) {
    return Status(Code::kResourceExhausted,
                  "frame beyond the credits: command " + std::to_string(received_ + count) +
                      ", granted up to " + std::to_string(told_credit_upto_));
  }
  if (bytes_received_ + bytes > told_credit_bytes_) {
    return Status(Code::kResourceExhausted,
                  "frame beyond the credits: " + std::to_string(bytes_received_ + bytes) +
                      " bytes sent, granted " + std::to_string(told_credit_bytes_));
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
  completed_ = told_ = completed;
  told_credit_upto_ = credit_upto();
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
  return {told_credit_upto_, told_credit_bytes_, bytes_received_};
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
  values_bytes_ += size_of(value);
  if (values_bytes_ > limits_.outbox_bytes) {
    return Status(Code::kResourceExhausted, "the client has left " + std::to_string(values_bytes_) +
                                                " bytes of values unread");
  }
  // Commands run in order, so a value implies that all earlier commands are done. Reporting both in
  // one message saves a message. A description does not wait for earlier commands.
  if (!value.description) complete(value.seq);
  values_.push_back(std::move(value));
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

std::uint64_t Outbox::bytes() const {
  MutexLock lock(mutex_);
  return values_bytes_ + errors_.bytes() + kept_bytes_.load(std::memory_order_relaxed);
}

bool Outbox::due() const {
  if (send_on_attach_ || tell_written_ || !values_.empty() || !errors_.empty()) return true;
  if (completed_ > told_ && completed_ == received_) return true;
  return credit_upto() - told_credit_upto_ > limits_.credit_instructions / 4 ||
         credit_bytes() - told_credit_bytes_ > limits_.credit_bytes / 4;
}

wire::Progress Outbox::gather() {
  wire::Progress progress;
  send_on_attach_ = false;
  if (std::exchange(tell_written_, false)) progress.snapshot_upto = written_;
  progress.completed_upto = told_ = completed_;
  progress.received_upto = received_;
  progress.credit_upto = told_credit_upto_ = credit_upto();
  progress.credit_bytes = told_credit_bytes_ = credit_bytes();
  progress.errors = errors_.take_errors();
  progress.raised = errors_.take_raised();
  for (std::size_t bytes = 0; !values_.empty() && bytes < limits_.progress_bytes;) {
    const std::size_t size = size_of(values_.front());
    bytes += size;
    values_bytes_ -= size;
    progress.fetched.push_back(std::move(values_.front()));
    values_.pop_front();
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
      if (values_.empty() && errors_.empty()) break;
      progress = gather();
    }
    progress.number = ++number_;
    keep(number_, std::make_shared<const std::string>(wire::encode_progress(progress)));
    ++again_;
  }
  sealed.number = number_;
  for (const Kept& kept : kept_) sealed.kept.emplace_back(kept.number, kept.message);
  return sealed;
}

void Outbox::restore(Sealed sealed, std::uint64_t received, std::uint64_t completed) {
  MutexLock sending(sending_);
  number_ = sealed.number;
  for (auto& [number, message] : sealed.kept) keep(number, message);
  MutexLock lock(mutex_);
  received_ = restored_ = written_ = received;
  completed_ = told_ = completed;
  bytes_received_ = bytes_completed_ = sealed.bytes_received;
  told_credit_upto_ = credit_upto();
  told_credit_bytes_ = credit_bytes();
}

void Outbox::close() {
  MutexLock sending(sending_);
  closed_ = true;
}

Outbox::Message Outbox::take(std::uint64_t attach) {
  MutexLock sending(sending_);
  if (closed_ || attach != attach_) return nullptr;
  if (again_ != 0) return kept_[kept_.size() - again_--].message;
  wire::Progress progress;
  {
    MutexLock lock(mutex_);
    if (!due()) return nullptr;
    progress = gather();
  }
  progress.number = ++number_;
  auto message = std::make_shared<const std::string>(wire::encode_progress(progress));
  if (keeps_ && !(progress.fetched.empty() && progress.errors.empty() && progress.raised.empty())) {
    keep(progress.number, message);
  }
  return message;
}

void Outbox::keep(std::uint64_t number, const Message& message) {
  kept_.push_back({number, message});
  kept_bytes_ += message->size();
  // The client reads messages without acknowledging them. The oldest ones are dropped; the client
  // could not reconnect if its stream were lost now. Messages that were never sent are kept.
  while (kept_bytes_ > limits_.outbox_bytes && kept_.size() > again_ + 1) {
    forget_upto(dropped_upto_ = kept_.front().number);
  }
}

void Outbox::forget_upto(std::uint64_t number) {
  while (!kept_.empty() && kept_.front().number <= number) {
    kept_bytes_ -= kept_.front().message->size();
    kept_.pop_front();
  }
  again_ = std::min(again_, kept_.size());
}

void Outbox::acknowledged(std::uint64_t number) {
  MutexLock sending(sending_);
  forget_upto(number);
}

bool Outbox::rewind(std::uint64_t number, std::uint64_t attach) {
  MutexLock sending(sending_);
  attach_ = attach;
  // After a restart, the messages in between contained only counters.
  number_ = std::max(number_, number);
  forget_upto(number);
  again_ = kept_.size();
  MutexLock lock(mutex_);
  send_on_attach_ = true;
  tell_written_ = written_ != 0;
  return dropped_upto_ <= number;
}

std::uint64_t Outbox::received_upto() const {
  MutexLock lock(mutex_);
  return received_;
}
std::uint64_t Outbox::completed_upto() const {
  MutexLock lock(mutex_);
  return completed_;
}

}  // namespace teletensor::server
