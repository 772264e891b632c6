#include "clients/session/stream/local_call.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "engine/core/os/unique_fd.h"
#include "proto/wire/share.h"

namespace teletensor::client {

using core::Code;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kReadBytes = 64 << 10;
// Maximum size of a message of the daemon, as over gRPC (clients/wire/wire.cc).
constexpr std::size_t kMaxMessageBytes = 64 << 20;

// The time `timeout` microseconds from now; the end of time if it is negative.
Clock::time_point deadline(std::int64_t timeout) {
  return timeout < 0 ? Clock::time_point::max() : Clock::now() + std::chrono::microseconds(timeout);
}

// Waits until the socket is ready for `events` or closed. Returns false after the deadline.
bool wait_for(int socket, short events, Clock::time_point until) {
  while (true) {
    int most = -1;
    if (until != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      most = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
    }
    pollfd ready{socket, events, 0};
    const int n = poll(&ready, 1, most);
    if (n > 0) return true;
    if (n == 0) return false;
    if (errno != EINTR) return true;
  }
}

// One writer and one reader at a time; cancel() may be called by any thread.
class LocalCall {
 public:
  explicit LocalCall(int socket) : socket_(socket), buffer_(kReadBytes) {
    if (socket < 0) end_with(Code::kUnavailable, "the daemon did not accept the stream in time");
  }
  ~LocalCall() { drop(); }
  LocalCall(const LocalCall&) = delete;
  LocalCall& operator=(const LocalCall&) = delete;

  void write(const tt_wire_part* parts, std::size_t count) {
    if (parts == nullptr) {
      shutdown(socket_.get(), SHUT_WR);
      return;
    }
    parts_.assign(parts, parts + count);
    header_ = {};
    for (const tt_wire_part& part : parts_) header_.size += static_cast<std::uint32_t>(part.size);
    sent_ = 0;
  }

  int written(std::int64_t timeout) {
    const Clock::time_point until = deadline(timeout);
    while (!parts_.empty()) {
      const ssize_t n = send_some();
      if (n >= 0) {
        sent_ += static_cast<std::size_t>(n);
        if (sent_ == sizeof header_ + header_.size) drop();
      } else if (errno == EAGAIN) {
        if (!wait_for(socket_.get(), POLLOUT, until)) return TT_WIRE_TIMEOUT;
      } else if (errno != EINTR) {
        drop();
        return TT_WIRE_OVER;
      }
    }
    return TT_WIRE_DONE;
  }

  int read(std::int64_t timeout, tt_wire_message* message) {
    const Clock::time_point until = deadline(timeout);
    while (!over_) {
      if (const int found = next(message); found != TT_WIRE_TIMEOUT) return found;
      if (!wait_for(socket_.get(), POLLIN, until)) return TT_WIRE_TIMEOUT;
      const ssize_t n =
          recv(socket_.get(), buffer_.data() + end_, buffer_.size() - end_, MSG_DONTWAIT);
      if (n > 0) {
        end_ += static_cast<std::size_t>(n);
      } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
        end_with(
            cancelled_ ? Code::kCancelled : Code::kUnavailable,
            cancelled_ ? "the stream was cut by its client" : "the daemon closed the connection");
      }
    }
    return TT_WIRE_OVER;
  }

  int status(const char** text) const {
    *text = text_.c_str();
    return code_;
  }
  const char* word() const { return word_.c_str(); }

  void cancel() {
    cancelled_ = true;
    shutdown(socket_.get(), SHUT_RDWR);
  }

