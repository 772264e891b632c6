// Copies within a device, between devices, and between device and host: through page-locked slots,
// or directly if the host memory is page-locked itself.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/backends/cuda/driver/gpu.h"
#include "engine/memory/on_behalf.h"

namespace teletensor::backends::cuda {

using core::MutexLock;
using core::Status;

core::Result<Stream> Gpu::own_stream() {
  const core::Result<Queues::QueueRef> own = queue();
  if (!own.ok()) return own.status();
  return queues_.stream(**own);
}

Status Gpu::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  const core::Result<Queues::QueueRef> own = queue();
  if (!own.ok()) return own.status();
  Task task;
  task.to = address(to);
  task.from = address(from);
  task.bytes = bytes;
  return ask(**own, task, true, "a copy");
}

Status Gpu::copy_now(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  Task task;
  task.to = address(to);
  task.from = address(from);
  task.bytes = bytes;
  return run_now(task, "a copy");
}

Status Gpu::run_now(const Task& task, const char* what) {
  const core::Result<Queues::QueueRef> own = queue();
  if (!own.ok()) return own.status();
  Event done = nullptr;
  TT_RETURN_IF_ERROR(check(driver_.cuEventCreate(&done, kEventDisableTiming), "creating an event"));
  Status status = ask(**own, task, true, what);
  const core::Result<Stream> stream = queues_.stream(**own);
  if (status.ok()) status = stream.status();
  if (status.ok()) status = check(driver_.cuEventRecord(done, *stream), "recording an event");
  if (status.ok()) status = wait(done);
  if (enter().ok()) driver_.cuEventDestroy(done);
  return status;
}

// The session's stream on the other device waits for the copy, so that memory which the session
// frees there afterwards is no longer being read.
Status Gpu::copy_from(Gpu& other, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  if (&other == this) return copy(to, from, bytes);
  const core::Result<Queues::QueueRef> there = other.queue();
  if (!there.ok()) return there.status();
  const core::Result<Stream> source = other.queues_.stream(**there);
  if (!source.ok()) return source.status();
  Event made = nullptr, read = nullptr;
  TT_RETURN_IF_ERROR(
      other.check(driver_.cuEventCreate(&made, kEventDisableTiming), "creating an event"));
  Status status = other.check(driver_.cuEventRecord(made, *source), "recording an event");
  const core::Result<Stream> own = own_stream();
  if (status.ok()) status = own.status();
  const Stream stream = own.ok() ? *own : nullptr;
  if (status.ok()) {
    status = check(driver_.cuEventCreate(&read, kEventDisableTiming), "creating an event");
  }
  if (status.ok())
    status = check(driver_.cuStreamWaitEvent(stream, made, 0), "waiting for an event");
  if (status.ok()) {
    asked_.fetch_add(1, std::memory_order_relaxed);
    status = check(driver_.cuMemcpyPeerAsync(address(to), context_, address(from), other.context_,
                                             bytes, stream),
                   "a copy from another device");
  }
  if (status.ok()) status = check(driver_.cuEventRecord(read, stream), "recording an event");
  if (read != nullptr && status.ok()) {
    status = other.enter();
    if (status.ok()) {
      status = other.check(driver_.cuStreamWaitEvent(*source, read, 0),
                           "waiting for a copy on another device");
    }
  }
  // The driver keeps an event until no stream waits for it.
  if (read != nullptr && enter().ok()) driver_.cuEventDestroy(read);
  if (other.enter().ok()) driver_.cuEventDestroy(made);
  return status;
}

// Starts the next slot. The full slot may be used again when all streams that read it have
// finished.
Status Gpu::next_slot() {
  Slot& full = slots_[slot_];
  for (const auto& [queue, beside] : in_use_) {
    TT_RETURN_IF_ERROR(queues_.stream_follows(ins_, *queue, beside));
  }
  in_use_.clear();
  TT_RETURN_IF_ERROR(check(driver_.cuEventRecord(full.filled, ins_), "recording an event"));
  full.used = true;
  slot_ = (slot_ + 1) % kSlots;
  filled_ = 0;
  return slots_[slot_].used ? wait(slots_[slot_].filled) : Status();
}

Status Gpu::copy_in(void* to, const void* host, std::size_t bytes) {
  if (bytes == 0) return {};
  const core::Result<Queues::QueueRef> own = queue();
  if (!own.ok()) return own.status();
  const bool beside = memory::beside();
  const core::Result<Stream> found = beside ? (*own)->beside() : queues_.stream(**own);
  if (!found.ok()) return found.status();
  const Stream stream = *found;
  asked_.fetch_add(1, std::memory_order_relaxed);
  const char* from = static_cast<const char*>(host);
  Address there = address(to);
  {
    MutexLock lock(in_mu_);
    while (bytes > 0) {
      if (filled_ == kSlot) TT_RETURN_IF_ERROR(next_slot());
      const std::pair user(*own, beside);
      if (std::find(in_use_.begin(), in_use_.end(), user) == in_use_.end()) in_use_.push_back(user);
      const std::size_t n = std::min(bytes, kSlot - filled_);
      char* staged = slots_[slot_].data + filled_;
      std::memcpy(staged, from, n);
      TT_RETURN_IF_ERROR(
          check(driver_.cuMemcpyHtoDAsync(there, staged, n, stream), "a copy to the device"));
      filled_ = std::min(kSlot, (filled_ + n + 63) & ~std::size_t{63});
      from += n;
      there += n;
      bytes -= n;
    }
  }
  return beside ? queues_.follow_uploads(**own) : Status();
}

