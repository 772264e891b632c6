#include "server/session/leases/lease_table.h"

#include <algorithm>

#include "engine/core/memory/reserve.h"
#include "teletensor/v1/state.pb.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

constexpr std::size_t kTombstones = 256;

}  // namespace

Status shutting_down() { return Status(Code::kUnavailable, "the server is shutting down"); }

core::Result<LeaseRef> LeaseTable::find(std::string_view token, std::string* word) const {
  MutexLock lock(mutex_);
  if (const auto it = leases_.find(std::string(token)); it != leases_.end()) return it->second;
  if (Status elsewhere = moved_.of(token, word); !elsewhere.ok()) return elsewhere;
  for (const auto& [dead, ending] : tombstones_) {
    if (dead != token) continue;
    if (word) *word = ending.word;
    return Status(Code::kAborted, "the session has ended: " + ending.status.message());
  }
  if (word) *word = "unknown";
  return Status(Code::kNotFound, "no session has this token");
}

LeaseRef LeaseTable::find_id(std::uint64_t id) const {
  MutexLock lock(mutex_);
  for (const auto& [token, lease] : leases_) {
    if (lease->client.id == id) return lease;
  }
  return nullptr;
}

LeaseRef LeaseTable::find_name(std::string_view user, std::string_view name) const {
  MutexLock lock(mutex_);
  for (const auto& [token, lease] : leases_) {
    if (lease->client.named && lease->client.user == user && lease->client.name == name) {
      return lease;
    }
  }
  return nullptr;
}

std::vector<LeaseRef> LeaseTable::all() const {
  MutexLock lock(mutex_);
  std::vector<LeaseRef> leases;
  for (const auto& [token, lease] : leases_) leases.push_back(lease);
  return leases;
}

std::chrono::milliseconds LeaseTable::idle() const {
  MutexLock lock(mutex_);
  if (count() != 0) return {};
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - empty_since_);
}

std::uint64_t LeaseTable::opened() const {
  MutexLock lock(mutex_);
  return opened_;
}

// Returns an error if there is no room for one more session of the user.
Status LeaseTable::room_for(const std::string& user) const {
  if (closed_) return shutting_down();
  if (!no_new_.empty()) {
    return Status(Code::kFailedPrecondition, "this daemon opens no new sessions: " + no_new_);
  }
  if (count() >= limits_.sessions) {
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

std::size_t LeaseTable::sessions_of(std::string_view user) const {
  std::size_t own = opening_.count(std::string(user));
  for (const auto& [token, lease] : leases_) own += lease->client.user == user;
  return own;
}

core::Result<LeaseTable::Place> LeaseTable::reserve(const std::string& user) {
  MutexLock lock(mutex_);
  TT_RETURN_IF_ERROR(room_for(user));
  const core::UsesReserve reserve;  // The user counts in both places or in none.
  opening_.insert(user);
  return Place(this, user, ++opened_);
}

void LeaseTable::give_up(const Place& place) {
  MutexLock lock(mutex_);
  opening_.erase(opening_.find(place.user_));
}

Status LeaseTable::add(const LeaseRef& lease, Place place) {
  MutexLock lock(mutex_);
  place.table_ = nullptr;
  opening_.erase(opening_.find(place.user_));
  if (closed_) return shutting_down();
  leases_.emplace(lease->token, lease);
  return {};
}

Status LeaseTable::admit(const LeaseRef& lease) {
  MutexLock lock(mutex_);
  if (closed_) return shutting_down();
  if (!leases_.emplace(lease->token, lease).second) return core::invalid("a second one");
  return {};
}

Status LeaseTable::add_taken_over(const LeaseRef& lease) {
  MutexLock lock(mutex_);
  leases_.emplace(lease->token, lease);
  return closed_ ? shutting_down() : Status();
}

std::uint64_t LeaseTable::claim_number(std::uint64_t wanted) {
  MutexLock lock(mutex_);
  const bool taken = std::any_of(leases_.begin(), leases_.end(), [&](const auto& each) {
    return each.second->client.id == wanted;
  });
  const std::uint64_t number = taken || wanted == 0 ? opened_ + 1 : wanted;
  opened_ = std::max(opened_, number);
  return number;
}

Status LeaseTable::check_room(const std::string& user) const {
  MutexLock lock(mutex_);
  return room_for(user);
}

bool LeaseTable::full(std::string_view user) const {
  const std::size_t most = limits_of(limits_, user).sessions;
  MutexLock lock(mutex_);
  return count() >= limits_.sessions || (most != 0 && sessions_of(user) >= most);
}

void LeaseTable::remove(const Lease& lease, const Ending& ending,
                        const std::function<void(LeaseRef)>& keep) {
  MutexLock lock(mutex_);
  const auto it = leases_.find(lease.token);
  if (it == leases_.end()) return;
  keep(std::move(it->second));
  leases_.erase(it);
  if (leases_.empty()) empty_since_ = Clock::now();
  remember_ending(lease.token, ending);
}

void LeaseTable::remember_ending(const std::string& token, Ending ending) {
  tombstones_.emplace_back(token, std::move(ending));
  if (tombstones_.size() > kTombstones) tombstones_.pop_front();
}

void LeaseTable::close() {
  MutexLock lock(mutex_);
  closed_ = true;
}

bool LeaseTable::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

void LeaseTable::refuse_new(std::string why) {
  MutexLock lock(mutex_);
  no_new_ = std::move(why);
}

void LeaseTable::refuse(const v1::SavedHead& head, Status why, std::string word,
                        std::function<bool()> holds) {
  MutexLock lock(mutex_);
  if (!head.token().empty()) remember_ending(head.token(), {why, std::move(word)});
  if (head.named()) {
    refused_.insert_or_assign({head.user(), head.name()},
                              Refusal{std::move(why), std::move(holds)});
  }
}

Status LeaseTable::refusal(const std::string& user, const std::string& name) {
  MutexLock lock(mutex_);
  const auto found = refused_.find({user, name});
  if (found == refused_.end()) return {};
  if (found->second.holds()) return found->second.why;
  refused_.erase(found);
  return {};
}

}  // namespace teletensor::server
