#include "server/peer/peers.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/core/threads.h"
#include "engine/program/text.h"
#include "server/base/log.h"
#include "server/base/os/listen.h"
#include "server/base/os/spare_threads.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;
using Clock = core::Clock;

namespace {

// Number of threads that receive messages. There are several even on one core, because a receiver
// may have to wait.
constexpr unsigned kMinLoopThreads = 2, kMaxLoopThreads = 8;
constexpr int kOtherThreads = 2;  // The listener and the timer.
// Maximum number of connections for each peer whose hello was not received yet.
constexpr std::size_t kMaxPendingPerPeer = 2;
// Number of refusals that are logged; afterwards every 100th is.
constexpr std::uint64_t kRefusedLogged = 100;
constexpr std::chrono::milliseconds kFlushTime{1000}, kPollStep{2};

}  // namespace

Result<std::unique_ptr<Peers>> Peers::create(PeerOptions options) {
  std::shared_ptr<Certificates> certificates;
  if (options.tls.on()) {
    auto opened = Certificates::open(options.tls);
    if (!opened.ok()) return opened.status();
    certificates = std::move(*opened);
  }
  return std::unique_ptr<Peers>(new Peers(std::move(options), std::move(certificates)));
}

Peers::Peers(PeerOptions options, std::shared_ptr<Certificates> certificates)
    : options_(std::move(options)),
      certificates_(std::move(certificates)),
      incarnation_(new_incarnation()) {
  home_.name = options_.name;
  home_.patience = options_.patience;
  home_.look_again = [this] { look_again(); };
  for (const auto& [name, address] : options_.peers) {
    peers_.emplace(name, std::make_unique<Peer>(name, address, home_));
  }
}

Peers::~Peers() { stop(); }

Status Peers::start(Receiver& receiver, MoveReceiver* moves) {
  home_.receiver = &receiver;
  home_.moves = moves;
  TT_RETURN_IF_ERROR(listen());
  clock_ = core::start_thread([this] { run_timer(); });
  log_info("peers_listening", {{"name", options_.name},
                               {"address", address_},
                               {"count", peers_.size()},
                               {"tls", tls_ != nullptr}});
  return {};
}

Status Peers::listen() {
  const unsigned threads =
      std::clamp(std::thread::hardware_concurrency(), kMinLoopThreads, kMaxLoopThreads);
  TT_RETURN_IF_ERROR(check_threads(static_cast<int>(threads) + kOtherThreads));
  if (certificates_) {
    tls_ = PeerTls::create(certificates_);
    if (!tls_) return Status(Code::kResourceExhausted, "no memory for TLS between peers");
  }
  auto listener = PeerListener::open(options_.listen);
  if (!listener.ok()) {
    return Status(Code::kUnavailable, "cannot listen on " + options_.listen +
                                          " for peers: " + why_not_free(options_.listen));
  }
  listener_ = std::move(*listener);
  auto loop = SocketLoop::start(threads);
  if (!loop.ok()) return loop.status();
  loop_ = std::move(*loop);
  home_.streams.loop = loop_.get();
  home_.streams.tls = tls_.get();
  address_ =
      options_.listen.substr(0, options_.listen.rfind(':') + 1) + std::to_string(listener_->port());
  listener_->start([this](Socket socket) { admit(std::move(socket)); });
  return {};
}

std::vector<std::string> Peers::peers() const {
  std::vector<std::string> names;
  for (const auto& [name, peer] : peers_) names.push_back(name);
  return names;
}

std::string Peers::disconnected() const {
  std::string text;
  for (const auto& [name, peer] : peers_) {
    const std::string why = peer->why_disconnected();
    if (!why.empty()) text += (text.empty() ? "" : ", ") + name + " (" + why + ")";
  }
  return text;
}

std::vector<PeerFacts> Peers::facts() const {
  std::vector<PeerFacts> facts;
  for (const auto& [name, peer] : peers_) facts.push_back(peer->facts());
  return facts;
}

std::uint64_t Peers::refused() const {
  MutexLock lock(mutex_);
  return refused_;
}

void Peers::send(const std::string& peer, runtime::PeerMessage message, Payload payload) {
  std::size_t bytes = 0;
  for (const std::span<const char> part : payload.parts) bytes += part.size();
  if (bytes > kMaxPeerPayload) std::terminate();
  auto encoded = std::make_shared<const std::string>(encode_message(message));
  peers_.at(peer)->send({std::move(encoded), std::move(payload), static_cast<std::int64_t>(bytes),
                         message.kind == runtime::PeerMessage::Kind::kKept});
}

void Peers::send_move(const std::string& peer, v1::PeerMove move, std::string data) {
  const std::size_t bytes = data.size();
  if (bytes > kMaxMoveData) std::terminate();
  auto encoded = std::make_shared<const std::string>(encode_move(std::move(move)));
  Payload payload;
  if (bytes > 0) {
    auto held = std::make_shared<const std::string>(std::move(data));
    payload.parts.emplace_back(held->data(), held->size());
    payload.held = std::move(held);
  }
  peers_.at(peer)->send({std::move(encoded), std::move(payload), static_cast<std::int64_t>(bytes)});
}

bool Peers::local() const { return is_loopback(options_.listen); }

