// Lease: a client's claim on one engine session. Leases: all of them, by token.
//
// The lease is what Run, Upload and Download hold. It ends once: by the client, by a cut stream, by
// a broken frame, by a client that does not read, or with the server. Ending is quick and never
// waits; the session itself, whose destruction waits for its running kernel, is destroyed by the
// table's own thread.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/engine.h"
#include "proto/wire/frame.h"
#include "server/limits.h"
#include "server/outbox.h"

namespace teletensor::server {

using Clock = std::chrono::steady_clock;

// A call that belongs to a lease.
class LeaseCall {
 public:
  virtual ~LeaseCall() = default;
  // The lease has ended: finish with this status. Any thread; must not block.
  virtual void lease_ended(const core::Status& reason) = 0;
  // Some time after lease_ended(): if it is still there (its client takes nothing), cancel it.
  virtual void abandon() = 0;
  // There may be something in the outbox. Any thread, also lanes; must not block.
  virtual void wake() {}
  // Since when the client has not taken what was written; epoch: it has.
  virtual Clock::time_point stalled_since() const { return {}; }
};

// What a client said in Hello.
struct ClientInfo {
  std::string name;  // of the session
  std::string version;
  std::string peer;
  std::uint64_t attach_counter = 0;
  std::uint64_t memory_quota = 0;
  std::vector<program::OpId> ops;
  std::vector<std::string> op_names;
};

class Leases;

class Lease final : public engine::SessionListener {
 public:
  Lease(Leases* table, std::string token, ClientInfo client, const Limits& limits);
  ~Lease() override;

  // Constant after construction.
  const std::string token;
  const ClientInfo client;
  const Clock::time_point created = Clock::now();

  Outbox& outbox() { return outbox_; }
  bool attached() const { return attached_.load(std::memory_order_relaxed); }

  // Calls `use` with the session, which stays alive meanwhile; or says why the lease has ended.
  template <class Use>
  auto with_session(Use use) -> decltype(use(std::declval<engine::Session&>())) {
    const User user(*this);
    if (!user.entered) return ended_status();
    return use(*session_);
  }

  // Decodes a frame and gives it to the session. `done` comes later, perhaps from another thread;
  // not at all once the lease has ended.
  core::Status submit(std::string_view bytes, std::function<void(core::Status)> done);

  // A call joins; `run` is the one that wake() goes to, of which there is one at most.
  core::Status join(std::weak_ptr<LeaseCall> call, bool run);

  // engine::SessionListener
  void on_completed(std::uint64_t seq) override;
  void on_fetched(engine::Fetched fetched) override;
  void on_error(engine::LateError error) override;
  void on_raised(engine::Raised raised) override;

 private:
  friend class Leases;

  // Somebody who uses the session. Users may nest; they never wait for long.
  struct User {
    explicit User(Lease& lease) : lease(lease), entered(lease.enter()) {}
    ~User() {
      if (entered) lease.leave();
    }
    User(const User&) = delete;
    User& operator=(const User&) = delete;
    Lease& lease;
    const bool entered;
  };

  bool enter();
  void leave();
  // Lets nobody enter any more, waits for those who are in, and destroys the session.
  void destroy_session();
  core::Status ended_status() const;
  void wake();

  Leases* const table_;
  const wire::FrameReader reader_;
  Outbox outbox_;
  std::atomic<bool> attached_{false};

  std::unique_ptr<engine::Session> session_;  // set before the lease is in the table

  mutable core::Mutex mutex_;
  core::CondVar left_;
  int users_ TT_GUARDED_BY(mutex_) = 0;
  bool closed_ TT_GUARDED_BY(mutex_) = false;  // to users
  bool ended_ TT_GUARDED_BY(mutex_) = false;
  core::Status reason_ TT_GUARDED_BY(mutex_);
  std::weak_ptr<LeaseCall> run_ TT_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<LeaseCall>> calls_ TT_GUARDED_BY(mutex_);
};
using LeaseRef = std::shared_ptr<Lease>;

class Leases {
 public:
  // Precondition: `engine` outlives the table.
  Leases(engine::Engine& engine, const Limits& limits);
  ~Leases();

  const Limits& limits() const { return limits_; }
  engine::Engine& engine() { return engine_; }

  // A new session. RESOURCE_EXHAUSTED when there are too many.
  core::Result<LeaseRef> open(ClientInfo client);
  // NOT_FOUND for a token that never was; ABORTED with the reason for one whose lease has ended.
  core::Result<LeaseRef> find(std::string_view token) const;
  std::vector<LeaseRef> all() const;

  // Ends one; the first reason holds. Its memory is back soon after.
  void end(Lease& lease, core::Status reason);
  // Ends all and refuses new ones. Returns when every session is destroyed.
  void shutdown();

  // How long there has been no session; zero while there is one.
  std::chrono::milliseconds idle() const;
  // Sessions opened so far.
  std::uint64_t opened() const;

 private:
  void keep_house();
  void end_overdue();
  void abandon_lingering();

  engine::Engine& engine_;
  const Limits limits_;

  mutable core::Mutex mutex_;
  core::CondVar changed_;
  std::unordered_map<std::string, LeaseRef> leases_ TT_GUARDED_BY(mutex_);
  std::deque<LeaseRef> dying_ TT_GUARDED_BY(mutex_);
  std::deque<std::pair<std::string, core::Status>> tombstones_ TT_GUARDED_BY(mutex_);
  std::deque<std::pair<Clock::time_point, std::weak_ptr<LeaseCall>>> lingering_
      TT_GUARDED_BY(mutex_);
  std::size_t opening_ TT_GUARDED_BY(mutex_) = 0;
  std::size_t destroying_ TT_GUARDED_BY(mutex_) = 0;
  std::uint64_t opened_ TT_GUARDED_BY(mutex_) = 0;
  Clock::time_point empty_since_ TT_GUARDED_BY(mutex_) = Clock::now();
  bool closed_ TT_GUARDED_BY(mutex_) = false;
  bool stop_ TT_GUARDED_BY(mutex_) = false;
  std::thread house_;
};

}  // namespace teletensor::server
