#include "engine/backends/cuda/device/watcher.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "engine/core/threads.h"

namespace teletensor::backends::cuda {

using core::MutexLock;
using core::Status;
using Clock = std::chrono::steady_clock;

Watcher::Watcher(const DeviceContext& context, WorkQueues& work, double patience)
    : context_(context), work_(work), patience_(patience) {}

Watcher::~Watcher() {
  stop();
  if (context_.usable()) context_.destroy(nullptr, probe_, marks_);
}

Status Watcher::start() {
  TT_RETURN_IF_ERROR(context_.create(&probe_));
  TT_RETURN_IF_ERROR(context_.create(&marks_));
  thread_ = core::start_thread([this] { watch(); });
  return {};
}

void Watcher::stop() {
  {
    MutexLock lock(mu_);
    ending_ = true;
  }
  ended_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watcher::watch() {
  const auto patience =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(patience_));
  const auto period = std::clamp<Clock::duration>(patience / 8, std::chrono::milliseconds(5),
                                                  std::chrono::milliseconds(250));
  std::uint64_t seen = 0;
  bool pending = false;
  Clock::time_point since;
  while (true) {
    {
      MutexLock lock(mu_);
      if (!ending_) ended_.wait_for(mu_, period);
      if (ending_) return;
    }
    if (!context_.enter().ok()) return;
    if (pending) {
      const int code = context_.driver().cuEventQuery(probe_);
      if (code == kNotReady) {
        if (Clock::now() - since <= patience) continue;
        char text[80];
        std::snprintf(text, sizeof text, "it has made no progress for %.3g seconds", patience_);
        context_.lose(text);
        return;
      }
      pending = false;
      if (!context_.check(code, "work on the device").ok()) return;
    }
    const std::uint64_t asked = work_.asked();
    if (asked == seen) continue;
    seen = asked;
    if (!work_.queues().mark_all(marks_, probe_, false).ok()) return;
    pending = true;
    since = Clock::now();
  }
}

}  // namespace teletensor::backends::cuda
