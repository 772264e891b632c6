#include "server/peer/moves.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/core/with_memory.h"
#include "server/base/log.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;
using Kind = v1::PeerMove::Kind;

namespace {

// Maximum size of DATA that waits for the worker, in bytes: twice the amount that a source sends
// ahead of ACCEPT.
constexpr std::uint64_t kMaxWaiting = 16ull << 20;

}  // namespace

Moves::Moves(Leases& leases, Recovery& recovery, const Auth& auth, Peers* peers,
             MoveOptions options)
    : leases_(leases),
      recovery_(recovery),
      auth_(auth),
      peers_(peers),
      options_(std::move(options)),
      files_(recovery.on() ? std::optional<MoveFiles>(*recovery.store()) : std::nullopt) {}

Moves::~Moves() {
  stop();
  // Recovery calls back for each session that is being paused, even if the session has ended.
  for (bool rest = true; rest;) {
    worker_.run([&] { rest = !resting_.empty(); });
    if (rest) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void Moves::restore() {
  if (!files_) return;
  for (v1::SavedMove& move : files_->moves()) {
    if (recovery_.store()->exists(move.file())) recovery_.store()->remove(move.file());
    leases_.moved_sessions().gone(move.token(), {move.user(), move.named() ? move.name() : "",
                                                 move.address(), move.socket()});
    std::string id = move.id();
    moved_.emplace(std::move(id), std::move(move));
  }
  for (v1::SavedArrival& arrival : files_->arrivals()) {
    (void)leases_.moved_sessions().expect(arrival.token(), arrival.user(),
                                          arrival.named() ? arrival.name() : "");
    auth_.tokens().expect(arrival.user(), tokens_of(arrival));
    Coming& coming = coming_[arrival.id()];
    coming.peer = arrival.peer();
    coming.arrival = std::move(arrival);
  }
}

void Moves::restored() {
  // A restored session is at this daemon again, so its moved address is obsolete.
  forget_moves([&](const v1::SavedMove& move) { return leases_.table().find(move.token()).ok(); });
  forget_old();
}

void Moves::listens(const std::string& tcp, bool tls, const std::string& socket) {
  address_ = options_.advertise;
  const bool any = tcp.starts_with("0.0.0.0:") || tcp.starts_with("[::]:");
  if (address_.empty() && !tcp.empty() && !any) address_ = (tls ? "tls://" : "") + tcp;
  if (!socket.empty() && peers_ != nullptr && peers_->local()) socket_ = "unix:" + socket;
}

void Moves::stop() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopping_, true)) return;
  }
  worker_.run([&] {
    for (const Delayed& each : std::exchange(delayed_, {})) each.request.done(shutting_down());
    while (!leaving_.empty()) give_up(leaving_.begin()->first, shutting_down(), true);
    for (auto at = coming_.begin(); at != coming_.end();) {
      const std::string id = (at++)->first;
      Coming& coming = coming_[id];
      if (coming.file) {
        say_no(coming.peer, id, Kind::PeerMove_Kind_REFUSE, shutting_down());
        drop(id);
      } else {
        coming.lease.reset();  // The received file is kept for the next daemon.
      }
    }
  });
}

void Moves::met(const std::string& peer) {
  worker_.post([this, peer] { meet(peer); });
}

void Moves::lost(const std::string& peer, const std::string& why) {
  worker_.post([this, peer, why] {
    met_.erase(peer);
    lose(peer, Status(Code::kUnavailable, "the connection to \"" + peer + "\" is lost: " + why));
  });
}

Status Moves::received(const std::string& peer, v1::PeerMove move, std::string data) {
  const std::uint64_t bytes = data.size();
  {
    MutexLock lock(mutex_);
    if (waiting_[peer] + bytes > kMaxWaiting) {
      return core::invalid("the peer sent more of a session's file than was requested");
    }
    waiting_[peer] += bytes;
  }
  worker_.post([this, peer, bytes, move = std::move(move), data = std::move(data)] {
    take(peer, move, data);
    MutexLock lock(mutex_);
    waiting_[peer] -= bytes;
  });
  return {};
}

void Moves::take(const std::string& peer, const v1::PeerMove& move, std::string_view data) {
  const std::string& id = move.id();
  const auto leaving = leaving_.find(id);
  Leaving* const left =
      leaving != leaving_.end() && leaving->second.peer == peer ? &leaving->second : nullptr;
  switch (move.kind()) {
    case v1::PeerMove::OFFER:
      return offered(peer, move);
    case v1::PeerMove::DATA:
      return append(peer, move, data);
    case v1::PeerMove::END:
      return end_of_file(peer, move);
    case v1::PeerMove::COMMIT:
      return arrive(peer, id);
    case v1::PeerMove::ABORT:
      if (const auto found = coming_.find(id);
          found != coming_.end() && found->second.peer == peer) {
        log_info("session_not_arrived", {{"move", id}, {"peer", peer}, {"reason", move.text()}});
        drop(id);
      }
      return;
    case v1::PeerMove::ACCEPT:
      if (left == nullptr) return;
      if (left->phase == Leaving::Phase::kOffered) return rest(id);
      if (left->phase != Leaving::Phase::kSending || move.bytes() > left->sent) return;
      left->taken = std::max(left->taken, move.bytes());
      return send_more(id, *left);
    case v1::PeerMove::REFUSE:
      if (left == nullptr) return;
      return give_up(id,
                     Status(static_cast<Code>(move.code()),
                            "\"" + peer + "\" refuses the session: " + move.text()),
                     false);
    case v1::PeerMove::READY:
      if (left != nullptr && left->ended) return commit(id, move);
      return;
    case v1::PeerMove::COMMITTED:
      return committed(id, peer);
    case v1::PeerMove::ASK:
      return answer_ask(id, peer);
    default:
      return;
  }
}

void Moves::say(const std::string& peer, const std::string& id, Kind kind, std::uint64_t bytes) {
  v1::PeerMove move;
  move.set_kind(kind);
  move.set_id(id);
  move.set_bytes(bytes);
  peers_->send_move(peer, std::move(move));
}

void Moves::say_no(const std::string& peer, const std::string& id, Kind kind, const Status& why) {
  v1::PeerMove move;
  move.set_kind(kind);
  move.set_id(id);
  move.set_code(static_cast<std::uint32_t>(why.code()));
  move.set_text(why.message().substr(0, 2000));
  peers_->send_move(peer, std::move(move));
}

// The peer is connected for the first time, or has restarted. It has forgotten all moves that were
// not committed.
void Moves::meet(const std::string& peer) {
  met_.insert(peer);
  lose(peer, Status(Code::kUnavailable, "\"" + peer + "\" has restarted"));
  for (const auto& [id, move] : moved_) {
    if (move.peer() == peer && !move.committed()) say(peer, id, v1::PeerMove::COMMIT);
  }
  for (const auto& [id, coming] : coming_) {
    if (coming.peer == peer && !coming.file) say(peer, id, v1::PeerMove::ASK);
  }
}

void Moves::lose(const std::string& peer, const Status& why) {
  std::vector<std::string> leave, come;
  for (const auto& [id, leaving] : leaving_) {
    if (leaving.peer == peer) leave.push_back(id);
  }
  for (const auto& [id, coming] : coming_) {
    if (coming.peer == peer && coming.file) come.push_back(id);
  }
  for (const std::string& id : leave) give_up(id, why, true);
  for (const std::string& id : come) drop(id);
}

}  // namespace teletensor::server
