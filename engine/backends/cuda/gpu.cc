#include "engine/backends/cuda/gpu.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace teletensor::backends::cuda {

using core::Code;
using core::MutexLock;
using core::Status;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::microseconds kSpin{30};
constexpr std::chrono::microseconds kLongestNap{500};

thread_local Context current_context = nullptr;

Address address(const void* memory) { return reinterpret_cast<Address>(memory); }

// Errors of one call, after which the context goes on. Every other one has ended it.
bool recoverable(int code) {
  switch (code) {
    case kInvalidValue:
    case kOutOfMemory:
    case kInvalidImage:
    case kNoBinaryForGpu:
    case kInvalidPtx:
    case kUnsupportedPtxVersion:
    case kNotFound:
    case kNotReady:
    case kLaunchOutOfResources:
    case kNotSupported:
      return true;
    default:
      return false;
  }
}

}  // namespace

Gpu::Gpu(const Driver& driver, int ordinal, std::string name, Options options)
    : driver_(driver), ordinal_(ordinal), name_(std::move(name)), options_(std::move(options)) {}

core::Result<std::unique_ptr<Gpu>> Gpu::open(const Driver& driver, int ordinal, std::string name,
                                             Options options) {
  std::unique_ptr<Gpu> gpu(new Gpu(driver, ordinal, std::move(name), std::move(options)));
  TT_RETURN_IF_ERROR(gpu->start());
  return gpu;
}

Status Gpu::start() {
  const auto attribute = [&](int which) {
    int value = 0;
    return driver_.cuDeviceGetAttribute(&value, which, device_) == kSuccess ? value : 0;
  };
  char model[128] = "";
  TT_RETURN_IF_ERROR(check(driver_.cuDeviceGet(&device_, ordinal_), "opening it"));
  TT_RETURN_IF_ERROR(check(driver_.cuDeviceGetName(model, sizeof model - 1, device_), "its name"));
  model_ = model;
  capability_ = 10 * attribute(kCapabilityMajor) + attribute(kCapabilityMinor);
  multiprocessors_ = attribute(kMultiprocessors);
  pools_ = attribute(kMemoryPoolsSupported) != 0;
  if (capability_ < 75) {
    return Status(Code::kFailedPrecondition, name_ + " (" + model_ + ") has compute capability " +
                                                 std::to_string(capability_ / 10) + "." +
                                                 std::to_string(capability_ % 10) +
                                                 "; 7.5 is the least that is used");
  }
  if (attribute(kComputeMode) == kComputeModeProhibited) {
    return Status(Code::kFailedPrecondition, name_ + " (" + model_ + ") is closed for computing");
  }
  TT_RETURN_IF_ERROR(check(driver_.cuDevicePrimaryCtxRetain(&context_, device_), "its context"));
  TT_RETURN_IF_ERROR(enter());
  std::size_t free = 0, total = 0;
  TT_RETURN_IF_ERROR(check(driver_.cuMemGetInfo(&free, &total), "asking for its memory"));
  memory_ = total;
  free_at_start_ = free;
  TT_RETURN_IF_ERROR(check(driver_.cuStreamCreate(&stream_, kStreamNonBlocking), "a stream"));
  const auto event = [&](Event* made) {
    return check(driver_.cuEventCreate(made, kEventDisableTiming), "an event");
  };
  const auto pinned = [&](char** made) {
    void* memory = nullptr;
    const Status status = check(driver_.cuMemHostAlloc(&memory, kSlot, 0), "page-locked memory");
    *made = static_cast<char*>(memory);
    return status;
  };
  {
    MutexLock lock(in_mu_);
    for (Slot& slot : slots_) {
      TT_RETURN_IF_ERROR(pinned(&slot.data));
      TT_RETURN_IF_ERROR(event(&slot.filled));
    }
  }
  {
    MutexLock lock(out_mu_);
    TT_RETURN_IF_ERROR(pinned(&out_));
    TT_RETURN_IF_ERROR(event(&out_event_));
  }
  {
    MutexLock lock(event_mu_);
    TT_RETURN_IF_ERROR(event(&event_));
  }
  TT_RETURN_IF_ERROR(event(&probe_));
  watcher_ = std::thread([this] { watch(); });
  return {};
}

