#include "server/session/leases/lease_reaper.h"

#include <malloc.h>

#include <algorithm>
#include <utility>

#include "engine/core/threads.h"
#include "engine/core/with_memory.h"
#include "server/base/log.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

constexpr std::chrono::milliseconds kMaintenancePeriod{200};
// Time that an ended call has to send its last message and status.
constexpr std::chrono::milliseconds kLinger{2000};
constexpr std::chrono::seconds kReleaseEvery{5};
// Maximum number of free bytes that the heap keeps.
constexpr std::size_t kHeapKept = std::size_t{64} << 20;

// Returns memory to the operating system that has been free for one to two periods.
class IdleMemory {
 public:
  explicit IdleMemory(engine::Engine& engine) : engine_(engine) {}

  void release(Clock::time_point now) {
    if (now < next_) return;
    next_ = now + kReleaseEvery;
    engine_.release_idle();
    const std::size_t free = mallinfo2().fordblks;
    if (std::min(free, heap_free_) > kHeapKept) malloc_trim(kHeapKept / 2);
    heap_free_ = free;
  }

 private:
  engine::Engine& engine_;
  Clock::time_point next_ = Clock::now() + kReleaseEvery;
  std::size_t heap_free_ = 0;  // Free bytes of the heap at the last call.
};

// Ends a lease, or detaches its stream, if its client has not done what it must in time.
void look_at(Lease& lease, Leases& leases, Clock::time_point now) {
  const Limits& limits = leases.limits();
  for (const auto& call : lease.streams().calls()) call->end_if_silent(now);
  const auto [run, met, detached_at] = lease.streams().presence();
  if (run) {
    // A connected client resumes its interrupted uploads in that time, or does not need them.
    if (now - detached_at > limits.safe) lease.staging().drop(now - limits.safe);
    const Clock::time_point since = run->stalled_since();
    if (since == Clock::time_point{} || now - since <= limits.stall) return;
    const Status status(
        Code::kDeadlineExceeded,
        "the client has not read for " + std::to_string(limits.stall.count() / 1000) + " s");
    if (!lease.streams().detach(run.get())) return leases.end(lease, status, "slow");
    log_info("session_detached", {{"session", lease.client.name}, {"reason", status.message()}});
    return leases.lingering().dismiss(run, {status, "slow"});
  }
  if (!met) {
    if (now - lease.created > limits.attach) {
      leases.end(lease, Status(Code::kDeadlineExceeded, "no Run stream followed Hello"),
                 "protocol");
    }
    return;
  }
  if (now - detached_at > limits.rank_grace) {
    const auto alone = std::chrono::duration_cast<std::chrono::seconds>(now - detached_at);
    (void)lease.with_session([&](engine::Session& session) {
      session.leave_groups("has had no client for " + std::to_string(alone.count()) + " s");
      return Status();
    });
  }
  // A session is idle if it completes no commands, even while it has a connection.
  const Clock::time_point since = lease.unused_since();
  if (since == Clock::time_point{} || now - since <= lease.client.lease || lease.busy()) return;
  leases.end(lease,
             Status(Code::kDeadlineExceeded, "no client returned to it for " +
                                                 std::to_string(lease.client.lease.count()) +
                                                 " s, its lease"),
             "expired");
}

// Adds the session to `detached` if no client is attached to it.
void note_detached(Lease& lease, Detached::ByUser& detached) {
  Detached::Session session{lease.client.id, 0, lease.client.name, lease.unused_since()};
  if (session.since == Clock::time_point{}) return;
  (void)lease.with_session([&](engine::Session& found) {
    for (const engine::MemoryUse& use : found.memory()) session.bytes += use.used;
    return Status();
  });
  if (session.bytes > 0) detached[lease.client.user].push_back(std::move(session));
}

}  // namespace

LeaseReaper::LeaseReaper(Leases& leases)
    : leases_(leases), thread_(core::start_thread([this] { work(); })) {}

LeaseReaper::~LeaseReaper() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LeaseReaper::destroy(LeaseRef lease) {
  {
    MutexLock lock(mutex_);
    dying_.push_back(std::move(lease));
  }
  changed_.notify_all();
}

void LeaseReaper::run(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void LeaseReaper::drain() {
  MutexLock lock(mutex_);
  while (!tasks_.empty() || !dying_.empty() || busy_) changed_.wait(mutex_);
}

void LeaseReaper::work() {
  IdleMemory idle(leases_.engine());
  while (true) {
    std::function<void()> task;
    LeaseRef dead;
    {
      MutexLock lock(mutex_);
      if (tasks_.empty() && dying_.empty()) {
        if (stop_) return;
        changed_.wait_for(mutex_, kMaintenancePeriod);
      }
      if (!tasks_.empty()) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      } else if (!dying_.empty()) {
        dead = std::move(dying_.front());
        dying_.pop_front();
      }
      busy_ = task || dead;
    }
    core::refill_reserve();  // Each time: with much to do, this thread never waits.
    if (task) {
      task();
      task = nullptr;
    } else if (dead) {
      destroy_now(*dead);
      dead.reset();
    } else {
      // If memory is short, the check is repeated the next time.
      (void)core::with_memory("a look at the sessions", [&] {
        look_at_all();
        idle.release(Clock::now());
        return Status();
      });
      continue;
    }
    {
      MutexLock lock(mutex_);
      busy_ = false;
    }
    changed_.notify_all();
  }
}

void LeaseReaper::destroy_now(Lease& lease) {
  if (const engine::Session* session = lease.held().close()) {
    leases_.counters().add(lease.client.user, {session->load().lane_ns, session->completed_upto()});
  }
  lease.held().destroy();
}

void LeaseReaper::look_at_all() {
  Detached::ByUser detached;
  for (const LeaseRef& lease : leases_.table().all()) {
    look_at(*lease, leases_, Clock::now());
    note_detached(*lease, detached);
  }
  detached_.set(std::move(detached));
  leases_.lingering().abandon(kLinger);
}

}  // namespace teletensor::server
