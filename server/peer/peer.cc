#include "server/peer/peer.h"

#include <algorithm>
#include <utility>

#include "engine/core/with_memory.h"
#include "engine/program/text.h"
#include "server/base/log.h"
#include "server/base/secrets.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;

namespace {

constexpr std::int64_t kWindow = 16 << 20;
constexpr std::size_t kUnacknowledged = 1 << 20;
constexpr std::chrono::milliseconds kAcknowledge{20}, kFirstPause{20}, kLastPause{2000};
// Time after which a frame without a message is sent, and after which a connection on which nothing
// arrives is given up.
constexpr std::chrono::milliseconds kBeat{2000}, kSilence{8000};
// Number of bytes that a frame without a payload adds to the count of unacknowledged bytes.
constexpr std::size_t kFrameBytes = 64;

FrameOutput::Frame whole_frame(std::string text) { return {std::move(text), nullptr, {}, 0}; }

}  // namespace

std::uint64_t new_incarnation() {
  const auto now = static_cast<std::uint64_t>(core::Clock::now().time_since_epoch().count());
  return random_number().value_or(now) | 1;
}

Result<PeerFrame> read_frame(const FrameInput::Frame& bytes) {
  return core::with_memory("a peer's frame",
                           [&] { return decode_frame(bytes.text, bytes.payload); });
}

Status check_hello(const PeerHello& hello, const PeerStream& stream, const PeerHome& home) {
  if (hello.protocol != kPeerProtocol) {
    return Status(Code::kFailedPrecondition,
                  "\"" + hello.name + "\" speaks version " + std::to_string(hello.protocol) +
                      " of the protocol of peers, \"" + home.name + "\" version " +
                      std::to_string(kPeerProtocol) + ": install daemons of one version");
  }
  if (!stream.is_certified(hello.name)) {
    return Status(
        Code::kPermissionDenied,
        "\"" + hello.name + "\" is no DNS name of the certificate of the daemon that says it");
  }
  return {};
}

Peer::Peer(std::string name, const std::string& address, PeerHome& home)
    : name_(std::move(name)),
      address_(std::make_shared<PeerAddress>(address)),
      home_(home),
      link_(std::make_unique<Link>(new_incarnation(), kWindow)),
      redial_{Clock::now(), kFirstPause,
              std::minstd_rand(static_cast<std::uint32_t>(new_incarnation()))} {}

PeerFacts Peer::facts() {
  MutexLock lock(mutex_);
  PeerFacts facts = facts_;
  facts.name = name_;
  facts.connected = standing_;
  return facts;
}

std::string Peer::why_disconnected() {
  MutexLock lock(mutex_);
  if (standing_) return "";
  if (!dials()) return "it has not connected to this daemon";
  return last_why_.empty() ? "not connected yet" : program::shortened(last_why_, kPeerReason);
}

void Peer::send(PeerParcel parcel) {
  PeerStream::Ref stream;
  bool look_again = false;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    if (parcel.first) {
      link_->send_first(std::move(parcel));
    } else {
      link_->send(std::move(parcel));
    }
    if (standing_) {
      stream = stream_;
    } else if (!missed_) {
      missed_ = Clock::now();
      look_again = true;
    }
  }
  if (stream) stream->wake();
  if (look_again) home_.look_again();
}

void Peer::accept(const PeerStream::Ref& stream, const PeerHello& hello) {
  MutexLock serial(deliver_);
  stream->hand_to(*this);
  stand(stream, hello);
}

void Peer::stand(const PeerStream::Ref& stream, const PeerHello& hello) {
  PeerStream::Ref earlier;
  std::vector<PeerParcel> released;
  bool meet = false;
  stream->trust();
  {
    MutexLock lock(mutex_);
    if (stopped_) return stream->end(Status(Code::kUnavailable, "the daemon shuts down"));
    if (stream_ != stream) earlier = std::exchange(stream_, stream);
    const bool restarted = link_->connected(hello.link, &released);
    if (!dials()) hello_ = encode_hello({home_.name, kPeerProtocol, link_->hello()});
    meet = !std::exchange(known_, true) || restarted;
    meeting_ = meet;
    standing_ = true;
    ++facts_.connections;
    missed_.reset();
    receipts_ = {};
    sent_at_ = Clock::now();
    last_why_.clear();
  }
  if (earlier) earlier->end(Status(Code::kAborted, "a later connection has taken its place"));
  log_info("peer_connected", {{"peer", name_}, {"new", meet}});
  if (meet) home_.receiver->met(name_);
  if (meet && home_.moves != nullptr) home_.moves->met(name_);
  {
    MutexLock lock(mutex_);
    meeting_ = false;
  }
  stream->wake();
}

