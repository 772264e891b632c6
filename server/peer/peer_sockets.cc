#include "server/peer/peer_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "engine/core/threads.h"
#include "server/base/os/listen.h"
#include "server/base/os/private_files.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;

namespace {

constexpr int kBacklog = 128;  // Connections that the system holds until they are accepted.
constexpr int kPauseMs = 100;  // Pause if the system has no resources for a further connection.

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

Result<std::vector<Endpoint>> endpoints(const std::string& text, int flags) {
  const std::size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  const int error = getaddrinfo(host.c_str(), text.c_str() + colon + 1, &hints, &list);
  if (error != 0) {
    return Status(Code::kUnavailable,
                  "no address of " + text.substr(0, colon) + ": " + gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, FreeAddresses> owned(list);
  std::vector<Endpoint> found;
  for (; list != nullptr; list = list->ai_next) {
    Endpoint& each = found.emplace_back();
    std::memcpy(&each.address, list->ai_addr, list->ai_addrlen);
    each.size = list->ai_addrlen;
  }
  return found;
}

Socket stream_socket(const Endpoint& endpoint) {
  return Socket(socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void send_small_messages_at_once(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// The port of an address, in the byte order of the network.
in_port_t& port_of(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

}  // namespace

std::vector<Endpoint> PeerAddress::numeric() const {
  auto found = endpoints(text_, AI_NUMERICHOST);
  return found.ok() ? std::move(*found) : std::vector<Endpoint>();
}

Result<std::shared_ptr<PeerSearch>> PeerAddress::search() {
  auto search = std::make_shared<PeerSearch>();
  if (search->descriptor() < 0) return system_error("a socket");
  if (searching_.exchange(true)) {
    return Status(Code::kUnavailable, "the search for the address of " + text_ + " has not ended");
  }
  try {
    std::thread([self = shared_from_this(), search] {
      auto found = endpoints(self->text_, AI_ADDRCONFIG);
      self->searching_ = false;
      search->end(std::move(found));
    }).detach();
  } catch (const std::system_error& error) {
    searching_ = false;
    return Status(Code::kUnavailable, core::refused_thread(error));
  }
  return search;
}

PeerSearch::PeerSearch() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void PeerSearch::wake() { eventfd_write(event_.get(), 1); }

std::optional<Result<std::vector<Endpoint>>> PeerSearch::take() {
  MutexLock lock(mutex_);
  return std::exchange(found_, std::nullopt);
}

void PeerSearch::end(Result<std::vector<Endpoint>> found) {
  {
    MutexLock lock(mutex_);
    found_ = std::move(found);
  }
  wake();
}

Result<Socket> begin_connect(const Endpoint& endpoint) {
  Socket socket = stream_socket(endpoint);
  if (!socket) return system_error("a socket");
  send_small_messages_at_once(socket.get());
  const auto* const address = reinterpret_cast<const sockaddr*>(&endpoint.address);
  if (connect(socket.get(), address, endpoint.size) != 0 && errno != EINPROGRESS) {
    return system_error("cannot connect");
  }
  return socket;
}

Status connected(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  errno = error;
  return error == 0 ? Status() : system_error("cannot connect");
}

Result<std::unique_ptr<PeerListener>> PeerListener::open(const std::string& address) {
  auto found = endpoints(address, AI_PASSIVE);
  if (!found.ok()) return found.status();
  std::unique_ptr<PeerListener> listener(new PeerListener);
  listener->stop_ = Socket(eventfd(0, EFD_CLOEXEC));
  if (!listener->stop_) return system_error("a socket");
  for (Endpoint& each : *found) {
    if (listener->port_ != 0)
      port_of(each.address) = htons(static_cast<in_port_t>(listener->port_));
    TT_RETURN_IF_ERROR(listener->bind(each));
  }
  return listener;
}

PeerListener::~PeerListener() { stop(); }

Status PeerListener::bind(const Endpoint& endpoint) {
  Socket socket = stream_socket(endpoint);
  if (!socket) return system_error("a socket");
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const auto* const address = reinterpret_cast<const sockaddr*>(&endpoint.address);
  if (::bind(socket.get(), address, endpoint.size) != 0 || listen(socket.get(), kBacklog) != 0) {
    return system_error("cannot listen");
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return system_error("cannot listen");
  }
  port_ = ntohs(port_of(bound));
  sockets_.push_back(std::move(socket));
  return {};
}

void PeerListener::start(Accepted accepted) {
  thread_ = core::start_thread([this, accepted = std::move(accepted)] { accept_all(accepted); });
}

void PeerListener::accept_all(const Accepted& accepted) {
  std::vector<pollfd> waited{{stop_.get(), POLLIN, 0}};
  for (const Socket& each : sockets_) waited.push_back({each.get(), POLLIN, 0});
  bool pauses = false;
  while (true) {
    // While the system refuses connections, their sockets stay readable.
    const int found = pauses ? poll(waited.data(), 1, kPauseMs)
                             : poll(waited.data(), static_cast<nfds_t>(waited.size()), -1);
    if (waited[0].revents != 0) return;
    pauses = false;
    if (found < 0) continue;
    for (const Socket& each : sockets_) {
      Socket socket(accept4(each.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket) {
        send_small_messages_at_once(socket.get());
        accepted(std::move(socket));
      } else {
        pauses |= errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      }
    }
  }
}

void PeerListener::stop() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
  sockets_.clear();
}

}  // namespace teletensor::server
