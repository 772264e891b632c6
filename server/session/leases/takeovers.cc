#include "server/session/leases/takeovers.h"

#include <algorithm>
#include <ctime>

#include "engine/core/memory/reserve.h"
#include "server/base/log.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

// The message that the previous client receives about the one that has taken over its session.
std::string taken_by(const ClientInfo& next, const ClientInfo& before) {
  std::string text = "another client has taken over the session";
  if (next.instance == before.instance) {
    text += ": this process, by connecting to it again";
  } else if (!next.description.empty()) {
    text += ": " + next.description;
  }
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char at[64];
  if (::gmtime_r(&now, &utc) != nullptr &&
      std::strftime(at, sizeof at, ", at %Y-%m-%d %H:%M:%S UTC", &utc) != 0) {
    text += at;
  }
  return text;
}

}  // namespace

// Reserves a name while its session is being taken over.
class Takeovers::Reservation {
 public:
  Reservation(Takeovers& takeovers, Name name) : takeovers_(takeovers), name_(std::move(name)) {
    MutexLock lock(takeovers_.mutex_);
    held_ = takeovers_.names_.insert(name_).second;
  }
  ~Reservation() { end(); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // Returns false if another client takes over the session of this name just now.
  bool held() const { return held_; }
  void end() {
    if (std::exchange(held_, false)) takeovers_.free_name(name_);
  }

 private:
  Takeovers& takeovers_;
  const Name name_;
  bool held_ = false;
};

void Takeovers::free_name(const Name& name) {
  {
    MutexLock lock(mutex_);
    names_.erase(name);
  }
  changed_.notify_all();
}

void Takeovers::begin(ClientInfo client, LeaseReady ready, const LeaseRef& of) {
  if (of) {
    client.name = of->client.name;
    client.named = of->client.named;
    client.user = of->client.user;
  }
  LeaseTable& table = leases_.table();
  // Reserved before the table is asked: a shutdown closes the table first and then waits for the
  // names.
  const auto reservation = std::make_shared<Reservation>(*this, Name(client.user, client.name));
  Status refused;
  if (table.closed()) {
    refused = shutting_down();
  } else if (leases_.moved_sessions().expected(client.user, client.name)) {
    refused = Status(Code::kUnavailable,
                     "session \"" + client.name + "\" is being moved to this daemon just now");
  } else if (!reservation->held()) {
    refused = Status(Code::kAborted, "session \"" + client.name +
                                         "\" is being taken over by another client just now");
  } else {
    refused = table.refusal(client.user, client.name);
  }
  ready = [reservation, ready = std::move(ready)](core::Result<LeaseRef> lease) {
    reservation->end();
    ready(std::move(lease));
  };
  if (!refused.ok()) return ready(std::move(refused));
  const LeaseRef old = of ? of : table.find_name(client.user, client.name);
  const auto keep = [this](LeaseRef lease) {
    MutexLock lock(mutex_);
    pending_.push_back(std::move(lease));
  };
  if (!old || !old->client.survives() ||
      !leases_.retire(*old, {Status(Code::kAborted, taken_by(client, old->client)), "taken"},
                      keep)) {
    return ready(leases_.open(std::move(client)));
  }
  // The old client has lost its session, so the new one must get it.
  const core::UsesReserve reserve;
  client.id = old->client.id;
  client.memory_asked = old->client.memory_asked;
  client.memory_quota = old->client.memory_quota;
  client.limits = old->client.limits;
  leases_.reaper().run(
      [this, handover = Handover{old, std::move(client), std::move(ready)}]() mutable {
        ask_engine(std::move(handover));
      });
}

// Runs in the reaper's thread, because it waits for the threads that still use the session. A frame
// of the old client that was accepted later would shift the new client's first command number.
void Takeovers::ask_engine(Handover handover) noexcept {
  const core::UsesReserve reserve;
  engine::Session* const session = handover.old->held().close();
  if (session == nullptr) return handover.ready(shutting_down());
  // The lease owns the session, which owns this function: it must not own the lease.
  session->take_over([this, old = handover.old.get(), client = std::move(handover.client),
                      ready = handover.ready](core::Result<engine::TakenOver> start) mutable {
    const bool ok = start.ok();
    const Status status = ok ? Status() : start.status();
    const LeaseRef from = answered(old, std::move(client), ready, start);
    if (!ok) return ready(status);
    if (!from) ready(shutting_down());
  });
}

LeaseRef Takeovers::answered(const Lease* old, ClientInfo client, const LeaseReady& ready,
                             core::Result<engine::TakenOver>& start) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(pending_.begin(), pending_.end(),
                                  [&](const LeaseRef& lease) { return lease.get() == old; });
  if (found == pending_.end()) return nullptr;
  LeaseRef from = std::move(*found);
  pending_.erase(found);
  // With the lock held, so that a shutdown finds the lease in one of both places.
  if (start.ok()) {
    leases_.reaper().run([this, handover = Handover{from, std::move(client), ready},
                          start = std::move(*start)]() mutable {
      hand_over(std::move(handover), std::move(start));
    });
  } else {
    leases_.reaper().destroy(from);
  }
  return from;
}

void Takeovers::hand_over(Handover handover, engine::TakenOver start) {
  Lease& old = *handover.old;
  const LeaseRef lease = leases_.make(make_token(), make_token(), std::move(handover.client));
  lease->start = std::move(start);
  old.hand_on_file(*lease);
  HeldSession::Parts parts = old.held().release();
  Relay& relay = *parts.relay;
  const engine::Session& session = *parts.session;
  lease->held().hold(std::move(parts));
  lease->outbox().begin_at(lease->start->next_seq - 1, session.completed_upto());
  relay.aim(lease.get(), &lease->outbox());
  lease->on_completed(session.completed_upto());
  CommandHistory::OpenErrors errors = old.commands().hand_on(lease->commands());
  for (auto& [root, status] : errors) lease->on_error({root, std::move(status)});
  Status refused;
  if (lease->token.empty()) {
    refused = core::internal("the system has no random numbers for a token");
    leases_.reaper().destroy(lease);
  } else {
    refused = leases_.table().add_taken_over(lease);
  }
  log_info("session_taken_over", {{"session", lease->client.name},
                                  {"id", lease->client.id},
                                  {"peer", lease->client.peer},
                                  {"by", lease->client.description},
                                  {"kept", lease->start->inventory.names.size()}});
  if (!refused.ok()) return handover.ready(std::move(refused));
  handover.ready(lease);
  if (!lease->saved().name().empty() && leases_.on_new_hands) leases_.on_new_hands(lease);
}

bool Takeovers::settle(std::chrono::milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  MutexLock lock(mutex_);
  while (!names_.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) return false;
    changed_.wait_for(mutex_, left);
  }
  return true;
}

void Takeovers::abandon() {
  MutexLock lock(mutex_);
  for (LeaseRef& lease : pending_) leases_.reaper().destroy(std::move(lease));
  pending_.clear();
}

}  // namespace teletensor::server
