#include "server/state_json.h"

#include <nlohmann/json.hpp>

#include "server/overview.h"

namespace teletensor::server {

namespace {

using nlohmann::json;

constexpr std::size_t kTensors = 8;  // of a session
constexpr std::size_t kMostSessionsWithTensors = 64;
constexpr std::size_t kSlow = 20;
constexpr std::size_t kMostPublished = 100;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

json to_json(const SessionView& view) {
  std::uint64_t quota = 0, away = 0;
  for (const engine::MemoryUse& use : view.memory) {
    quota += use.quota;
    if (use.device.kind == core::DeviceKind::kCpu) away += use.away;  // what is on the disk
  }
  return {{"id", view.id},
          {"user", view.user},
          {"name", view.name},
          {"age", view.age_seconds},
          {"attached", view.attached},
          {"used", view.used()},
          {"quota", quota},
          {"away", away},
          {"handles", view.handles},
          {"queued", view.queued},
          {"ahead", view.ahead},
          {"wait", view.wait_seconds},
          {"lane_seconds", view.lane_seconds},
          {"tensors", json::array()}};
}

}  // namespace

std::string state_json(Leases& leases, const Canary& canary, const std::string& version,
                       Clock::time_point started, const Caller& caller) {
  const Overview all = overview(leases, leases.engine(), caller);
  json state = {
      {"version", version},
      {"ready", canary.ready()},
      {"uptime", seconds(Clock::now() - started)},
      {"now",
       std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()},
      {"caller", {{"user", caller.user}, {"role", to_string(caller.role)}}},
      {"devices", json::array()},
      {"gpus", json::array()},
      {"sessions", json::array()},
      {"published", json::array()},
      {"slow", json::array()}};
  for (const engine::MemoryUse& use : all.devices) {
    state["devices"].push_back({{"device", core::to_string(use.device)},
                                {"used", use.device_used},
                                {"peak", use.peak},
                                {"total", use.device_total},
                                {"held", use.device_held},
                                {"away", use.away},
                                {"disk_used", use.disk_used},
                                {"disk_total", use.disk_quota}});
  }
  for (const auto& [device, did] : leases.engine().activity()) {
    state["gpus"].push_back({{"device", core::to_string(device)},
                             {"busy_seconds", did.busy_seconds()},
                             {"in_flight", did.in_flight},
                             {"kernels", did.loaded},
                             {"on_host", did.calls_on_host()}});
  }
  std::size_t told = 0;
  for (const SessionView& view : all.sessions) {
    json session = to_json(view);
    const LeaseRef lease = leases.find_id(view.id);
    if (lease && ++told <= kMostSessionsWithTensors) {
      for (const HoldingView& held : holdings(*lease, kTensors)) {
        session["tensors"].push_back({{"device", core::to_string(held.holding.device)},
                                      {"bytes", held.holding.bytes},
                                      {"away", held.holding.away},
                                      {"command", held.holding.seq},
                                      {"site", held.site}});
      }
    }
    state["sessions"].push_back(std::move(session));
  }
  for (const engine::Publication& each : publications(leases.engine(), caller)) {
    if (state["published"].size() >= kMostPublished) break;
    state["published"].push_back({{"name", each.user + "/" + each.name},
                                  {"bytes", each.bytes},
                                  {"device", core::to_string(each.device)},
                                  {"writable", each.writable},
                                  {"users", each.users}});
  }
  if (all.others_count > 0) {
    state["others"] = {{"sessions", all.others_count}, {"used", all.others.used()}};
  }
  for (const SlowEntry& entry : leases.slow_log().entries()) {
    if (!caller.admin() && entry.user != caller.user) continue;
    if (state["slow"].size() >= kSlow) break;
    state["slow"].push_back({{"age", seconds(Clock::now() - entry.at)},
                             {"session", entry.session},
                             {"name", entry.session_name},
                             {"user", entry.user},
                             {"op", entry.op},
                             {"seconds", seconds(entry.took)},
                             {"command", entry.seq},
                             {"site", entry.site}});
  }
  return state.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace teletensor::server