 private:
  ssize_t send_some() {
    iovec vectors[8];
    std::size_t count = 0, skip = sent_;
    const auto add = [&](const void* data, std::size_t size) {
      const std::size_t from = std::min(skip, size);
      skip -= from;
      if (from == size || count == std::size(vectors)) return;
      vectors[count++] = {static_cast<char*>(const_cast<void*>(data)) + from, size - from};
    };
    add(&header_, sizeof header_);
    for (const tt_wire_part& part : parts_) add(part.data, part.size);
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = count;
    return sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  void drop() {
    for (const tt_wire_part& part : parts_) {
      if (part.drop != nullptr) part.drop(part.owner);
    }
    parts_.clear();
  }

  // Takes the next message from the buffer. TIMEOUT if it has not arrived completely; then the
  // buffer has room for more of it.
  int next(tt_wire_message* message) {
    wire::LocalHeader header;
    const std::size_t have = end_ - begin_;
    if (have >= sizeof header) {
      std::memcpy(&header, buffer_.data() + begin_, sizeof header);
      if (header.size > kMaxMessageBytes) {
        end_with(Code::kInternal, "the daemon sent a message of " + std::to_string(header.size) +
                                      " bytes; the maximum is " + std::to_string(kMaxMessageBytes));
        return TT_WIRE_OVER;
      }
    }
    const std::size_t whole = sizeof header + header.size;
    if (have < sizeof header || have < whole) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, have);
      begin_ = 0;
      end_ = have;
      if (buffer_.size() < whole) buffer_.resize(whole);
      return TT_WIRE_TIMEOUT;
    }
    const std::string_view bytes(buffer_.data() + begin_ + sizeof header, header.size);
    begin_ += whole;
    if (header.kind == wire::LocalHeader::kEnd) {
      read_end(bytes);
      return TT_WIRE_OVER;
    }
    part_ = {bytes.data(), bytes.size(), nullptr, nullptr};
    *message = {&part_, 1, nullptr};
    return TT_WIRE_DONE;
  }

  void read_end(std::string_view bytes) {
    wire::LocalEnd end;
    if (bytes.size() < sizeof end) return end_with(Code::kInternal, "an incomplete status");
    std::memcpy(&end, bytes.data(), sizeof end);
    bytes.remove_prefix(sizeof end);
    word_ = bytes.substr(0, end.word);
    end_with(static_cast<Code>(end.code), std::string(bytes.substr(word_.size())));
  }

  void end_with(Code code, std::string text) {
    over_ = true;
    code_ = static_cast<int>(code);
    text_ = std::move(text);
  }

  const core::UniqueFd socket_;
  std::atomic<bool> cancelled_ = false;

  // ---- used by the writer
  std::vector<tt_wire_part> parts_;  // The message that is being sent.
  wire::LocalHeader header_;
  std::size_t sent_ = 0;  // Number of bytes that were sent, with the header.

  // ---- used by the reader
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // The range of buffer_ that was received and not taken.
  tt_wire_part part_{};              // The last message.
  bool over_ = false;
  int code_ = 0;
  std::string text_, word_;
};

LocalCall& of(tt_wire_call* call) { return *reinterpret_cast<LocalCall*>(call); }

tt_wire_api functions() {
  tt_wire_api api{};
  api.version = TT_WIRE_VERSION;
  api.write = [](tt_wire_call* call, const tt_wire_part* parts, std::size_t count) {
    of(call).write(parts, count);
  };
  api.written = [](tt_wire_call* call, std::int64_t timeout) { return of(call).written(timeout); };
  api.read = [](tt_wire_call* call, std::int64_t timeout, tt_wire_message* message) {
    return of(call).read(timeout, message);
  };
  api.forget = [](tt_wire_message*) {};
  api.status = [](tt_wire_call* call, const char** text) { return of(call).status(text); };
  api.trailer = [](tt_wire_call* call, const char*) { return of(call).word(); };
  api.cancel = [](tt_wire_call* call) { of(call).cancel(); };
  api.end = [](tt_wire_call* call) { delete &of(call); };
  return api;
}

}  // namespace

std::unique_ptr<Call> local_call(int socket) {
  static const tt_wire_api api = functions();
  auto call = std::make_unique<LocalCall>(socket);
  return std::make_unique<Call>(api, reinterpret_cast<tt_wire_call*>(call.release()), nullptr);
}

std::unique_ptr<Call> run_local(const ShareAddress& address, std::uint64_t attach) {
  const char* const wanted = std::getenv("TELETENSOR_LOCAL_STREAM");
  if (wanted != nullptr && std::string_view(wanted) == "0") return nullptr;
  const core::Result<int> socket = open_local_stream(address, attach);
  if (socket.ok()) return local_call(*socket);
  return socket.status().code() == Code::kDeadlineExceeded ? local_call(-1) : nullptr;
}

}  // namespace teletensor::client
