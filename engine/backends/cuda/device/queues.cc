#include "engine/backends/cuda/device/queues.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace teletensor::backends::cuda {

using core::MutexLock;
using core::Status;

core::Result<Queues::QueueRef> Queues::of(OwnerId owner) {
  const Driver& driver = device_.driver;
  QueueRef home;
  {
    MutexLock lock(mu_);
    const auto found = queues_.find(owner);
    if (found != queues_.end()) return found->second;
    if (const auto at = queues_.find(0); at != queues_.end()) home = at->second;
  }
  auto made = std::make_shared<Queue>();
  made->owner_ = owner;
  const auto make = [&]() -> Status {
    for (Stream* stream : {&made->stream_, &made->beside_}) {
      TT_RETURN_IF_ERROR(
          device_.check(driver.cuStreamCreate(stream, kStreamNonBlocking), "creating a stream"));
    }
    for (Event* event : {&made->mark_, &made->beside_mark_}) {
      TT_RETURN_IF_ERROR(
          device_.check(driver.cuEventCreate(event, kEventDisableTiming), "creating an event"));
    }
    return {};
  };
  Status status = make();
  if (!status.ok()) {
    destroy(*made);
    return status;
  }
  MutexLock lock(mu_);
  reap();
  const auto [at, added] = queues_.try_emplace(owner, made);
  if (!added) destroy(*made);  // another thread was faster
  // Under the lock, so that memory which arrives from the driver meanwhile is waited for by every
  // queue in the list.
  if (added && home) {
    status = follow(*made, *home);
    if (!status.ok()) {
      queues_.erase(at);
      destroy(*made);
      return status;
    }
  }
  return at->second;
}

void Queues::destroy(Queue& queue) {
  const Driver& driver = device_.driver;
  {
    MutexLock lock(queue.gather_mu_);
    queue.graphs_.clear(driver);
  }
  // The driver frees streams when their work has ended.
  for (Stream* stream : {&queue.stream_, &queue.beside_}) {
    if (*stream != nullptr) driver.cuStreamDestroy(std::exchange(*stream, nullptr));
  }
  for (Event* event : {&queue.mark_, &queue.beside_mark_}) {
    if (*event != nullptr) driver.cuEventDestroy(std::exchange(*event, nullptr));
  }
  MutexLock lock(queue.mu_);
  if (queue.current_.begin != nullptr) queue.spare_.push_back(queue.current_.begin);
  for (const Batch& batch : queue.open_) {
    queue.spare_.push_back(batch.begin);
    queue.spare_.push_back(batch.end);
  }
  for (Event event : queue.spare_) driver.cuEventDestroy(event);
  queue.spare_.clear();
  queue.open_.clear();
  queue.current_ = {};
}

void Queues::end(OwnerId owner) {
  QueueRef home, ended;
  {
    MutexLock lock(mu_);
    const auto found = queues_.find(owner);
    if (found == queues_.end() || owner == 0) return;
    ended = found->second;
    ended_.push_back(std::move(found->second));
    queues_.erase(found);
    if (const auto at = queues_.find(0); at != queues_.end()) home = at->second;
  }
  // From now on queues that would wait for the ended session wait for the home queue.
  if (home) (void)follow(*home, *ended);
  MutexLock lock(ended->gather_mu_);
  ended->gathering_ = false;
  ended->graphs_.clear(device_.driver);
}

void Queues::reap() {
  std::erase_if(ended_, [this](const QueueRef& each) {
    if (each.use_count() > 1) return false;
    destroy(*each);
    return true;
  });
}

void Queues::clear() {
  std::map<OwnerId, QueueRef> all;
  {
    MutexLock lock(mu_);
    all.swap(queues_);
    reap();
  }
  for (auto& [owner, queue] : all) destroy(*queue);
}

std::vector<Queues::QueueRef> Queues::all() const {
  std::vector<QueueRef> found;
  MutexLock lock(mu_);
  for (const auto& [owner, queue] : queues_) found.push_back(queue);
  return found;
}

// ---------------------------------------------------------------- order between queues

Status Queues::stream_follows(Stream stream, Queue& queue, bool beside) {
  if (!beside) TT_RETURN_IF_ERROR(this->stream(queue).status());
  return mark(stream, queue, beside);
}

// Like stream_follows(), but does not send gathered work.
Status Queues::mark(Stream stream, Queue& queue, bool beside) {
  const Event mark = beside ? queue.beside_mark_ : queue.mark_;
  // Another thread may record the same event meanwhile; then the stream waits for a later point,
  // which is also correct.
  TT_RETURN_IF_ERROR(
      device_.check(device_.driver.cuEventRecord(mark, beside ? queue.beside_ : queue.stream_),
                    "recording an event"));
  return device_.check(device_.driver.cuStreamWaitEvent(stream, mark, 0), "waiting for a stream");
}

