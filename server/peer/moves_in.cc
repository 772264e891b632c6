// The target side of a move.

#include <algorithm>
#include <bit>
#include <charconv>
#include <utility>

#include "engine/core/with_memory.h"
#include "server/base/log.h"
#include "server/base/os/listen.h"
#include "server/base/os/users.h"
#include "server/peer/moves.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

// Maximum number of sessions that arrive from one peer at the same time.
constexpr std::size_t kMaxComing = 8;

// Returns true if version `a`, such as "1.10.2", is later than `b`.
bool is_later(std::string_view a, std::string_view b) {
  while (!a.empty() || !b.empty()) {
    std::uint64_t numbers[2] = {0, 0};
    std::string_view* const texts[2] = {&a, &b};
    for (int i = 0; i < 2; ++i) {
      const char* const end = texts[i]->data() + texts[i]->size();
      (void)std::from_chars(texts[i]->data(), end, numbers[i]);
      const std::size_t dot = texts[i]->find('.');
      *texts[i] = dot == std::string_view::npos ? std::string_view() : texts[i]->substr(dot + 1);
    }
    if (numbers[0] != numbers[1]) return numbers[0] > numbers[1];
  }
  return false;
}

}  // namespace

std::string machine() {
  return std::endian::native == std::endian::little ? "little-endian" : "big-endian";
}

Status Moves::may_come(const std::string& peer, const v1::PeerOffer& offer) {
  const auto& from = options_.from;
  if (std::find(from.begin(), from.end(), peer) == from.end()) {
    return Status(Code::kPermissionDenied,
                  "it takes no sessions from \"" + peer + "\" (--move-from)");
  }
  if (!files_) {
    return Status(
        Code::kFailedPrecondition,
        "it does not save sessions: it has no state directory of its own that it can write, or "
        "was started with --restart 0 or --lease 0");
  }
  if (is_later(offer.version(), options_.version)) {
    return Status(Code::kFailedPrecondition, "it is of version " + options_.version +
                                                 ", which may not know what version " +
                                                 offer.version() + " has written");
  }
  if (offer.machine() != machine()) {
    return Status(
        Code::kFailedPrecondition,
        "it runs on a " + machine() + " machine, and the session on a " + offer.machine() + " one");
  }
  if (!good_user(offer.user())) return core::invalid("no user's name");
  TT_RETURN_IF_ERROR(has_way_in(offer));
  std::map<std::string, std::uint64_t> bytes;
  const auto devices = leases_.engine().devices();
  for (const v1::PeerUse& use : offer.memory()) {
    if (use.bytes() == 0) continue;
    bytes[use.device()] += use.bytes();
    if (std::none_of(devices.begin(), devices.end(), [&](const core::Device& device) {
          return core::to_string(device) == use.device();
        })) {
      return Status(Code::kFailedPrecondition, "it has no device " + use.device());
    }
  }
  TT_RETURN_IF_ERROR(leases_.room_for(
      offer.user(), limits_of(leases_.limits(), offer.user()).quota(offer.asked()), bytes));
  if (offer.named() && leases_.table().find_name(offer.user(), offer.name()) != nullptr) {
    return Status(Code::kAlreadyExists, offer.user() + " has a session \"" + offer.name() +
                                            "\" there already: close or rename one of them");
  }
  return {};
}

// Checks whether the session's client will be able to connect to this daemon.
Status Moves::has_way_in(const v1::PeerOffer& offer) const {
  if (address_.empty() && socket_.empty()) {
    return Status(Code::kFailedPrecondition,
                  "it does not know at which address clients reach it (--advertise)");
  }
  if (offer.by_socket()) {
    const bool known = offer.user() == auth_.own_user() || options_.socket_users;
    if (!socket_.empty() && known) return {};
    return Status(
        Code::kFailedPrecondition,
        "the session's program has connected through a UNIX socket, without a token, and cannot "
        "connect there: let it connect with a token");
  }
  if (address_.empty()) {
    return Status(Code::kFailedPrecondition,
                  "it does not know at which address clients reach it (--advertise)");
  }
  if (offer.user() == kAnonymous) {
    if (options_.anonymous && is_loopback(address_)) return {};
    return Status(Code::kFailedPrecondition,
                  "it has no anonymous users (--allow-anonymous), and the session is one's");
  }
  if (!offer.tokens().empty() || options_.certificate_users) return {};
  return Status(Code::kFailedPrecondition,
                offer.user() + " has no token, and cannot connect there without one");
}

