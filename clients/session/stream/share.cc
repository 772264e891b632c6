#include "clients/session/stream/share.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace teletensor::client {

using core::Code;
using core::Result;
using core::Status;
using core::UniqueFd;

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(length_, other.length_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(hold_, other.hold_);
  std::swap(due_, other.due_);
  std::swap(user_, other.user_);
  std::swap(readable_, other.readable_);
  return *this;
}

#ifndef __linux__

Mapping::~Mapping() = default;

namespace {
Status unsupported() { return Status(Code::kUnimplemented, "no shared memory on this system"); }
}  // namespace

Result<Mapping> Mapping::take(const ShareAddress&, std::uint64_t, std::uint64_t, const Stop&) {
  return unsupported();
}
Result<Mapping> Mapping::open(const ShareAddress&, std::uint64_t, bool, const Stop&) {
  return unsupported();
}
Result<std::uint64_t> Mapping::upload(const ShareAddress&, core::Device, std::uint64_t,
                                      std::uint64_t, const Stop&) {
  return unsupported();
}
Result<std::uint64_t> Mapping::send(const ShareAddress&, core::Device, std::string_view,
                                    const Stop&) {
  return unsupported();
}
Result<GpuMemory> take_gpu(const ShareAddress&, std::uint64_t, std::uint64_t, const Stop&) {
  return unsupported();
}
Result<int> open_local_stream(const ShareAddress&, std::uint64_t) { return unsupported(); }

#else

namespace {

constexpr int kSliceMs = 100;  // Time between two calls of `stop`.
// Maximum time to wait for the last answer of an upload after `stop` has returned true.
constexpr std::chrono::seconds kLastAnswer{2};

// Maximum time to wait for the daemon to accept a stream.
constexpr std::chrono::seconds kStreamAnswer{5};

// Number of pieces of the memory for uploads: the daemon copies one piece while the client fills
// others.
constexpr int kPieces = 8;

Status unavailable(const std::string& what) {
  return Status(Code::kUnavailable, "shared memory: " + what + ": " + std::strerror(errno));
}

// The ticket must only be sent to a daemon of this user or of root.
Status check_peer(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return unavailable("peer");
  if (peer.uid == geteuid() || peer.uid == 0) return {};
  return Status(Code::kPermissionDenied, "shared memory: the daemon runs as another user");
}

Result<UniqueFd> dial(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return core::invalid("shared memory: the path of the socket is too long");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return unavailable(path);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return unavailable(path);
  }
  TT_RETURN_IF_ERROR(check_peer(socket.get()));
  const timeval slice{0, kSliceMs * 1000};
  if (setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof slice) != 0) {
    return unavailable("socket");
  }
  return socket;
}

wire::ShareRequest request_of(const ShareAddress& from, wire::ShareKind kind) {
  wire::ShareRequest request;
  request.kind = kind;
  request.session = from.session;
  std::memcpy(request.ticket, from.ticket.data(),
              std::min(from.ticket.size(), sizeof request.ticket));
  return request;
}

wire::ShareRequest upload_of(const ShareAddress& to, core::Device device, std::uint64_t total) {
  wire::ShareRequest request = request_of(to, wire::kShareUpload);
  request.total = total;
  request.device = static_cast<std::uint64_t>(device.kind) * 256 + device.index;
  return request;
}

Status tell(int socket, const wire::ShareRequest& request) {
  const ssize_t n = ::send(socket, &request, sizeof request, MSG_NOSIGNAL);
  return n == static_cast<ssize_t>(sizeof request) ? Status() : unavailable("request");
}

// Waits for the next reply, and for the descriptor that is sent with it.
Status hear(int socket, wire::ShareReply& reply, UniqueFd& descriptor, const Stop& stop) {
  iovec part{&reply, sizeof reply};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  while ((n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL)) < 0) {
    if (errno != EINTR && errno != EAGAIN) return unavailable("wait");
    if (stop && stop()) return Status(Code::kCancelled, "interrupted");
  }
  if (const cmsghdr* header = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
      header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int passed = -1;
    std::memcpy(&passed, CMSG_DATA(header), sizeof passed);
    descriptor = UniqueFd(passed);
  }
  if (n != static_cast<ssize_t>(sizeof reply) || reply.magic != wire::kShareMagic) {
    return Status(Code::kUnavailable, "shared memory: the daemon went away");
  }
  if (reply.code == 0) return {};
  return Status(static_cast<Code>(reply.code), "shared memory: refused");
}

