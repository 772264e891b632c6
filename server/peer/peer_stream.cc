#include "server/peer/peer_stream.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "engine/core/memory/reserve.h"
#include "server/peer/peer_codec.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;

namespace {

// How many bytes a thread writes or reads before it leaves the rest to the loop, or to the other
// direction.
constexpr std::size_t kTurn = 256 << 10;

}  // namespace

PeerStream::Ref PeerStream::accepted(Home& home, Owner& owner, Socket socket) {
  Ref stream(new PeerStream(home, owner));
  stream->route_.accepted = std::move(socket);
  return stream;
}

PeerStream::Ref PeerStream::dialed(Home& home, Owner& owner, std::shared_ptr<PeerAddress> address,
                                   std::string peer) {
  Ref stream(new PeerStream(home, owner));
  stream->route_.address = std::move(address);
  stream->route_.peer = std::move(peer);
  return stream;
}

void PeerStream::open() noexcept {
  const core::UsesReserve reserve;
  const Ref self = shared_from_this();
  input_.accept(kMaxPeerHello, 0);
  heard_ = Clock::now().time_since_epoch().count();
  {
    MutexLock lock(mutex_);
    started_ = true;
  }
  settle(advance());
}

void PeerStream::trust() { input_.accept(kMaxPeerTexts, kMaxPeerPayload); }

PeerStream::Clock::time_point PeerStream::heard() const {
  if (delivering_) return Clock::now();
  return Clock::time_point(Clock::duration(heard_));
}

// ---------------------------------------------------------------- events

void PeerStream::on_event() noexcept {
  const Ref self = shared_from_this();  // close() drops the reference of the loop.
  bool ending = false;
  {
    MutexLock lock(mutex_);
    if (end_.closed) return;
    handling_ = true;
    blocked_ = false;
    ending = end_.wanted;
  }
  settle(ending ? Status() : advance());
}

Status PeerStream::advance() {
  switch (stage_) {
    case Stage::kStart:
      return start();
    case Stage::kFind:
      return find();
    case Stage::kConnect: {
      const Status status = connected(channel_->socket());
      if (!status.ok()) return route_.endpoints.empty() ? status : connect_next();
      stage_ = Stage::kHandshake;
      [[fallthrough]];
    }
    case Stage::kHandshake: {
      const Result<bool> done = channel_->handshake();
      if (!done.ok()) return done.status();
      {
        MutexLock lock(mutex_);
        if (!*done) {
          registration_.awaits = channel_->wants_to_write() ? EPOLLOUT : EPOLLIN;
          return {};
        }
        stage_ = Stage::kOpen;
        open_ = true;
        registration_.awaits = EPOLLIN;
      }
      // OpenSSL may have received the first frame with the end of the handshake. The socket does
      // not report it again.
      return read();
    }
    case Stage::kOpen:
      return read();
  }
  return {};
}

Status PeerStream::start() {
  if (!route_.address) {
    stage_ = Stage::kHandshake;
    TT_RETURN_IF_ERROR(use_channel(std::move(route_.accepted)));
    return advance();
  }
  route_.endpoints = route_.address->numeric();
  if (!route_.endpoints.empty()) return connect_next();
  stage_ = Stage::kFind;
  auto search = route_.address->search();
  if (!search.ok()) return search.status();
  MutexLock lock(mutex_);
  search_ = std::move(*search);
  return register_descriptor(search_->descriptor(), EPOLLIN);
}

Status PeerStream::find() {
  std::optional<Result<std::vector<Endpoint>>> found;
  {
    MutexLock lock(mutex_);
    found = search_->take();
  }
  if (!found) return {};
  if (!found->ok()) return found->status();
  route_.endpoints = std::move(**found);
  std::reverse(route_.endpoints.begin(), route_.endpoints.end());
  return connect_next();
}

Status PeerStream::connect_next() {
  stage_ = Stage::kConnect;
  while (true) {
    const Endpoint endpoint = route_.endpoints.back();
    route_.endpoints.pop_back();
    Result<Socket> socket = begin_connect(endpoint);
    if (socket.ok()) return use_channel(std::move(*socket));
    if (route_.endpoints.empty()) return socket.status();
  }
}

Status PeerStream::use_channel(Socket socket) {
  TlsRef tls;
  if (home_.tls != nullptr) {
    tls = route_.address ? home_.tls->connecting(socket.get(), route_.peer)
                         : home_.tls->accepting(socket.get());
    if (!tls) return Status(Code::kResourceExhausted, "the daemon is out of memory for TLS");
  }
  auto channel = std::make_unique<PeerChannel>(std::move(socket), std::move(tls));
  MutexLock lock(mutex_);
  const Status status = register_descriptor(channel->socket(), EPOLLOUT);
  channel_ = std::move(channel);  // Closes the earlier socket.
  search_.reset();
  return status;
}

