// Overview collects the current state of sessions, users and devices for the admin service, the
// metrics and the dashboard. A caller without the admin role receives its own sessions, and the sum
// of the others.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/access/rights.h"
#include "server/peer/peers.h"
#include "server/rendezvous/key_stores.h"
#include "server/session/leases/leases.h"
#include "server/state/state_use.h"

namespace teletensor::server {

// Parts of the daemon besides its sessions. All outlive the classes that display them.
struct Services {
  const KeyStores& stores;
  const Peers* peers;  // The connections to peers. Null if the daemon has no peers.
  const StateUse& state_use;
};

struct SessionView {
  std::uint64_t id = 0;
  std::string name, user, peer, client_version;
  double age_seconds = 0;
  bool attached = false;
  double detached_seconds = 0;  // Seconds since the last client has left; 0 while attached.
  std::uint64_t handles = 0, queued = 0, completed = 0;
  std::uint64_t repeated = 0;  // engine::Load::repeated
  std::uint64_t ahead = 0;     // Number of sessions that get a lane before this one.
  double lane_seconds = 0;
  // Estimated seconds until the queued commands have run, at the rate since the queue was last
  // empty.
  double wait_seconds = 0;
  std::vector<engine::MemoryUse> memory;
  program::Amounts amounts, limits;
  std::string unsaved;  // Why its last snapshot could not be written.

  std::uint64_t used() const;  // Bytes in use on all devices.
};

struct Overview {
  std::vector<engine::MemoryUse> devices;
  std::vector<SessionView> sessions;  // The sessions that the caller may see, sorted by id.
  SessionView others;                 // Sums over the sessions that the caller may not see.
  std::size_t others_count = 0;
};

// Returns an error if the session has ended.
core::Result<SessionView> view_of(Lease& lease);
Overview overview(const Leases& leases, engine::Engine& engine, const Caller& caller);

// The resource use of one user and the user's limits.
struct UserView {
  std::string name;
  UserLimits limits;
  std::uint64_t sessions = 0, queued = 0;
  double lane_seconds = 0;  // Lane time in seconds, including that of sessions that have ended.
  // Sums over the user's sessions. `quota` is the user's limit; 0 means none.
  std::vector<engine::MemoryUse> memory;
};
// Users that have a session or a section in the configuration, sorted by name, as far as the caller
// may see them.
std::vector<UserView> users_of(const Overview& all, Leases& leases, const Caller& caller);

struct HoldingView {
  engine::Holding holding;
  std::string site;
};
// The largest tensors of one session; at most `most`.
std::vector<HoldingView> holdings(Lease& lease, std::size_t most);

// The published tensors that the caller may use. An admin sees all.
std::vector<engine::Publication> publications(const engine::Engine& engine, const Caller& caller);

// The groups that contain a session of the caller. An admin sees all.
std::vector<runtime::GroupFacts> groups(engine::Engine& engine, const Caller& caller);
// Returns "forming", "running" or "ended".
const char* text_of(runtime::GroupFacts::State state);

// The lease of the session with this number. Returns NOT_FOUND if it does not exist or if the
// caller may not see it.
core::Result<LeaseRef> visible(const Leases& leases, std::uint64_t id, const Caller& caller);

}  // namespace teletensor::server
