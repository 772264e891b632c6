// Leases opens, restores and ends the leases of the daemon. Its parts are the table of the leases,
// the take-overs and the thread that expires leases and destroys their sessions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "server/base/counters.h"
#include "server/base/slow_log.h"
#include "server/session/lease/lease.h"
#include "server/session/leases/lease_reaper.h"
#include "server/session/leases/lease_table.h"
#include "server/session/leases/moved_sessions.h"
#include "server/session/leases/takeovers.h"
#include "server/session/stream_shares.h"

namespace teletensor::server {

// Thread-safe: each part guards its own state.
class Leases {
 public:
  // Precondition: `engine` outlives this object.
  Leases(engine::Engine& engine, const Limits& limits);
  ~Leases();

  const Limits& limits() const { return limits_; }
  engine::Engine& engine() { return engine_; }
  LeaseTable& table() { return table_; }
  const LeaseTable& table() const { return table_; }
  Takeovers& takeovers() { return takeovers_; }
  LeaseReaper& reaper() { return reaper_; }
  MovedSessions& moved_sessions() { return moved_sessions_; }
  LingeringCalls& lingering() { return lingering_; }
  StreamShares& stream_shares() { return stream_shares_; }
  SlowLog& slow_log() { return slow_log_; }
  Counters& counters() { return counters_; }

  // Opens a new session. RESOURCE_EXHAUSTED if there are too many.
  core::Result<LeaseRef> open(ClientInfo client);
  // Makes a lease without a session.
  LeaseRef make(std::string token, std::string ticket, ClientInfo client);
  // Ends a lease. If it is called several times, the first reason counts. The memory is released
  // soon after.
  void end(Lease& lease, core::Status reason, std::string word);
  // Ends a lease, whose session `keep` receives if the lease was in the table (LeaseTable::remove).
  // Returns false if the lease had ended before.
  bool retire(Lease& lease, const Ending& ending,
              const std::function<void(LeaseRef)>& keep) noexcept;
  // Ends the lease of a session that has moved to a peer; its clients are told `address`. Returns
  // false if the lease had ended before.
  bool move_away(Lease& lease, const std::string& address);
  // Returns OK if one more session of the user may be moved here that needs `bytes` on each device.
  // `quota` is the maximum for one session; 0 means no limit.
  core::Status room_for(const std::string& user, std::uint64_t quota,
                        const std::map<std::string, std::uint64_t>& bytes);
  // Creates a session from the snapshot of an earlier daemon or of a peer. Clients cannot find it
  // before LeaseTable::admit(). If the id is 0 or in use, the session gets a new one.
  core::Result<LeaseRef> restore(const v1::SavedHead& head, const v1::SavedBody& body,
                                 program::Image image, const engine::Engine::ReadBytes& read,
                                 const std::string& file);
  // Ends all leases and refuses new ones. Returns when every session is destroyed. `stay` selects
  // the sessions that the next daemon will restore.
  void shutdown(const std::function<bool(const Lease&)>& stay = nullptr);

  // Called when a lease has ended for good, with its file; and when a session was taken over whose
  // file does not know the new client. Must be set before the first lease is opened.
  std::function<void(const std::string&)> on_over;
  std::function<void(const LeaseRef&)> on_new_hands;

 private:
  engine::SessionOptions options_of(const ClientInfo& client) const;
  // Ends the user's session that has been without a client for the longest time, to make room.
  // Returns false if there is none. Sessions of other users are not affected.
  bool evict_one(const std::string& user);
  // Returns a function that passes the session of an ended lease to the reaper.
  std::function<void(LeaseRef)> to_reaper();

  engine::Engine& engine_;
  const Limits limits_;
  StreamShares stream_shares_{limits_.streams};
  SlowLog slow_log_;
  MovedSessions moved_sessions_;
  Counters counters_;
  LeaseTable table_{limits_, moved_sessions_};
  LingeringCalls lingering_;
  Takeovers takeovers_{*this};
  LeaseReaper reaper_{*this};  // Declared last: its thread uses the other parts.
};

}  // namespace teletensor::server
