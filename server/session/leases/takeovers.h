// Takeovers gives sessions to new clients of their name: the earlier client's lease ends, and once
// the session has consumed its last frame, the next lease gets the session. Thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/core/mutex.h"
#include "engine/engine.h"
#include "server/session/lease/lease.h"

namespace teletensor::server {

class Leases;

using LeaseReady = std::function<void(core::Result<LeaseRef>)>;

class Takeovers {
 public:
  // `leases` outlives this object, and runs its tasks on the thread of the lease reaper.
  explicit Takeovers(Leases& leases) : leases_(leases) {}

  // Gives the session with client.name and client.user to a new client. Only calls with the new
  // token reach it from then on, and `start` of the new lease has its position. Opens a new session
  // if none has the name. `ready` is called once the old client's last frame is consumed. `of`: the
  // session to take over instead, regardless of its name.
  void begin(ClientInfo client, LeaseReady ready, const LeaseRef& of = nullptr);
  // Waits until no session is being taken over, because such sessions are not in the table. Returns
  // false if one still is after `patience`.
  bool settle(std::chrono::milliseconds patience);
  // Destroys the sessions that wait for the engine's answer. Their next clients are refused.
  void abandon();

 private:
  using Name = std::pair<std::string, std::string>;  // User and name of a session.
  class Reservation;
  // A session whose earlier client has left it.
  struct Handover {
    LeaseRef old;
    ClientInfo client;
    LeaseReady ready;
  };

  void free_name(const Name& name);
  void ask_engine(Handover handover) noexcept;
  // Removes the lease from those that wait for the engine's answer. Returns null if a shutdown has
  // done so; otherwise the reaper continues with the lease.
  LeaseRef answered(const Lease* old, ClientInfo client, const LeaseReady& ready,
                    core::Result<engine::TakenOver>& start);
  void hand_over(Handover handover, engine::TakenOver start);

  Leases& leases_;
  core::Mutex mutex_;  // Locked after that of the table of leases, before that of the reaper.
  core::CondVar changed_;
  std::set<Name> names_ TT_GUARDED_BY(mutex_);  // Sessions that are being taken over.
  // Leases whose sessions wait for the engine's answer.
  std::deque<LeaseRef> pending_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
