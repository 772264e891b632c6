#include "server/session/leases/leases.h"

#include <utility>

#include "engine/core/memory/reserve.h"
#include "server/access/auth.h"
#include "server/base/log.h"
#include "server/session/lease/saved_client.h"

namespace teletensor::server {

using core::Code;
using core::Status;

namespace {

constexpr std::size_t kToken = 32;

}  // namespace

Leases::Leases(engine::Engine& engine, const Limits& limits) : engine_(engine), limits_(limits) {}

Leases::~Leases() { shutdown(); }

LeaseRef Leases::make(std::string token, std::string ticket, ClientInfo client) {
  return std::make_shared<Lease>(this, std::move(token), std::move(ticket), std::move(client),
                                 limits_);
}

core::Result<LeaseRef> Leases::open(ClientInfo client) {
  while (table_.full(client.user) && evict_one(client.user)) {
  }
  core::Result<LeaseTable::Place> place = table_.reserve(client.user);
  if (!place.ok()) return place.status();
  client.id = place->number;
  if (client.name.empty()) client.name = "session-" + std::to_string(client.id);
  std::string token = make_token();
  if (token.empty()) return core::internal("the system has no random numbers for a token");
  const engine::SessionOptions options = options_of(client);
  const LeaseRef lease = make(std::move(token), make_token(), std::move(client));
  auto relay = std::make_unique<Relay>(lease.get(), &lease->outbox());
  auto session = engine_.open(options, relay.get());
  if (!session.ok()) return session.status();
  lease->held().hold({std::move(relay), std::move(*session)});
  TT_RETURN_IF_ERROR(table_.add(lease, std::move(*place)));
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
  options.templates = limits_.templates;
  return options;
}

bool Leases::evict_one(const std::string& user) {
  LeaseRef oldest;
  Clock::time_point since{};
  for (const LeaseRef& lease : table_.all()) {
    if (lease->client.user != user) continue;
    const Clock::time_point left = lease->unused_since();
    if (left == Clock::time_point{} || Clock::now() - left < limits_.safe ||
        (oldest && left >= since)) {
      continue;
    }
    if (lease->client.named || lease->busy()) continue;
    oldest = lease;
    since = left;
  }
  if (!oldest) return false;
  end(*oldest, Status(Code::kResourceExhausted, "a new session needed the place of a detached one"),
      "evicted");
  return true;
}

std::function<void(LeaseRef)> Leases::to_reaper() {
  return [this](LeaseRef lease) { reaper_.destroy(std::move(lease)); };
}

void Leases::end(Lease& lease, Status reason, std::string word) {
  (void)retire(lease, {std::move(reason), std::move(word)}, to_reaper());
}

bool Leases::retire(Lease& lease, const Ending& ending,
                    const std::function<void(LeaseRef)>& keep) noexcept {
  const core::UsesReserve reserve;
  const auto calls = lease.streams().end(ending);
  if (!calls) return false;
  // The client learns the reason, not that its queued commands were cancelled.
  lease.outbox().close();
  counters_.ended(ending.status.code(), ending.word);
  log_info("session_ended", {{"session", lease.client.name},
                             {"why", ending.word},
                             {"code", static_cast<int>(ending.status.code())},
                             {"reason", ending.status.message()}});
  table_.remove(lease, ending, keep);
  for (const auto& weak : *calls) lingering_.add(weak);
  if (const std::string file = lease.saved().name();
      !file.empty() && lease.streams().over() && on_over) {
    on_over(file);
  }
  for (const auto& weak : *calls) {
    if (const auto call = weak.lock()) call->lease_ended(ending);
  }
  return true;
}

bool Leases::move_away(Lease& lease, const std::string& address) {
  // UNAVAILABLE, because uploads and downloads receive no reason word; with this code their clients
  // continue at the new daemon.
  return retire(lease, {Status(Code::kUnavailable, "the session has moved to " + address), "moved"},
                to_reaper());
}

Status Leases::room_for(const std::string& user, std::uint64_t quota,
                        const std::map<std::string, std::uint64_t>& bytes) {
  TT_RETURN_IF_ERROR(table_.check_room(user));
  std::map<std::string, std::uint64_t> used;
  for (const LeaseRef& lease : table_.all()) {
    if (lease->client.user != user) continue;
    (void)lease->with_session([&](engine::Session& session) {
      for (const engine::MemoryUse& use : session.memory()) {
        used[core::to_string(use.device)] += use.used;
      }
      return Status();
    });
  }
  const std::uint64_t most = limits_of(limits_, user).memory;
  for (const auto& [device, wanted] : bytes) {
    const std::string what = std::to_string(wanted) + " bytes on " + device;
    if (quota != 0 && wanted > quota) {
      return Status(Code::kResourceExhausted, "the session has " + what + ", and one session of " +
                                                  user + " may have " + std::to_string(quota) +
                                                  " (limit session_memory)");
    }
    if (most != 0 && (wanted > most || used[device] > most - wanted)) {
      return Status(Code::kResourceExhausted, "the session has " + what + ", where " + user +
                                                  " has " + std::to_string(used[device]) +
                                                  " and may have " + std::to_string(most) +
                                                  " (limit user_memory)");
    }
  }
  return {};
}

core::Result<LeaseRef> Leases::restore(const v1::SavedHead& head, const v1::SavedBody& body,
                                       program::Image image, const engine::Engine::ReadBytes& read,
                                       const std::string& file) {
  if (head.token().size() != kToken || body.lease_seconds() == 0 || image.next_seq == 0) {
    return core::invalid("no session");
  }
  core::Result<ClientInfo> client = saved_client(head, body, limits_, engine_.catalog());
  if (!client.ok()) return client.status();
  client->id = table_.claim_number(client->id);
  const LeaseRef lease = make(head.token(), body.ticket(), std::move(*client));
  auto relay = std::make_unique<Relay>(lease.get(), &lease->outbox());
  auto session = engine_.restore(options_of(lease->client), relay.get(), std::move(image), read);
  if (!session.ok()) return session.status();
  lease->held().hold({std::move(relay), std::move(*session)});
  lease->restore(head, body, file);
  return lease;
}

void Leases::shutdown(const std::function<bool(const Lease&)>& stay) {
  table_.close();
  for (const LeaseRef& lease : table_.all()) {
    if (stay && stay(*lease)) {
      end(*lease, Status(Code::kUnavailable, "the daemon restarts, and has kept the session"),
          "restart");
    } else {
      end(*lease, Status(Code::kUnavailable, "the server shuts down"), "daemon");
    }
  }
  takeovers_.abandon();
  reaper_.drain();
}

}  // namespace teletensor::server
