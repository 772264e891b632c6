// The source side of a move.

#include <algorithm>
#include <ctime>
#include <utility>

#include "engine/program/text.h"
#include "server/base/log.h"
#include "server/base/secrets.h"
#include "server/peer/moves.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

// Maximum number of bytes that were sent and that the peer has not acknowledged.
constexpr std::uint64_t kAhead = 8ull << 20;
constexpr std::chrono::milliseconds kPause{50};
constexpr int kTries = 200;  // Number of attempts to pause a session, with kPause between them.
// Minimum time for which the new address is remembered, in seconds.
constexpr std::uint64_t kRemembered = 24 * 3600;
constexpr std::size_t kMaxMoved = 10'000;  // Maximum number of SavedMove records.

std::uint64_t unix_now() { return static_cast<std::uint64_t>(std::time(nullptr)); }

}  // namespace

Status Moves::check_peer(const std::string& peer) const {
  if (peers_ == nullptr) {
    return Status(Code::kFailedPrecondition,
                  "this daemon has no peers to move sessions to (--peer-name, --peers)");
  }
  if (peer == peers_->name()) {
    return core::invalid("\"" + peer + "\" is this daemon itself");
  }
  if (!peers_->knows(peer)) {
    std::string known;
    for (const std::string& each : peers_->peers()) known += (known.empty() ? "" : ", ") + each;
    return core::invalid("\"" + peer + "\" is not one of this daemon's peers (--peers): " + known);
  }
  return {};
}

Status Moves::may_leave(const Lease& lease, const std::string& peer) const {
  TT_RETURN_IF_ERROR(check_peer(peer));
  TT_RETURN_IF_ERROR(recovery_.refusal(lease));
  for (const auto& [id, leaving] : leaving_) {
    if (leaving.lease.get() == &lease) {
      return Status(Code::kAborted,
                    "the session is being moved to \"" + leaving.peer + "\" already");
    }
  }
  if (resting_.contains(&lease)) {
    return Status(Code::kAborted, "the session is being brought to rest for an earlier move");
  }
  return lease.streams().over() ? Status(Code::kAborted, "the session has ended") : Status();
}

bool Moves::linked(const std::string& peer) const {
  return met_.contains(peer) && peers_->connected(peer);
}

void Moves::move(Request request) {
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      const Clock::time_point until = Clock::now() + request.patience;
      return worker_.post([this, request, until] { begin({request, until}); });
    }
  }
  request.done(shutting_down());
}

void Moves::begin(Delayed move) {
  const Request& request = move.request;
  Status refused = may_leave(*request.lease, request.peer);
  {
    MutexLock lock(mutex_);
    if (stopping_) refused = shutting_down();
  }
  if (refused.ok() && !request.wanted()) {
    refused = Status(Code::kCancelled, "the caller has disconnected");
    log_info("move_not_wanted", {{"session", request.lease->client.name},
                                 {"id", request.lease->client.id},
                                 {"peer", request.peer}});
  }
  if (!refused.ok()) return request.done(refused);
  if (linked(request.peer)) return offer(request);
  if (Clock::now() < move.until) {
    delayed_.push_back(std::move(move));
    if (delayed_.size() == 1) worker_.post([this] { begin_delayed(); }, kPause);
    return;
  }
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(request.patience).count();
  request.done(Status(Code::kUnavailable,
                      "there is no connection to the daemon \"" + request.peer + "\" " +
                          (waited == 0 ? "just now" : "after " + std::to_string(waited) + " s")));
}

void Moves::begin_delayed() {
  for (Delayed& each : std::exchange(delayed_, {})) begin(std::move(each));
}

