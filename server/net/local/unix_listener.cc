#include "server/net/local/unix_listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/core/threads.h"
#include "server/base/log.h"

namespace teletensor::server {

using core::Code;
using core::Result;
using core::Status;

namespace {

// Pause in milliseconds after accept() fails for lack of descriptors.
constexpr int kNoDescriptorsMs = 100;

}  // namespace

Result<std::unique_ptr<UnixListener>> UnixListener::open(const std::string& path, mode_t mode) {
  std::unique_ptr<UnixListener> door(new UnixListener);
  auto socket = SocketFile::open(path, mode);
  if (!socket.ok()) return socket.status();
  door->socket_ = std::move(*socket);
  door->event_ = core::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!door->event_) {
    return Status(Code::kUnavailable, "socket " + path + ": " + std::strerror(errno));
  }
  return door;
}

UnixListener::~UnixListener() {
  if (thread_.joinable()) {
    eventfd_write(event_.get(), 1);
    thread_.join();
  }
}

void UnixListener::start(OnAccept guide) {
  on_accept_ = std::move(guide);
  thread_ = core::start_thread([this] { run(); });
}

void UnixListener::run() {
  while (true) {
    pollfd ready[] = {{socket_->descriptor(), POLLIN, 0}, {event_.get(), POLLIN, 0}};
    if (poll(ready, 2, -1) < 0 && errno != EINTR) return;
    if (ready[1].revents != 0) return;
    if (ready[0].revents != 0) accept_all();
  }
}

void UnixListener::accept_all() {
  while (true) {
    const int connection =
        accept4(socket_->descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      log_warn("socket_refused", {{"reason", std::strerror(errno)}});
      pollfd end{event_.get(), POLLIN,
                 0};  // No descriptor is left: wait before accept() is tried again.
      poll(&end, 1, kNoDescriptorsMs);
      return;
    }
    ucred peer{};
    socklen_t size = sizeof peer;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
      on_accept_(peer.uid, connection);
    } else {
      close(connection);
    }
  }
}

}  // namespace teletensor::server
