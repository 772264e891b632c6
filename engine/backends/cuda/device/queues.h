// Queues: the work of each session on one device, in the session's order, and the order between
// sessions.
//
// Each session has one stream. Its work runs in the order in which it was queued. It waits for the
// work of another session only when memory passes from one to the other. For each session at most
// kMaxOpen batches of about kBatchNs of device time are in flight; a thread that queues more waits.
// Owner 0 is no session but the home queue: memory is allocated from and freed to the driver in its
// stream, and every other queue waits for it when memory has been allocated.
//
// The work of a captured program is gathered, up to kMaxGathered tasks, and sent to the driver
// together (graphs.h). Every operation that depends on the queue sends the gathered work first, so
// "what the session has queued" means the same with and without gathering.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "engine/backends/cuda/device/graphs.h"
#include "engine/backends/cuda/driver/driver.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "engine/memory/storage.h"

namespace teletensor::backends::cuda {

class Queues {
 public:
  using OwnerId = memory::OwnerId;
  static constexpr std::uint64_t kBatchNs = 2'500'000;
  static constexpr std::uint32_t kMaxInBatch = 256;
  static constexpr std::size_t kMaxOpen = 4;
  // A larger list would idle the device while the first tasks are gathered, and delay the last
  // ones.
  static constexpr std::size_t kMaxGathered = 32;

  struct Time {
    std::uint64_t device_ns = 0, waited_ns = 0;
  };

 private:
  struct Batch {
    Event begin = nullptr, end = nullptr;
    std::uint32_t kernels = 0;
  };

 public:
  class Queue {
   public:
    // The stream for uploads that run beside the session's own work. Later work of the session
    // waits for them.
    Stream beside() const { return beside_; }

   private:
    friend class Queues;
    OwnerId owner_ = 0;
    Stream stream_ = nullptr, beside_ = nullptr;
    Event mark_ = nullptr, beside_mark_ = nullptr;  // events that other queues wait for
    // Taken before mu_. The watcher never takes it, because its holder may be blocked in the
    // driver.
    core::Mutex gather_mu_;
    bool gathering_ TT_GUARDED_BY(gather_mu_) = false;
    TaskList gathered_ TT_GUARDED_BY(gather_mu_);
    Graphs graphs_ TT_GUARDED_BY(gather_mu_);
    mutable core::Mutex mu_;
    std::deque<Batch> open_ TT_GUARDED_BY(mu_);
    Batch current_ TT_GUARDED_BY(mu_);
    std::vector<Event> spare_ TT_GUARDED_BY(mu_);
    std::uint64_t each_ns_ TT_GUARDED_BY(mu_) = 20'000;  // average time of a kernel so far
    Time time_ TT_GUARDED_BY(mu_);
  };
  using QueueRef = std::shared_ptr<Queue>;
  // How the queues use the device: check() makes an error of a code, wait() waits for an event, and
  // lose() marks the device as lost.
  struct Device {
    const Driver& driver;
    std::function<core::Status(int code, const char* what)> check;
    std::function<core::Status(Event event)> wait;
    // Returns the error that all later calls get.
    std::function<core::Status(std::string cause)> lose;
  };

  explicit Queues(Device device) : device_(std::move(device)) {}
  // Precondition: all work has ended.
  void clear();

  // The queue of the session, created on first use. Precondition of all functions below: the
  // context is current.
  core::Result<QueueRef> of(OwnerId owner);
  // The session has ended; its queued work still runs.
  void end(OwnerId owner);

  // Work that is queued in `later` from now on runs after all work queued in `earlier`.
  core::Status follow(Queue& later, Queue& earlier);
  // Like follow() above, with the queue of session `earlier`, which may have ended.
  core::Status follow(Queue& later, OwnerId earlier);
  // uploads_follow(): uploads beside `queue` run after the work that is in the queue.
  // follow_uploads(): work that is queued from now on runs after the uploads.
  core::Status uploads_follow(Queue& queue) { return stream_follows(queue.beside_, queue, false); }
  core::Status follow_uploads(Queue& queue) { return stream_follows(queue.stream_, queue, true); }
  core::Status follow_all(Queue& later);         // waits for the work of all queues
  core::Status make_all_follow(Queue& earlier);  // all queues wait for it from now on
  // `stream` waits for the work of `queue`, or with `beside` for its uploads.
  core::Status stream_follows(Stream stream, Queue& queue, bool beside);
  // Records an event in `stream` after the work of all queues. Gathered work is included only with
  // `gathered`.
  core::Status mark_all(Stream stream, Event mark, bool gathered);

  // Queues the task; waits first if too much is in flight. `gathers` means that the task may be
  // gathered. That is allowed only if it is known to start, because a failure could no longer be
  // reported to the caller (the device would be lost). `*code` receives the code of its start.
  core::Status ask(Queue& queue, const Task& task, bool gathers, int* code);
  // The stream of the queue, for work that the caller queues itself, after all work queued before.
  core::Result<Stream> stream(Queue& queue);
  // Turns gathering of the session's work on or off.
  core::Status gather(OwnerId owner, bool on);
  // Drops all graphs. Called before a kernel is unloaded.
  void drop_graphs();

  // The device time of the batches that have ended since the last call, and the time that ask() has
  // waited.
  Time take_time(OwnerId owner);
  // The device time of all sessions since the start.
  std::uint64_t device_ns() const { return device_ns_.load(std::memory_order_relaxed); }
  std::size_t in_flight() const;  // number of batches
  // Number of starts requested from the driver: kernels, products and graphs; graphs() counts only
  // graphs.
  std::uint64_t starts() const { return starts_.load(std::memory_order_relaxed); }
  std::uint64_t graphs() const { return graph_starts_.load(std::memory_order_relaxed); }

 private:
  core::Status mark(Stream stream, Queue& queue, bool beside);
  core::Status submit(Queue& queue) TT_REQUIRES(queue.gather_mu_);
  core::Status limit(Queue& queue, std::size_t* room);
  core::Status count(Queue& queue, std::size_t tasks);
  core::Status close(Queue& queue) TT_REQUIRES(queue.mu_);
  core::Status settle(Queue& queue, bool wait) TT_REQUIRES(queue.mu_);
  core::Result<Event> timed_event(Queue& queue) TT_REQUIRES(queue.mu_);
  std::vector<QueueRef> all() const;
  void reap() TT_REQUIRES(mu_);
  void destroy(Queue& queue);

  const Device device_;
  std::atomic<std::uint64_t> device_ns_{0}, starts_{0}, graph_starts_{0};
  mutable core::Mutex mu_;
  std::map<OwnerId, QueueRef> queues_ TT_GUARDED_BY(mu_);
  // Ended sessions; a thread may still hold a reference.
  std::vector<QueueRef> ended_ TT_GUARDED_BY(mu_);
};

}  // namespace teletensor::backends::cuda
