// Recovery writes sessions to the state directory and restores them
// (docs/design/0012-snapshots.md).
// A snapshot has two steps. When all received commands have run, the session is paused for a moment
// and its image is taken. An internal thread then writes the image while the session continues.
// Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/mutex.h"
#include "server/session/leases/leases.h"
#include "server/state/shared_tensor_store.h"
#include "server/state/state_use.h"
#include "server/state/store.h"
#include "server/state/write_order.h"
#include "server/state/write_turns.h"

namespace teletensor::server {

struct SnapshotFacts {
  std::uint64_t completed_upto = 0;  // The snapshot contains all commands up to this number.
  std::uint64_t bytes = 0;           // Size of the tensors in bytes.
  double seconds = 0;                // Seconds to write the snapshot.
  std::size_t lost = 0;  // Number of tensors and values that could not be read or written in time.
  bool common = false;   // Whether the session uses published tensors.
};

struct DrainFacts {
  struct Lost {
    std::uint64_t session = 0;  // Session number.
    std::string name, user, reason;
    bool goes_back = false;  // Whether an older snapshot of the session exists.
  };
  std::size_t kept = 0;
  std::vector<Lost> lost;
};

class Recovery {
 public:
  struct Times {
    std::chrono::milliseconds drain{8000};
    // Period of the snapshots of an active session. 0 means none.
    std::chrono::milliseconds every{0};
    // The part of a drain in which ranks of groups may reach the same collective. At most half of
    // the drain, which 0 means.
    std::chrono::milliseconds ranks{0};
  };
  using Written = std::function<void(const core::Result<SnapshotFacts>&)>;
  using Drained = std::function<void(const core::Result<DrainFacts>&)>;

  // `store` may be null if there is no state directory. Must be created before the first session.
  // `shutdown` is called once to make its receiver call drain(); it must not block.
  Recovery(Leases& leases, std::unique_ptr<SessionStore> store, Times times,
           std::function<void()> shutdown);
  ~Recovery();
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;

  bool on() const { return store_ != nullptr; }
  // Restores the sessions that an earlier daemon has written. For a session that cannot be
  // restored, clients that ask for it receive the reason.
  void restore();
  // Returns FAILED_PRECONDITION for a session that does not outlive its connection. `done` is
  // called when a durable file contains all commands that were received before this call. Users
  // take turns (WriteTurns), and the sessions of one user are written in the order of the calls.
  // RESOURCE_EXHAUSTED if kMaxCalls calls for sessions of the user are waiting.
  void snapshot(const LeaseRef& lease, Written done);
  static constexpr std::size_t kMaxCalls = 256;
  // Writes a snapshot like snapshot(), and pauses the session afterwards until resume() (see
  // engine::Session::rest()). ABORTED if another snapshot of the session is running.
  void rest(const LeaseRef& lease, Written done);
  static void resume(Lease& lease);
  // Returns OK if the session can be written to a file.
  core::Status refusal(const Lease& lease) const;
  // The store of session files. Null if there is no state directory.
  const SessionStore* store() const { return store_.get(); }
  // The sizes of the files of each user.
  StateUse& state_use() { return state_use_; }
  // Creates a session from a file of the store. Clients cannot find it before Leases::admit(). With
  // `arrives`, the file comes from a peer, and the session gets a new number.
  core::Result<LeaseRef> load_session(const std::string& file, bool arrives);
  // Restores the session of a file, or logs why it cannot be restored.
  void restore_file(const std::string& file);
  // Calls `shutdown`. `done` is called when drain() has ended. `budget` is the time for that drain;
  // 0 means the time given to the constructor.
  void ask_to_drain(std::chrono::milliseconds budget, Drained done);
  // Refuses new sessions, lets received commands run, writes all sessions to files and ends them.
  // The sessions are written in the order of WriteOrder; equal ones named before unnamed, attached
  // before detached, then those that were active last. A session that is not written in time, or
  // before hurry(), is reported as lost or restored from its last snapshot. `since` is the time
  // from which the time limit counts. Must be called once.
  void drain(Clock::time_point since);
  void hurry() { deadline_ = cut_ = Clock::time_point::min(); }
  // Returns true if drain() has finished writing and only waits for running kernels.
  bool written() const { return written_; }

