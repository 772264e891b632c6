#include "engine/backends/cuda/device/host_copies.h"

#include <algorithm>
#include <cstring>

#include "engine/memory/on_behalf.h"

namespace teletensor::backends::cuda {

using core::MutexLock;
using core::Status;

namespace {

constexpr std::size_t kSlotBytes = std::size_t{1} << 20;
// Size of one part of a copy without a slot.
constexpr std::size_t kPart = std::size_t{32} << 20;

// Queues a copy of the given part; returns a code of the driver.
using Part = std::function<int(std::size_t at, std::size_t bytes)>;

// Keeps up to two parts in progress.
Status copy_parts(const DeviceContext& context, Stream stream, Event event, std::size_t bytes,
                  const GoOn& go_on, const Part& ask) {
  const auto record = [&] {
    return context.check(context.driver().cuEventRecord(event, stream), "recording an event");
  };
  Status status;
  std::size_t at = 0;
  while (at < bytes && status.ok()) {
    if (!go_on()) {
      status = Status(core::Code::kCancelled, "the copy was cancelled");
      break;
    }
    const std::size_t n = std::min(kPart, bytes - at);
    status = context.check(ask(at, n), "a copy");
    if (!status.ok()) break;
    if (at > 0) status = context.wait(event);  // waits for the previous part
    if (status.ok()) status = record();
    at += n;
  }
  if (at == 0) return status;  // no copy was started
  // Waits even after an error, because the caller may reuse the memory next.
  Status ended = record();
  if (ended.ok()) ended = context.wait(event);
  if (ended.ok()) return status;
  context.lose("a copy cannot be waited for: " + ended.message());
  return context.health();
}

}  // namespace

// ---------------------------------------------------------------- host to device

Status HostToDevice::start() {
  MutexLock lock(mu_);
  for (Slot& slot : slots_) {
    TT_RETURN_IF_ERROR(context_.create_pinned(kSlotBytes, &slot.data));
    TT_RETURN_IF_ERROR(context_.create(&slot.filled));
  }
  return context_.create(&users_);
}

HostToDevice::~HostToDevice() {
  MutexLock lock(mu_);
  in_use_.clear();
  if (!context_.usable()) return;
  for (const Slot& slot : slots_) context_.destroy(slot.data, slot.filled);
  context_.destroy(nullptr, nullptr, users_);
}

// Starts the next slot. The full slot may be used again when all streams that read it have
// finished.
Status HostToDevice::next_slot() {
  Slot& full = slots_[slot_];
  for (const auto& [queue, beside] : in_use_) {
    TT_RETURN_IF_ERROR(work_.queues().stream_follows(users_, *queue, beside));
  }
  in_use_.clear();
  TT_RETURN_IF_ERROR(
      context_.check(context_.driver().cuEventRecord(full.filled, users_), "recording an event"));
  full.used = true;
  slot_ = (slot_ + 1) % kSlots;
  filled_ = 0;
  return slots_[slot_].used ? context_.wait(slots_[slot_].filled) : Status();
}

Status HostToDevice::copy(void* to, const void* host, std::size_t bytes) {
  if (bytes == 0) return {};
  const core::Result<Queues::QueueRef> own = work_.queue();
  if (!own.ok()) return own.status();
  const bool beside = memory::beside();
  const core::Result<Stream> found = beside ? (*own)->beside() : work_.queues().stream(**own);
  if (!found.ok()) return found.status();
  const Stream stream = *found;
  work_.count();
  const char* from = static_cast<const char*>(host);
  Address there = address(to);
  {
    MutexLock lock(mu_);
    while (bytes > 0) {
      if (filled_ == kSlotBytes) TT_RETURN_IF_ERROR(next_slot());
      const std::pair user(*own, beside);
      if (std::find(in_use_.begin(), in_use_.end(), user) == in_use_.end()) in_use_.push_back(user);
      const std::size_t n = std::min(bytes, kSlotBytes - filled_);
      char* staged = slots_[slot_].data + filled_;
      std::memcpy(staged, from, n);
      TT_RETURN_IF_ERROR(context_.check(
          context_.driver().cuMemcpyHtoDAsync(there, staged, n, stream), "a copy to the device"));
      filled_ = std::min(kSlotBytes, (filled_ + n + 63) & ~std::size_t{63});
      from += n;
      there += n;
      bytes -= n;
    }
  }
  return beside ? work_.queues().follow_uploads(**own) : Status();
}

// Uses the session's stream, so later work of the session waits for the copy.
Status HostToDevice::copy_locked(void* to, const void* host, std::size_t bytes, const GoOn& go_on) {
  if (bytes == 0) return {};
  const core::Result<Stream> stream = work_.stream();
  if (!stream.ok()) return stream.status();
  Event event = nullptr;
  TT_RETURN_IF_ERROR(context_.create(&event));
  work_.count();
  const Status status =
      copy_parts(context_, *stream, event, bytes, go_on, [&](std::size_t at, std::size_t n) {
        return context_.driver().cuMemcpyHtoDAsync(address(to) + at,
                                                   static_cast<const char*>(host) + at, n, *stream);
      });
  if (context_.enter().ok()) context_.destroy(nullptr, event);
  return status;
}

// ---------------------------------------------------------------- device to host

Status DeviceToHost::start() {
  MutexLock lock(mu_);
  for (int i = 0; i < kSlots; ++i) {
    Slot& slot = free_.emplace_back();
    TT_RETURN_IF_ERROR(context_.create_pinned(kSlotBytes, &slot.data));
    TT_RETURN_IF_ERROR(context_.create(&slot.stream));
    TT_RETURN_IF_ERROR(context_.create(&slot.event));
  }
  return {};
}

DeviceToHost::~DeviceToHost() {
  if (!context_.usable()) return;
  MutexLock lock(mu_);
  for (const Slot& slot : free_) context_.destroy(slot.data, slot.event, slot.stream);
}

DeviceToHost::Slot DeviceToHost::take() {
  MutexLock lock(mu_);
  while (free_.empty()) given_.wait(mu_);
  const Slot slot = free_.back();
  free_.pop_back();
  return slot;
}

void DeviceToHost::give(const Slot& slot) {
  {
    MutexLock lock(mu_);
    free_.push_back(slot);
  }
  given_.notify_all();
}

Status DeviceToHost::copy(void* host, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  const core::Result<Queues::QueueRef> own = work_.queue();
  if (!own.ok()) return own.status();
  work_.count();
  const Slot slot = take();
  const Status status = copy_through(slot, **own, static_cast<char*>(host), address(from), bytes);
  give(slot);
  return status;
}

// A large copy uses a stream of its own, so that work which the session queues meanwhile does not
// wait for it.
Status DeviceToHost::copy_through(const Slot& slot, Queues::Queue& queue, char* to, Address from,
                                  std::size_t bytes) {
  const bool small = bytes <= kSmall;
  const core::Result<Stream> own = work_.queues().stream(queue);
  if (!own.ok()) return own.status();
  const Stream stream = small ? *own : slot.stream;
  if (!small) TT_RETURN_IF_ERROR(work_.queues().stream_follows(stream, queue, false));
  // The two halves of the slot alternate: the host copies one half while the device fills the
  // other.
  constexpr std::size_t kHalf = kSlotBytes / 2;
  const Driver& driver = context_.driver();
  const auto ask = [&](std::size_t at, std::size_t half) {
    const std::size_t n = std::min(kHalf, bytes - at);
    return context_.check(driver.cuMemcpyDtoHAsync(slot.data + half * kHalf, from + at, n, stream),
                          "a copy from it");
  };
  TT_RETURN_IF_ERROR(ask(0, 0));
  std::size_t half = 0;
  for (std::size_t at = 0; at < bytes; at += kHalf, half ^= 1) {
    TT_RETURN_IF_ERROR(
        context_.check(driver.cuEventRecord(slot.event, stream), "recording an event"));
    TT_RETURN_IF_ERROR(context_.wait(slot.event));
    if (at + kHalf < bytes) TT_RETURN_IF_ERROR(ask(at + kHalf, half ^ 1));
    std::memcpy(to + at, slot.data + half * kHalf, std::min(kHalf, bytes - at));
  }
  return {};
}

// Uses a stream of its own, like large copies through slots.
Status DeviceToHost::copy_locked(void* host, const void* from, std::size_t bytes,
                                 const GoOn& go_on) {
  if (bytes == 0) return {};
  const core::Result<Queues::QueueRef> own = work_.queue();
  if (!own.ok()) return own.status();
  work_.count();
  const Slot slot = take();
  Status status = work_.queues().stream_follows(slot.stream, **own, false);
  if (status.ok()) {
    status = copy_parts(context_, slot.stream, slot.event, bytes, go_on,
                        [&](std::size_t at, std::size_t n) {
                          return context_.driver().cuMemcpyDtoHAsync(
                              static_cast<char*>(host) + at, address(from) + at, n, slot.stream);
                        });
  }
  give(slot);
  return status;
}

}  // namespace teletensor::backends::cuda