void Moves::offered(const std::string& peer, const v1::PeerMove& move) {
  const std::string& id = move.id();
  const v1::PeerOffer& offer = move.offer();
  const auto coming = std::count_if(coming_.begin(), coming_.end(),
                                    [&](const auto& each) { return each.second.peer == peer; });
  Status status = may_come(peer, offer);
  {
    MutexLock lock(mutex_);
    if (stopping_) status = shutting_down();
  }
  if (status.ok() && std::cmp_greater_equal(coming, kMaxComing)) {
    status = Status(Code::kResourceExhausted,
                    std::to_string(coming) + " sessions are already being moved to it");
  }
  if (status.ok() && coming_.contains(id)) status = core::invalid("a second offer");
  std::unique_ptr<MoveFile> file;
  if (status.ok()) {
    auto made = MoveFile::make(recovery_.store()->path_of(MoveFiles::arriving(id)));
    status = made.status();
    if (made.ok()) file = std::move(*made);
  }
  if (!status.ok()) {
    log_warn("session_refused", {{"peer", peer},
                                 {"session", offer.name()},
                                 {"user", offer.user()},
                                 {"reason", status.message()}});
    return say_no(peer, id, v1::PeerMove::REFUSE, status);
  }
  Coming& added = coming_[id];
  added.peer = peer;
  added.offer = offer;
  added.file = std::move(file);
  say(peer, id, v1::PeerMove::ACCEPT);
}

void Moves::append(const std::string& peer, const v1::PeerMove& move, std::string_view data) {
  const auto found = coming_.find(move.id());
  if (found == coming_.end() || found->second.peer != peer || !found->second.file) return;
  MoveFile& file = *found->second.file;
  Status status = move.bytes() == file.size()
                      ? Status()
                      : core::invalid("the bytes of the session's file arrived out of order");
  if (status.ok()) {
    status = recovery_.state_use().fits(MoveFiles::session(move.id()), found->second.offer.user(),
                                        file.size() + data.size());
  }
  if (status.ok()) status = file.append(data);
  if (status.ok()) return say(peer, move.id(), v1::PeerMove::ACCEPT, file.size());
  say_no(peer, move.id(), v1::PeerMove::REFUSE, status);
  drop(move.id());
}

void Moves::end_of_file(const std::string& peer, const v1::PeerMove& move) {
  const std::string& id = move.id();
  const auto found = coming_.find(id);
  if (found == coming_.end() || found->second.peer != peer || !found->second.file) return;
  Coming& coming = found->second;
  const Status status = core::with_memory("a session that comes",
                                          [&] { return make_ready(id, coming, move.bytes()); });
  if (!status.ok()) {
    say_no(peer, id, v1::PeerMove::REFUSE, status);
    return drop(id);
  }
  v1::PeerMove ready;
  ready.set_kind(v1::PeerMove::READY);
  ready.set_id(id);
  ready.set_address(address_);
  ready.set_socket(socket_);
  peers_->send_move(peer, std::move(ready));
}

