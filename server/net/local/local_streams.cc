#include "server/net/local/local_streams.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/core/threads.h"
#include "server/base/os/private_files.h"
#include "server/net/local/local_stream.h"

namespace teletensor::server {

using core::MutexLock;
using core::Result;

namespace {

// There are more threads than cores, so that a client need not wait until the frames of other
// clients are decoded.
constexpr unsigned kMinThreads = 4, kMaxThreads = 16;
constexpr std::uint64_t kStopNumber = 0;  // Streams are numbered from 1.

}  // namespace

Result<std::unique_ptr<LocalStreams>> LocalStreams::start(Leases& leases) {
  std::unique_ptr<LocalStreams> streams(new LocalStreams(leases));
  streams->epoll_ = epoll_create1(EPOLL_CLOEXEC);
  streams->stop_ = eventfd(0, EFD_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kStopNumber;
  if (streams->epoll_ < 0 || streams->stop_ < 0 ||
      epoll_ctl(streams->epoll_, EPOLL_CTL_ADD, streams->stop_, &event) != 0) {
    return system_error("local streams");
  }
  const unsigned threads =
      std::clamp(2 * std::thread::hardware_concurrency(), kMinThreads, kMaxThreads);
  for (unsigned i = 0; i < threads; ++i) {
    streams->threads_.push_back(core::start_thread([raw = streams.get()] { raw->serve(); }));
  }
  return streams;
}

LocalStreams::~LocalStreams() {
  if (stop_ >= 0) eventfd_write(stop_, 1);
  for (std::thread& thread : threads_) thread.join();
  std::map<std::uint64_t, std::shared_ptr<LocalStream>> left;
  {
    MutexLock lock(mutex_);
    left.swap(streams_);
  }
  left.clear();
  for (const int each : {epoll_, stop_}) {
    if (each >= 0) close(each);
  }
}

void LocalStreams::run(int socket, LeaseRef lease, std::uint64_t attach,
                       StreamShares::Place place) {
  std::shared_ptr<LocalStream> stream;
  epoll_event event{};
  event.events = EPOLLONESHOT;  // The stream arms it.
  {
    MutexLock lock(mutex_);
    event.data.u64 = ++last_;
    stream = std::make_shared<LocalStream>(*this, last_, socket, attach, std::move(place));
    streams_.emplace(last_, stream);
  }
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) != 0) {
    return remove(event.data.u64);  // The client sees that the connection was closed.
  }
  stream->start(std::move(lease));
}

std::shared_ptr<LocalStream> LocalStreams::find(std::uint64_t number) const {
  MutexLock lock(mutex_);
  const auto found = streams_.find(number);
  return found == streams_.end() ? nullptr : found->second;
}

void LocalStreams::remove(std::uint64_t number) {
  std::shared_ptr<LocalStream> removed;
  MutexLock lock(mutex_);
  const auto found = streams_.find(number);
  if (found == streams_.end()) return;
  removed = std::move(found->second);
  streams_.erase(found);
}

void LocalStreams::serve() {
  while (true) {
    epoll_event event{};
    if (epoll_wait(epoll_, &event, 1, -1) <= 0) continue;
    if (event.data.u64 == kStopNumber) return;
    if (const auto stream = find(event.data.u64)) stream->on_event();
  }
}

}  // namespace teletensor::server
