// LeaseReaper is the thread of the lease table: it ends leases that no client has returned to, and
// destroys sessions that have ended, because both may wait.
// Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "engine/core/mutex.h"
#include "server/session/lease/lease.h"
#include "server/session/leases/detached.h"

namespace teletensor::server {

class Leases;

class LeaseReaper {
 public:
  // Starts the thread. `leases` outlives this object.
  explicit LeaseReaper(Leases& leases);
  // Stops the thread once its tasks are done.
  ~LeaseReaper();

  // Destroys the session of a lease that has ended.
  void destroy(LeaseRef lease);
  // Runs the task, before sessions are destroyed that wait for it.
  void run(std::function<void()> task);
  // Waits until every task and every session given so far is done.
  void drain();
  // The detached sessions; at most a few hundred milliseconds out of date.
  const Detached& detached() const { return detached_; }

 private:
  void work();
  void destroy_now(Lease& lease);
  void look_at_all();

  Leases& leases_;
  Detached detached_;

  core::Mutex mutex_;
  core::CondVar changed_;
  std::deque<std::function<void()>> tasks_ TT_GUARDED_BY(mutex_);
  std::deque<LeaseRef> dying_ TT_GUARDED_BY(mutex_);
  bool busy_ TT_GUARDED_BY(mutex_) = false;  // Whether a task runs or a session is destroyed.
  bool stop_ TT_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Declared last, because it uses the other members.
};

}  // namespace teletensor::server
