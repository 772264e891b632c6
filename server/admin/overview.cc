#include "server/admin/overview.h"

#include <algorithm>
#include <map>

#include "server/access/auth.h"

namespace teletensor::server {

using core::Status;

namespace {

bool may_see(const Caller& caller, const Lease& lease) {
  return caller.admin() || (caller.role == Role::kUser && lease.client.user == caller.user);
}

using MemoryUses = std::vector<engine::MemoryUse>;

// Adds the values of `from` to the sums in `to`.
void add(const MemoryUses& from, MemoryUses& to) {
  for (const engine::MemoryUse& use : from) {
    const auto found = std::find_if(to.begin(), to.end(),
                                    [&](const auto& other) { return other.device == use.device; });
    if (found == to.end()) {
      to.push_back(use);
      continue;
    }
    found->used += use.used;
    found->peak += use.peak;
    found->away += use.away;
    found->disk_used += use.disk_used;
  }
}

void add(const SessionView& from, SessionView& to) {
  to.handles += from.handles;
  to.queued += from.queued;
  to.completed += from.completed;
  to.repeated += from.repeated;
  to.lane_seconds += from.lane_seconds;
  add(from.memory, to.memory);
}

}  // namespace

std::uint64_t SessionView::used() const {
  std::uint64_t bytes = 0;
  for (const engine::MemoryUse& use : memory) bytes += use.used;
  return bytes;
}

core::Result<SessionView> view_of(Lease& lease) {
  SessionView view;
  view.id = lease.client.id;
  view.name = lease.client.name;
  view.user = lease.client.user;
  view.peer = lease.client.peer;
  view.client_version = lease.client.version;
  view.age_seconds = std::chrono::duration<double>(Clock::now() - lease.created).count();
  view.attached = lease.streams().attached();
  view.detached_seconds = lease.streams().detached_seconds();
  view.completed = lease.outbox().completed_upto();
  view.limits = lease.client.limits;
  view.unsaved = lease.saved().failure();
  TT_RETURN_IF_ERROR(lease.with_session([&](engine::Session& session) {
    view.handles = session.handles();
    const engine::Load load = session.load();
    view.queued = load.queued;
    view.ahead = load.ahead;
    view.repeated = load.repeated;
    view.lane_seconds = static_cast<double>(load.lane_ns) * 1e-9;
    view.wait_seconds = load.wait_seconds;
    view.memory = session.memory();
    view.amounts = session.amounts();
    return Status();
  }));
  return view;
}

Overview overview(const Leases& leases, engine::Engine& engine, const Caller& caller) {
  Overview result;
  result.devices = engine.memory();
  for (const LeaseRef& lease : leases.table().all()) {
    core::Result<SessionView> view = view_of(*lease);
    if (!view.ok()) continue;  // The session has just ended.
    if (may_see(caller, *lease)) {
      result.sessions.push_back(std::move(*view));
    } else {
      add(*view, result.others);
      ++result.others_count;
    }
  }
  std::sort(result.sessions.begin(), result.sessions.end(),
            [](const SessionView& a, const SessionView& b) { return a.id < b.id; });
  return result;
}

std::vector<UserView> users_of(const Overview& all, Leases& leases, const Caller& caller) {
  std::map<std::string, UserView> users;
  for (const auto& [name, limits] : leases.limits().users) {
    if (caller.admin() || caller.user == name) users[name];
  }
  for (const SessionView& view : all.sessions) {
    UserView& user = users[view.user];
    ++user.sessions;
    user.queued += view.queued;
    user.lane_seconds += view.lane_seconds;
    add(view.memory, user.memory);
  }
  std::vector<UserView> result;
  const auto ended = leases.counters().users();
  for (auto& [name, user] : users) {
    user.name = name;
    user.limits = limits_of(leases.limits(), name);
    if (const auto found = ended.find(name); found != ended.end()) {
      user.lane_seconds += static_cast<double>(found->second.lane_ns) * 1e-9;
    }
    for (engine::MemoryUse& use : user.memory) use.quota = user.limits.memory;
    result.push_back(std::move(user));
  }
  return result;
}

std::vector<HoldingView> holdings(Lease& lease, std::size_t most) {
  std::vector<engine::Holding> found;
  (void)lease.with_session([&](engine::Session& session) {
    found = session.largest(most);
    return Status();
  });
  std::vector<HoldingView> result;
  for (const engine::Holding& holding : found) {
    result.push_back({holding, lease.commands().site_of(holding.seq)});
  }
  return result;
}

std::vector<engine::Publication> publications(const engine::Engine& engine, const Caller& caller) {
  std::vector<engine::Publication> found;
  // A caller without an identity sees no publications, as with the call Published, not even those
  // that are open to all users.
  const bool known = caller.role == Role::kUser && caller.user != kAnonymous;
  if (!caller.admin() && !known) return found;
  for (engine::Publication& each : engine.publications()) {
    if (caller.admin() || each.open_to(caller.user)) found.push_back(std::move(each));
  }
  return found;
}

std::vector<runtime::GroupFacts> groups(engine::Engine& engine, const Caller& caller) {
  std::vector<runtime::GroupFacts> found = engine.groups();
  if (!caller.admin()) {
    std::erase_if(found, [&](const auto& group) { return group.user != caller.user; });
  }
  return found;
}

const char* text_of(runtime::GroupFacts::State state) {
  switch (state) {
    case runtime::GroupFacts::State::kForming:
      return "forming";
    case runtime::GroupFacts::State::kRunning:
      return "running";
    case runtime::GroupFacts::State::kEnded:
      return "ended";
  }
  return "";
}

core::Result<LeaseRef> visible(const Leases& leases, std::uint64_t id, const Caller& caller) {
  LeaseRef lease = leases.table().find_id(id);
  if (lease && may_see(caller, *lease)) return lease;
  return Status(core::Code::kNotFound, "there is no session " + std::to_string(id));
}

}  // namespace teletensor::server