Status Queues::follow(Queue& later, Queue& earlier) {
  return &later == &earlier ? Status() : stream_follows(later.stream_, earlier, false);
}

Status Queues::follow(Queue& later, OwnerId earlier) {
  QueueRef found;
  {
    MutexLock lock(mu_);
    auto at = queues_.find(earlier);
    if (at == queues_.end()) at = queues_.find(0);
    if (at != queues_.end()) found = at->second;
  }
  return found ? follow(later, *found) : Status();
}

Status Queues::follow_all(Queue& later) {
  for (const QueueRef& each : all()) TT_RETURN_IF_ERROR(follow(later, *each));
  return {};
}

Status Queues::make_all_follow(Queue& earlier) {
  const core::Result<Stream> after = stream(earlier);
  if (!after.ok()) return after.status();
  TT_RETURN_IF_ERROR(
      device_.check(device_.driver.cuEventRecord(earlier.mark_, *after), "recording an event"));
  MutexLock lock(mu_);
  for (const auto& [owner, each] : queues_) {
    if (each.get() == &earlier) continue;
    TT_RETURN_IF_ERROR(device_.check(
        device_.driver.cuStreamWaitEvent(each->stream_, earlier.mark_, 0), "waiting for a stream"));
  }
  return {};
}

Status Queues::mark_all(Stream stream, Event mark, bool gathered) {
  for (const QueueRef& each : all()) {
    if (gathered) TT_RETURN_IF_ERROR(this->stream(*each).status());
    TT_RETURN_IF_ERROR(this->mark(stream, *each, false));
    TT_RETURN_IF_ERROR(this->mark(stream, *each, true));
  }
  return device_.check(device_.driver.cuEventRecord(mark, stream), "recording an event");
}

// ---------------------------------------------------------------- bound on work in flight

core::Result<Event> Queues::timed_event(Queue& queue) {
  if (!queue.spare_.empty()) {
    Event event = queue.spare_.back();
    queue.spare_.pop_back();
    return event;
  }
  Event event = nullptr;
  TT_RETURN_IF_ERROR(device_.check(device_.driver.cuEventCreate(&event, 0), "creating an event"));
  return event;
}

Status Queues::close(Queue& queue) {
  if (queue.current_.begin == nullptr) return {};
  core::Result<Event> end = timed_event(queue);
  if (!end.ok()) return end.status();
  const Status status =
      device_.check(device_.driver.cuEventRecord(*end, queue.stream_), "recording an event");
  if (!status.ok()) {
    queue.spare_.push_back(*end);
    return status;
  }
  queue.current_.end = *end;
  queue.open_.push_back(std::exchange(queue.current_, {}));
  return {};
}

// Records the batches that have ended; with `wait`, waits until one more batch fits.
Status Queues::settle(Queue& queue, bool wait) {
  while (!queue.open_.empty()) {
    const Batch batch = queue.open_.front();
    const int code = device_.driver.cuEventQuery(batch.end);
    if (code == kNotReady) {
      if (!wait || queue.open_.size() < kMaxOpen) return {};
      const auto began = std::chrono::steady_clock::now();
      TT_RETURN_IF_ERROR(device_.wait(batch.end));
      queue.time_.waited_ns += static_cast<std::uint64_t>(
          std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count());
    } else {
      TT_RETURN_IF_ERROR(device_.check(code, "work on the device"));
    }
    float ms = 0;
    TT_RETURN_IF_ERROR(device_.check(device_.driver.cuEventElapsedTime(&ms, batch.begin, batch.end),
                                     "measuring time"));
    const auto ns = static_cast<std::uint64_t>(ms > 0 ? static_cast<double>(ms) * 1e6 : 0);
    queue.time_.device_ns += ns;
    device_ns_.fetch_add(ns, std::memory_order_relaxed);
    queue.each_ns_ = (3 * queue.each_ns_ + ns / std::max(batch.kernels, 1u)) / 4;
    queue.spare_.push_back(batch.begin);
    queue.spare_.push_back(batch.end);
    queue.open_.pop_front();
  }
  return {};
}