Gpu::~Gpu() {
  {
    MutexLock lock(watch_mu_);
    ending_ = true;
  }
  watch_ended_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (stream_ != nullptr) (void)synchronize();
  // A lost device answers nothing, or never; the process is about to end anyway.
  if (lost_ || context_ == nullptr || !enter().ok()) return;
  if (stream_ != nullptr) driver_.cuStreamDestroy(stream_);
  const auto drop = [&](char* pinned, Event event) {
    if (pinned != nullptr) driver_.cuMemFreeHost(pinned);
    if (event != nullptr) driver_.cuEventDestroy(event);
  };
  {
    MutexLock lock(in_mu_);
    for (const Slot& slot : slots_) drop(slot.data, slot.filled);
  }
  {
    MutexLock lock(out_mu_);
    drop(out_, out_event_);
  }
  {
    MutexLock lock(event_mu_);
    drop(nullptr, event_);
  }
  drop(nullptr, probe_);
  driver_.cuCtxSetCurrent(nullptr);
  current_context = nullptr;
  driver_.cuDevicePrimaryCtxRelease(device_);
}

// ---------------------------------------------------------------- what goes wrong

Status Gpu::health() const {
  if (!lost_.load(std::memory_order_acquire)) return {};
  MutexLock lock(lost_mu_);
  return lost_status_;
}

void Gpu::lose(std::string cause) const {
  std::string text = "DEVICE_LOST: " + name_ + " (" + model_ + "): " + std::move(cause) +
                     "; what lay on it is gone, what lies on the host is as it was";
  {
    MutexLock lock(lost_mu_);
    if (lost_) return;
    lost_status_ = Status(Code::kUnknown, text);  // the client's DeviceLostError
    lost_.store(true, std::memory_order_release);
  }
  if (options_.log) options_.log(true, text);
}

Status Gpu::check(int code, const char* what) const {
  if (code == kSuccess) return {};
  const char* found = nullptr;
  driver_.cuGetErrorName(code, &found);
  std::string text = std::string(what) + " failed with " + (found == nullptr ? "error" : found) +
                     " (" + std::to_string(code) + ")";
  // Before there is a context, nothing can be lost.
  if (context_ != nullptr && !recoverable(code)) {
    lose(std::move(text));
    return health();
  }
  return Status(code == kOutOfMemory ? Code::kResourceExhausted : Code::kInternal,
                name_ + ": " + text);
}

Status Gpu::enter() const {
  TT_RETURN_IF_ERROR(health());
  if (current_context == context_) return {};
  TT_RETURN_IF_ERROR(check(driver_.cuCtxSetCurrent(context_), "entering its context"));
  current_context = context_;
  return {};
}

Status Gpu::wait(Event event) {
  const Clock::time_point began = Clock::now();
  std::chrono::microseconds nap{0};
  while (true) {
    const int code = driver_.cuEventQuery(event);
    if (code == kSuccess) return {};
    if (code != kNotReady) return check(code, "waiting for it");
    TT_RETURN_IF_ERROR(health());  // the watcher has lost patience
    if (Clock::now() - began < kSpin) continue;
    nap = std::min(kLongestNap, nap + std::chrono::microseconds(10));
    std::this_thread::sleep_for(nap);
  }
}

// Finds out what nobody waits for: an error that a kernel has left, and a stream that stands still.
void Gpu::watch() {
  const auto patience =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.patience));
  const auto period = std::clamp<Clock::duration>(patience / 8, std::chrono::milliseconds(5),
                                                  std::chrono::milliseconds(250));
  std::uint64_t seen = 0;
  bool pending = false;
  Clock::time_point since;
  while (true) {
    {
      MutexLock lock(watch_mu_);
      if (!ending_) watch_ended_.wait_for(watch_mu_, period);
      if (ending_) return;
    }
    if (!enter().ok()) return;
    if (pending) {
      const int code = driver_.cuEventQuery(probe_);
      if (code == kNotReady) {
        if (Clock::now() - since <= patience) continue;
        char text[80];
        std::snprintf(text, sizeof text, "it has not moved for %.3g seconds", options_.patience);
        lose(text);
        return;
      }
      pending = false;
      if (!check(code, "what ran on it").ok()) return;
    }
    const std::uint64_t asked = asked_.load(std::memory_order_relaxed);
    if (asked == seen) continue;
    seen = asked;
    if (!check(driver_.cuEventRecord(probe_, stream_), "a mark in its stream").ok()) return;
    pending = true;
    since = Clock::now();
  }
}

