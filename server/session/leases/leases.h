// Leases is the table of all leases by token, with the thread that expires and destroys them.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/base/counters.h"
#include "server/base/slow_log.h"
#include "server/session/leases/detached.h"
#include "server/session/leases/lease.h"
#include "server/session/leases/moved_sessions.h"
#include "server/session/stream_shares.h"

namespace teletensor::server {

core::Status shutting_down();  // The error for calls that arrive while the daemon shuts down.

using LeaseReady = std::function<void(core::Result<LeaseRef>)>;

class Leases {
 public:
  // Precondition: `engine` outlives the table.
  Leases(engine::Engine& engine, const Limits& limits);
  ~Leases();

  const Limits& limits() const { return limits_; }
  engine::Engine& engine() { return engine_; }

  // Opens a new session. RESOURCE_EXHAUSTED if there are too many.
  core::Result<LeaseRef> open(ClientInfo client);
  // Gives the session with client.name and client.user to a new client. Only calls with the new
  // token reach it from then on, and `start` of the new lease has its position. Opens a new session
  // if none has the name. `ready` is called once the old client's last frame is consumed. `of`: the
  // session to take over instead, regardless of its name.
  void take_over(ClientInfo client, LeaseReady ready, LeaseRef of = nullptr);
  // The session with this name. Null if there is none.
  LeaseRef find_name(std::string_view user, std::string_view name) const;
  // Returns NOT_FOUND for an unknown token, and ABORTED with the reason for one whose lease has
  // ended; `word` then receives Ending::word.
  core::Result<LeaseRef> find(std::string_view token, std::string* word = nullptr) const;
  // The session with this number. Null if there is none.
  LeaseRef find_id(std::uint64_t id) const;
  std::vector<LeaseRef> all() const;

  // Ends a lease. If it is called several times, the first reason counts. The memory is released
  // soon after.
  void end(Lease& lease, core::Status reason, std::string word) {
    (void)retire(lease, std::move(reason), std::move(word), false);
  }
  // Refuses new leases from now on.
  void close();
  // Refuses new sessions with this reason, until it is called with an empty one. Existing sessions
  // can still be attached to and taken over. No session can be moved here from a peer.
  void refuse_new(std::string why);
  // Ends the lease of a session that has moved to a peer; its clients are told `address`. Returns
  // false if the lease had ended before.
  bool move_away(Lease& lease, const std::string& address);
  MovedSessions& moved_sessions() { return moved_sessions_; }
  // Returns OK if one more session of the user may be moved here that needs `bytes` on each device.
  // `quota` is the maximum for one session; 0 means no limit.
  core::Status room_for(const std::string& user, std::uint64_t quota,
                        const std::map<std::string, std::uint64_t>& bytes);
  // Waits until no session is being taken over, because such sessions are not in all(). Returns
  // false if one still is after `patience`.
  bool settle(std::chrono::milliseconds patience);
  // Ends all leases and refuses new ones. Returns when every session is destroyed. `stay` selects
  // the sessions that the next daemon will restore.
  void shutdown(const std::function<bool(const Lease&)>& stay = nullptr);

  // ---- snapshots
  // Creates a session from the snapshot of an earlier daemon or of a peer. Clients cannot find it
  // before admit(). If the id is 0 or in use, the session gets a new one.
  core::Result<LeaseRef> restore(v1::SavedHead head, const v1::SavedBody& body,
                                 program::Image image, const engine::Engine::ReadBytes& read,
                                 const std::string& file);
  core::Status admit(const LeaseRef& lease);
  // Records a session that cannot be restored. Its client, and clients that ask for its name,
  // receive `why` as long as `holds` returns true.
  void refuse(const v1::SavedHead& head, core::Status why, std::string word,
              std::function<bool()> holds);
  // Called when a lease has ended for good, with its file; and when a session was taken over whose
  // file does not know the new client. Must be set before the first lease is opened.
  std::function<void(const std::string&)> on_over;
  std::function<void(const LeaseRef&)> on_new_hands;

