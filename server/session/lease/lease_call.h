// LeaseCall is a call that holds a lease, such as a Run, Upload or Download stream.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "engine/core/clock.h"
#include "engine/core/memory/reserve.h"
#include "engine/core/mutex.h"
#include "engine/core/status.h"

namespace teletensor::server {

using core::Clock;

// The reason why a session or a stream has ended: a sentence, and one word for programs
// (docs/wire.md).
struct Ending {
  core::Status status;
  std::string word;
};

class LeaseCall {
 public:
  virtual ~LeaseCall() = default;
  // The lease has ended, or a later attach has replaced this call. The call must finish with this
  // status. Called by any thread; must not block.
  virtual void lease_ended(const Ending& ending) = 0;
  // Called some time after lease_ended() if the call has not finished because its client reads
  // nothing. Cancels the call.
  virtual void abandon() = 0;
  // Reports that the outbox may have a message. Called by any thread, including execution lanes;
  // must not block.
  virtual void wake() {}
  // The time since which the client has not read what was written. The epoch if nothing is unread.
  virtual Clock::time_point stalled_since() const { return {}; }
  // Ends a transfer that has waited at `now` for its client for longer than Limits::chunk_wait. The
  // client may continue with another call.
  virtual void end_if_silent(Clock::time_point now) { (void)now; }
};

// The calls that were told to finish, which are cancelled if they do not. Thread-safe.
class LingeringCalls {
 public:
  // Adds a call that was told, or is about to be told, to finish.
  void add(std::weak_ptr<LeaseCall> call) {
    core::MutexLock lock(mutex_);
    calls_.emplace_back(Clock::now(), std::move(call));
  }
  // Adds a call and tells it to finish.
  void dismiss(const std::shared_ptr<LeaseCall>& call, const Ending& ending) noexcept {
    const core::UsesReserve reserve;
    add(call);
    call->lease_ended(ending);
  }
  // Cancels the calls that have had `linger` to finish and still exist.
  void abandon(std::chrono::milliseconds linger) {
    while (true) {
      std::shared_ptr<LeaseCall> call;
      {
        core::MutexLock lock(mutex_);
        if (calls_.empty() || Clock::now() - calls_.front().first < linger) return;
        call = calls_.front().second.lock();
        calls_.pop_front();
      }
      if (call) call->abandon();
    }
  }

 private:
  core::Mutex mutex_;
  std::deque<std::pair<Clock::time_point, std::weak_ptr<LeaseCall>>> calls_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