// ---------------------------------------------------------------- memory

void* Gpu::allocate(std::size_t bytes) {
  if (!enter().ok()) return nullptr;
  Address memory = 0;
  const int code = pools_ ? driver_.cuMemAllocAsync(&memory, bytes, stream_)
                          : driver_.cuMemAlloc(&memory, bytes);
  if (!check(code, "allocating memory").ok()) return nullptr;
  void* made = reinterpret_cast<void*>(memory);
  if (zero(made, bytes).ok()) return made;
  free(made);
  return nullptr;
}

void Gpu::free(void* memory) {
  if (memory == nullptr || !enter().ok()) return;
  if (!pools_ && !synchronize().ok()) return;
  (void)check(pools_ ? driver_.cuMemFreeAsync(address(memory), stream_)
                     : driver_.cuMemFree(address(memory)),
              "freeing memory");
}

Status Gpu::zero(void* memory, std::size_t bytes) {
  if (bytes == 0) return {};
  TT_RETURN_IF_ERROR(enter());
  asked_.fetch_add(1, std::memory_order_relaxed);
  return check(driver_.cuMemsetD8Async(address(memory), 0, bytes, stream_), "clearing memory");
}

Status Gpu::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  TT_RETURN_IF_ERROR(enter());
  asked_.fetch_add(1, std::memory_order_relaxed);
  return check(driver_.cuMemcpyDtoDAsync(address(to), address(from), bytes, stream_), "a copy");
}

// The other's stream goes on only after the copy: what it frees then is not read any more.
Status Gpu::copy_from(Gpu& other, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  if (&other == this) return copy(to, from, bytes);
  TT_RETURN_IF_ERROR(other.enter());
  Event made = nullptr, read = nullptr;
  TT_RETURN_IF_ERROR(other.check(driver_.cuEventCreate(&made, kEventDisableTiming), "an event"));
  Status status = other.check(driver_.cuEventRecord(made, other.stream_), "a mark in its stream");
  if (status.ok()) status = enter();
  if (status.ok()) {
    status = check(driver_.cuEventCreate(&read, kEventDisableTiming), "an event");
  }
  if (status.ok()) status = check(driver_.cuStreamWaitEvent(stream_, made, 0), "waiting for it");
  if (status.ok()) {
    asked_.fetch_add(1, std::memory_order_relaxed);
    status = check(driver_.cuMemcpyPeerAsync(address(to), context_, address(from), other.context_,
                                             bytes, stream_),
                   "a copy from another device");
  }
  if (status.ok()) status = check(driver_.cuEventRecord(read, stream_), "a mark in its stream");
  if (read != nullptr && status.ok()) {
    status = other.enter();
    if (status.ok()) {
      status = other.check(driver_.cuStreamWaitEvent(other.stream_, read, 0), "waiting for a copy");
    }
  }
  // The driver keeps an event until nothing waits for it.
  if (read != nullptr && enter().ok()) driver_.cuEventDestroy(read);
  if (other.enter().ok()) driver_.cuEventDestroy(made);
  return status;
}

Status Gpu::next_slot() {
  Slot& full = slots_[slot_];
  TT_RETURN_IF_ERROR(check(driver_.cuEventRecord(full.filled, stream_), "a mark in its stream"));
  full.used = true;
  slot_ = (slot_ + 1) % kSlots;
  filled_ = 0;
  return slots_[slot_].used ? wait(slots_[slot_].filled) : Status();
}