Status ask(int socket, const wire::ShareRequest& request, wire::ShareReply& reply,
           UniqueFd& descriptor, const Stop& stop) {
  TT_RETURN_IF_ERROR(tell(socket, request));
  return hear(socket, reply, descriptor, stop);
}

// Checks that the file cannot be shortened by another process and contains what the reply says.
Status check_file(int file, const wire::ShareReply& reply) {
  struct stat info {};
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(file, &info) != 0) {
    return core::internal("shared memory: the daemon sent a file that is not sealed");
  }
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (reply.offset <= size && reply.bytes <= size - reply.offset) return {};
  return core::internal("shared memory: the file is too short");
}

struct Mapped {
  char* base;
  std::size_t length, skip;
};

Result<Mapped> map(int file, const wire::ShareReply& reply, int flags) {
  TT_RETURN_IF_ERROR(check_file(file, reply));
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = reply.offset / page * page, skip = reply.offset - begin;
  const std::size_t length = std::max<std::size_t>(reply.bytes + skip, 1);
  void* base =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, file, static_cast<off_t>(begin));
  if (base == MAP_FAILED) return unavailable("map");
  madvise(base, length, MADV_HUGEPAGE);  // madvise is only a hint, so a failure is ignored.
  return Mapped{static_cast<char*>(base), length, skip};
}

}  // namespace

// Unmaps the pages before closing the connection, so that the memory is not visible here when the
// daemon uses it again.
Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, length_);
}

Result<Mapping> Mapping::ask(const ShareAddress& from, const wire::ShareRequest& request,
                             std::uint64_t bytes, int flags, const Stop& stop) {
  Result<UniqueFd> socket = dial(from.socket);
  if (!socket.ok()) return socket.status();
  Mapping mapping;
  mapping.hold_ = std::move(*socket);
  wire::ShareReply reply;
  UniqueFd file;
  TT_RETURN_IF_ERROR(client::ask(mapping.hold_.get(), request, reply, file, stop));
  if (reply.bytes != bytes) {
    return core::internal("shared memory: the daemon sent another amount of memory than requested");
  }
  const Result<Mapped> mapped = map(file.get(), reply, flags);
  if (!mapped.ok()) return mapped.status();
  mapping.base_ = mapped->base;
  mapping.length_ = mapped->length;
  mapping.data_ = mapped->base + mapped->skip;
  mapping.bytes_ = bytes;
  mapping.user_ = from.users;
  return mapping;
}

Result<Mapping> Mapping::take(const ShareAddress& from, std::uint64_t seq, std::uint64_t bytes,
                              const Stop& stop) {
  wire::ShareRequest request = request_of(from, wire::kShareTake);
  request.number = seq;
  // A private mapping: what is written stays in this process.
  return ask(from, request, bytes, MAP_PRIVATE | MAP_NORESERVE, stop);
}

Result<Mapping> Mapping::open(const ShareAddress& from, std::uint64_t bytes, bool way,
                              const Stop& stop) {
  wire::ShareRequest request = request_of(from, way ? wire::kShareWay : wire::kShareOpen);
  request.bytes = bytes;
  Result<Mapping> mapping = ask(from, request, bytes, MAP_SHARED, stop);
  if (mapping.ok()) mapping->readable_ = !way;
  return mapping;
}

Result<GpuMemory> take_gpu(const ShareAddress& from, std::uint64_t seq, std::uint64_t bytes,
                           const Stop& stop) {
  wire::ShareRequest request = request_of(from, wire::kShareTakeGpu);
  request.number = seq;
  Result<UniqueFd> hold = dial(from.socket);
  if (!hold.ok()) return hold.status();
  UniqueFd memory;
  wire::ShareReply reply;
  TT_RETURN_IF_ERROR(ask(hold->get(), request, reply, memory, stop));
  if (reply.bytes != bytes || memory.get() < 0) {
    return core::internal(
        "shared memory: the daemon sent another amount of memory than requested, or none");
  }
  GpuMemory taken;
  std::memcpy(taken.gpu, &reply.number, sizeof reply.number);
  std::memcpy(taken.gpu + sizeof reply.number, &reply.offset, sizeof reply.offset);
  taken.descriptor = memory.release();
  taken.hold = hold->release();
  return taken;
}

