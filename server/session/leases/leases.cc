#include "server/session/leases/leases.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "engine/core/threads.h"
#include "server/access/auth.h"
#include "server/base/log.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

constexpr std::size_t kTombstones = 256;

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

Status shutting_down() { return Status(Code::kUnavailable, "the server is shutting down"); }

Leases::Leases(engine::Engine& engine, const Limits& limits)
    : engine_(engine),
      limits_(limits),
      maintenance_thread_(core::start_thread([this] { run_maintenance(); })) {}

Leases::~Leases() {
  shutdown();
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  maintenance_thread_.join();
}

// Counts a session that is being opened as an existing one.
class Leases::Opening {
 public:
  Opening(Leases& leases, std::string user) : leases_(leases), user_(std::move(user)) {}
  ~Opening() {
    MutexLock lock(leases_.mutex_);
    end(leases_);
  }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

  // `leases` is the same object as leases_, which the lock analysis does not know.
  void begin(Leases& leases) TT_REQUIRES(leases.mutex_) {
    leases.opening_users_.insert(user_);
    ++leases.opening_;
    counted_ = true;
  }
  void end(Leases& leases) TT_REQUIRES(leases.mutex_) {
    if (!std::exchange(counted_, false)) return;
    --leases.opening_;
    leases.opening_users_.erase(leases.opening_users_.find(user_));
  }

 private:
  Leases& leases_;
  const std::string user_;
  bool counted_ = false;
};

// Returns an error if there is no room for one more session of the user.
Status Leases::place_for(const std::string& user) const {
  if (closed_) return shutting_down();
  if (!no_new_.empty()) {
    return Status(Code::kFailedPrecondition, "this daemon opens no new sessions: " + no_new_);
  }
  if (leases_.size() + opening_ >= limits_.sessions) {
    return Status(Code::kResourceExhausted, "there are " + std::to_string(leases_.size()) +
                                                " sessions, the most allowed (limit max_sessions)");
  }
  const std::size_t own = sessions_of(user), most = limits_of(limits_, user).sessions;
  if (most == 0 || own < most) return {};
  return Status(Code::kResourceExhausted,
                user + " has " + std::to_string(own) + " sessions of at most " +
                    std::to_string(most) +
                    " (limit user_sessions), those without a client included; close one "
                    "(teletensor sessions, teletensor kill ID), or ask the administrator for more "
                    "(--user-sessions)");
}

core::Result<LeaseRef> Leases::open(ClientInfo client) {
  while (full(client.user) && evict_one(client.user)) {
  }
  Opening opening(*this, client.user);
  {
    MutexLock lock(mutex_);
    TT_RETURN_IF_ERROR(place_for(client.user));
    opening.begin(*this);
    client.id = ++opened_;
    if (client.name.empty()) client.name = "session-" + std::to_string(opened_);
  }
  std::string token = make_token();
  if (token.empty()) return core::internal("the system has no random numbers for a token");
  const engine::SessionOptions options = options_of(client);
  auto lease =
      std::make_shared<Lease>(this, std::move(token), make_token(), std::move(client), limits_);
  lease->relay_ = std::make_unique<Relay>(lease.get(), &lease->outbox());
  auto session = engine_.open(options, lease->relay_.get());
  if (!session.ok()) return session.status();
  lease->session_ = std::move(*session);
  bool refused = false;
  {
    MutexLock lock(mutex_);
    refused = closed_;
    if (!refused) leases_.emplace(lease->token, lease);
    opening.end(*this);
  }
  if (refused) return shutting_down();
  log_info("session_opened", {{"session", lease->client.name},
                              {"id", lease->client.id},
                              {"user", lease->client.user},
                              {"peer", lease->client.peer},
                              {"client", lease->client.version},
                              {"quota", lease->client.memory_quota}});
  return lease;
}

engine::SessionOptions Leases::options_of(const ClientInfo& client) const {
  engine::SessionOptions options;
  options.memory_quota = client.memory_quota;
  options.limits = client.limits;
  options.name = client.name;
  options.user = client.user;
  const UserLimits user_limits = limits_of(limits_, client.user);
  options.user_quota = user_limits.memory;
  options.weight = user_limits.weight;
  options.publishes = client.user != kAnonymous;
  return options;
}

core::Result<LeaseRef> Leases::find(std::string_view token, std::string* word) const {
  MutexLock lock(mutex_);
  if (const auto it = leases_.find(std::string(token)); it != leases_.end()) return it->second;
  if (Status elsewhere = moved_sessions_.of(token, word); !elsewhere.ok()) return elsewhere;
  for (const auto& [dead, ending] : tombstones_) {
    if (dead != token) continue;
    if (word) *word = ending.word;
    return Status(Code::kAborted, "the session has ended: " + ending.status.message());
  }
  if (word) *word = "unknown";
  return Status(Code::kNotFound, "no session has this token");
}

