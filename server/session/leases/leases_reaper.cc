// The lease reaper, the thread of the lease table: it ends leases that no client has returned to,
// and destroys sessions that have ended.
#include <malloc.h>

#include <algorithm>
#include <utility>

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

}  // namespace

void Leases::run_maintenance() {
  IdleMemory idle(engine_);
  while (true) {
    LeaseRef dead;
    std::optional<Handover> handover;
    {
      MutexLock lock(mutex_);
      if (dying_.empty() && handovers_.empty()) {
        if (stop_) return;
        changed_.wait_for(mutex_, kMaintenancePeriod);
      }
      if (!handovers_.empty()) {
        handover = std::move(handovers_.front());
        handovers_.pop_front();
        ++destroying_;
      } else if (!dying_.empty()) {
        dead = std::move(dying_.front());
        dying_.pop_front();
        ++destroying_;
      }
    }
    if (handover) {
      if (handover->start) {
        hand_over(std::move(*handover));
      } else {
        inherit(std::move(*handover));
      }
      handover.reset();
    } else if (!dead) {
      // If memory is short, the check is repeated the next time.
      (void)core::with_memory("a look at the sessions", [&] {
        Detached::ByUser detached;
        for (const LeaseRef& lease : all()) {
          look_at(*lease, Clock::now());
          note_detached(*lease, detached);
        }
        detached_.set(std::move(detached));
        abandon_lingering();
        idle.release(Clock::now());
        return Status();
      });
      continue;
    } else {
      dead->destroy_session();
      dead.reset();
    }
    {
      MutexLock lock(mutex_);
      --destroying_;
    }
    changed_.notify_all();
  }
}

void Leases::dismiss(const std::shared_ptr<LeaseCall>& call, const Ending& ending) noexcept {
  {
    MutexLock lock(mutex_);
    lingering_.emplace_back(Clock::now(), call);
  }
  call->lease_ended(ending);
}

void Leases::end_silent_calls(Lease& lease) {
  std::vector<std::shared_ptr<LeaseCall>> calls;
  {
    MutexLock lock(lease.mutex_);
    for (const std::weak_ptr<LeaseCall>& weak : lease.calls_) {
      if (auto call = weak.lock()) calls.push_back(std::move(call));
    }
  }
  for (const std::shared_ptr<LeaseCall>& call : calls) call->end_if_silent(limits_.chunk_wait);
}

void Leases::look_at(Lease& lease, Clock::time_point now) {
  end_silent_calls(lease);
  std::shared_ptr<LeaseCall> run;
  bool met = false;
  Clock::time_point back;
  {
    MutexLock lock(lease.mutex_);
    run = lease.run_.lock();
    met = lease.met_;
    back = lease.detached_at_;
  }
  if (run) {
    // A connected client resumes its interrupted uploads in that time, or does not need them.
    if (now - back > limits_.safe) lease.drop_staged(now - limits_.safe);
    const Clock::time_point since = run->stalled_since();
    if (since == Clock::time_point{} || now - since <= limits_.stall) return;
    const Status status(
        Code::kDeadlineExceeded,
        "the client has not read for " + std::to_string(limits_.stall.count() / 1000) + " s");
    if (!lease.detach(run.get())) return end(lease, status, "slow");
    log_info("session_detached", {{"session", lease.client.name}, {"reason", status.message()}});
    return dismiss(run, {status, "slow"});
  }
  if (!met) {
    if (now - lease.created > limits_.attach) {
      end(lease, Status(Code::kDeadlineExceeded, "no Run stream followed Hello"), "protocol");
    }
    return;
  }
  if (now - back > limits_.rank_grace) {
    const auto alone = std::chrono::duration_cast<std::chrono::seconds>(now - back);
    (void)lease.with_session([&](engine::Session& session) {
      session.leave_groups("has had no client for " + std::to_string(alone.count()) + " s");
      return Status();
    });
  }
  // A session is idle if it completes no commands, even while it has a connection.
  const Clock::time_point since = lease.unused_since();
  if (since == Clock::time_point{} || now - since <= lease.client.lease || lease.busy()) return;
  end(lease,
      Status(Code::kDeadlineExceeded, "no client returned to it for " +
                                          std::to_string(lease.client.lease.count()) +
                                          " s, its lease"),
      "expired");
}

void Leases::note_detached(Lease& lease, Detached::ByUser& detached) {
  Detached::Session session{lease.client.id, 0, lease.client.name, lease.unused_since()};
  if (session.since == Clock::time_point{}) return;
  (void)lease.with_session([&](engine::Session& found) {
    for (const engine::MemoryUse& use : found.memory()) session.bytes += use.used;
    return Status();
  });
  if (session.bytes > 0) detached[lease.client.user].push_back(std::move(session));
}

std::size_t Leases::sessions_of(std::string_view user) const {
  std::size_t own = opening_users_.count(std::string(user));
  for (const auto& [token, lease] : leases_) own += lease->client.user == user;
  return own;
}

bool Leases::full(std::string_view user) const {
  const std::size_t most = limits_of(limits_, user).sessions;
  MutexLock lock(mutex_);
  return leases_.size() + opening_ >= limits_.sessions || (most != 0 && sessions_of(user) >= most);
}

bool Leases::evict_one(std::string_view user) {
  LeaseRef oldest;
  Clock::time_point since{};
  for (const LeaseRef& lease : all()) {
    if (lease->client.user != user) continue;
    const Clock::time_point left = lease->unused_since();
    if (left == Clock::time_point{} || Clock::now() - left < limits_.safe ||
        (oldest && left >= since)) {
      continue;
    }
    if (lease->client.named || lease->busy()) continue;
    oldest = lease;
    since = left;
  }
  if (!oldest) return false;
  end(*oldest, Status(Code::kResourceExhausted, "a new session needed the place of a detached one"),
      "evicted");
  return true;
}

void Leases::abandon_lingering() {
  while (true) {
    std::shared_ptr<LeaseCall> call;
    {
      MutexLock lock(mutex_);
      if (lingering_.empty() || Clock::now() - lingering_.front().first < kLinger) return;
      call = lingering_.front().second.lock();
      lingering_.pop_front();
    }
    if (call) call->abandon();
  }
}

}  // namespace teletensor::server
