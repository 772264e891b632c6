// LeaseTable has the leases by token, and knows why former tokens and names are refused. It decides
// whether there is room for one more session. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/mutex.h"
#include "server/base/limits.h"
#include "server/session/lease/lease.h"
#include "server/session/leases/moved_sessions.h"

namespace teletensor::server {

core::Status shutting_down();  // The error for calls that arrive while the daemon shuts down.

class LeaseTable {
 public:
  // `limits` and `moved` outlive the table.
  LeaseTable(const Limits& limits, const MovedSessions& moved) : limits_(limits), moved_(moved) {}

  // ---- looking up
  // Returns NOT_FOUND for an unknown token, and ABORTED with the reason for one whose lease has
  // ended; `word` then receives Ending::word.
  core::Result<LeaseRef> find(std::string_view token, std::string* word = nullptr) const;
  // The session with this number. Null if there is none.
  LeaseRef find_id(std::uint64_t id) const;
  // The session with this name. Null if there is none.
  LeaseRef find_name(std::string_view user, std::string_view name) const;
  std::vector<LeaseRef> all() const;
  // The time for which there has been no session. Zero while there is one.
  std::chrono::milliseconds idle() const;
  // Number of sessions opened so far.
  std::uint64_t opened() const;

  // ---- adding
  // The place of a session that is being opened: it counts as an existing session as long as this
  // object exists.
  class Place {
   public:
    Place(Place&& other) noexcept
        : number(other.number),
          table_(std::exchange(other.table_, nullptr)),
          user_(std::move(other.user_)) {}
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() {
      if (table_ != nullptr) table_->give_up(*this);
    }
    const std::uint64_t number;  // The number of the session.

   private:
    friend class LeaseTable;
    Place(LeaseTable* table, std::string user, std::uint64_t number)
        : number(number), table_(table), user_(std::move(user)) {}
    LeaseTable* table_;
    std::string user_;
  };
  // Returns a place for one more session of the user, or an error if there is no room.
  core::Result<Place> reserve(const std::string& user);
  // Adds a new session at its place. UNAVAILABLE after close().
  core::Status add(const LeaseRef& lease, Place place);
  // Adds a restored session. UNAVAILABLE after close(), INVALID_ARGUMENT if its token is in use.
  core::Status admit(const LeaseRef& lease);
  // Adds a session that was taken over. After close() it is added as well, so that it is written to
  // a file, but its client receives the returned UNAVAILABLE.
  core::Status add_taken_over(const LeaseRef& lease);
  // Returns the number for a restored session: `wanted`, or a new one if that is 0 or in use.
  std::uint64_t claim_number(std::uint64_t wanted);
  // Returns OK if there is room for one more session of the user.
  core::Status check_room(const std::string& user) const;
  // Returns true if there are too many sessions, or too many of the user.
  bool full(std::string_view user) const;

  // ---- removing and refusing
  // Removes a lease that has ended, and remembers the reason for its token. If the lease was in the
  // table, `keep` receives it with the table locked, so that the lease is always in the table or
  // where `keep` has put it.
  void remove(const Lease& lease, const Ending& ending, const std::function<void(LeaseRef)>& keep);
  // Refuses all further sessions from now on.
  void close();
  bool closed() const;
  // Refuses new sessions with this reason, until it is called with an empty one. Existing sessions
  // can still be attached to and taken over. No session can be moved here from a peer.
  void refuse_new(std::string why);
  // Records a session that cannot be restored. Its client, and clients that ask for its name,
  // receive `why` as long as `holds` returns true.
  void refuse(const v1::SavedHead& head, core::Status why, std::string word,
              std::function<bool()> holds);
  // Returns the reason why a session of this name is refused. OK if it is not.
  core::Status refusal(const std::string& user, const std::string& name);

 private:
  void give_up(const Place& place);
  core::Status room_for(const std::string& user) const TT_REQUIRES(mutex_);
  std::size_t sessions_of(std::string_view user) const TT_REQUIRES(mutex_);
  std::size_t count() const TT_REQUIRES(mutex_) { return leases_.size() + opening_.size(); }
  void remember_ending(const std::string& token, Ending ending) TT_REQUIRES(mutex_);

  const Limits& limits_;
  const MovedSessions& moved_;

  mutable core::Mutex mutex_;  // Locked before that of moved_, and before those that `keep` locks.
  std::unordered_map<std::string, LeaseRef> leases_ TT_GUARDED_BY(mutex_);
  std::multiset<std::string> opening_ TT_GUARDED_BY(mutex_);  // Users of the places.
  std::uint64_t opened_ TT_GUARDED_BY(mutex_) = 0;
  Clock::time_point empty_since_ TT_GUARDED_BY(mutex_) = Clock::now();
  bool closed_ TT_GUARDED_BY(mutex_) = false;
  // Reason why new sessions are refused. Empty if they are accepted.
  std::string no_new_ TT_GUARDED_BY(mutex_);
  std::deque<std::pair<std::string, Ending>> tombstones_ TT_GUARDED_BY(mutex_);
  struct Refusal {
    core::Status why;
    std::function<bool()> holds;
  };
  // Refused sessions by user and name.
  std::map<std::pair<std::string, std::string>, Refusal> refused_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
