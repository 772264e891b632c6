#include "server/admin/history.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/core/threads.h"
#include "engine/core/with_memory.h"
#include "server/base/log.h"

namespace teletensor::server {

using core::MutexLock;

namespace {

// Cannot be the name of a user, because it contains spaces.
constexpr char kRest[] = "(other users)";
constexpr std::size_t kMaxColors = 1000;  // Number of users whose colour is remembered.

// FNV-1a, which is the same on every machine, so that a user keeps its colour when the daemon
// restarts.
std::uint32_t hash(const std::string& text) {
  std::uint32_t result = 2166136261u;
  for (const char c : text) result = (result ^ static_cast<unsigned char>(c)) * 16777619u;
  return result;
}

// The growth of `total` per second since the value in `before`, which is then replaced. 0 if the
// earlier value is unknown.
float rate(double& before, double total, double passed) {
  const bool known = before >= 0 && passed > 0;
  const double grown = std::max(0.0, total - before);
  before = total;
  return known ? static_cast<float>(grown / passed) : 0;
}

double rounded(float value) { return std::round(static_cast<double>(value) * 1000) / 1000; }

}  // namespace

History::History(Leases& leases, std::chrono::milliseconds period)
    : leases_(leases), period_(period), thread_(core::start_thread([this] { work(); })) {}

History::~History() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void History::work() {
  Clock::time_point next = Clock::now();
  while (true) {
    const core::Status status = core::with_memory("the history", [&] {
      take();
      return core::Status();
    });
    if (!status.ok()) log_warn("history_gap", {{"reason", status.message()}});
    next = std::max(next + period_, Clock::now());  // Samples that were missed are not taken later.
    MutexLock lock(mutex_);
    while (!stop_ && Clock::now() < next) changed_.wait_for(mutex_, next - Clock::now());
    if (stop_) return;
  }
}

void History::take() {
  const Overview all = overview(leases_, leases_.engine(), {"", Role::kAdmin});
  const auto calendar = std::chrono::system_clock::now().time_since_epoch();
  MutexLock lock(mutex_);
  const Clock::time_point now = Clock::now();
  const double passed = count_ == 0 ? 0 : std::chrono::duration<double>(now - taken_at_).count();
  taken_at_ = now;
  const std::size_t at = count_ % kSamples;
  times_[at] = std::chrono::duration<double>(calendar).count();
  if (count_ == 0) began_ = times_[at];
  std::uint64_t queued = 0;
  for (const SessionView& view : all.sessions) queued += view.queued;
  queued_[at] = static_cast<float>(queued);
  take_users(all, passed);
  take_devices(all, passed);
  ++count_;
}

void History::take_users(const Overview& all, double passed) {
  struct Sum {
    std::uint64_t memory = 0;
    double lane_seconds = 0;
  };
  std::map<std::string, Sum> sums;
  for (const SessionView& view : all.sessions) {
    sums[view.user].memory += view.used();
    sums[view.user].lane_seconds += view.lane_seconds;
  }
  for (const auto& [user, totals] : leases_.counters().users()) {
    sums[user].lane_seconds += static_cast<double>(totals.lane_ns) * 1e-9;
  }
  forget_absent();
  const std::size_t at = count_ % kSamples;
  for (auto& [user, rings] : users_) rings.memory[at] = rings.lanes[at] = 0;
  Sum rest;
  for (const auto& [user, sum] : sums) {
    const auto found = users_.find(user);
    const bool idle = sum.memory == 0 &&
                      (found == users_.end() || sum.lane_seconds <= found->second.lane_seconds);
    if (idle) continue;
    if (found == users_.end() && users_.size() >= kMaxUsers) {
      rest.memory += sum.memory;
      rest.lane_seconds += sum.lane_seconds;
      continue;
    }
    UserRings& rings = users_[user];
    rings.memory[at] = static_cast<float>(sum.memory);
    rings.lanes[at] = rate(rings.lane_seconds, sum.lane_seconds, passed);
    rings.seen = count_;
  }
  if (rest.memory == 0) return;
  UserRings& rings = users_[kRest];
  rings.memory[at] = static_cast<float>(rest.memory);
  rings.lanes[at] = rate(rings.lane_seconds, rest.lane_seconds, passed);
  rings.seen = count_;
}

void History::take_devices(const Overview& all, double passed) {
  const std::size_t at = count_ % kSamples;
  for (const engine::MemoryUse& use : all.devices) {
    DeviceRings& rings = devices_[core::to_string(use.device)];
    rings.used[at] = static_cast<float>(use.device_used);
    rings.total = use.device_total;
  }
  for (const auto& [device, did] : leases_.engine().activity()) {
    DeviceRings& rings = devices_[core::to_string(device)];
    rings.busy[at] = rate(rings.busy_seconds, did.busy_seconds(), passed);
  }
}

// Removes users without a session in any sample that the history still has.
void History::forget_absent() {
  std::erase_if(users_, [&](const auto& each)
                            TT_REQUIRES(mutex_) { return each.second.seen + kSamples < count_; });
}

int History::color(const std::string& user) {
  MutexLock lock(mutex_);
  return color_of(user);
}

int History::color_of(const std::string& user) {
  const int wanted = static_cast<int>(hash(user) % kColors);
  if (const auto found = colors_.find(user); found != colors_.end()) return found->second;
  if (colors_.size() >= kMaxColors) return wanted;
  std::set<int> taken;
  for (const auto& [other, color] : colors_) taken.insert(color);
  int color = wanted;
  while (taken.size() < kColors && taken.count(color) != 0) color = (color + 1) % kColors;
  return colors_[user] = color;
}

std::string History::json(const Caller& caller, std::uint64_t since) {
  MutexLock lock(mutex_);
  const std::uint64_t oldest = count_ > kSamples ? count_ - kSamples : 0;
  const std::uint64_t first = since > count_ ? oldest : std::max(since, oldest);
  const auto part = [&](const auto& ring, auto&& as) TT_REQUIRES(mutex_) {
    auto values = nlohmann::json::array();
    for (std::uint64_t n = first; n < count_; ++n) values.push_back(as(ring[n % kSamples]));
    return values;
  };
  const auto whole = [](auto value) { return static_cast<std::uint64_t>(value); };
  nlohmann::json result = {{"period", std::chrono::duration<double>(period_).count()},
                           {"began", began_},
                           {"first", first},
                           {"next", count_},
                           {"times", part(times_, [](double time) { return time; })},
                           {"queued", part(queued_, whole)},
                           {"devices", nlohmann::json::array()},
                           {"users", nlohmann::json::array()}};
  for (const auto& [name, rings] : devices_) {
    result["devices"].push_back({{"name", name},
                                 {"total", rings.total},
                                 {"used", part(rings.used, whole)},
                                 {"busy", part(rings.busy, rounded)}});
  }
  UserRings others;
  bool any_others = false;
  for (const auto& [name, rings] : users_) {
    const bool visible = caller.admin() || (caller.role == Role::kUser && caller.user == name);
    if (!visible) {
      any_others = true;
      for (std::size_t i = 0; i < kSamples; ++i) {
        others.memory[i] += rings.memory[i];
        others.lanes[i] += rings.lanes[i];
      }
      continue;
    }
    result["users"].push_back(
        {{"name", name},
         {"color", name == kRest ? nlohmann::json() : nlohmann::json(color_of(name))},
         {"memory", part(rings.memory, whole)},
         {"lanes", part(rings.lanes, rounded)}});
  }
  if (any_others) {
    result["others"] = {{"memory", part(others.memory, whole)},
                        {"lanes", part(others.lanes, rounded)}};
  }
  return result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace teletensor::server