 private:
  struct Job {
    LeaseRef lease;
    program::Image image;
    std::shared_ptr<v1::SavedHead> head;
    std::shared_ptr<v1::SavedBody> body;
    std::function<void(core::Result<SnapshotFacts>)> done;
    int place = 0;            // Order of a shutdown (WriteOrder).
    std::uint64_t bytes = 0;  // Size of the tensors.
    // Whether tensors that do not fit on the disk are dropped and the rest is written.
    bool squeezed = false;
    // Whether the files of the session's user have no room for it (StateUse).
    bool full = false;
    // Whether its writing ended because other sessions wait; it is then written later.
    bool gives_way = false;
  };
  // The sessions to write.
  struct Queue {
    std::deque<Job> jobs;
    std::vector<Job> starved;         // Jobs for which the disk was full during a shutdown.
    WriteTurns turns;                 // Decides until a shutdown.
    std::optional<WriteOrder> order;  // Set during a shutdown.

    void add(Job job);
    // Removes and returns the next job to write. Returns nothing if there is none, or if all of
    // them wait for sessions that still run.
    std::optional<Job> take(Clock::time_point now);
    // Puts starved jobs back, to write as much of each as fits.
    void squeeze_starved();
  };
  // The snapshot requests of one session. They are served one after the other; requests that arrive
  // during a snapshot share the next one.
  struct Line {
    bool busy = false;
    std::vector<Written> served, waiting;
  };
  // The time of the next periodic snapshot of a session, and the result of the last one.
  struct Past {
    Clock::time_point due;
    core::Status status;  // Result of the last periodic snapshot.
  };
  // State of a session after its snapshot.
  enum class After : std::uint8_t { kGoOn, kHold, kRest };
  void picture(const LeaseRef& lease, After after, int place,
               std::function<void(core::Result<SnapshotFacts>)> done);
  static bool last_chance(const Job& job);
  core::Status request(const LeaseRef& lease, Written done);
  void begin(const LeaseRef& lease);
  void served(const LeaseRef& lease, const core::Result<SnapshotFacts>& facts);
  void note(const Lease& lease, const core::Result<SnapshotFacts>& facts, bool timed)
      TT_REQUIRES(mutex_);
  std::chrono::milliseconds look() const;
  void start_due_snapshots();
  void work();
  core::Result<SnapshotFacts> write(Job& job);
  core::Status write_files(Job& job, const std::string& file, SessionStore::Terms terms,
                           SessionStore::Lost& lost);
  void restore_one(const SessionStore::Found& found);
  DrainFacts write_all(Clock::time_point began);
  // The reason that other ranks of a group receive, as part of a sentence.
  static constexpr char kShutsDown[] = "has a daemon that shuts down";
  void rest_groups(const std::vector<LeaseRef>& all, Clock::time_point since,
                   std::chrono::milliseconds budget, const std::function<void()>& begin_again);
  void hold_groups(const std::vector<LeaseRef>& all, Clock::time_point until,
                   const std::function<void()>& begin_again);
  void lose(const LeaseRef& ref, const core::Status& why, v1::SavedLosses& losses,
            DrainFacts& facts);

  Leases& leases_;
  const std::unique_ptr<SessionStore> store_;
  StateUse state_use_;
  SharedTensorStore shared_tensors_;  // Used by the writer thread once it has started to write.
  const Times times_;
  const std::function<void()> shutdown_;
  std::atomic<Clock::time_point> deadline_{Clock::time_point::max()};
  // From this time on no more contents are written, so that what was written can be made durable.
  std::atomic<Clock::time_point> cut_{Clock::time_point::max()};

  std::atomic<bool> written_{false};

  core::Mutex mutex_;
  core::CondVar changed_;
  Queue queue_ TT_GUARDED_BY(mutex_);
  std::deque<std::string> over_ TT_GUARDED_BY(mutex_);  // Files to remove.
  // Sessions with a running snapshot, and their waiting requests.
  std::map<const Lease*, Line> lines_ TT_GUARDED_BY(mutex_);
  // Number of calls of snapshot() that wait, by user.
  std::map<std::string, std::size_t> calls_ TT_GUARDED_BY(mutex_);
  // The last periodic snapshots, by session number.
  std::map<std::uint64_t, Past> past_ TT_GUARDED_BY(mutex_);
  struct Drain {
    std::chrono::milliseconds budget;
    std::vector<Drained> asked;  // Called when drain() has ended.
    bool announced = false;      // Whether `shutdown` was called.
    bool begun = false;
  } drain_ TT_GUARDED_BY(mutex_);
  Clock::time_point next_look_;  // Used by the writer thread.
  bool writing_ TT_GUARDED_BY(mutex_) = false;
  bool stop_ TT_GUARDED_BY(mutex_) = false;
  std::thread writer_;
};

}  // namespace teletensor::server
