#include "engine/backends/cuda/device/work_queues.h"

#include <string>
#include <utility>

#include "engine/memory/on_behalf.h"

namespace teletensor::backends::cuda {

using core::MutexLock;
using core::Status;

WorkQueues::WorkQueues(const DeviceContext& context)
    : context_(context),
      queues_({context.driver(),
               [&context](int code, const char* what) { return context.check(code, what); },
               [&context](Event event) { return context.wait(event); },
               [&context](std::string cause) {
                 context.lose(std::move(cause));
                 return context.health();
               }}) {}

Status WorkQueues::start() {
  MutexLock lock(event_mu_);
  TT_RETURN_IF_ERROR(context_.create(&marks_));
  TT_RETURN_IF_ERROR(queues_.of(0).status());
  return context_.create(&event_);
}

WorkQueues::~WorkQueues() {
  if (!context_.usable()) return;
  queues_.clear();
  MutexLock lock(event_mu_);
  context_.destroy(nullptr, event_, marks_);
}

core::Result<Queues::QueueRef> WorkQueues::queue() {
  TT_RETURN_IF_ERROR(context_.enter());
  return queues_.of(memory::on_behalf());
}

core::Result<Stream> WorkQueues::stream() {
  const core::Result<Queues::QueueRef> own = queue();
  if (!own.ok()) return own.status();
  return queues_.stream(**own);
}

Status WorkQueues::ask(Queues::Queue& queue, const Task& task, bool gathers, const char* what) {
  int code = kSuccess;
  TT_RETURN_IF_ERROR(ask_library(queue, task, gathers, &code));
  return context_.check(code, what);
}

Status WorkQueues::ask_library(Queues::Queue& queue, const Task& task, bool gathers, int* code) {
  count();
  return queues_.ask(queue, task, gathers, code);
}

Status WorkQueues::run_now(const Task& task, const char* what) {
  const core::Result<Queues::QueueRef> own = queue();
  if (!own.ok()) return own.status();
  Event done = nullptr;
  TT_RETURN_IF_ERROR(context_.create(&done));
  Status status = ask(**own, task, true, what);
  const core::Result<Stream> stream = queues_.stream(**own);
  if (status.ok()) status = stream.status();
  if (status.ok()) {
    status = context_.check(context_.driver().cuEventRecord(done, *stream), "recording an event");
  }
  if (status.ok()) status = context_.wait(done);
  if (context_.enter().ok()) context_.destroy(nullptr, done);
  return status;
}

Status WorkQueues::synchronize() {
  TT_RETURN_IF_ERROR(context_.enter());
  MutexLock lock(event_mu_);
  if (event_ == nullptr) return {};  // start() has failed, so nothing was queued
  TT_RETURN_IF_ERROR(queues_.mark_all(marks_, event_, true));
  return context_.wait(event_);
}

}  // namespace teletensor::backends::cuda
