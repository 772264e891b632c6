// History records the resource use of users and devices over the last hour, for the dashboard's
// charts.
// It takes one sample every two seconds into ring buffers of fixed size: 1,800 samples of 4 bytes,
// two rings for each of at most 50 users (further users are counted together), two rings for each
// device, and one set for the total. This is at most 1 MiB, and less with few users. Nothing is
// written to disk, so the history starts empty with the daemon. Thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"
#include "server/access/rights.h"
#include "server/admin/overview.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

class History {
 public:
  static constexpr std::chrono::seconds kPeriod{2};
  static constexpr std::uint64_t kSamples = 1800;
  static constexpr std::size_t kMaxUsers = 50;
  static constexpr int kColors = 10;  // Number of colours in the dashboard's palette.

  // Starts a thread that takes the samples. Precondition: `leases` outlives this object.
  explicit History(Leases& leases, std::chrono::milliseconds period = kPeriod);
  ~History();

  // The history as JSON, as far as the caller may see it: an admin sees every user, and a user sees
  // itself and the sum of the other users. `since` is the number of the first sample wanted.
  std::string json(const Caller& caller, std::uint64_t since);
  // The colour of a user in charts: the same for all viewers, and unique as long as there are
  // unused colours.
  int color(const std::string& user);

 private:
  template <class Value>
  using Ring = std::array<Value, kSamples>;
  struct UserRings {
    Ring<float> memory{}, lanes{};  // Memory on all devices in bytes, and number of lanes in use.
    double lane_seconds = -1;       // Lane time so far in seconds. -1 means unknown.
    std::uint64_t seen = 0;  // Number of the last sample in which the user used any resource.
  };
  struct DeviceRings {
    // Memory in use in bytes; for a GPU also the fraction of time in which batches ran.
    Ring<float> used{}, busy{};
    std::uint64_t total = 0;
    double busy_seconds = -1;
  };

  void work();
  void take();
  void take_users(const Overview& all, double passed) TT_REQUIRES(mutex_);
  void take_devices(const Overview& all, double passed) TT_REQUIRES(mutex_);
  void forget_absent() TT_REQUIRES(mutex_);
  int color_of(const std::string& user) TT_REQUIRES(mutex_);

  Leases& leases_;
  const std::chrono::milliseconds period_;
  core::Mutex mutex_;
  core::CondVar changed_;
  bool stop_ TT_GUARDED_BY(mutex_) = false;
  // Number of samples so far. Sample n is at index n % kSamples.
  std::uint64_t count_ TT_GUARDED_BY(mutex_) = 0;
  Clock::time_point taken_at_ TT_GUARDED_BY(mutex_);
  double began_ TT_GUARDED_BY(mutex_) = 0;  // Time of sample 0, as in times_.
  // Time of each sample in seconds since the UNIX epoch.
  Ring<double> times_ TT_GUARDED_BY(mutex_){};
  Ring<float> queued_ TT_GUARDED_BY(mutex_){};
  std::map<std::string, UserRings> users_ TT_GUARDED_BY(mutex_);
  std::map<std::string, DeviceRings> devices_ TT_GUARDED_BY(mutex_);
  std::map<std::string, int> colors_ TT_GUARDED_BY(mutex_);
  std::thread thread_;  // Declared last because the thread uses the other members.
};

}  // namespace teletensor::server