// Creates the session, so that nothing can fail afterwards, and records that the arrival is
// complete.
Status Moves::make_ready(const std::string& id, Coming& coming, std::uint64_t bytes) {
  if (coming.file->size() != bytes) return core::invalid("the session's file is incomplete");
  TT_RETURN_IF_ERROR(coming.file->sync());
  core::Result<LeaseRef> made = recovery_.load_session(MoveFiles::arriving(id), true);
  if (!made.ok()) return made.status();
  const LeaseRef lease = std::move(*made);
  const ClientInfo& client = lease->client;
  const v1::PeerOffer& offer = coming.offer;
  if (client.user != offer.user() || client.name != offer.name() || client.named != offer.named()) {
    return core::invalid("the file belongs to another session than the offer");
  }
  if (leases_.table().find(lease->token).ok()) {
    return core::invalid("the session already exists on this daemon");
  }
  TT_RETURN_IF_ERROR(may_come(coming.peer, offer));  // Other sessions may have arrived meanwhile.
  v1::SavedArrival& arrival = coming.arrival;
  arrival.set_id(id);
  arrival.set_peer(coming.peer);
  arrival.set_user(client.user);
  arrival.set_name(client.name);
  arrival.set_named(client.named);
  arrival.set_token(lease->token);
  for (const v1::PeerToken& each : offer.tokens()) {
    v1::SavedToken& token = *arrival.add_tokens();
    token.set_id(each.id());
    token.set_hash(each.hash());
    token.set_created(each.created());
    token.set_expires(each.expires());
  }
  auth_.tokens().expect(client.user, tokens_of(arrival));
  if (!leases_.moved_sessions().expect(lease->token, client.user,
                                       client.named ? client.name : "")) {
    return Status(Code::kAlreadyExists, "another session \"" + client.name + "\" of " +
                                            client.user + " is already being moved here");
  }
  (void)lease->set_file(MoveFiles::session(id), lease->saved().upto());
  coming.lease = lease;
  TT_RETURN_IF_ERROR(files_->save(arrival));
  coming.file.reset();
  return {};
}

void Moves::arrive(const std::string& peer, const std::string& id) {
  const auto found = coming_.find(id);
  if (found == coming_.end()) {  // The session arrived before, and the answer was lost.
    if (files_) say(peer, id, v1::PeerMove::COMMITTED);
    return;
  }
  Coming& coming = found->second;
  if (coming.peer != peer || coming.file) return;
  {
    MutexLock lock(mutex_);
    // The daemon is shutting down; the next daemon receives the message again.
    if (stopping_) return;
  }
  if (const Status status = take_in(id, coming); !status.ok()) {
    log_error("session_not_arrived", {{"move", id}, {"peer", peer}, {"reason", status.message()}});
    worker_.post([this, peer, id] { arrive(peer, id); }, std::chrono::milliseconds(1000));
    return;
  }
  coming_.erase(found);
  say(peer, id, v1::PeerMove::COMMITTED);
}

Status Moves::take_in(const std::string& id, Coming& coming) {
  const v1::SavedArrival& arrival = coming.arrival;
  const std::vector<Tokens::Hashed> tokens = tokens_of(arrival);
  TT_RETURN_IF_ERROR(auth_.tokens().adopt(arrival.user(), tokens));
  TT_RETURN_IF_ERROR(files_->take(id));
  const std::string file = MoveFiles::session(id);
  recovery_.state_use().set(file, arrival.user(), recovery_.store()->size_of(file));
  const LeaseRef lease = std::move(coming.lease);
  if (lease) {
    TT_RETURN_IF_ERROR(leases_.table().admit(lease));
  } else {
    recovery_.restore_file(MoveFiles::session(id));
  }
  leases_.moved_sessions().arrived(arrival.token());
  auth_.tokens().disregard(tokens);
  // The session may have moved away from this daemon earlier.
  leases_.moved_sessions().forget(arrival.token());
  forget_moves([&](const v1::SavedMove& move) { return move.token() == arrival.token(); });
  files_->forget_arrival(id);
  log_info("session_arrived", {{"move", id},
                               {"session", arrival.name()},
                               {"id", lease ? lease->client.id : 0},
                               {"user", arrival.user()},
                               {"peer", coming.peer}});
  return {};
}

void Moves::drop(const std::string& id) {
  const auto found = coming_.find(id);
  if (found == coming_.end()) return;
  const v1::SavedArrival& arrival = found->second.arrival;
  if (!arrival.token().empty()) {
    leases_.moved_sessions().arrived(arrival.token());
    auth_.tokens().disregard(tokens_of(arrival));
  }
  coming_.erase(found);
  files_->forget_arrival(id);
}

}  // namespace teletensor::server