void Peer::received(const PeerStream::Ref& stream, const FrameInput::Frame& bytes) {
  MutexLock serial(deliver_);
  Result<PeerFrame> frame = read_frame(bytes);
  bool standing = false;
  {
    MutexLock lock(mutex_);
    if (stream_ != stream) return;  // A later connection has replaced this one.
    facts_.received += bytes.bytes();
    standing = standing_;
  }
  if (frame.ok() && frame->end) return stream->end(*frame->end);
  Status status = frame.status();
  if (status.ok())
    status = standing ? take(stream, *frame) : greet(stream, frame->hello.value_or(PeerHello()));
  if (status.ok()) return;
  // A frame that could not be read for lack of memory is sent again.
  const bool again = status.code() == Code::kResourceExhausted && !frame.ok();
  if (standing && !again) lose(status.message());
  stream->end(std::move(status));
}

Status Peer::greet(const PeerStream::Ref& stream, const PeerHello& hello) {
  if (hello.name.empty()) return core::invalid("the first frame has no hello");
  if (hello.name != name_) {
    return Status(Code::kPermissionDenied,
                  "the daemon there says that it is \"" + hello.name + "\"");
  }
  TT_RETURN_IF_ERROR(check_hello(hello, *stream, home_));
  stand(stream, hello);
  return {};
}

// Handles a frame of an established connection.
Status Peer::take(const PeerStream::Ref& stream, PeerFrame& frame) {
  if (frame.hello) return core::invalid("a second hello");
  std::vector<PeerParcel> released;
  {
    MutexLock lock(mutex_);
    if (stream_ != stream || stopped_) return {};
    const Result<bool> fresh = link_->receive({frame.number, frame.received, {}}, &released);
    if (!fresh.ok()) return fresh.status();
    redial_.pause = kFirstPause;
    if (!*fresh) return {};
    note_receipt(static_cast<std::size_t>(frame.message.message.payload) + kFrameBytes);
  }
  const runtime::Pieces payload(&frame.payload, frame.payload.empty() ? 0 : 1);
  if (!frame.move) return home_.receiver->received(name_, frame.message, payload);
  if (home_.moves == nullptr) return core::invalid("this daemon does not receive moved sessions");
  return home_.moves->received(name_, std::move(*frame.move),
                               std::string(frame.payload.data(), frame.payload.size()));
}

void Peer::note_receipt(std::size_t bytes) {
  receipts_.bytes += bytes;
  if (receipts_.look_at) return;
  receipts_.look_at = Clock::now() + kAcknowledge;
  home_.look_again();
}

void Peer::acknowledged() {
  receipts_.bytes = 0;
  receipts_.late = false;
}

std::optional<FrameOutput::Frame> Peer::next(const PeerStream::Ref& stream) {
  MutexLock lock(mutex_);
  if (stream_ != stream) return std::nullopt;
  std::optional<FrameOutput::Frame> frame = next_frame();
  if (frame) {
    facts_.sent += frame->bytes();
    sent_at_ = Clock::now();
  }
  return frame;
}

std::optional<FrameOutput::Frame> Peer::next_frame() {
  if (hello_) return whole_frame(*std::exchange(hello_, std::nullopt));
  if (!standing_ || meeting_) return std::nullopt;
  if (const auto next = link_->next()) {
    acknowledged();
    const PeerParcel& parcel = next->parcel;
    return FrameOutput::Frame{encode_numbers(next->number, next->received), parcel.message,
                              parcel.payload, static_cast<std::size_t>(parcel.bytes)};
  }
  const bool owes = link_->owes() && (receipts_.bytes >= kUnacknowledged || receipts_.late);
  if (!owes && Clock::now() < sent_at_ + kBeat) return std::nullopt;
  acknowledged();
  return whole_frame(encode_numbers(0, link_->acknowledgement().received));
}

void Peer::detach(Clock::time_point now) {
  link_->disconnected();
  stream_.reset();
  hello_.reset();
  standing_ = false;
  const std::chrono::milliseconds pause = redial_.pause;
  const std::chrono::milliseconds part(std::uniform_int_distribution<std::int64_t>(
      pause.count() / 2, pause.count())(redial_.random));
  redial_.at = now + part;
  redial_.pause = std::min(2 * pause, kLastPause);
}

