// Leases: all leases, by token, and the thread that keeps house among them.
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
#include "server/session/detached.h"
#include "server/session/lease.h"
#include "server/session/whereabouts.h"

namespace teletensor::server {

core::Status shutting_down();  // for who comes too late

using LeaseReady = std::function<void(core::Result<LeaseRef>)>;

class Leases {
 public:
  // Precondition: `engine` outlives the table.
  Leases(engine::Engine& engine, const Limits& limits);
  ~Leases();

  const Limits& limits() const { return limits_; }
  engine::Engine& engine() { return engine_; }

  // A new session. RESOURCE_EXHAUSTED when there are too many.
  core::Result<LeaseRef> open(ClientInfo client);
  // The session of client.name and client.user in the hands of a new client, whose calls alone
  // reach it from then on (`start` says where it is); a new one where there is none. `ready` comes
  // once the old client's last frame is consumed.
  // `of`: that session, whatever it is called.
  void take_over(ClientInfo client, LeaseReady ready, LeaseRef of = nullptr);
  // The session of this name; null: none.
  LeaseRef find_name(std::string_view user, std::string_view name) const;
  // NOT_FOUND for a token that never was; ABORTED with the reason for one whose lease has ended;
  // `word` gets Ending's.
  core::Result<LeaseRef> find(std::string_view token, std::string* word = nullptr) const;
  // By what operators call it; null: none such.
  LeaseRef find_id(std::uint64_t id) const;
  std::vector<LeaseRef> all() const;

  // Ends one; the first reason holds. Its memory is back soon after.
  void end(Lease& lease, core::Status reason, std::string word) {
    (void)retire(lease, std::move(reason), std::move(word), false);
  }
  // Refuses new ones from now on.
  void close();
  // Refuses to open new ones, for that reason, until it is called with "". Sessions that are here
  // are attached to and taken over as before, and none comes from a peer.
  void refuse_new(std::string why);
  // Ends a session that has moved to a peer, at the address for clients. False: it had ended
  // before.
  bool move_away(Lease& lease, const std::string& address);
  Whereabouts& whereabouts() { return whereabouts_; }
  // OK where one more session of the user may come, with so many bytes on each device, of which one
  // session may have `quota` (0: no limit).
  core::Status room_for(const std::string& user, std::uint64_t quota,
                        const std::map<std::string, std::uint64_t>& bytes);
  // Waits until no session is on its way from a client to the next, which all() does not have.
  // False: one still is.
  bool settle(std::chrono::milliseconds patience);
  // Ends all and refuses new ones. Returns when every session is destroyed. `stay`: those that come
  // back with the next daemon.
  void shutdown(const std::function<bool(const Lease&)>& stay = nullptr);

  // ---- snapshots
  // The session that an earlier daemon, or a peer, has written down, where nobody finds it before
  // admit(). An id of 0, or one that another session has, becomes a new one.
  core::Result<LeaseRef> restore(v1::SavedHead head, const v1::SavedBody& body,
                                 program::Image image, const engine::Engine::ReadBytes& read,
                                 const std::string& file);
  core::Status admit(const LeaseRef& lease);
  // A session that cannot come back: its client, and who asks for its name, are told why, as long
  // as `holds` says.
  void refuse(const v1::SavedHead& head, core::Status why, std::string word,
              std::function<bool()> holds);
  // Called for one that has ended for good, with its file, and for one in new hands that has a file
  // which does not know them. Set before there is any.
  std::function<void(const std::string&)> on_over;
  std::function<void(const LeaseRef&)> on_new_hands;

  // How long there has been no session; zero while there is one.
  std::chrono::milliseconds idle() const;
  // Sessions opened so far.
  std::uint64_t opened() const;
  // At most some hundred milliseconds old.
  const Detached& detached() const { return detached_; }
  SlowLog& slow_log() { return slow_log_; }
  Counters& counters() { return counters_; }

 private:
  void keep_house();
  friend class Lease;
  void bury(const std::string& token, Ending ending) TT_REQUIRES(mutex_);
  engine::SessionOptions options_of(const ClientInfo& client) const;
  // As end(); `inherit`: the session stays, for another lease. False: it had ended before.
  bool retire(Lease& lease, core::Status reason, std::string word, bool inherit) noexcept;
  // Finishes a call that has lost its place; it is cancelled if its client takes nothing.
  void dismiss(const std::shared_ptr<LeaseCall>& call, const Ending& ending) noexcept;
  bool full(std::string_view user) const;  // for one more session of the user
  core::Status place_for(const std::string& user) const TT_REQUIRES(mutex_);
  std::size_t sessions_of(std::string_view user) const TT_REQUIRES(mutex_);
  // A session on its way from a client to the next one.
  struct Handover {
    LeaseRef old;
    ClientInfo client;
    LeaseReady ready;
    std::optional<engine::TakenOver> start;  // none: calls of the old client may be in the session
  };
  class Opening;
  class Seizure;
  void inherit(Handover handover) noexcept;
  void hand_over(Handover handover);
  void look_at(Lease& lease, Clock::time_point now);
  // Adds the session where no client is attached to it.
  static void note_detached(Lease& lease, Detached::ByUser& detached);
  // Ends that session of the user which nobody has come back to for longest, for want of room.
  // False: there is none. Other users' are not touched.
  bool evict_one(std::string_view user);
  void abandon_lingering();

  engine::Engine& engine_;
  const Limits limits_;
  SlowLog slow_log_;
  Whereabouts whereabouts_;
  Detached detached_;
  Counters counters_;

  mutable core::Mutex mutex_;
  core::CondVar changed_;
  std::unordered_map<std::string, LeaseRef> leases_ TT_GUARDED_BY(mutex_);
  std::deque<LeaseRef> dying_ TT_GUARDED_BY(mutex_);
  std::deque<std::pair<std::string, Ending>> tombstones_ TT_GUARDED_BY(mutex_);
  std::deque<std::pair<Clock::time_point, std::weak_ptr<LeaseCall>>> lingering_
      TT_GUARDED_BY(mutex_);
  std::deque<LeaseRef> heritage_ TT_GUARDED_BY(mutex_);  // wait to be taken over
  std::set<std::pair<std::string, std::string>> seized_ TT_GUARDED_BY(mutex_);  // user, name
  std::deque<Handover> handovers_ TT_GUARDED_BY(mutex_);
  struct Refusal {
    core::Status why;
    std::function<bool()> holds;
  };
  std::map<std::pair<std::string, std::string>, Refusal> refused_
      TT_GUARDED_BY(mutex_);  // by user, name
  std::size_t opening_ TT_GUARDED_BY(mutex_) = 0;
  std::multiset<std::string> opening_users_ TT_GUARDED_BY(mutex_);
  std::size_t destroying_ TT_GUARDED_BY(mutex_) = 0;
  std::uint64_t opened_ TT_GUARDED_BY(mutex_) = 0;
  Clock::time_point empty_since_ TT_GUARDED_BY(mutex_) = Clock::now();
  bool closed_ TT_GUARDED_BY(mutex_) = false;
  std::string no_new_ TT_GUARDED_BY(mutex_);  // why new sessions are refused; "": they are not
  bool stop_ TT_GUARDED_BY(mutex_) = false;
  std::thread house_;
};

}  // namespace teletensor::server
