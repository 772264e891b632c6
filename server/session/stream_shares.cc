#include "server/session/stream_shares.h"

#include <algorithm>

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

Status too_many(const std::string& whose, std::size_t most) {
  return Status(Code::kResourceExhausted,
                "too many streams: " + whose + " may have " + std::to_string(most) + " now");
}

}  // namespace

std::size_t StreamShares::most_of_a_session(Kind kind) const {
  return kind == Kind::kRun ? kRunsOfASession : std::max<std::size_t>(streams_ / 8, 1);
}

// The number of streams that may still be opened for this kind of stream.
std::size_t StreamShares::free_streams(Kind kind) const {
  const std::size_t free = streams_ - std::min(streams_, runs_ + transfers_);
  if (kind == Kind::kRun) return free;
  const std::size_t share = streams_ - streams_ / 4;
  return std::min(free, share - std::min(share, transfers_));
}

core::Result<StreamShares::Place> StreamShares::enter(const std::string& user,
                                                      std::uint64_t session, Kind kind) {
  const bool transfers = kind == Kind::kTransfer;
  const MutexLock lock(mutex_);
  const std::size_t free = free_streams(kind);
  if (free == 0) return Status(Code::kResourceExhausted, "too many streams of all users");
  const auto of_user = users_.find(user);
  const std::size_t used = of_user == users_.end() ? 0 : of_user->second;
  if (transfers && 2 * used >= free) return too_many("user " + user, used);
  const auto of_session = sessions_.find({session, kind});
  const std::size_t most = most_of_a_session(kind);
  if (of_session != sessions_.end() && of_session->second >= most) {
    return too_many("a session", most);
  }
  // Entries are made first, because only that can fail for lack of memory.
  std::size_t* const of_its_user = transfers ? &users_[user] : nullptr;
  std::size_t& of_its_session = sessions_[{session, kind}];
  Place place(this, user, session, kind);
  if (transfers) ++*of_its_user;
  ++of_its_session;
  ++(transfers ? transfers_ : runs_);
  return place;
}

void StreamShares::leave(const Place& place) {
  const MutexLock lock(mutex_);
  const auto session = sessions_.find({place.session_, place.kind_});
  if (--session->second == 0) sessions_.erase(session);
  if (place.kind_ == Kind::kRun) {
    --runs_;
    return;
  }
  --transfers_;
  const auto user = users_.find(place.user_);
  if (--user->second == 0) users_.erase(user);
}

}  // namespace teletensor::server
