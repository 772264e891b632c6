#include "engine/backends/cuda/device/context.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
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

DeviceContext::DeviceContext(const Driver& driver, std::string name, Log log)
    : driver_(driver), name_(std::move(name)), log_(std::move(log)) {}

DeviceContext::~DeviceContext() {
  if (!usable()) return;
  driver_.cuCtxSetCurrent(nullptr);
  current_context = nullptr;
  driver_.cuDevicePrimaryCtxRelease(facts_.number);
}

Status DeviceContext::open(int ordinal) {
  TT_RETURN_IF_ERROR(read_facts(ordinal));
  const int capability = facts_.capability;
  if (capability < 75) {
    return Status(Code::kFailedPrecondition,
                  name_ + " (" + facts_.model + ") has compute capability " +
                      std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
                      "; the minimum is 7.5");
  }
  int mode = 0;
  if (driver_.cuDeviceGetAttribute(&mode, kComputeMode, facts_.number) == kSuccess &&
      mode == kComputeModeProhibited) {
    return Status(Code::kFailedPrecondition,
                  name_ + " (" + facts_.model + ") is in compute mode 'prohibited'");
  }
  TT_RETURN_IF_ERROR(
      check(driver_.cuDevicePrimaryCtxRetain(&handle_, facts_.number), "creating its context"));
  TT_RETURN_IF_ERROR(enter());
  std::size_t free = 0, total = 0;
  TT_RETURN_IF_ERROR(check(driver_.cuMemGetInfo(&free, &total), "reading the size of its memory"));
  facts_.memory = total;
  facts_.free_at_start = free;
  Uuid uuid;
  TT_RETURN_IF_ERROR(check(driver_.cuDeviceGetUuid_v2(&uuid, facts_.number), "reading its UUID"));
  std::memcpy(facts_.uuid.data(), uuid.bytes, sizeof uuid.bytes);
  return {};
}

Status DeviceContext::read_facts(int ordinal) {
  TT_RETURN_IF_ERROR(check(driver_.cuDeviceGet(&facts_.number, ordinal), "opening the device"));
  char model[128] = "";
  TT_RETURN_IF_ERROR(
      check(driver_.cuDeviceGetName(model, sizeof model - 1, facts_.number), "reading its name"));
  const auto attribute = [&](int which) {
    int value = 0;
    return driver_.cuDeviceGetAttribute(&value, which, facts_.number) == kSuccess ? value : 0;
  };
  facts_.model = model;
  facts_.capability = 10 * attribute(kCapabilityMajor) + attribute(kCapabilityMinor);
  facts_.multiprocessors = attribute(kMultiprocessors);
  facts_.pools = attribute(kMemoryPoolsSupported) != 0;
  return {};
}

Status DeviceContext::enter() const {
  TT_RETURN_IF_ERROR(health());
  if (current_context == handle_) return {};
  TT_RETURN_IF_ERROR(check(driver_.cuCtxSetCurrent(handle_), "entering its context"));
  current_context = handle_;
  return {};
}

Status DeviceContext::health() const {
  if (!lost_.load(std::memory_order_acquire)) return {};
  MutexLock lock(lost_mu_);
  return lost_status_;
}

void DeviceContext::lose(std::string cause) const {
  std::string text = "DEVICE_LOST: " + name_ + " (" + facts_.model + "): " + std::move(cause) +
                     "; tensors on it are lost, tensors on the host are unchanged";
  {
    MutexLock lock(lost_mu_);
    if (lost_) return;
    lost_status_ = Status(Code::kUnknown, text);  // becomes DeviceLostError in the client
    lost_.store(true, std::memory_order_release);
  }
  if (log_) log_(true, text);
}

Status DeviceContext::check(int code, const char* what) const {
  if (code == kSuccess) return {};
  const char* found = nullptr;
  driver_.cuGetErrorName(code, &found);
  std::string text = std::string(what) + " failed with " + (found == nullptr ? "error" : found) +
                     " (" + std::to_string(code) + ")";
  // Without a context there is nothing that could be lost.
  if (handle_ != nullptr && !recoverable(code)) {
    lose(std::move(text));
    return health();
  }
  return Status(code == kOutOfMemory ? Code::kResourceExhausted : Code::kInternal,
                name_ + ": " + text);
}

Status DeviceContext::wait(Event event) const {
  const Clock::time_point began = Clock::now();
  std::chrono::microseconds nap{0};
  while (true) {
    const int code = driver_.cuEventQuery(event);
    if (code == kSuccess) return {};
    if (code != kNotReady) return check(code, "waiting for its work");
    TT_RETURN_IF_ERROR(health());  // set by the Watcher after too long without progress
    if (Clock::now() - began < kSpin) continue;
    nap = std::min(kLongestNap, nap + std::chrono::microseconds(10));
    std::this_thread::sleep_for(nap);
  }
}

Status DeviceContext::create(Stream* stream) const {
  return check(driver_.cuStreamCreate(stream, kStreamNonBlocking), "creating a stream");
}

Status DeviceContext::create(Event* event) const {
  return check(driver_.cuEventCreate(event, kEventDisableTiming), "creating an event");
}

Status DeviceContext::create_pinned(std::size_t bytes, char** memory) const {
  void* allocated = nullptr;
  const Status status =
      check(driver_.cuMemHostAlloc(&allocated, bytes, 0), "allocating page-locked memory");
  *memory = static_cast<char*>(allocated);
  return status;
}

void DeviceContext::destroy(char* pinned, Event event, Stream stream) const {
  if (pinned != nullptr) driver_.cuMemFreeHost(pinned);
  if (event != nullptr) driver_.cuEventDestroy(event);
  if (stream != nullptr) driver_.cuStreamDestroy(stream);
}

}  // namespace teletensor::backends::cuda
