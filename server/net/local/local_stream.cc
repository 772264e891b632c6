#include "server/net/local/local_stream.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/core/with_memory.h"
#include "proto/wire/share.h"

namespace teletensor::server {

using core::MutexLock;
using core::Status;

namespace {

constexpr std::size_t kReadBytes = 64 << 10;
constexpr int kReads = 4;  // Maximum number of reads before other streams have their turn.

wire::LocalHeader header_of(std::string_view bytes) {
  wire::LocalHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

bool has_message(std::string_view bytes) {
  return bytes.size() >= sizeof(wire::LocalHeader) &&
         bytes.size() - sizeof(wire::LocalHeader) >= header_of(bytes).size;
}

}  // namespace

LocalStream::LocalStream(LocalStreams& streams, core::UniqueFd socket, std::uint64_t attach,
                         StreamShares::Place place)
    : RunCall(streams.leases_),
      streams_(streams),
      socket_(std::move(socket)),
      attach_(attach),
      place_(std::move(place)) {}

void LocalStream::start(std::uint64_t number, LeaseRef lease) {
  number_ = number;
  join(std::move(lease), weak_from_this(), attach_);
  pump();
  MutexLock lock(mutex_);
  handling_ = false;
  arm();
}

void LocalStream::on_event() noexcept {
  {
    MutexLock lock(mutex_);
    armed_ = 0;
    if (closed_) return;
    handling_ = true;
  }
  if (!read()) detach("the client closed the stream");
  pump();
  MutexLock lock(mutex_);
  handling_ = false;
  frame_waits_ = has_message(received_);
  arm();
}

bool LocalStream::read() {
  char bytes[kReadBytes];
  for (int i = 0; i < kReads; ++i) {
    LeaseRef lease;
    {
      MutexLock lock(mutex_);
      if (!finish_wanted_) lease = lease_;
    }
    if (!lease || !lease->streams().readable()) return true;
    if (!has_message(received_)) {
      const ssize_t n = recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return true;
      if (n <= 0) return false;
      const Status kept = core::with_memory("a frame", [&] {
        received_.append(bytes, static_cast<std::size_t>(n));
        return Status();
      });
      if (!kept.ok()) leases_.end(*lease, kept, "protocol");
    }
    std::string_view rest = received_;
    while (lease->streams().readable() && consume(*lease, rest)) {
    }
    received_.erase(0, received_.size() - rest.size());
  }
  return true;
}

bool LocalStream::consume(Lease& lease, std::string_view& bytes) {
  if (bytes.size() < sizeof(wire::LocalHeader)) return false;
  const wire::LocalHeader header = header_of(bytes);
  const std::size_t most = leases_.limits().frame.bytes;
  if (header.kind != wire::LocalHeader::kMessage || header.size > most) {
    leases_.end(lease,
                core::invalid("a frame of " + std::to_string(header.size) +
                              " bytes; the maximum is " + std::to_string(most)),
                "protocol");
    return false;
  }
  if (!has_message(bytes)) return false;
  const std::string_view frame = bytes.substr(sizeof header, header.size);
  bytes.remove_prefix(sizeof header + header.size);
  const Status status = core::with_memory("a frame", [&] { return lease.submit(this, frame); });
  if (!status.ok()) leases_.end(lease, status, "protocol");
  return status.ok();
}

void LocalStream::abandon() {
  shutdown(socket_.get(),
           SHUT_RDWR);  // What is unsent can then not be sent, which closes the stream.
  pump();
}

void LocalStream::pump() {
  const auto self = shared_from_this();  // Closing the stream drops the reference of the loop.
  serial_executor_.run([this] { return step(); });
}

bool LocalStream::step() {
  send_rest();
  LeaseRef lease;
  Ending answer;
  {
    MutexLock lock(mutex_);
    if (closed_) return false;
    if (broken_) unsent_.clear();
    if (!writing_) write_began_ = Clock::now();
    writing_ = !unsent_.empty();
    arm();
    if (broken_ || (end_sent_ && !writing_)) {
      if (finish_wanted_) close();
      return false;
    }
    if (writing_) return false;
    if (finish_wanted_) {
      answer = answer_;
    } else {
      lease = lease_;
    }
  }
  if (lease) return send_progress(*lease);
  MutexLock lock(mutex_);
  if (!finish_wanted_) return false;
  end_sent_ = true;
  const wire::LocalEnd end{static_cast<std::uint32_t>(answer.status.code()),
                           static_cast<std::uint32_t>(answer.word.size())};
  std::string bytes(reinterpret_cast<const char*>(&end), sizeof end);
  bytes += answer.word;
  bytes += answer.status.message();
  send(wire::LocalHeader::kEnd, bytes);
  return true;
}

bool LocalStream::send_progress(Lease& lease) {
  bool some = false;
  const Status status = core::with_memory("progress", [&] {
    const Outbox::Message message = lease.outbox().take(attach_);
    some = static_cast<bool>(message);
    if (some) send(wire::LocalHeader::kMessage, *message);
    return Status();
  });
  // The report for the client is lost, so the session must end.
  if (!status.ok()) leases_.end(lease, status, "protocol");
  return some || !status.ok();
}

void LocalStream::send(std::uint32_t kind, std::string_view bytes) {
  wire::LocalHeader header{kind, static_cast<std::uint32_t>(bytes.size())};
  iovec parts[] = {{&header, sizeof header}, {const_cast<char*>(bytes.data()), bytes.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  ssize_t n = 0;
  do {
    n = sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno != EAGAIN) {
    broken_ = true;
    return;
  }
  const std::size_t sent = n < 0 ? 0 : static_cast<std::size_t>(n);
  if (sent < sizeof header) {
    unsent_.assign(reinterpret_cast<const char*>(&header) + sent, sizeof header - sent);
  }
  unsent_.append(bytes.substr(std::min(bytes.size(), sent - std::min(sent, sizeof header))));
}

void LocalStream::send_rest() {
  while (!unsent_.empty() && !broken_) {
    const ssize_t n =
        ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) {
      broken_ = true;
    } else {
      unsent_.erase(0, static_cast<std::size_t>(n));
    }
  }
}

void LocalStream::close() {
  if (std::exchange(closed_, true)) return;
  shutdown(socket_.get(), SHUT_RDWR);
  streams_.loop_->remove(number_, socket_.get());
}

void LocalStream::arm() {
  if (handling_ || closed_) return;
  std::uint32_t events = 0;
  if (writing_ || frame_waits_) events |= EPOLLOUT;
  if (!finish_wanted_ && lease_ && lease_->streams().readable()) {
    events |= EPOLLIN;
  } else if (!writing_) {
    events = 0;  // wake() arms the socket when the session has consumed the frame.
  }
  if (events == 0 || (events & armed_) == events) return;
  armed_ = events;
  streams_.loop_->arm(number_, socket_.get(), events);
}

}  // namespace teletensor::server
