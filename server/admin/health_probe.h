// HealthProbe is the daemon's health probe. It repeatedly runs a computation with a known result in
// its own session, which is scheduled like any other. The daemon is ready while the results are
// correct, and recent unless all lanes are busy: a daemon whose lanes compute long kernels of
// sessions is slow but not broken, and a restart would cost the work of all sessions.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "engine/core/mutex.h"
#include "engine/engine.h"

namespace teletensor::server {

class HealthProbe {
 public:
  static constexpr std::chrono::milliseconds kPeriod{2000};
  // Maximum age of the last correct result. If it is older although a lane is idle, the daemon is
  // not ready.
  static constexpr std::chrono::seconds kPatience{30};

  // `tick` is called after every period with the readiness of the daemon, from the watcher's
  // thread.
  HealthProbe(engine::Engine& engine, std::function<void(bool)> tick,
              std::chrono::nanoseconds patience = kPatience);
  // Waits for the computation in progress, which ends at the latest when a lane starts it.
  ~HealthProbe();
  HealthProbe(const HealthProbe&) = delete;
  HealthProbe& operator=(const HealthProbe&) = delete;

  // Makes the daemon not ready and starts no more computations. Interrupts the computation in
  // progress without waiting for it.
  void stop();
  // Waits until the first computation has ended, correct or not, but at most `patience`.
  void wait_for_first(std::chrono::milliseconds patience) const;
  bool ready() const;
  std::string trouble() const;  // The reason why the daemon is not ready.
  // Returns true if the daemon is ready although the last correct result is too old, because all
  // lanes are busy.
  bool is_late() const;
  double last_seconds() const { return static_cast<double>(last_ns_.load()) * 1e-9; }
  // Seconds since the last correct result, or since the start if there was none.
  double age_seconds() const;

 private:
  bool is_recent() const;
  void run_once();
  void watch();
  core::Status once();

  engine::Engine& engine_;
  const std::function<void(bool)> tick_;
  const std::chrono::nanoseconds patience_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::atomic<bool> stopping_{false};
  // Time of the last correct result, in nanoseconds since started_. -1 means none.
  std::atomic<std::int64_t> right_at_ns_{-1};
  std::atomic<std::uint64_t> last_ns_{0};

  mutable core::Mutex mutex_;
  core::CondVar stopped_;
  mutable core::CondVar sung_;
  bool ended_once_ TT_GUARDED_BY(mutex_) = false;
  bool stop_ TT_GUARDED_BY(mutex_) = false;
  core::Status wrong_ TT_GUARDED_BY(mutex_);  // The error of the last computation.
  // The session of the computation in progress.
  engine::Session* session_ TT_GUARDED_BY(mutex_) = nullptr;
  std::thread probe_thread_, watcher_;
};

}  // namespace teletensor::server