LeaseRef Leases::find_id(std::uint64_t id) const {
  MutexLock lock(mutex_);
  for (const auto& [token, lease] : leases_) {
    if (lease->client.id == id) return lease;
  }
  return nullptr;
}

std::vector<LeaseRef> Leases::all() const {
  MutexLock lock(mutex_);
  std::vector<LeaseRef> leases;
  for (const auto& [token, lease] : leases_) leases.push_back(lease);
  return leases;
}

LeaseRef Leases::find_name(std::string_view user, std::string_view name) const {
  MutexLock lock(mutex_);
  for (const auto& [token, lease] : leases_) {
    if (lease->client.named && lease->client.user == user && lease->client.name == name) {
      return lease;
    }
  }
  return nullptr;
}

// Reserves a name while its session is being taken over.
class Leases::NameReservation {
 public:
  using Key = std::pair<std::string, std::string>;
  NameReservation(Leases& leases, Key key) : leases_(leases), key_(std::move(key)) {}
  ~NameReservation() { end(); }
  NameReservation(const NameReservation&) = delete;
  NameReservation& operator=(const NameReservation&) = delete;

  bool begin(Leases& leases) TT_REQUIRES(leases.mutex_) {
    return held_ = leases.names_in_takeover_.insert(key_).second;
  }
  void end() {
    {
      MutexLock lock(leases_.mutex_);
      if (!std::exchange(held_, false)) return;
      leases_.names_in_takeover_.erase(key_);
    }
    leases_.changed_.notify_all();
  }

 private:
  Leases& leases_;
  const Key key_;
  bool held_ = false;
};

void Leases::take_over(ClientInfo client, LeaseReady ready, LeaseRef of) {
  if (of) {
    client.name = of->client.name;
    client.named = of->client.named;
    client.user = of->client.user;
  }
  const NameReservation::Key key(client.user, client.name);
  const auto seizure = std::make_shared<NameReservation>(*this, key);
  Status refused;
  {
    MutexLock lock(mutex_);
    const auto found = refused_.find(key);
    if (closed_) {
      refused = shutting_down();
    } else if (moved_sessions_.expected(key.first, key.second)) {
      refused = Status(Code::kUnavailable,
                       "session \"" + client.name + "\" is being moved to this daemon just now");
    } else if (!seizure->begin(*this)) {
      refused = Status(Code::kAborted, "session \"" + client.name +
                                           "\" is being taken over by another client just now");
    } else if (found != refused_.end() && found->second.holds()) {
      refused = found->second.why;
    } else if (found != refused_.end()) {
      refused_.erase(found);
    }
  }
  ready = [seizure, ready = std::move(ready)](core::Result<LeaseRef> lease) {
    seizure->end();
    ready(std::move(lease));
  };
  if (!refused.ok()) return ready(std::move(refused));
  const LeaseRef old = of ? of : find_name(client.user, client.name);
  if (!old || !old->survives() ||
      !retire(*old, Status(Code::kAborted, taken_by(client, old->client)), "taken", true)) {
    return ready(open(std::move(client)));
  }
  client.id = old->client.id;
  client.memory_asked = old->client.memory_asked;
  client.memory_quota = old->client.memory_quota;
  client.limits = old->client.limits;
  {
    MutexLock lock(mutex_);
    handovers_.push_back({old, std::move(client), std::move(ready), {}});
  }
  changed_.notify_all();
}

// Runs in the table's thread, because it waits for the threads that still use the session. A frame
// of the old client that was accepted later would shift the new client's first command number.
void Leases::inherit(Handover handover) noexcept {
  Lease& old = *handover.old;
  old.close();
  auto done = [this, raw = &old, client = std::move(handover.client),
               ready = handover.ready](core::Result<engine::TakenOver> start) mutable {
    LeaseRef from;
    {
      MutexLock lock(mutex_);
      const auto found = std::find_if(pending_takeovers_.begin(), pending_takeovers_.end(),
                                      [&](const LeaseRef& lease) { return lease.get() == raw; });
      if (found != pending_takeovers_.end()) {
        from = std::move(*found);
        pending_takeovers_.erase(found);
      }
      if (from && start.ok()) {
        handovers_.push_back({from, std::move(client), ready, std::move(*start)});
      } else if (from) {
        dying_.push_back(from);
      }
    }
    changed_.notify_all();
    if (!start.ok()) return ready(start.status());
    if (!from) ready(shutting_down());
  };
  if (!old.session_) return handover.ready(shutting_down());
  old.session_->take_over(std::move(done));
}