void Peer::closed(const PeerStream::Ref& stream, const std::string& why) {
  bool told = false, stood = false;
  {
    MutexLock lock(mutex_);
    if (stream_ != stream) return;
    const Clock::time_point now = Clock::now();
    stood = standing_;
    if (stood) missed_ = now;
    detach(now);
    told = stopped_ || (!stood && std::exchange(last_why_, why) == why);
  }
  if (!told && stood) {
    log_warn("peer_disconnected",
             {{"peer", name_}, {"reason", program::shortened(why, kPeerReason)}});
  } else if (!told) {
    log_warn("peer_unreachable",
             {{"peer", name_}, {"reason", program::shortened(why, kPeerReason)}});
  }
  home_.look_again();
}

void Peer::lose(const std::string& why) {
  std::unique_ptr<Link> over;
  PeerStream::Ref stream;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    over = std::exchange(link_, std::make_unique<Link>(new_incarnation(), kWindow));
    stream = stream_;
    if (stream_) detach(Clock::now());
    known_ = false;
    ++facts_.losses;
    missed_.reset();
  }
  if (stream) stream->end(Status(Code::kAborted, why));
  log_warn("peer_lost", {{"peer", name_}, {"reason", program::shortened(why, kPeerReason)}});
  home_.receiver->lost(name_, why);
  if (home_.moves != nullptr) home_.moves->lost(name_, why);
  home_.look_again();
}

bool Peer::is_lost(Clock::time_point now) {
  return !stopped_ && !standing_ && missed_ && now >= *missed_ + home_.patience;
}

Peer::Clock::time_point Peer::tick(Clock::time_point now) {
  Clock::time_point due = Clock::time_point::max();
  PeerStream::Ref late, owing, silent;
  bool calls = false, lost = false;
  {
    MutexLock lock(mutex_);
    if (stopped_) return due;
    const auto passed = [&](Clock::time_point when) {
      if (now < when) due = std::min(due, when);
      return now >= when;
    };
    if (stream_ && !standing_ && passed(greet_until_)) late = stream_;
    if (!stream_ && dials()) calls = passed(redial_.at);
    if (standing_) {
      if (passed(stream_->heard() + kSilence)) silent = stream_;
      if (passed(sent_at_ + kBeat)) {
        owing = stream_;
        due = std::min(due, now + kBeat);
      }
      if (receipts_.look_at && passed(*receipts_.look_at)) {
        receipts_.look_at.reset();
        receipts_.late = link_->owes();
        if (receipts_.late) owing = stream_;
      }
    }
    if (!standing_ && missed_) lost = passed(*missed_ + home_.patience);
  }
  if (late) late->end(Status(Code::kDeadlineExceeded, "the peer sent no hello within 5 s"));
  if (silent) silent->end(Status(Code::kUnavailable, "nothing has arrived for 8 s"));
  if (owing) owing->wake();
  if (lost) {
    // If the receiver is being called for this peer, report the loss later, so that other peers
    // need not wait.
    if (deliver_.try_lock()) {
      {
        MutexLock lock(mutex_);
        lost = is_lost(now);
      }
      if (lost) lose("no connection for " + std::to_string(home_.patience.count()) + " ms");
      deliver_.unlock();
    } else {
      due = std::min(due, now + kAcknowledge);
    }
  }
  if (calls) dial();
  return due;
}

void Peer::dial() {
  const PeerStream::Ref stream = PeerStream::dialed(home_.streams, *this, address_, name_);
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    stream_ = stream;
    standing_ = false;
    greet_until_ = Clock::now() + kHandshake;
    hello_ = encode_hello({home_.name, kPeerProtocol, link_->hello()});
  }
  stream->open();
  home_.look_again();
}

bool Peer::connected() {
  MutexLock lock(mutex_);
  return standing_;
}

bool Peer::busy() {
  MutexLock lock(mutex_);
  return standing_ && (!link_->idle() || link_->owes());
}

void Peer::stop() {
  PeerStream::Ref stream;
  std::unique_ptr<Link> over;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    stream = stream_;
    over = std::exchange(link_, std::make_unique<Link>(new_incarnation(), kWindow));
  }
  if (stream) stream->end(Status(Code::kUnavailable, "the daemon shuts down"));
}

}  // namespace teletensor::server