void Moves::offer(const Request& request) {
  const LeaseRef& lease = request.lease;
  const std::string& peer = request.peer;
  const std::string id = make_token();
  if (id.empty()) {
    return request.done(core::internal("the system has no random numbers for a move"));
  }
  v1::PeerMove move;
  move.set_kind(v1::PeerMove::OFFER);
  move.set_id(id);
  v1::PeerOffer& offer = *move.mutable_offer();
  const auto tokens = auth_.tokens().hashes_of(lease->client.user, kMaxMoveTokens);
  if (!tokens.ok()) return request.done(tokens.status());
  const Status asked = lease->with_session([&](engine::Session& session) {
    for (const engine::MemoryUse& use : session.memory()) {
      v1::PeerUse& out = *offer.add_memory();
      out.set_device(core::to_string(use.device));
      out.set_bytes(use.used);
    }
    return Status();
  });
  if (!asked.ok()) return request.done(asked);
  offer.set_user(lease->client.user);
  offer.set_name(lease->client.name);
  offer.set_named(lease->client.named);
  offer.set_version(options_.version);
  offer.set_machine(machine());
  offer.set_asked(lease->client.memory_asked);
  offer.set_by_socket(lease->client.by_socket);
  for (const Tokens::Hashed& each : *tokens) {
    v1::PeerToken& out = *offer.add_tokens();
    out.set_id(each.id);
    out.set_hash(each.hash);
    out.set_created(each.created);
    out.set_expires(each.expires);
  }
  Leaving& leaving = leaving_[id];
  leaving.lease = lease;
  leaving.peer = peer;
  leaving.done = request.done;
  log_info(
      "move_offered",
      {{"move", id}, {"session", lease->client.name}, {"id", lease->client.id}, {"peer", peer}});
  peers_->send_move(peer, std::move(move));
}

void Moves::rest(const std::string& id) {
  Leaving& leaving = leaving_.at(id);
  leaving.phase = Leaving::Phase::kResting;
  leaving.still = Clock::now();
  resting_.insert(leaving.lease.get());
  recovery_.rest(leaving.lease,
                 [this, id, lease = leaving.lease](const core::Result<SnapshotFacts>& facts) {
                   worker_.post([this, id, lease, facts] { rested(id, lease, facts); });
                 });
}

void Moves::rested(const std::string& id, const LeaseRef& lease,
                   const core::Result<SnapshotFacts>& facts) {
  resting_.erase(lease.get());
  const auto found = leaving_.find(id);
  if (found == leaving_.end()) {  // The move was cancelled meanwhile.
    if (facts.ok()) Recovery::resume(*lease);
    return;
  }
  Leaving& leaving = found->second;
  if (!facts.ok() && facts.status().code() == Code::kAborted && ++leaving.tries < kTries) {
    return worker_.post(
        [this, id] {
          if (leaving_.contains(id)) rest(id);
        },
        kPause);
  }
  Status status = facts.status();
  if (status.ok() && facts->common) {
    status = Status(Code::kFailedPrecondition,
                    "the session uses published tensors, which other sessions of this daemon may "
                    "use as well: withdraw and release them first (publish(name, None))");
  }
  if (status.ok() && facts->lost > 0) {
    status = Status(Code::kDataLoss, "some of the session's tensors cannot be read");
  }
  if (status.ok()) {
    auto file = MoveFile::open(recovery_.store()->path_of(lease->saved().name()));
    status = file.status();
    if (file.ok()) leaving.file = std::move(*file);
  }
  if (facts.ok()) leaving.phase = Leaving::Phase::kSending;
  if (!status.ok()) return give_up(id, status, true);
  leaving.bytes = facts->bytes;
  log_info("move_sending", {{"move", id}, {"bytes", leaving.file->size()}});
  send_more(id, leaving);
}

void Moves::send_more(const std::string& id, Leaving& leaving) {
  const std::uint64_t size = leaving.file->size();
  while (leaving.sent < size && leaving.sent - leaving.taken < kAhead) {
    const auto part =
        static_cast<std::size_t>(std::min<std::uint64_t>(size - leaving.sent, kMaxMoveData));
    auto bytes = leaving.file->read(leaving.sent, part);
    if (!bytes.ok()) return give_up(id, bytes.status(), true);
    v1::PeerMove move;
    move.set_kind(v1::PeerMove::DATA);
    move.set_id(id);
    move.set_bytes(leaving.sent);
    leaving.sent += part;
    peers_->send_move(leaving.peer, std::move(move), std::move(*bytes));
  }
  if (leaving.sent < size || std::exchange(leaving.ended, true)) return;
  say(leaving.peer, id, v1::PeerMove::END, size);
}

