// HeldSession is the engine session of a lease. Any thread may use it until it is closed; then it
// is destroyed, or moved to the next lease.
//
// The order of calls is hold() once, users, close(), and then release() or destroy(). It keeps a
// session from being destroyed while a thread of gRPC or a timer is inside one of its functions,
// without a lock during these functions.
#pragma once

#include <memory>
#include <utility>

#include "engine/core/mutex.h"
#include "engine/engine.h"
#include "server/session/lease/relay.h"

namespace teletensor::server {

class HeldSession {
 public:
  struct Parts {
    std::unique_ptr<Relay> relay;  // Forwards the session's reports; outlives the session.
    std::unique_ptr<engine::Session> session;
  };

  // A thread that uses the session. Users may nest; they never wait for long.
  class User {
   public:
    explicit User(HeldSession& held) : held_(held), entered_(held.enter()) {}
    ~User() {
      if (entered_) held_.leave();
    }
    User(const User&) = delete;
    User& operator=(const User&) = delete;

    // Null if the session was closed.
    engine::Session* session() const { return entered_ ? held_.parts_.session.get() : nullptr; }

   private:
    HeldSession& held_;
    const bool entered_;
  };

  // Must precede the first user.
  void hold(Parts parts) { parts_ = std::move(parts); }
  // Refuses users from now on, and waits until each present user has left. Returns the session,
  // which only the caller uses from then on. Null if it was destroyed or released.
  engine::Session* close() {
    core::MutexLock lock(mutex_);
    closed_ = true;
    while (users_ != 0) left_.wait(mutex_);
    return parts_.session.get();
  }
  // Returns the session for the next lease. Precondition: closed.
  Parts release() { return std::exchange(parts_, {}); }
  // Destroys the session, which waits for its running kernel. Precondition: closed.
  void destroy() { parts_.session.reset(); }

 private:
  bool enter() {
    core::MutexLock lock(mutex_);
    if (closed_) return false;
    ++users_;
    return true;
  }
  void leave() {
    bool last = false;
    {
      core::MutexLock lock(mutex_);
      last = --users_ == 0 && closed_;
    }
    if (last) left_.notify_all();
  }

  Parts parts_;  // Used by the users, and after them by the thread that has called close().
  core::Mutex mutex_;
  core::CondVar left_;
  int users_ TT_GUARDED_BY(mutex_) = 0;
  bool closed_ TT_GUARDED_BY(mutex_) = false;  // Whether further users are refused.
};

}  // namespace teletensor::server
