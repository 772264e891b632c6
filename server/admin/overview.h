// Overview: who holds what and uses how much, as of now; what the admin service, the metrics and
// the dashboard show. A caller that is no admin gets its own sessions and the rest as one sum.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/access/rights.h"
#include "server/peer/peers.h"
#include "server/rendezvous/key_stores.h"
#include "server/session/leases.h"

namespace teletensor::server {

// Services are parts of the daemon beside its sessions. Both outlive the classes that show them.
struct Services {
  const KeyStores& stores;
  const Peers* peers;  // null: the daemon works alone
};

struct SessionView {
  std::uint64_t id = 0;
  std::string name, user, peer, client_version;
  double age_seconds = 0;
  bool attached = false;
  double detached_seconds = 0;  // 0 while attached
  std::uint64_t handles = 0, queued = 0, completed = 0;
  std::uint64_t ahead = 0;  // sessions that get a lane before it
  double lane_seconds = 0;
  double wait_seconds = 0;  // until what is queued has run, at the pace since the queue was empty
  std::vector<engine::MemoryUse> memory;
  program::Amounts amounts, limits;

  std::uint64_t used() const;  // bytes on all devices
};

struct Overview {
  std::vector<engine::MemoryUse> devices;
  std::vector<SessionView> sessions;  // by id
  SessionView others;                 // sums
  std::size_t others_count = 0;
};

// Fails where the session has ended.
core::Result<SessionView> view_of(Lease& lease);
Overview overview(const Leases& leases, engine::Engine& engine, const Caller& caller);

// What one user has of what the user's sessions may have together.
struct UserView {
  std::string name;
  UserLimits limits;
  std::uint64_t sessions = 0, queued = 0;
  double lane_seconds = 0;                // of sessions that have ended, too
  std::vector<engine::MemoryUse> memory;  // sums of the sessions'; quota: the user's, 0: none
};
// Users that have a session or a section in the configuration, by name, as the caller may see them.
std::vector<UserView> users_of(const Overview& all, Leases& leases, const Caller& caller);

struct HoldingView {
  engine::Holding holding;
  std::string site;
};
// The largest of one session.
std::vector<HoldingView> holdings(Lease& lease, std::size_t most);

// What the caller may use of published tensors; an admin sees all.
std::vector<engine::Publication> publications(const engine::Engine& engine, const Caller& caller);

// The groups of the caller's sessions; an admin sees all.
std::vector<runtime::GroupFacts> groups(engine::Engine& engine, const Caller& caller);
// "forming", "running" or "ended".
const char* text_of(runtime::GroupFacts::State state);

// The lease with this id if the caller may see it: NOT_FOUND else, whether it exists or not.
core::Result<LeaseRef> visible(const Leases& leases, std::uint64_t id, const Caller& caller);

}  // namespace teletensor::server