// Sets `*room` to the number of tasks that still fit into the batch.
Status Queues::limit(Queue& queue, std::size_t* room) {
  MutexLock lock(queue.mu_);
  const std::uint32_t most = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      kBatchNs / std::max<std::uint64_t>(queue.each_ns_, 1), 1, kMaxInBatch));
  *room = most;
  if (queue.current_.begin == nullptr || queue.current_.kernels < most) return {};
  TT_RETURN_IF_ERROR(close(queue));
  return settle(queue, true);
}

Status Queues::count(Queue& queue, std::size_t tasks) {
  MutexLock lock(queue.mu_);
  Batch& batch = queue.current_;
  if (batch.begin == nullptr) {
    core::Result<Event> begin = timed_event(queue);
    if (!begin.ok()) return begin.status();
    batch.begin = *begin;
    TT_RETURN_IF_ERROR(device_.check(device_.driver.cuEventRecord(batch.begin, queue.stream_),
                                     "recording an event"));
  }
  batch.kernels += static_cast<std::uint32_t>(tasks);
  return {};
}

Status Queues::ask(Queue& queue, const Task& task, bool gathers, int* code) {
  *code = kSuccess;
  std::size_t room = kMaxGathered;
  // Clearing is not counted: it belongs to the next task, and may be queued under the locks of a
  // pool.
  const bool counts = queue.owner_ != 0 && !task.clears();
  if (counts) TT_RETURN_IF_ERROR(limit(queue, &room));
  MutexLock lock(queue.gather_mu_);
  if (queue.gathering_ && gathers) {
    queue.gathered_.add(task);
    return queue.gathered_.size() < std::min(room, kMaxGathered) ? Status() : submit(queue);
  }
  TT_RETURN_IF_ERROR(submit(queue));
  if (counts) TT_RETURN_IF_ERROR(count(queue, 1));
  starts_.fetch_add(task.starts() ? 1 : 0, std::memory_order_relaxed);
  *code = task.start(device_.driver, queue.stream_);
  return {};
}

core::Result<Stream> Queues::stream(Queue& queue) {
  MutexLock lock(queue.gather_mu_);
  TT_RETURN_IF_ERROR(submit(queue));
  return queue.stream_;
}

// Sends the gathered tasks. Their instructions already count as done, so if a task cannot be
// started, the device is lost: its memory does not contain what was promised.
Status Queues::submit(Queue& queue) {
  const std::size_t tasks = queue.gathered_.size();
  if (tasks == 0) return {};
  Status status = count(queue, tasks);
  if (status.ok()) {
    bool library = false, graph = false;
    const int code =
        queue.graphs_.start(device_.driver, queue.stream_, queue.gathered_, &library, &graph);
    starts_.fetch_add(graph ? 1 : queue.gathered_.starts(), std::memory_order_relaxed);
    graph_starts_.fetch_add(graph ? 1 : 0, std::memory_order_relaxed);
    if (library && code != kSuccess) {
      std::size_t free = 0, total = 0;  // if the context has ended, this call returns the cause
      status = device_.check(device_.driver.cuMemGetInfo(&free, &total), "a library's call");
      if (status.ok()) {
        status = core::internal("a library's call failed with " + std::to_string(code));
      }
    } else {
      status = device_.check(code, graph ? "starting a graph" : "starting a kernel");
    }
  }
  queue.gathered_.clear();
  if (status.ok()) return {};
  return device_.lose("work that was queued earlier could not be started: " + status.message());
}

Status Queues::gather(OwnerId owner, bool on) {
  QueueRef queue;
  {
    MutexLock lock(mu_);
    const auto found = queues_.find(owner);
    if (found == queues_.end()) return {};  // the session has queued nothing yet
    queue = found->second;
  }
  MutexLock lock(queue->gather_mu_);
  queue->gathering_ = on;
  return on ? Status() : submit(*queue);
}

void Queues::drop_graphs() {
  for (const QueueRef& each : all()) {
    MutexLock lock(each->gather_mu_);
    each->graphs_.clear(device_.driver);
  }
}

Queues::Time Queues::take_time(OwnerId owner) {
  QueueRef queue;
  {
    MutexLock lock(mu_);
    const auto found = queues_.find(owner);
    if (found == queues_.end()) return {};
    queue = found->second;
  }
  MutexLock lock(queue->mu_);
  // The next use of the device reports an error.
  if (close(*queue).ok()) (void)settle(*queue, false);
  return std::exchange(queue->time_, {});
}

std::size_t Queues::in_flight() const {
  std::size_t count = 0;
  for (const QueueRef& each : all()) {
    MutexLock lock(each->mu_);
    count += each->open_.size() + (each->current_.begin != nullptr ? 1 : 0);
  }
  return count;
}

}  // namespace teletensor::backends::cuda