void Leases::hand_over(Handover handover) {
  Lease& old = *handover.old;
  auto lease = std::make_shared<Lease>(this, make_token(), make_token(), std::move(handover.client),
                                       limits_);
  lease->start = std::move(handover.start);
  old.hand_on_file(*lease);
  lease->session_ = std::move(old.session_);
  lease->relay_ = std::move(old.relay_);
  lease->outbox_.begin_at(lease->start->next_seq - 1, lease->session_->completed_upto());
  lease->relay_->aim(lease.get(), &lease->outbox());
  lease->on_completed(lease->session_->completed_upto());
  std::map<std::uint64_t, Status> errors;
  std::map<std::uint64_t, std::string> sites;
  {
    MutexLock lock(old.mutex_);
    errors.swap(old.open_errors_);
    sites.swap(old.sites_);
  }
  {
    MutexLock lock(lease->mutex_);
    lease->sites_.swap(sites);
  }
  for (auto& [root, status] : errors) lease->on_error({root, std::move(status)});
  Status refused;
  {
    MutexLock lock(mutex_);
    if (closed_) refused = shutting_down();
    if (lease->token.empty()) {
      refused = core::internal("the system has no random numbers for a token");
      dying_.push_back(lease);
    } else {
      // A lease is added during a shutdown as well, so that its session is written to a file.
      leases_.emplace(lease->token, lease);
    }
  }
  log_info("session_taken_over", {{"session", lease->client.name},
                                  {"id", lease->client.id},
                                  {"peer", lease->client.peer},
                                  {"by", lease->client.description},
                                  {"kept", lease->start->inventory.names.size()}});
  if (!refused.ok()) {
    handover.ready(std::move(refused));
  } else {
    handover.ready(lease);
    if (!lease->saved().name().empty() && on_new_hands) on_new_hands(lease);
  }
}

bool Leases::retire(Lease& lease, Status reason, std::string word, bool inherit) noexcept {
  const Ending ending{std::move(reason), std::move(word)};
  std::vector<std::weak_ptr<LeaseCall>> calls;
  {
    MutexLock lock(lease.mutex_);
    if (std::exchange(lease.ended_, true)) return false;
    lease.ending_ = ending;
    calls = std::exchange(lease.calls_, {});
  }
  lease.outbox_
      .close();  // the client learns the reason, not that its queued commands were cancelled
  counters_.ended(ending.status.code(), ending.word);
  log_info("session_ended", {{"session", lease.client.name},
                             {"why", ending.word},
                             {"code", static_cast<int>(ending.status.code())},
                             {"reason", ending.status.message()}});
  {
    MutexLock lock(mutex_);
    if (const auto it = leases_.find(lease.token); it != leases_.end()) {
      (inherit ? pending_takeovers_ : dying_).push_back(std::move(it->second));
      leases_.erase(it);
      if (leases_.empty()) empty_since_ = Clock::now();
      remember_ending(lease.token, ending);
    }
    for (const auto& weak : calls) lingering_.emplace_back(Clock::now(), weak);
  }
  changed_.notify_all();
  if (const std::string file = lease.saved().name(); !file.empty() && lease.over() && on_over) {
    on_over(file);
  }
  for (const auto& weak : calls) {
    if (const auto call = weak.lock()) call->lease_ended(ending);
  }
  return true;
}

void Leases::remember_ending(const std::string& token, Ending ending) {
  tombstones_.emplace_back(token, std::move(ending));
  if (tombstones_.size() > kTombstones) tombstones_.pop_front();
}

void Leases::close() {
  MutexLock lock(mutex_);
  closed_ = true;
}

void Leases::refuse_new(std::string why) {
  MutexLock lock(mutex_);
  no_new_ = std::move(why);
}

bool Leases::settle(std::chrono::milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  MutexLock lock(mutex_);
  while (!names_in_takeover_.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) return false;
    changed_.wait_for(mutex_, left);
  }
  return true;
}

void Leases::shutdown(const std::function<bool(const Lease&)>& stay) {
  close();
  for (const LeaseRef& lease : all()) {
    if (stay && stay(*lease)) {
      end(*lease, Status(Code::kUnavailable, "the daemon restarts, and has kept the session"),
          "restart");
    } else {
      end(*lease, Status(Code::kUnavailable, "the server shuts down"), "daemon");
    }
  }
  MutexLock lock(mutex_);
  for (LeaseRef& lease : pending_takeovers_) dying_.push_back(std::move(lease));
  pending_takeovers_.clear();
  changed_.notify_all();
  while (!dying_.empty() || !handovers_.empty() || destroying_ != 0) changed_.wait(mutex_);
}

std::chrono::milliseconds Leases::idle() const {
  MutexLock lock(mutex_);
  if (!leases_.empty() || opening_ != 0) return {};
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - empty_since_);
}

std::uint64_t Leases::opened() const {
  MutexLock lock(mutex_);
  return opened_;
}

}  // namespace teletensor::server
