#include "engine/backends/cuda/driver/gpu.h"

#include <algorithm>
#include <utility>

#include "engine/core/threads.h"
#include "engine/memory/on_behalf.h"

namespace teletensor::backends::cuda {

using core::Code;
using core::MutexLock;
using core::Status;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::microseconds kSpin{30};
constexpr std::chrono::microseconds kLongestNap{500};

thread_local Context current_context = nullptr;

// Returns true for errors that affect only one call. All other errors have ended the context.
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
    : driver_(driver),
      ordinal_(ordinal),
      name_(std::move(name)),
      options_(std::move(options)),
      queues_({driver_, [this](int code, const char* what) { return check(code, what); },
               [this](Event event) { return wait(event); },
               [this](std::string cause) {
                 lose(std::move(cause));
                 return health();
               }}) {}

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
  TT_RETURN_IF_ERROR(check(driver_.cuDeviceGet(&device_, ordinal_), "opening the device"));
  TT_RETURN_IF_ERROR(
      check(driver_.cuDeviceGetName(model, sizeof model - 1, device_), "reading its name"));
  model_ = model;
  capability_ = 10 * attribute(kCapabilityMajor) + attribute(kCapabilityMinor);
  multiprocessors_ = attribute(kMultiprocessors);
  pools_ = attribute(kMemoryPoolsSupported) != 0;
  if (capability_ < 75) {
    return Status(Code::kFailedPrecondition, name_ + " (" + model_ + ") has compute capability " +
                                                 std::to_string(capability_ / 10) + "." +
                                                 std::to_string(capability_ % 10) +
                                                 "; the minimum is 7.5");
  }
  if (attribute(kComputeMode) == kComputeModeProhibited) {
    return Status(Code::kFailedPrecondition,
                  name_ + " (" + model_ + ") is in compute mode 'prohibited'");
  }
  TT_RETURN_IF_ERROR(
      check(driver_.cuDevicePrimaryCtxRetain(&context_, device_), "creating its context"));
  TT_RETURN_IF_ERROR(enter());
  std::size_t free = 0, total = 0;
  TT_RETURN_IF_ERROR(check(driver_.cuMemGetInfo(&free, &total), "reading the size of its memory"));
  memory_ = total;
  free_at_start_ = free;
  TT_RETURN_IF_ERROR(ask_open());
  const auto stream = [&](Stream* made) {
    return check(driver_.cuStreamCreate(made, kStreamNonBlocking), "creating a stream");
  };
  TT_RETURN_IF_ERROR(stream(&marks_));
  TT_RETURN_IF_ERROR(stream(&ins_));
  TT_RETURN_IF_ERROR(queues_.of(0).status());
  const auto event = [&](Event* made) {
    return check(driver_.cuEventCreate(made, kEventDisableTiming), "creating an event");
  };
  const auto pinned = [&](char** made) {
    void* memory = nullptr;
    const Status status =
        check(driver_.cuMemHostAlloc(&memory, kSlot, 0), "allocating page-locked memory");
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
    for (int i = 0; i < kOuts; ++i) {
      Out& out = outs_.emplace_back();
      TT_RETURN_IF_ERROR(pinned(&out.data));
      TT_RETURN_IF_ERROR(stream(&out.stream));
      TT_RETURN_IF_ERROR(event(&out.event));
    }
  }
  {
    MutexLock lock(event_mu_);
    TT_RETURN_IF_ERROR(event(&event_));
  }
  TT_RETURN_IF_ERROR(event(&probe_));
  watcher_ = core::start_thread([this] { watch(); });
  return {};
}

Gpu::~Gpu() {
  {
    MutexLock lock(watch_mu_);
    ending_ = true;
  }
  watch_ended_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (event_ != nullptr) (void)synchronize();
  {
    MutexLock lock(in_mu_);
    in_use_.clear();
  }
  // A lost device may never answer, and the process is about to end anyway.
  if (lost_ || context_ == nullptr || !enter().ok()) return;
  queues_.clear();
  const auto drop = [&](char* pinned, Event event, Stream stream = nullptr) {
    if (pinned != nullptr) driver_.cuMemFreeHost(pinned);
    if (event != nullptr) driver_.cuEventDestroy(event);
    if (stream != nullptr) driver_.cuStreamDestroy(stream);
  };
  {
    MutexLock lock(in_mu_);
    for (const Slot& slot : slots_) drop(slot.data, slot.filled);
  }
  {
    MutexLock lock(out_mu_);
    for (const Out& out : outs_) drop(out.data, out.event, out.stream);
  }
  {
    MutexLock lock(event_mu_);
    drop(nullptr, event_, marks_);
  }
  drop(nullptr, probe_, ins_);
  driver_.cuCtxSetCurrent(nullptr);
  current_context = nullptr;
  driver_.cuDevicePrimaryCtxRelease(device_);
}

// ---------------------------------------------------------------- errors

Status Gpu::health() const {
  if (!lost_.load(std::memory_order_acquire)) return {};
  MutexLock lock(lost_mu_);
  return lost_status_;
}

void Gpu::lose(std::string cause) const {
  std::string text = "DEVICE_LOST: " + name_ + " (" + model_ + "): " + std::move(cause) +
                     "; tensors on it are lost, tensors on the host are unchanged";
  {
    MutexLock lock(lost_mu_);
    if (lost_) return;
    lost_status_ = Status(Code::kUnknown, text);  // becomes DeviceLostError in the client
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
  // Without a context there is nothing that could be lost.
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
    if (code != kNotReady) return check(code, "waiting for its work");
    TT_RETURN_IF_ERROR(health());  // set by watch() after too long without progress
    if (Clock::now() - began < kSpin) continue;
    nap = std::min(kLongestNap, nap + std::chrono::microseconds(10));
    std::this_thread::sleep_for(nap);
  }
}

