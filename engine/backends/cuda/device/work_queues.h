// WorkQueues queues the work of sessions on one device: it finds the queue of the calling thread's
// session (memory::on_behalf), starts tasks in it and counts them. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/backends/cuda/device/context.h"
#include "engine/backends/cuda/device/queues.h"
#include "engine/core/mutex.h"

namespace teletensor::backends::cuda {

class WorkQueues {
 public:
  // `context` must outlive this object.
  explicit WorkQueues(const DeviceContext& context);
  // Destroys the queues, unless the device is lost. Precondition: all work has ended.
  ~WorkQueues();
  WorkQueues(const WorkQueues&) = delete;
  WorkQueues& operator=(const WorkQueues&) = delete;
  // Creates the home queue. Precondition: the context is open.
  core::Status start();

  Queues& queues() { return queues_; }
  const Queues& queues() const { return queues_; }
  // Enters the context, and returns the queue of the calling thread's session.
  core::Result<Queues::QueueRef> queue();
  // The stream of that queue.
  core::Result<Stream> stream();

  // Queues the task; `gathers` as in Queues::ask().
  core::Status ask(Queues::Queue& queue, const Task& task, bool gathers, const char* what);
  // Queues a call of a library, whose error code becomes `*code`.
  core::Status ask_library(Queues::Queue& queue, const Task& task, bool gathers, int* code);
  // Queues the task for the calling thread's session, and waits for it.
  core::Status run_now(const Task& task, const char* what);

  // Waits for the work of all sessions.
  core::Status synchronize();

  // Tells that the caller itself has queued work in a stream.
  void count() { asked_.fetch_add(1, std::memory_order_relaxed); }
  // The number of times that work was queued.
  std::uint64_t asked() const { return asked_.load(std::memory_order_relaxed); }

 private:
  const DeviceContext& context_;
  std::atomic<std::uint64_t> asked_{0};
  Queues queues_;
  core::Mutex event_mu_;  // guards event_ and marks_
  Event event_ TT_GUARDED_BY(event_mu_) = nullptr;
  Stream marks_ TT_GUARDED_BY(event_mu_) = nullptr;  // only waits for the queues
};

}  // namespace teletensor::backends::cuda