Result<int> open_local_stream(const ShareAddress& from, std::uint64_t attach) {
  wire::ShareRequest request = request_of(from, wire::kShareRun);
  request.number = attach;
  Result<UniqueFd> socket = dial(from.socket);
  if (!socket.ok()) return socket.status();
  UniqueFd none;
  wire::ShareReply reply;
  const Stop late = [until = std::chrono::steady_clock::now() + kStreamAnswer] {
    return std::chrono::steady_clock::now() > until;
  };
  Status status = ask(socket->get(), request, reply, none, late);
  if (status.code() == Code::kCancelled && reply.magic == 0) {
    return Status(Code::kDeadlineExceeded, "the daemon did not accept the stream within 5 s");
  }
  TT_RETURN_IF_ERROR(status);
  return socket->release();
}

Status Mapping::tell(const wire::ShareRequest& request) {
  TT_RETURN_IF_ERROR(client::tell(hold_.get(), request));
  ++due_;
  return {};
}

Status Mapping::hear(wire::ShareReply& reply, const Stop& stop) {
  reply.code = 0;
  reply.magic = 0;
  UniqueFd none;
  const Status status = client::hear(hold_.get(), reply, none, stop);
  if (reply.magic == wire::kShareMagic) --due_;
  return status;
}

Status Mapping::settle(const Stop& stop) {
  while (due_ > 0) {
    wire::ShareReply reply;
    const Status status = hear(reply, stop);
    if (!status.ok() && reply.magic != wire::kShareMagic) return status;
  }
  return {};
}

Status Mapping::hear_last(wire::ShareReply& reply, const Stop& stop) {
  const Stop patience = [until = std::chrono::steady_clock::now() + kLastAnswer] {
    return std::chrono::steady_clock::now() > until;
  };
  while (due_ > 0) {
    Status status = hear(reply, stop);
    if (status.code() == Code::kCancelled && reply.magic != wire::kShareMagic) {
      status = hear(reply, patience);
    }
    TT_RETURN_IF_ERROR(status);
  }
  return {};
}

// Ends an incomplete upload by requesting a piece outside the memory, because an upload that fails
// is ended.
void Mapping::give_up(wire::ShareRequest request) {
  request.from = bytes_;
  request.bytes = 1;
  (void)tell(request);  // The answer is read by the next upload.
}

Result<std::uint64_t> Mapping::upload(const ShareAddress& to, core::Device device,
                                      std::uint64_t from, std::uint64_t bytes, const Stop& stop) {
  wire::ShareRequest request = upload_of(to, device, bytes);
  TT_RETURN_IF_ERROR(settle(stop));
  while (true) {
    request.from = from + request.offset;
    request.bytes = std::min(bytes - request.offset, wire::kMaxShareUpload);
    const bool last = request.offset + request.bytes == bytes;
    wire::ShareReply reply;
    TT_RETURN_IF_ERROR(tell(request));
    const Status heard = last ? hear_last(reply, stop) : hear(reply, stop);
    if (heard.code() == Code::kCancelled && request.number != 0) give_up(request);
    TT_RETURN_IF_ERROR(heard);
    request.number = reply.number;
    request.offset += request.bytes;
    if (last) return request.number;
  }
}

Result<std::uint64_t> Mapping::send(const ShareAddress& to, core::Device device,
                                    std::string_view bytes, const Stop& stop) {
  wire::ShareRequest request = upload_of(to, device, bytes.size());
  const std::uint64_t most = std::min(bytes_ / kPieces, wire::kMaxShareUpload);
  if (most == 0) return core::invalid("shared memory: the memory is too small for transfers");
  TT_RETURN_IF_ERROR(settle(stop));
  wire::ShareReply reply;
  for (std::uint64_t piece = 0; piece == 0 || request.offset < bytes.size(); ++piece) {
    request.from = piece % kPieces * most;
    request.bytes = std::min<std::uint64_t>(most, bytes.size() - request.offset);
    if (due_ == kPieces) TT_RETURN_IF_ERROR(hear(reply, stop));
    std::memcpy(data_ + request.from, bytes.data() + request.offset, request.bytes);
    TT_RETURN_IF_ERROR(tell(request));
    if (piece == 0) {  // The first reply has the upload's number.
      TT_RETURN_IF_ERROR(hear(reply, stop));
      request.number = reply.number;
    }
    request.offset += request.bytes;
  }
  TT_RETURN_IF_ERROR(hear_last(reply, stop));
  return request.number;
}

#endif

}  // namespace teletensor::client