// The watcher thread. It finds problems that no caller is waiting for: an error that a kernel has
// left, and a stream without progress.
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
        std::snprintf(text, sizeof text, "it has made no progress for %.3g seconds",
                      options_.patience);
        lose(text);
        return;
      }
      pending = false;
      if (!check(code, "work on the device").ok()) return;
    }
    const std::uint64_t asked = asked_.load(std::memory_order_relaxed);
    if (asked == seen) continue;
    seen = asked;
    if (!queues_.mark_all(marks_, probe_, false).ok()) return;
    pending = true;
    since = Clock::now();
  }
}

// ---------------------------------------------------------------- memory

void* Gpu::allocate(std::size_t bytes) {
  if (!enter().ok()) return nullptr;
  const core::Result<Queues::QueueRef> home = queues_.of(0);
  if (!home.ok()) return nullptr;
  const core::Result<Stream> stream = queues_.stream(**home);
  if (!stream.ok()) return nullptr;
  Address memory = 0;
  const int code = pools_ ? driver_.cuMemAllocAsync(&memory, bytes, *stream)
                          : driver_.cuMemAlloc(&memory, bytes);
  if (!check(code, "allocating memory").ok()) return nullptr;
  void* made = reinterpret_cast<void*>(memory);
  if (clear(**home, made, bytes).ok() && queues_.make_all_follow(**home).ok()) return made;
  free(made);
  return nullptr;
}

void Gpu::free(void* memory) {
  if (memory == nullptr || !enter().ok()) return;
  const core::Result<Queues::QueueRef> home = queues_.of(0);
  if (!home.ok()) return;
  const Status after = pools_ ? queues_.follow_all(**home) : synchronize();
  const core::Result<Stream> stream = queues_.stream(**home);
  if (!after.ok() || !stream.ok()) return;
  (void)check(pools_ ? driver_.cuMemFreeAsync(address(memory), *stream)
                     : driver_.cuMemFree(address(memory)),
              "freeing memory");
}

Status Gpu::clear(Queues::Queue& queue, void* memory, std::size_t bytes) {
  if (bytes == 0) return {};
  Task task;
  task.to = address(memory);
  task.bytes = bytes;
  return ask(queue, task, true, "clearing memory");
}

Status Gpu::zero(void* memory, std::size_t bytes) {
  const core::Result<Queues::QueueRef> own = queue();
  return own.ok() ? clear(**own, memory, bytes) : own.status();
}

Status Gpu::transfer_ownership(void* memory, std::size_t bytes, memory::OwnerId from,
                               memory::OwnerId to) {
  TT_RETURN_IF_ERROR(enter());
  const core::Result<Queues::QueueRef> next = queues_.of(to);
  if (!next.ok()) return next.status();
  TT_RETURN_IF_ERROR(queues_.follow(**next, from));
  return clear(**next, memory, bytes);
}

// ---------------------------------------------------------------- queues

core::Result<Queues::QueueRef> Gpu::queue() {
  TT_RETURN_IF_ERROR(enter());
  return queues_.of(memory::on_behalf());
}

Status Gpu::follow_all() {
  const core::Result<Queues::QueueRef> own = queue();
  return own.ok() ? queues_.follow_all(**own) : own.status();
}

Status Gpu::make_all_follow() {
  const core::Result<Queues::QueueRef> own = queue();
  return own.ok() ? queues_.make_all_follow(**own) : own.status();
}

Status Gpu::begin_beside(memory::OwnerId owner) {
  TT_RETURN_IF_ERROR(enter());
  const core::Result<Queues::QueueRef> own = queues_.of(owner);
  return own.ok() ? queues_.uploads_follow(**own) : own.status();
}

void Gpu::end(memory::OwnerId owner) {
  if (enter().ok()) queues_.end(owner);
}

Queues::Time Gpu::take_time(memory::OwnerId owner) {
  return enter().ok() ? queues_.take_time(owner) : Queues::Time();
}

Status Gpu::synchronize() {
  TT_RETURN_IF_ERROR(enter());
  MutexLock lock(event_mu_);
  TT_RETURN_IF_ERROR(queues_.mark_all(marks_, event_, true));
  return wait(event_);
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
  if (!synchronize().ok()) return;
  queues_.drop_graphs();
  (void)check(driver_.cuModuleUnload(module), "unloading a kernel");
}

Status Gpu::ask(Queues::Queue& queue, const Task& task, bool gathers, const char* what) {
  asked_.fetch_add(1, std::memory_order_relaxed);
  int code = kSuccess;
  TT_RETURN_IF_ERROR(queues_.ask(queue, task, gathers, &code));
  return check(code, what);
}

Status Gpu::launch(Function function, const LaunchShape& shape,
                   std::span<const std::byte> parameters, bool known) {
  const core::Result<Queues::QueueRef> own = queue();
  if (!own.ok()) return own.status();
  Task task;
  task.function = function;
  task.shape = shape;
  task.params = parameters;
  return ask(**own, task, known, "starting a kernel");
}

Status Gpu::launch(Library& library, const LibraryCall& call, bool known, int* code) {
  *code = 0;
  const core::Result<Queues::QueueRef> own = queue();
  if (!own.ok()) return own.status();
  Task task;
  task.library = &library;
  task.call = &call;
  asked_.fetch_add(1, std::memory_order_relaxed);
  return queues_.ask(**own, task, known, code);
}

Status Gpu::gather(memory::OwnerId owner, bool on) {
  TT_RETURN_IF_ERROR(enter());
  return queues_.gather(owner, on);
}

}  // namespace teletensor::backends::cuda