Status PeerStream::register_descriptor(int descriptor, std::uint32_t awaits) {
  const int earlier = std::exchange(registration_.descriptor, descriptor);
  registration_.awaits = awaits;
  if (registration_.number != 0) {
    return home_.loop->replace(registration_.number, earlier, descriptor);
  }
  const Result<std::uint64_t> number = home_.loop->add(descriptor, shared_from_this());
  if (number.ok()) registration_.number = *number;
  return number.status();
}

Status PeerStream::read() {
  for (std::size_t turn = 0; turn < kTurn;) {
    const std::span<char> room = input_.room();
    const Result<std::size_t> got = channel_->receive(room);
    if (!got.ok()) return got.status();
    if (*got == 0) return {};
    heard_ = Clock::now().time_since_epoch().count();
    turn += *got;
    input_.filled(*got);
    while (true) {
      const Result<std::optional<FrameInput::Frame>> frame = input_.next();
      if (!frame.ok()) return frame.status();
      if (!*frame) break;
      deliver(**frame);
      MutexLock lock(mutex_);
      if (end_.wanted) return {};
    }
    if (!channel_->has_more()) return {};
  }
  // The rest may be in the memory of TLS, of which the socket knows nothing.
  MutexLock lock(mutex_);
  blocked_ = true;
  return {};
}

void PeerStream::deliver(const FrameInput::Frame& frame) {
  delivering_ = true;
  owner_.load()->received(shared_from_this(), frame);
  heard_ = Clock::now().time_since_epoch().count();
  delivering_ = false;
}

void PeerStream::settle(Status status) noexcept {
  const core::UsesReserve reserve;
  if (!status.ok()) {
    end(std::move(status));
  } else {
    wake();
  }
  {
    MutexLock lock(mutex_);
    if (!end_.said) {
      handling_ = false;
      return arm();
    }
    end_.closed = true;
  }
  close();
}

void PeerStream::close() noexcept {
  const core::UsesReserve reserve;
  std::string why;
  Registration registration;
  {
    MutexLock lock(mutex_);
    why = end_.why.message();
    registration = registration_;
  }
  if (registration.number != 0) home_.loop->remove(registration.number, registration.descriptor);
  if (channel_) channel_->shut();
  owner_.load()->closed(shared_from_this(), why);
}

// A stream that ends is armed by prompt().
void PeerStream::arm() {
  if (handling_ || end_.closed || (end_.wanted && !end_.said)) return;
  std::uint32_t events = registration_.awaits;
  if (blocked_) events |= EPOLLOUT;
  home_.loop->arm(registration_.number, registration_.descriptor, events);
}

void PeerStream::prompt() {
  end_.said = true;
  if (handling_ || end_.closed) return;
  if (search_) {
    search_->wake();
  } else if (channel_) {
    channel_->shut();  // Wakes the loop even if the network carries nothing.
  }
  arm();
}

// ---------------------------------------------------------------- writing

void PeerStream::wake() noexcept {
  const Ref self = shared_from_this();
  std::size_t budget = kTurn;
  writer_.run([&] { return write(budget); });
}

void PeerStream::end(Status why) noexcept {
  const core::UsesReserve reserve;
  {
    MutexLock lock(mutex_);
    if (!std::exchange(end_.wanted, true)) end_.why = std::move(why);
  }
  wake();
}

bool PeerStream::write(std::size_t& budget) {
  Status why;
  {
    MutexLock lock(mutex_);
    if (end_.said || !started_ || (!open_ && !end_.wanted)) return false;
    if (end_.wanted && !open_) {
      prompt();
      return false;
    }
    if (end_.wanted) why = end_.why;
  }
  if (!why.ok()) {
    say_farewell(why);
    MutexLock lock(mutex_);
    prompt();
    return false;
  }
  while (output_.has_room()) {
    std::optional<FrameOutput::Frame> frame = owner_.load()->next(shared_from_this());
    if (!frame) break;
    output_.add(std::move(*frame));
  }
  const std::span<const char> bytes = output_.front();
  if (bytes.empty()) return false;
  const Result<std::size_t> sent = channel_->send(bytes.first(std::min(bytes.size(), kTurn)));
  if (!sent.ok()) {
    end(sent.status());
    return false;
  }
  output_.sent(*sent);
  budget -= std::min(budget, *sent);
  if (*sent > 0 && budget > 0) return true;
  MutexLock lock(mutex_);
  blocked_ = true;
  arm();
  return false;
}

// Sends the reason if the socket takes it at once.
void PeerStream::say_farewell(const Status& why) {
  if (!output_.at_boundary()) return;
  output_.add({encode_end(why), nullptr, {}, 0});
  while (!output_.front().empty()) {
    const Result<std::size_t> sent = channel_->send(output_.front());
    if (!sent.ok() || *sent == 0) return;
    output_.sent(*sent);
  }
}

}  // namespace teletensor::server
