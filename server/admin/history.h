// History: the last hour of what users and devices used, for the dashboard's charts.
//
// One sample every two seconds into rings of fixed size: 1,800 samples of 4 bytes for each of at
// most 50 users (two rings each; the rest are counted together), for each device (two rings) and
// for the total. That is 1 MiB at most, most of it only where so many users come. Nothing is
// written to a disk: with the daemon the history begins anew. Thread-safe.
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
#include "server/session/leases.h"

namespace teletensor::server {

class History {
 public:
  static constexpr std::chrono::seconds kPeriod{2};
  static constexpr std::uint64_t kSamples = 1800;
  static constexpr std::size_t kMaxUsers = 50;
  static constexpr int kColors = 10;  // of the dashboard's palette

  // Samples on a thread of its own from here on. Precondition: `leases` outlives it.
  explicit History(Leases& leases, std::chrono::milliseconds period = kPeriod);
  ~History();

  // What the caller may see of it as JSON: an admin every user, a user itself and the others as one
  // sum. `since`: the number of the first sample that is wanted.
  std::string json(const Caller& caller, std::uint64_t since);
  // The same for everybody who looks, and of no other user as long as colours last.
  int color(const std::string& user);

 private:
  template <class Value>
  using Ring = std::array<Value, kSamples>;
  struct UserRings {
    Ring<float> memory{}, lanes{};  // bytes on all devices; lanes in use
    double lane_seconds = -1;       // so far; -1: not known
    std::uint64_t seen = 0;         // the last sample in which the user had anything
  };
  struct DeviceRings {
    Ring<float> used{}, busy{};  // bytes; of a GPU: the part of the time in batches of work
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
  std::uint64_t count_ TT_GUARDED_BY(mutex_) = 0;  // samples so far; number n lies at n % kSamples
  Clock::time_point taken_at_ TT_GUARDED_BY(mutex_);
  double began_ TT_GUARDED_BY(mutex_) = 0;      // times_ of sample 0
  Ring<double> times_ TT_GUARDED_BY(mutex_){};  // seconds since 1970
  Ring<float> queued_ TT_GUARDED_BY(mutex_){};
  std::map<std::string, UserRings> users_ TT_GUARDED_BY(mutex_);
  std::map<std::string, DeviceRings> devices_ TT_GUARDED_BY(mutex_);
  std::map<std::string, int> colors_ TT_GUARDED_BY(mutex_);
  std::thread thread_;  // last: uses the others
};

}  // namespace teletensor::server