void Peers::admit(Socket socket) {
  const PeerStream::Ref stream = PeerStream::accepted(home_.streams, *this, std::move(socket));
  Status why;
  {
    MutexLock lock(mutex_);
    if (stopping_) {
      why = Status(Code::kUnavailable, "the daemon shuts down");
    } else if (strangers_.size() >= kMaxPendingPerPeer * peers_.size()) {
      why = Status(Code::kResourceExhausted, "too many connections have not sent a hello");
    } else {
      strangers_.push_back({stream, Clock::now() + Peer::kHandshake});
    }
  }
  if (!why.ok()) {
    refused(why.message());
    stream->end(why);
  }
  stream->open();
  look_again();
}

Status Peers::accept_hello(const PeerStream::Ref& stream, const FrameInput::Frame& bytes) {
  const Result<PeerFrame> frame = read_frame(bytes);
  if (!frame.ok()) return frame.status();
  if (!frame->hello) return core::invalid("the first frame has no hello");
  const PeerHello& hello = *frame->hello;
  const auto peer = peers_.find(hello.name);
  if (peer == peers_.end()) {
    return Status(Code::kPermissionDenied,
                  hello.name == options_.name
                      ? "the caller uses the name of the daemon that it calls"
                      : "\"" + hello.name + "\" is not in --peers");
  }
  if (peer->second->dials()) {
    return Status(Code::kFailedPrecondition,
                  "\"" + hello.name +
                      "\" must not open the connection: the daemon with the smaller name does");
  }
  TT_RETURN_IF_ERROR(check_hello(hello, *stream, home_));
  forget_stranger(stream);
  peer->second->accept(stream, hello);
  return {};
}

void Peers::received(const PeerStream::Ref& stream, const FrameInput::Frame& bytes) {
  const Status status = accept_hello(stream, bytes);
  if (status.ok()) return;
  forget_stranger(stream);
  refused(status.message());
  stream->end(Status(status.code(), "\"" + options_.name + "\" refuses: " + status.message()));
}

std::optional<FrameOutput::Frame> Peers::next(const PeerStream::Ref&) { return std::nullopt; }

void Peers::closed(const PeerStream::Ref& stream, const std::string& why) {
  if (forget_stranger(stream)) refused(why);
}

bool Peers::forget_stranger(const PeerStream::Ref& stream) {
  MutexLock lock(mutex_);
  return std::erase_if(strangers_,
                       [&](const PendingConnection& each) { return each.stream == stream; }) > 0;
}

void Peers::refused(const std::string& why) {
  std::uint64_t count = 0;
  {
    MutexLock lock(mutex_);
    count = ++refused_;
  }
  if (count > kRefusedLogged && count % kRefusedLogged != 0) return;
  log_warn("peer_refused", {{"count", count}, {"reason", program::shortened(why, kPeerReason)}});
}

Clock::time_point Peers::end_late_strangers(Clock::time_point now) {
  Clock::time_point due = Clock::time_point::max();
  std::vector<PendingConnection> late;
  {
    MutexLock lock(mutex_);
    const auto first_late =
        std::partition(strangers_.begin(), strangers_.end(),
                       [&](const PendingConnection& each) { return now < each.until; });
    late.assign(first_late, strangers_.end());
    strangers_.erase(first_late, strangers_.end());
    for (const PendingConnection& each : strangers_) due = std::min(due, each.until);
  }
  for (const PendingConnection& each : late) {
    const Status why(Code::kDeadlineExceeded, "the peer sent no hello within 5 s");
    refused(why.message());
    each.stream->end(why);
  }
  return due;
}

void Peers::look_again() {
  {
    MutexLock lock(mutex_);
    look_again_ = true;
  }
  changed_.notify_all();
}

void Peers::run_timer() {
  while (true) {
    const Clock::time_point now = Clock::now();
    Clock::time_point due = end_late_strangers(now);
    for (const auto& [name, peer] : peers_) due = std::min(due, peer->tick(now));
    MutexLock lock(mutex_);
    while (!look_again_ && !over_) {
      if (due == Clock::time_point::max()) {
        changed_.wait(mutex_);
      } else if (const auto left = due - Clock::now(); left <= left.zero()) {
        break;
      } else {
        changed_.wait_for(mutex_, left);
      }
    }
    look_again_ = false;
    if (over_) return;
  }
}

void Peers::stop() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopping_, true)) return;
  }
  const auto busy = [this] {
    return std::any_of(peers_.begin(), peers_.end(),
                       [](const auto& each) { return each.second->busy(); });
  };
  for (const auto end = Clock::now() + kFlushTime; busy() && Clock::now() < end;) {
    std::this_thread::sleep_for(kPollStep);
  }
  if (listener_) listener_->stop();
  const Status over(Code::kUnavailable, "the daemon shuts down");
  for (const auto& [name, peer] : peers_) peer->stop();
  std::vector<PendingConnection> strangers;
  {
    MutexLock lock(mutex_);
    strangers.swap(strangers_);
  }
  for (const PendingConnection& each : strangers) each.stream->end(over);
  strangers.clear();
  while (home_.streams.streams > 0) std::this_thread::sleep_for(kPollStep);
  {
    MutexLock lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (clock_.joinable()) clock_.join();
}

}  // namespace teletensor::server
