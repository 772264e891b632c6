// Relay forwards the reports of a session to the lease that currently owns it, so that a session
// can be passed to another lease while lanes work for it.
//
// Lanes and the threads of frames call it at any time. The lock is held during a call of the
// target, which therefore must not call the session or this object (engine::SessionListener).
#pragma once

#include <utility>

#include "engine/core/mutex.h"
#include "engine/engine.h"
#include "server/session/outbox.h"

namespace teletensor::server {

class Relay final : public engine::SessionListener {
 public:
  // `outbox` is the target's, and keeps the reports until the client has read them.
  Relay(engine::SessionListener* target, const Outbox* outbox) : target_(target), outbox_(outbox) {}
  // Changes the target. When it returns, no call to the previous target is running.
  void aim(engine::SessionListener* target, const Outbox* outbox) {
    core::MutexLock lock(mutex_);
    target_ = target;
    outbox_ = outbox;
  }

  void on_completed(std::uint64_t seq) override {
    core::MutexLock lock(mutex_);
    target_->on_completed(seq);
  }
  void on_fetched(engine::Fetched fetched) override {
    core::MutexLock lock(mutex_);
    target_->on_fetched(std::move(fetched));
  }
  void on_error(engine::LateError error) override {
    core::MutexLock lock(mutex_);
    target_->on_error(std::move(error));
  }
  void on_raised(engine::Raised raised) override {
    core::MutexLock lock(mutex_);
    target_->on_raised(std::move(raised));
  }
  void on_rank_lost(engine::LostRank lost) override {
    core::MutexLock lock(mutex_);
    target_->on_rank_lost(std::move(lost));
  }
  void on_slow(engine::SlowOp slow) override {
    core::MutexLock lock(mutex_);
    target_->on_slow(std::move(slow));
  }
  std::uint64_t unread_bytes() const override {
    core::MutexLock lock(mutex_);
    return outbox_->bytes();
  }
  bool has_client() const override {
    core::MutexLock lock(mutex_);
    return target_->has_client();
  }

 private:
  mutable core::Mutex mutex_;
  engine::SessionListener* target_ TT_GUARDED_BY(mutex_);
  const Outbox* outbox_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