void Moves::commit(const std::string& id, const v1::PeerMove& ready) {
  Leaving& leaving = leaving_.at(id);
  Lease& lease = *leaving.lease;
  if (lease.streams().over() || lease.saved().handed_on()) {
    return give_up(id, Status(Code::kAborted, "the session has ended, or has another client"),
                   true);
  }
  const MovedSessions::Place place{lease.client.user, lease.client.named ? lease.client.name : "",
                                   ready.address(), ready.socket()};
  const std::string& told = place.for_client(lease.client.by_socket);
  if (told.empty()) {
    return give_up(id, Status(Code::kInternal, "the peer has not said where clients reach it"),
                   true);
  }
  v1::SavedMove move;
  move.set_id(id);
  move.set_peer(leaving.peer);
  move.set_address(place.address.empty() ? place.socket : place.address);
  move.set_socket(place.socket);
  move.set_token(lease.token);
  move.set_user(lease.client.user);
  move.set_name(lease.client.name);
  move.set_named(lease.client.named);
  move.set_file(lease.saved().name());
  move.set_session(lease.client.id);
  move.set_until(
      unix_now() +
      std::max<std::uint64_t>(kRemembered, static_cast<std::uint64_t>(lease.client.lease.count())));
  forget_old();
  if (const Status saved = files_->save(move); !saved.ok()) {
    files_->forget_move(id);
    return give_up(id, saved, true);
  }
  // From here on the session belongs to the peer, unless its client has just ended it.
  leases_.moved_sessions().gone(lease.token,
                                {place.user, place.name, move.address(), place.socket});
  if (!leases_.move_away(lease, told)) {
    leases_.moved_sessions().forget(lease.token);
    files_->forget_move(id);
    return give_up(id, Status(Code::kAborted, "the session has ended, or has another client"),
                   true);
  }
  const MoveFacts facts{told, leaving.bytes,
                        std::chrono::duration<double>(Clock::now() - leaving.still).count()};
  log_info("session_moved", {{"move", id},
                             {"session", lease.client.name},
                             {"id", lease.client.id},
                             {"peer", leaving.peer},
                             {"address", told},
                             {"bytes", facts.bytes},
                             {"seconds", facts.seconds}});
  say(leaving.peer, id, v1::PeerMove::COMMIT);
  const Done done = std::move(leaving.done);
  leaving_.erase(id);
  moved_.emplace(id, std::move(move));
  done(facts);
}

void Moves::committed(const std::string& id, const std::string& peer) {
  const auto found = moved_.find(id);
  if (found == moved_.end() || found->second.peer() != peer || found->second.committed()) return;
  found->second.set_committed(true);
  // The peer will send the message again.
  if (const Status saved = files_->save(found->second); !saved.ok()) {
    log_warn("move_not_noted", {{"move", id}, {"reason", saved.message()}});
  }
  log_info("move_committed", {{"move", id}, {"peer", peer}});
}

void Moves::answer_ask(const std::string& id, const std::string& peer) {
  if (!files_) return;  // Another daemon that uses the directory may know the move.
  const auto found = moved_.find(id);
  if (found != moved_.end() && found->second.peer() == peer) {
    return say(peer, id, v1::PeerMove::COMMIT);
  }
  if (leaving_.contains(id)) return;  // The peer will receive an answer when the move is decided.
  say_no(peer, id, v1::PeerMove::ABORT, Status(Code::kAborted, "the session stayed at its daemon"));
}

void Moves::give_up(std::string id, const Status& why, bool tell_peer) {
  const auto found = leaving_.find(id);
  Leaving leaving = std::move(found->second);
  leaving_.erase(found);
  if (tell_peer) say_no(leaving.peer, id, v1::PeerMove::ABORT, why);
  // A session that is still being paused is resumed in rested().
  if (leaving.phase == Leaving::Phase::kSending) Recovery::resume(*leaving.lease);
  log_warn("session_not_moved", {{"move", id},
                                 {"session", leaving.lease->client.name},
                                 {"id", leaving.lease->client.id},
                                 {"peer", leaving.peer},
                                 {"reason", program::shortened(why.message(), kPeerReason)}});
  leaving.done(why);
}

void Moves::forget_moves(const std::function<bool(const v1::SavedMove&)>& over) {
  for (auto at = moved_.begin(); at != moved_.end();) {
    if (!over(at->second)) {
      ++at;
      continue;
    }
    leases_.moved_sessions().forget(at->second.token());
    files_->forget_move(at->first);
    at = moved_.erase(at);
  }
}

void Moves::forget_old() {
  const std::uint64_t now = unix_now();
  forget_moves([&](const v1::SavedMove& move) {
    return move.committed() && (move.until() < now || moved_.size() > kMaxMoved);
  });
}

}  // namespace teletensor::server
