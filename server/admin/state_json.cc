#include "server/admin/state_json.h"

#include <nlohmann/json.hpp>

#include "server/admin/overview.h"

namespace teletensor::server {

namespace {

using nlohmann::json;

constexpr std::size_t kTensors = 8;  // Maximum number of tensors for each session in the overview.
constexpr std::size_t kMaxTensors = 50;  // Maximum number of tensors in the details of one session.
constexpr std::size_t kMaxSessionsWithTensors = 64;
constexpr std::size_t kSlow = 20;
constexpr std::size_t kMaxPublished = 100;
constexpr std::size_t kMaxGroups = 100;
constexpr std::size_t kMaxRanks = 64;  // Maximum number of ranks for each group.

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

double unix_seconds() {
  const auto calendar = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(calendar).count();
}

std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

json to_json(const core::Dims& shape) {
  return json(std::vector<std::int64_t>(shape.begin(), shape.end()));
}

json to_json(const std::vector<engine::MemoryUse>& uses) {
  json all = json::array();
  for (const engine::MemoryUse& use : uses) {
    all.push_back({{"device", core::to_string(use.device)},
                   {"used", use.used},
                   {"peak", use.peak},
                   {"quota", use.quota},
                   {"total", use.device_total},
                   {"away", use.away},
                   {"disk_used", use.disk_used},
                   {"disk_quota", use.disk_quota}});
  }
  return all;
}

json to_json(const SessionView& view) {
  std::uint64_t away = 0;
  for (const engine::MemoryUse& use : view.memory) {
    // For the host, `away` counts the bytes that were moved to disk.
    if (use.device.kind == core::DeviceKind::kCpu) away += use.away;
  }
  return {{"id", view.id},
          {"user", view.user},
          {"name", view.name},
          {"age", view.age_seconds},
          {"attached", view.attached},
          {"detached", view.detached_seconds},
          {"used", view.used()},
          {"away", away},
          {"handles", view.handles},
          {"queued", view.queued},
          {"repeated", view.repeated},
          {"ahead", view.ahead},
          {"wait", view.wait_seconds},
          {"lane_seconds", view.lane_seconds},
          {"not_saved", view.unsaved}};
}

json to_json(const UserView& user, History& history) {
  return {{"name", user.name},
          {"color", history.color(user.name)},
          {"sessions", user.sessions},
          {"sessions_quota", user.limits.sessions},
          {"memory", to_json(user.memory)},
          {"memory_quota", user.limits.memory},
          {"state_quota", user.limits.state_memory ? json(*user.limits.state_memory) : json()},
          {"weight", user.limits.weight},
          {"lane_seconds", user.lane_seconds},
          {"queued", user.queued}};
}

json to_json(const HoldingView& held) {
  json tensor = {{"device", core::to_string(held.holding.device)},
                 {"bytes", held.holding.bytes},
                 {"away", held.holding.away},
                 {"site", held.site}};
  if (held.holding.dtype) {
    tensor["dtype"] = core::name_of(*held.holding.dtype);
    tensor["shape"] = to_json(held.holding.shape);
  }
  return tensor;
}

json to_json(const SlowEntry& entry) {
  return {{"age", seconds(Clock::now() - entry.at)},
          {"session", entry.session},
          {"name", entry.session_name},
          {"user", entry.user},
          {"op", entry.op},
          {"seconds", seconds(entry.took)},
          {"site", entry.site}};
}

json tensors_of(Lease& lease, std::size_t most) {
  json all = json::array();
  for (const HoldingView& held : holdings(lease, most)) all.push_back(to_json(held));
  return all;
}

json devices_of(const Overview& all) {
  json devices = json::array();
  for (const engine::MemoryUse& use : all.devices) {
    devices.push_back({{"device", core::to_string(use.device)},
                       {"used", use.device_used},
                       {"peak", use.peak},
                       {"total", use.device_total},
                       {"held", use.device_held},
                       {"away", use.away},
                       {"disk_used", use.disk_used},
                       {"disk_total", use.disk_quota}});
  }
  return devices;
}

json gpus_of(const engine::Engine& engine) {
  json gpus = json::array();
  for (const auto& [device, did] : engine.activity()) {
    gpus.push_back({{"device", core::to_string(device)},
                    {"busy_seconds", did.busy_seconds()},
                    {"in_flight", did.in_flight},
                    {"kernels", did.loaded},
                    {"on_host", did.calls_on_host()}});
  }
  return gpus;
}

json sessions_of(const Overview& all, const Leases& leases) {
  json sessions = json::array();
  std::size_t told = 0;
  for (const SessionView& view : all.sessions) {
    json session = to_json(view);
    session["tensors"] = json::array();
    const LeaseRef lease = leases.table().find_id(view.id);
    if (lease && ++told <= kMaxSessionsWithTensors) {
      session["tensors"] = tensors_of(*lease, kTensors);
    }
    sessions.push_back(std::move(session));
  }
  return sessions;
}

json published_for(const engine::Engine& engine, const Caller& caller) {
  json published = json::array();
  for (const engine::Publication& each : publications(engine, caller)) {
    if (published.size() >= kMaxPublished) break;
    published.push_back({{"name", each.user + "/" + each.name},
                         {"bytes", each.bytes},
                         {"dtype", core::name_of(each.dtype)},
                         {"shape", to_json(each.shape)},
                         {"device", core::to_string(each.device)},
                         {"writable", each.writable},
                         {"users", each.users}});
  }
  return published;
}

json peers_of(const Peers& peers) {
  json all = json::array();
  for (const PeerFacts& each : peers.facts()) {
    all.push_back({{"name", each.name},
                   {"connected", each.connected},
                   {"connections", each.connections},
                   {"losses", each.losses},
                   {"sent", each.sent},
                   {"received", each.received}});
  }
  return all;
}

json groups_for(engine::Engine& engine, const Caller& caller) {
  json all = json::array();
  for (const runtime::GroupFacts& each : groups(engine, caller)) {
    if (all.size() >= kMaxGroups) break;
    json members = json::array();
    for (const runtime::GroupFacts::Member& member : each.members) {
      if (members.size() >= kMaxRanks) break;
      members.push_back({{"rank", member.rank},
                         {"daemon", member.daemon},
                         {"who", member.who},
                         {"waits", member.waits}});
    }
    all.push_back({{"user", each.user},
                   {"name", each.name},
                   {"state", server::text_of(each.state)},
                   {"why", each.why},
                   {"ranks", each.ranks},
                   {"joined", each.members.size()},
                   {"collectives", each.collectives},
                   {"open", each.open},
                   {"members", std::move(members)}});
  }
  return all;
}

}  // namespace

std::string state_json(Leases& leases, const HealthProbe& probe, History& history,
                       const Services& services, const std::string& version,
                       Clock::time_point started, const Caller& caller) {
  const Overview all = overview(leases, leases.engine(), caller);
  json state = {{"version", version},
                {"ready", probe.ready()},
                {"uptime", seconds(Clock::now() - started)},
                {"now", unix_seconds()},
                {"caller", {{"user", caller.user}, {"role", to_string(caller.role)}}},
                {"lanes", leases.engine().lanes()},
                {"slow_ms", leases.limits().slow.count()},
                {"devices", devices_of(all)},
                {"gpus", gpus_of(leases.engine())},
                {"users", json::array()},
                {"sessions", sessions_of(all, leases)},
                {"published", published_for(leases.engine(), caller)},
                {"groups", groups_for(leases.engine(), caller)},
                {"slow", json::array()}};
  if (caller.admin()) {
    state["peers"] = services.peers != nullptr ? peers_of(*services.peers) : json::array();
    const KeyStores::Total stores = services.stores.total();
    state["stores"] = {{"count", stores.stores}, {"bytes", stores.bytes}, {"waits", stores.waits}};
  }
  for (const UserView& user : users_of(all, leases, caller)) {
    json shown = to_json(user, history);
    shown["state_used"] = services.state_use.used(user.name);
    state["users"].push_back(std::move(shown));
  }
  if (all.others_count > 0) {
    state["others"] = {{"sessions", all.others_count}, {"used", all.others.used()}};
  }
  for (const SlowEntry& entry : leases.slow_log().entries()) {
    if (!caller.admin() && entry.user != caller.user) continue;
    if (state["slow"].size() >= kSlow) break;
    state["slow"].push_back(to_json(entry));
  }
  return text_of(state);
}

core::Result<std::string> session_json(Leases& leases, Lease& lease, History& history,
                                       const Caller& caller) {
  const core::Result<SessionView> view = view_of(lease);
  if (!view.ok()) return view.status();
  json session = to_json(*view);
  session["now"] = unix_seconds();
  session["peer"] = view->peer;
  session["client"] = lease.client.description;
  session["client_version"] = view->client_version;
  session["lease"] = lease.client.lease.count();
  session["completed"] = view->completed;
  session["memory"] = to_json(view->memory);
  session["amounts"] = json::array();
  for (const program::AmountField& each : program::kAmountFields) {
    session["amounts"].push_back({{"name", each.name},
                                  {"bytes", each.bytes},
                                  {"used", view->amounts.*each.field},
                                  {"limit", view->limits.*each.field}});
  }
  const Overview all = overview(leases, leases.engine(), caller);
  for (const UserView& user : users_of(all, leases, caller)) {
    if (user.name == view->user) session["of_user"] = to_json(user, history);
  }
  session["tensors"] = tensors_of(lease, kMaxTensors);
  session["slow"] = json::array();
  for (const SlowEntry& entry : leases.slow_log().entries()) {
    if (entry.session == view->id) session["slow"].push_back(to_json(entry));
  }
  session["errors"] = json::array();
  for (const CommandHistory::Error& error : lease.commands().errors()) {
    session["errors"].push_back({{"age", seconds(Clock::now() - error.at)},
                                 {"text", error.text},
                                 {"raised", error.raised},
                                 {"site", lease.commands().site_of(error.seq)}});
  }
  return text_of(session);
}

}  // namespace teletensor::server