Gpu::Out Gpu::take_out() {
  MutexLock lock(out_mu_);
  while (outs_.empty()) out_given_.wait(out_mu_);
  const Out out = outs_.back();
  outs_.pop_back();
  return out;
}

void Gpu::give_out(const Out& out) {
  {
    MutexLock lock(out_mu_);
    outs_.push_back(out);
  }
  out_given_.notify_all();
}

Status Gpu::copy_out(void* host, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  const core::Result<Queues::QueueRef> own = queue();
  if (!own.ok()) return own.status();
  asked_.fetch_add(1, std::memory_order_relaxed);
  const Out out = take_out();
  const Status status = copy_through(out, **own, static_cast<char*>(host), address(from), bytes);
  give_out(out);
  return status;
}

// A large copy uses a stream of its own, so that work which the session queues meanwhile does not
// wait for it.
Status Gpu::copy_through(const Out& out, Queues::Queue& queue, char* to, Address from,
                         std::size_t bytes) {
  const bool small = bytes <= kSmall;
  const core::Result<Stream> own = queues_.stream(queue);
  if (!own.ok()) return own.status();
  const Stream stream = small ? *own : out.stream;
  if (!small) TT_RETURN_IF_ERROR(queues_.stream_follows(stream, queue, false));
  // The two halves of the slot alternate: the host copies one half while the device fills the
  // other.
  constexpr std::size_t kHalf = kSlot / 2;
  const auto ask = [&](std::size_t at, std::size_t half) {
    const std::size_t n = std::min(kHalf, bytes - at);
    return check(driver_.cuMemcpyDtoHAsync(out.data + half * kHalf, from + at, n, stream),
                 "a copy from it");
  };
  TT_RETURN_IF_ERROR(ask(0, 0));
  std::size_t half = 0;
  for (std::size_t at = 0; at < bytes; at += kHalf, half ^= 1) {
    TT_RETURN_IF_ERROR(check(driver_.cuEventRecord(out.event, stream), "recording an event"));
    TT_RETURN_IF_ERROR(wait(out.event));
    if (at + kHalf < bytes) TT_RETURN_IF_ERROR(ask(at + kHalf, half ^ 1));
    std::memcpy(to + at, out.data + half * kHalf, std::min(kHalf, bytes - at));
  }
  return {};
}

// ---------------------------------------------------------------- copies without a slot

// None of the possible errors here ends the context.
bool Gpu::lock(void* host, std::size_t bytes) {
  return enter().ok() && driver_.cuMemHostRegister(host, bytes, kLockForAll) == kSuccess;
}

bool Gpu::unlock(void* host) {
  return enter().ok() && driver_.cuMemHostUnregister(host) == kSuccess;
}

// Keeps up to two parts in progress.
Status Gpu::copy_parts(Stream stream, Event event, std::size_t bytes,
                       const std::function<bool()>& go_on, const Part& ask) {
  Status status;
  std::size_t at = 0;
  while (at < bytes && status.ok()) {
    if (!go_on()) {
      status = Status(core::Code::kCancelled, "the copy was cancelled");
      break;
    }
    const std::size_t n = std::min(kPart, bytes - at);
    status = check(ask(at, n), "a copy");
    if (!status.ok()) break;
    if (at > 0) status = wait(event);  // waits for the previous part
    if (status.ok()) status = check(driver_.cuEventRecord(event, stream), "recording an event");
    at += n;
  }
  if (at == 0) return status;  // no copy was started
  // Waits even after an error, because the caller may reuse the memory next.
  Status ended = check(driver_.cuEventRecord(event, stream), "recording an event");
  if (ended.ok()) ended = wait(event);
  if (ended.ok()) return status;
  lose("a copy cannot be waited for: " + ended.message());
  return health();
}

// Uses a stream of its own, like large copies through slots.
Status Gpu::copy_out_locked(void* host, const void* from, std::size_t bytes,
                            const std::function<bool()>& go_on) {
  if (bytes == 0) return {};
  const core::Result<Queues::QueueRef> own = queue();
  if (!own.ok()) return own.status();
  asked_.fetch_add(1, std::memory_order_relaxed);
  const Out out = take_out();
  Status status = queues_.stream_follows(out.stream, **own, false);
  if (status.ok()) {
    status = copy_parts(out.stream, out.event, bytes, go_on, [&](std::size_t at, std::size_t n) {
      return driver_.cuMemcpyDtoHAsync(static_cast<char*>(host) + at, address(from) + at, n,
                                       out.stream);
    });
  }
  give_out(out);
  return status;
}

// Uses the session's stream, so later work of the session waits for the copy.
Status Gpu::copy_in_locked(void* to, const void* host, std::size_t bytes,
                           const std::function<bool()>& go_on) {
  if (bytes == 0) return {};
  const core::Result<Stream> stream = own_stream();
  if (!stream.ok()) return stream.status();
  Event event = nullptr;
  TT_RETURN_IF_ERROR(
      check(driver_.cuEventCreate(&event, kEventDisableTiming), "creating an event"));
  asked_.fetch_add(1, std::memory_order_relaxed);
  const Status status =
      copy_parts(*stream, event, bytes, go_on, [&](std::size_t at, std::size_t n) {
        return driver_.cuMemcpyHtoDAsync(address(to) + at, static_cast<const char*>(host) + at, n,
                                         *stream);
      });
  if (enter().ok()) driver_.cuEventDestroy(event);
  return status;
}

}  // namespace teletensor::backends::cuda