Status Gpu::copy_in(void* to, const void* host, std::size_t bytes) {
  if (bytes == 0) return {};
  TT_RETURN_IF_ERROR(enter());
  asked_.fetch_add(1, std::memory_order_relaxed);
  const char* from = static_cast<const char*>(host);
  Address there = address(to);
  MutexLock lock(in_mu_);
  while (bytes > 0) {
    if (filled_ == kSlot) TT_RETURN_IF_ERROR(next_slot());
    const std::size_t n = std::min(bytes, kSlot - filled_);
    char* staged = slots_[slot_].data + filled_;
    std::memcpy(staged, from, n);
    TT_RETURN_IF_ERROR(check(driver_.cuMemcpyHtoDAsync(there, staged, n, stream_), "a copy to it"));
    filled_ = std::min(kSlot, (filled_ + n + 63) & ~std::size_t{63});
    from += n;
    there += n;
    bytes -= n;
  }
  return {};
}

Status Gpu::copy_out(void* host, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  TT_RETURN_IF_ERROR(enter());
  asked_.fetch_add(1, std::memory_order_relaxed);
  char* to = static_cast<char*>(host);
  Address there = address(from);
  MutexLock lock(out_mu_);
  // Halves in turn: one is copied on by the host while the other comes.
  constexpr std::size_t kHalf = kSlot / 2;
  char* const staged = out_;
  const auto ask = [&](std::size_t at, int half) {
    const std::size_t n = std::min(kHalf, bytes - at);
    return check(driver_.cuMemcpyDtoHAsync(staged + static_cast<std::size_t>(half) * kHalf,
                                           there + at, n, stream_),
                 "a copy from it");
  };
  TT_RETURN_IF_ERROR(ask(0, 0));
  int half = 0;
  for (std::size_t at = 0; at < bytes; at += kHalf, half ^= 1) {
    TT_RETURN_IF_ERROR(check(driver_.cuEventRecord(out_event_, stream_), "a mark in its stream"));
    TT_RETURN_IF_ERROR(wait(out_event_));
    if (at + kHalf < bytes) TT_RETURN_IF_ERROR(ask(at + kHalf, half ^ 1));
    std::memcpy(to + at, staged + static_cast<std::size_t>(half) * kHalf,
                std::min(kHalf, bytes - at));
  }
  return {};
}

// ---------------------------------------------------------------- kernels

Status Gpu::load(const std::string& code, Module* module) {
  TT_RETURN_IF_ERROR(enter());
  return check(driver_.cuModuleLoadData(module, code.c_str()), "loading a kernel");
}

Status Gpu::function(Module module, const std::string& name, unsigned shared_bytes,
                     Function* function) {
  TT_RETURN_IF_ERROR(enter());
  TT_RETURN_IF_ERROR(check(driver_.cuModuleGetFunction(function, module, name.c_str()),
                           "finding a kernel's entry"));
  if (shared_bytes <= 48u * 1024) return {};
  return check(
      driver_.cuFuncSetAttribute(*function, kMaxDynamicSharedBytes, static_cast<int>(shared_bytes)),
      "reserving shared memory");
}

void Gpu::unload(Module module) {
  if (synchronize().ok()) (void)check(driver_.cuModuleUnload(module), "unloading a kernel");
}

Status Gpu::launch(Function function, const LaunchShape& shape,
                   std::span<const std::byte> parameters) {
  TT_RETURN_IF_ERROR(enter());
  asked_.fetch_add(1, std::memory_order_relaxed);
  launches_.fetch_add(1, std::memory_order_relaxed);
  std::size_t bytes = parameters.size();
  // CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END.
  void* extra[] = {reinterpret_cast<void*>(1), const_cast<std::byte*>(parameters.data()),
                   reinterpret_cast<void*>(2), &bytes, nullptr};
  return check(driver_.cuLaunchKernel(function, shape.grid[0], shape.grid[1], shape.grid[2],
                                      shape.block[0], shape.block[1], shape.block[2],
                                      shape.shared_bytes, stream_, nullptr, extra),
               "starting a kernel");
}

Status Gpu::synchronize() {
  TT_RETURN_IF_ERROR(enter());
  MutexLock lock(event_mu_);
  TT_RETURN_IF_ERROR(check(driver_.cuEventRecord(event_, stream_), "a mark in its stream"));
  return wait(event_);
}

}  // namespace teletensor::backends::cuda
