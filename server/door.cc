#include "server/door.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/core/threads.h"
#include "server/listen.h"

namespace teletensor::server {

using core::Code;
using core::Result;
using core::Status;

namespace {

constexpr int kBacklog = 128;
constexpr int kNoDescriptorsMs = 100;  // then it tries again

}  // namespace

Result<std::unique_ptr<Door>> Door::open(const std::string& path, mode_t mode) {
  TT_RETURN_IF_ERROR(prepare_socket(path));
  const auto failed = [&path] {
    return Status(Code::kUnavailable, "socket " + path + ": " + std::strerror(errno));
  };
  std::unique_ptr<Door> door(new Door(path));
  door->listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  door->event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (door->listener_ < 0 || door->event_ < 0) return failed();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const mode_t mask = umask(0177);  // never open to others, not even for a moment
  const int bound =
      bind(door->listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  umask(mask);
  door->bound_ = bound == 0;
  if (bound != 0 || chmod(path.c_str(), mode) != 0 || listen(door->listener_, kBacklog) != 0) {
    return failed();
  }
  return door;
}

Door::~Door() {
  if (thread_.joinable()) {
    eventfd_write(event_, 1);
    thread_.join();
  }
  for (const int each : {listener_, event_}) {
    if (each >= 0) close(each);
  }
  if (bound_) unlink(path_.c_str());
}

void Door::start(Guide guide) {
  guide_ = std::move(guide);
  thread_ = core::start_thread([this] { run(); });
}

void Door::run() {
  while (true) {
    pollfd ready[] = {{listener_, POLLIN, 0}, {event_, POLLIN, 0}};
    if (poll(ready, 2, -1) < 0 && errno != EINTR) return;
    if (ready[1].revents != 0) return;
    if (ready[0].revents != 0) accept_all();
  }
}

void Door::accept_all() {
  while (true) {
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      spdlog::warn("event=socket_refused reason=\"{}\"", std::strerror(errno));
      pollfd end{event_, POLLIN, 0};  // no descriptor is left: not again and again
      poll(&end, 1, kNoDescriptorsMs);
      return;
    }
    ucred peer{};
    socklen_t size = sizeof peer;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
      guide_(peer.uid, connection);
    } else {
      close(connection);
    }
  }
}

}  // namespace teletensor::server
