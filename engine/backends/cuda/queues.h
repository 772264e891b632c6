// Queues: what each session asks of one device, in its order; and how they wait for each other.
//
// A session is one stream. What it asks runs after what it asked before; what another session asked
// is waited for where memory goes from one to the other, and nowhere else. At most kMaxOpen
// batches of about kBatchNs of the device's time each are in flight for one session: whoever asks
// for more waits. Owner 0 is nobody's: the stream in which memory comes from the driver and goes
// back to it, which every other one waits for when memory has come.
//
// What a captured program asks is gathered, up to kMaxGathered tasks, and goes to the driver
// together (graphs.h). Whatever looks at the queue hands over first what is gathered, so "what it
// has asked" means the same with and without.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "engine/backends/cuda/driver.h"
#include "engine/backends/cuda/graphs.h"
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
  // The device has nothing to do while the first are gathered, and the last while they run.
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
    // Uploads of threads beside the session's own; what the session asks later waits for them.
    Stream beside() const { return beside_; }

   private:
    friend class Queues;
    OwnerId owner_ = 0;
    Stream stream_ = nullptr, beside_ = nullptr;
    Event mark_ = nullptr, beside_mark_ = nullptr;  // for others to wait for
    // Taken before mu_. Not by who watches the device: its owner may stand in the driver.
    core::Mutex gather_mu_;
    bool gathering_ TT_GUARDED_BY(gather_mu_) = false;
    TaskList gathered_ TT_GUARDED_BY(gather_mu_);
    Graphs graphs_ TT_GUARDED_BY(gather_mu_);
    mutable core::Mutex mu_;
    std::deque<Batch> open_ TT_GUARDED_BY(mu_);
    Batch current_ TT_GUARDED_BY(mu_);
    std::vector<Event> spare_ TT_GUARDED_BY(mu_);
    std::uint64_t each_ns_ TT_GUARDED_BY(mu_) = 20'000;  // of a kernel, as it has gone
    Time time_ TT_GUARDED_BY(mu_);
  };
  using QueueRef = std::shared_ptr<Queue>;
  // How the device is spoken to: makes an error of a code, waits for an event, is lost.
  struct Device {
    const Driver& driver;
    std::function<core::Status(int code, const char* what)> check;
    std::function<core::Status(Event event)> wait;
    std::function<core::Status(std::string cause)> lose;  // gives what everybody is told then
  };

  explicit Queues(Device device) : device_(std::move(device)) {}
  // Precondition: everything has ended.
  void clear();

  // The session's, made with the first question. Precondition of all: the context is entered.
  core::Result<QueueRef> of(OwnerId owner);
  // The session has ended: what it has asked still runs.
  void end(OwnerId owner);

  // What `later` is asked from now on runs after what `earlier` has been asked.
  core::Status follow(Queue& later, Queue& earlier);
  // The same with that session, whether it has ended or not.
  core::Status follow(Queue& later, OwnerId earlier);
  // Uploads beside `queue` run after what it has been asked; what it is asked from now on, after
  // them.
  core::Status uploads_follow(Queue& queue) { return stream_follows(queue.beside_, queue, false); }
  core::Status follow_uploads(Queue& queue) { return stream_follows(queue.stream_, queue, true); }
  core::Status follow_all(Queue& later);    // all that anybody has asked
  core::Status all_follow(Queue& earlier);  // all that is asked from now on
  // `stream` goes on after what `queue` has been asked, or its uploads.
  core::Status stream_follows(Stream stream, Queue& queue, bool beside);
  // A mark behind everything that anybody has asked, in `stream`; what is gathered is only with
  // `gathered` among that.
  core::Status mark_all(Stream stream, Event mark, bool gathered);

  // The task follows in the queue; waits first where too much is in flight. `gathers`: it may be
  // gathered, being known to start, as nobody can be told any more where it does not (the device is
  // lost then). `*code`: what its start has answered.
  core::Status ask(Queue& queue, const Task& task, bool gathers, int* code);
  // For what is asked in the stream itself: after all that was asked before.
  core::Result<Stream> stream(Queue& queue);
  // What the session asks from now on is gathered, or not any more.
  core::Status gather(OwnerId owner, bool on);
  // Before a kernel goes.
  void drop_graphs();

  // Of what has ended since the last call: time on the device, and time that ask() has waited.
  Time take_time(OwnerId owner);
  // The same of all sessions since the start.
  std::uint64_t device_ns() const { return device_ns_.load(std::memory_order_relaxed); }
  std::size_t in_flight() const;  // batches
  // What the driver was asked to start: kernels, products, graphs; the latter alone.
  std::uint64_t starts() const { return starts_.load(std::memory_order_relaxed); }
  std::uint64_t graphs() const { return graph_starts_.load(std::memory_order_relaxed); }

 private:
  core::Status mark(Stream stream, Queue& queue, bool beside);
  core::Status hand_over(Queue& queue) TT_REQUIRES(queue.gather_mu_);
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
  std::vector<QueueRef> ended_ TT_GUARDED_BY(mu_);  // somebody may still have one in hand
};

}  // namespace teletensor::backends::cuda