  // The time for which there has been no session. Zero while there is one.
  std::chrono::milliseconds idle() const;
  // Number of sessions opened so far.
  std::uint64_t opened() const;
  // The detached sessions; at most a few hundred milliseconds out of date.
  const Detached& detached() const { return detached_; }
  SlowLog& slow_log() { return slow_log_; }
  Counters& counters() { return counters_; }
  StreamShares& stream_shares() { return stream_shares_; }

 private:
  void run_maintenance();
  friend class Lease;
  void remember_ending(const std::string& token, Ending ending) TT_REQUIRES(mutex_);
  engine::SessionOptions options_of(const ClientInfo& client) const;
  // Ends a lease like end(). With `inherit`, the session is kept for another lease. Returns false
  // if the lease had ended before.
  bool retire(Lease& lease, core::Status reason, std::string word, bool inherit) noexcept;
  // Finishes a call that was replaced, and cancels it later if its client reads nothing.
  void dismiss(const std::shared_ptr<LeaseCall>& call, const Ending& ending) noexcept;
  // Returns true if there is no room for one more session of the user.
  bool full(std::string_view user) const;
  core::Status place_for(const std::string& user) const TT_REQUIRES(mutex_);
  std::size_t sessions_of(std::string_view user) const TT_REQUIRES(mutex_);
  // A session that is being taken over by another client.
  struct Handover {
    LeaseRef old;
    ClientInfo client;
    LeaseReady ready;
    // The position for the new client. None as long as calls of the old client may use the session.
    std::optional<engine::TakenOver> start;
  };
  class Opening;
  class NameReservation;
  void inherit(Handover handover) noexcept;
  void hand_over(Handover handover);
  void look_at(Lease& lease, Clock::time_point now);
  // Ends the uploads and downloads of a lease whose next chunk or command has not come in time.
  void end_silent_calls(Lease& lease);
  // Adds the session to `detached` if no client is attached to it.
  static void note_detached(Lease& lease, Detached::ByUser& detached);
  // Ends the user's session that has been without a client for the longest time, to make room.
  // Returns false if there is none. Sessions of other users are not affected.
  bool evict_one(std::string_view user);
  void abandon_lingering();

  engine::Engine& engine_;
  const Limits limits_;
  StreamShares stream_shares_{limits_.streams};
  SlowLog slow_log_;
  MovedSessions moved_sessions_;
  Detached detached_;
  Counters counters_;

  mutable core::Mutex mutex_;
  core::CondVar changed_;
  std::unordered_map<std::string, LeaseRef> leases_ TT_GUARDED_BY(mutex_);
  std::deque<LeaseRef> dying_ TT_GUARDED_BY(mutex_);
  std::deque<std::pair<std::string, Ending>> tombstones_ TT_GUARDED_BY(mutex_);
  std::deque<std::pair<Clock::time_point, std::weak_ptr<LeaseCall>>> lingering_
      TT_GUARDED_BY(mutex_);
  // Leases whose sessions wait to be taken over.
  std::deque<LeaseRef> pending_takeovers_ TT_GUARDED_BY(mutex_);
  // User and name of sessions that are being taken over.
  std::set<std::pair<std::string, std::string>> names_in_takeover_ TT_GUARDED_BY(mutex_);
  std::deque<Handover> handovers_ TT_GUARDED_BY(mutex_);
  struct Refusal {
    core::Status why;
    std::function<bool()> holds;
  };
  std::map<std::pair<std::string, std::string>, Refusal> refused_
      TT_GUARDED_BY(mutex_);  // Refused sessions by user and name.
  std::size_t opening_ TT_GUARDED_BY(mutex_) = 0;
  std::multiset<std::string> opening_users_ TT_GUARDED_BY(mutex_);
  std::size_t destroying_ TT_GUARDED_BY(mutex_) = 0;
  std::uint64_t opened_ TT_GUARDED_BY(mutex_) = 0;
  Clock::time_point empty_since_ TT_GUARDED_BY(mutex_) = Clock::now();
  bool closed_ TT_GUARDED_BY(mutex_) = false;
  // Reason why new sessions are refused. Empty if they are accepted.
  std::string no_new_ TT_GUARDED_BY(mutex_);
  bool stop_ TT_GUARDED_BY(mutex_) = false;
  std::thread maintenance_thread_;
};

}  // namespace teletensor::server
