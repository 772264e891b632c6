// Recovery: sessions into the state directory and back (docs/design/0012-snapshots.md).
//
// A snapshot is taken in two steps. The session stands still for a moment, when all that came has
// run, and its image is taken; a thread of ours then writes that down, while the session goes on.
// Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"
#include "server/session/leases.h"
#include "server/state/commons.h"
#include "server/state/store.h"

namespace teletensor::server {

struct SnapshotFacts {
  std::uint64_t completed_upto = 0;  // commands up to here are in it
  std::uint64_t bytes = 0;           // of tensors
  double seconds = 0;                // to write it
  std::size_t lost = 0;  // tensors, or values, that could not be read or written in time
  bool common = false;   // the session uses tensors that are published
};

struct DrainFacts {
  struct Lost {
    std::uint64_t session = 0;  // id
    std::string name, user, reason;
    bool goes_back = false;  // an older file of it is there
  };
  std::size_t kept = 0;
  std::vector<Lost> lost;
};

class Recovery {
 public:
  struct Times {
    std::chrono::milliseconds drain{8000};
    std::chrono::milliseconds every{0};  // a session that has done something; 0: never
  };
  using Written = std::function<void(const core::Result<SnapshotFacts>&)>;
  using Drained = std::function<void(const core::Result<DrainFacts>&)>;

  // `store` null: there is nowhere to keep anything. Before the first session. `shutdown`: whoever
  // calls drain() is to do so; called once, must not block.
  Recovery(Leases& leases, std::unique_ptr<SessionStore> store, Times times,
           std::function<void()> shutdown);
  ~Recovery();
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;

  bool on() const { return store_ != nullptr; }
  // Takes up what an earlier daemon has written down; what cannot come back is refused by name.
  void restore();
  // FAILED_PRECONDITION for a session that does not outlive its connection. `done` comes once a
  // file is safe on the disk that has all commands which had come when this was called.
  void snapshot(const LeaseRef& lease, Written done);
  // The same, and the session stands still from there on until resume(): engine::Session's rest().
  // ABORTED while another snapshot of it is under way.
  void rest(const LeaseRef& lease, Written done);
  static void resume(Lease& lease);
  // OK where a session can be written down.
  core::Status refusal(const Lease& lease) const;
  // Null: there is nowhere to keep anything.
  const SessionStore* store() const { return store_.get(); }
  // The session of a file of the store, where nobody finds it before Leases::admit(). `arrives`: it
  // is a peer's, and gets a number of this daemon.
  core::Result<LeaseRef> read_up(const std::string& file, bool arrives);
  // Takes up the session of that file, or says in the log why it cannot be.
  void restore_file(const std::string& file);
  // Calls `shutdown`; `done` when drain() has ended. `budget`: of that drain, 0: as constructed.
  void ask_to_drain(std::chrono::milliseconds budget, Drained done);
  // Refuses new sessions, lets what has come run, and writes every session down, the most important
  // first: named before others, attached before others, then who worked last. Ends all of them.
  // What is not written in time, or when hurry() was called, is lost by its name, or goes back to
  // its last snapshot. The time for it began at `since`. Once.
  void drain(Clock::time_point since);
  void hurry() { deadline_ = cut_ = Clock::time_point::min(); }
  // drain() has written all it will write; only what runs is waited for.
  bool written() const { return written_; }

 private:
  struct Job {
    LeaseRef lease;
    program::Image image;
    std::shared_ptr<v1::SavedHead> head;
    std::shared_ptr<v1::SavedBody> body;
    std::function<void(core::Result<SnapshotFacts>)> done;
    int rank = 0;           // lower ones first
    bool squeezed = false;  // what there is no room for is lost, the rest written
  };
  // One after the other for each session: who comes meanwhile has the next one.
  struct Line {
    bool busy = false;
    std::vector<Written> served, waiting;
  };
  // When a session was written down last, for those that are from time to time.
  struct Past {
    Clock::time_point due;
    core::Status status;  // how that ended
  };
  enum class After : std::uint8_t { kGoOn, kHold, kRest };  // of the session
  void picture(const LeaseRef& lease, After after, int rank,
               std::function<void(core::Result<SnapshotFacts>)> done);
  static bool last_chance(const Job& job);
  void begin(const LeaseRef& lease);
  void served(const LeaseRef& lease, const core::Result<SnapshotFacts>& facts);
  void note(const Lease& lease, const core::Result<SnapshotFacts>& facts, bool timed)
      TT_REQUIRES(mutex_);
  void look_round();
  void work();
  core::Result<SnapshotFacts> write(Job& job);
  core::Status write_files(Job& job, const std::string& file, SessionStore::Terms terms,
                           SessionStore::Lost& lost);
  void restore_one(const SessionStore::Found& found);
  DrainFacts write_all(Clock::time_point began);
  void rest_groups(const std::vector<LeaseRef>& all, Clock::time_point until,
                   const std::function<void()>& begin_again);
  void lose(const LeaseRef& ref, const core::Status& why, v1::SavedLosses& losses,
            DrainFacts& facts);

  Leases& leases_;
  const std::unique_ptr<SessionStore> store_;
  Commons commons_;  // the writer's, once it has something to do
  const Times times_;
  const std::function<void()> shutdown_;
  std::atomic<Clock::time_point> deadline_{Clock::time_point::max()};
  // No bytes are written any more, so that what was can be made safe.
  std::atomic<Clock::time_point> cut_{Clock::time_point::max()};

  std::atomic<bool> written_{false};

  core::Mutex mutex_;
  core::CondVar changed_;
  std::deque<Job> jobs_ TT_GUARDED_BY(mutex_);
  std::vector<Job> starved_ TT_GUARDED_BY(mutex_);            // at a shutdown: the disk was full
  std::deque<std::string> over_ TT_GUARDED_BY(mutex_);        // files to remove
  std::map<const Lease*, Line> lines_ TT_GUARDED_BY(mutex_);  // with one under way
  std::map<std::uint64_t, Past> past_ TT_GUARDED_BY(mutex_);  // by the session's id
  std::chrono::milliseconds budget_ TT_GUARDED_BY(mutex_);
  std::vector<Drained> drained_ TT_GUARDED_BY(mutex_);
  bool asked_ TT_GUARDED_BY(mutex_) = false;
  bool draining_ TT_GUARDED_BY(mutex_) = false;
  bool writing_ TT_GUARDED_BY(mutex_) = false;
  bool stop_ TT_GUARDED_BY(mutex_) = false;
  std::thread writer_;
};

}  // namespace teletensor::server
