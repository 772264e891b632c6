// HostToDevice and DeviceToHost copy between host memory and one device: through page-locked slots,
// or directly if the host memory is page-locked itself. Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "engine/backends/cuda/device/work_queues.h"

namespace teletensor::backends::cuda {

// Called between the parts of a copy of page-locked memory, which stops if it returns false.
using GoOn = std::function<bool()>;

class HostToDevice {
 public:
  // Both must outlive this object.
  HostToDevice(const DeviceContext& context, WorkQueues& work) : context_(context), work_(work) {}
  ~HostToDevice();
  HostToDevice(const HostToDevice&) = delete;
  HostToDevice& operator=(const HostToDevice&) = delete;
  // Allocates the slots.
  core::Status start();

  // Copies for the calling thread's session; with memory::beside(), in its stream for uploads. The
  // host memory may be changed as soon as the call returns.
  core::Status copy(void* to, const void* host, std::size_t bytes);
  // Copies from page-locked memory without a slot. Returns CANCELLED if `go_on` returns false. On
  // return no copy is in progress any more, unless the device is lost.
  core::Status copy_locked(void* to, const void* host, std::size_t bytes, const GoOn& go_on);

 private:
  static constexpr int kSlots = 8;
  struct Slot {
    char* data = nullptr;
    Event filled = nullptr;  // recorded when all copies from the slot have been queued
    bool used = false;
  };

  core::Status next_slot() TT_REQUIRES(mu_);

  const DeviceContext& context_;
  WorkQueues& work_;
  core::Mutex mu_;
  Slot slots_[kSlots] TT_GUARDED_BY(mu_);
  int slot_ TT_GUARDED_BY(mu_) = 0;
  std::size_t filled_ TT_GUARDED_BY(mu_) = 0;  // used bytes of the current slot
  // Users of the current slot; true: with their uploads' stream.
  std::vector<std::pair<Queues::QueueRef, bool>> in_use_ TT_GUARDED_BY(mu_);
  Stream users_ = nullptr;  // only waits for the users of slots
};

class DeviceToHost {
 public:
  // Both must outlive this object.
  DeviceToHost(const DeviceContext& context, WorkQueues& work) : context_(context), work_(work) {}
  ~DeviceToHost();
  DeviceToHost(const DeviceToHost&) = delete;
  DeviceToHost& operator=(const DeviceToHost&) = delete;
  // Allocates the slots.
  core::Status start();

  // Copies after all work that the calling thread's session has queued before; the bytes are in
  // host memory when it returns.
  core::Status copy(void* host, const void* from, std::size_t bytes);
  // Copies to page-locked memory without a slot, like HostToDevice::copy_locked().
  core::Status copy_locked(void* host, const void* from, std::size_t bytes, const GoOn& go_on);

 private:
  static constexpr int kSlots = 4;
  // Up to this size, copies use the session's own stream.
  static constexpr std::size_t kSmall = std::size_t{64} << 10;
  struct Slot {
    char* data = nullptr;
    Stream stream = nullptr;
    Event event = nullptr;
  };

  Slot take();
  void give(const Slot& slot);
  core::Status copy_through(const Slot& slot, Queues::Queue& queue, char* to, Address from,
                            std::size_t bytes);

  const DeviceContext& context_;
  WorkQueues& work_;
  core::Mutex mu_;
  core::CondVar given_;
  std::vector<Slot> free_ TT_GUARDED_BY(mu_);
};

}  // namespace teletensor::backends::cuda
