// Canary: computes something with a known answer again and again, through a session of its own and
// the same queue as everybody. The daemon is ready while the answers are right and recent.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "engine/core/mutex.h"
#include "engine/engine.h"

namespace teletensor::server {

class Canary {
 public:
  static constexpr std::chrono::milliseconds kPeriod{2000};
  // Without a right answer for so long (long kernels of others included) the daemon is not ready.
  static constexpr std::chrono::seconds kPatience{30};

  // `tick` is called after every period with whether the daemon is ready, from the canary's thread
  // or, where that waits for an answer, from the watcher's.
  Canary(engine::Engine& engine, std::function<void(bool)> tick);
  // Waits for the computation in progress, which ends when a lane has looked at it.
  ~Canary();
  Canary(const Canary&) = delete;
  Canary& operator=(const Canary&) = delete;

  // Not ready from here on, and computes nothing more. The computation in progress is interrupted,
  // not waited for.
  void stop();
  // Returns when the first computation has ended, right or wrong, or the time has passed.
  void wait_for_first(std::chrono::milliseconds patience) const;
  bool ready() const;
  std::string trouble() const;  // why it is not ready
  double last_seconds() const { return static_cast<double>(last_ns_.load()) * 1e-9; }
  double age_seconds() const;  // since the last right answer; since the start if there was none

 private:
  void sing();
  void watch();
  core::Status once();

  engine::Engine& engine_;
  const std::function<void(bool)> tick_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> right_at_ns_{-1};  // since started_
  std::atomic<std::uint64_t> last_ns_{0};

  mutable core::Mutex mutex_;
  core::CondVar stopped_;
  mutable core::CondVar sung_;
  bool ended_once_ TT_GUARDED_BY(mutex_) = false;
  bool stop_ TT_GUARDED_BY(mutex_) = false;
  core::Status wrong_ TT_GUARDED_BY(mutex_);                  // how the last one failed
  engine::Session* session_ TT_GUARDED_BY(mutex_) = nullptr;  // of the computation in progress
  std::thread singer_, watcher_;
};

}  // namespace teletensor::server
