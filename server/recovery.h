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
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "engine/core/mutex.h"
#include "server/leases.h"
#include "server/store.h"

namespace teletensor::server {

struct SnapshotFacts {
  std::uint64_t completed_upto = 0;  // commands up to here are in it
  std::uint64_t bytes = 0;           // of tensors
  double seconds = 0;                // to write it
};

class Recovery {
 public:
  // `store` null: there is nowhere to keep anything. Before the first session.
  Recovery(Leases& leases, std::unique_ptr<SessionStore> store);
  ~Recovery();
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;

  bool on() const { return store_ != nullptr; }
  // Takes up what an earlier daemon has written down; what cannot come back is refused by name.
  void restore();
  // FAILED_PRECONDITION for a session that does not outlive its connection. `done` comes once the
  // file is safe on the disk.
  void snapshot(const LeaseRef& lease, std::function<void(core::Result<SnapshotFacts>)> done);
  // Refuses new sessions, lets what has come run, and writes every session down, the most important
  // first: named before others, attached before others, then who worked last. Ends all of them.
  // What is not written within `budget`, or when hurry() was called, is lost by its name, or goes
  // back to its last snapshot.
  void drain(std::chrono::milliseconds budget);
  void hurry() { deadline_ = Clock::time_point::min(); }

 private:
  struct Job {
    LeaseRef lease;
    program::Image image;
    std::shared_ptr<v1::SavedHead> head;
    std::shared_ptr<v1::SavedBody> body;
    std::function<void(core::Result<SnapshotFacts>)> done;
    int rank = 0;  // lower ones first
  };
  void picture(const LeaseRef& lease, bool hold, int rank,
               std::function<void(core::Result<SnapshotFacts>)> done);
  void work();
  core::Result<SnapshotFacts> write(Job& job);
  void restore_one(const SessionStore::Found& found);
  void lose(const Lease& lease, const core::Status& why, v1::SavedLosses& losses);

  Leases& leases_;
  const std::unique_ptr<SessionStore> store_;
  std::atomic<Clock::time_point> deadline_{Clock::time_point::max()};

  core::Mutex mutex_;
  core::CondVar changed_;
  std::deque<Job> jobs_ TT_GUARDED_BY(mutex_);
  std::deque<std::string> over_ TT_GUARDED_BY(mutex_);  // files to remove
  bool draining_ TT_GUARDED_BY(mutex_) = false;
  bool stop_ TT_GUARDED_BY(mutex_) = false;
  std::thread writer_;
};

}  // namespace teletensor::server
