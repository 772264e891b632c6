#include "server/base/socket_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <utility>

#include "engine/core/threads.h"
#include "server/base/os/private_files.h"

namespace teletensor::server {

using core::MutexLock;
using core::Result;
using core::Status;

namespace {

constexpr std::uint64_t kStopNumber = 0;  // Registrations are numbered from 1.

bool control(const core::UniqueFd& epoll, int operation, int socket, std::uint64_t number,
             std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = number;
  return epoll_ctl(epoll.get(), operation, socket, &event) == 0;
}

}  // namespace

Result<std::unique_ptr<SocketLoop>> SocketLoop::start(unsigned threads) {
  std::unique_ptr<SocketLoop> loop(new SocketLoop);
  loop->epoll_ = core::UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  loop->stop_ = core::UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!loop->epoll_ || !loop->stop_ ||
      !control(loop->epoll_, EPOLL_CTL_ADD, loop->stop_.get(), kStopNumber, EPOLLIN)) {
    return system_error("epoll");
  }
  for (unsigned i = 0; i < threads; ++i) {
    loop->threads_.push_back(core::start_thread([raw = loop.get()] { raw->serve(); }));
  }
  return loop;
}

SocketLoop::~SocketLoop() {
  if (stop_) eventfd_write(stop_.get(), 1);
  for (std::thread& thread : threads_) thread.join();
  std::map<std::uint64_t, Registration> left;
  {
    MutexLock lock(mutex_);
    left.swap(registrations_);
  }
  left.clear();
}

Result<std::uint64_t> SocketLoop::add(int socket, std::shared_ptr<Handler> handler) {
  std::uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = ++last_;
    registrations_.emplace(number, Registration{std::move(handler)});
  }
  if (control(epoll_, EPOLL_CTL_ADD, socket, number, EPOLLONESHOT)) return number;
  const Status why = system_error("epoll");
  remove(number, socket);
  return why;
}

Status SocketLoop::replace(std::uint64_t number, int earlier, int later) {
  control(epoll_, EPOLL_CTL_DEL, earlier, number, 0);
  return control(epoll_, EPOLL_CTL_ADD, later, number, EPOLLONESHOT) ? Status()
                                                                     : system_error("epoll");
}

void SocketLoop::arm(std::uint64_t number, int socket, std::uint32_t events) {
  {
    MutexLock lock(mutex_);
    const auto found = registrations_.find(number);
    if (found == registrations_.end()) return;
    Registration& registration = found->second;
    if (registration.running) {
      registration.next_socket = socket;
      registration.next_events = events;
      return;
    }
    registration.armed = true;
  }
  control(epoll_, EPOLL_CTL_MOD, socket, number, events | EPOLLONESHOT);
}

void SocketLoop::remove(std::uint64_t number, int socket) {
  control(epoll_, EPOLL_CTL_DEL, socket, number, 0);
  std::shared_ptr<Handler> removed;  // Destroyed without the lock.
  MutexLock lock(mutex_);
  const auto found = registrations_.find(number);
  if (found == registrations_.end()) return;
  removed = std::move(found->second.handler);
  registrations_.erase(found);
}

std::shared_ptr<SocketLoop::Handler> SocketLoop::begin_call(std::uint64_t number) {
  MutexLock lock(mutex_);
  const auto found = registrations_.find(number);
  if (found == registrations_.end() || !std::exchange(found->second.armed, false)) return nullptr;
  found->second.running = true;
  return found->second.handler;
}

void SocketLoop::end_call(std::uint64_t number) {
  int socket = -1;
  std::uint32_t events = 0;
  {
    MutexLock lock(mutex_);
    const auto found = registrations_.find(number);
    if (found == registrations_.end()) return;
    Registration& registration = found->second;
    registration.running = false;
    socket = std::exchange(registration.next_socket, -1);
    events = registration.next_events;
    registration.armed = socket >= 0;
  }
  if (socket >= 0) control(epoll_, EPOLL_CTL_MOD, socket, number, events | EPOLLONESHOT);
}

void SocketLoop::serve() {
  while (true) {
    epoll_event event{};
    if (epoll_wait(epoll_.get(), &event, 1, -1) <= 0) continue;
    if (event.data.u64 == kStopNumber) return;
    if (const auto handler = begin_call(event.data.u64)) {
      handler->on_event();
      end_call(event.data.u64);
    }
  }
}

}  // namespace teletensor::server
