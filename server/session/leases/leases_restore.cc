// Restores sessions from the files of an earlier daemon.

#include <algorithm>
#include <utility>

#include "server/session/image_codec.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

constexpr std::size_t kToken = 32;
constexpr std::uint32_t kUnnamedProtocol = 2;

// Files of daemons that spoke one protocol only do not name it.
std::uint32_t protocol_of(const v1::SavedBody& body) {
  return body.protocol() == 0 ? kUnnamedProtocol : body.protocol();
}

ClientInfo client_of(const v1::SavedHead& head, const v1::SavedBody& body, const Limits& limits,
                     const ops::Catalog& catalog) {
  ClientInfo client;
  client.name = head.name();
  client.named = head.named();
  client.version = body.client_version();
  client.instance = body.instance();
  client.user = head.user();
  client.by_socket = body.by_socket();
  client.thin = body.thin();
  client.protocol = protocol_of(body);
  client.id = head.id();
  client.attach_counter = body.attach();
  const UserLimits user = limits_of(limits, head.user());
  client.memory_asked = body.memory_quota();
  client.memory_quota = user.quota(client.memory_asked);
  // The limits that its client knows, which may differ from those of this daemon.
  client.limits = user.amounts;
  for (int i = 0; i < std::min<int>(body.limits_size(), program::kAmountFields.size()); ++i) {
    client.limits.*program::kAmountFields[static_cast<std::size_t>(i)].field = body.limits(i);
  }
  client.lease = std::chrono::seconds(body.lease_seconds());
  std::map<std::string, program::OpId> known;
  for (std::size_t id = 0; id < catalog.size(); ++id) {
    const auto op = static_cast<program::OpId>(id);
    known.emplace(op_title(catalog.at(op)), op);
  }
  for (const std::string& name : body.op_names()) {
    const auto found = known.find(name);
    client.ops.push_back(found == known.end() ? wire::FrameReader::kNoOp : found->second);
    client.op_names.push_back(name);
  }
  return client;
}

}  // namespace

core::Result<LeaseRef> Leases::restore(v1::SavedHead head, const v1::SavedBody& body,
                                       program::Image image, const engine::Engine::ReadBytes& read,
                                       const std::string& file) {
  if (head.token().size() != kToken || body.lease_seconds() == 0 || image.next_seq == 0) {
    return core::invalid("no session");
  }
  const std::uint32_t protocol = protocol_of(body);
  if (wire::common_protocol(protocol, protocol) == 0) {
    return Status(Code::kFailedPrecondition, "the session's client speaks protocol " +
                                                 std::to_string(protocol) +
                                                 ", which this daemon does not");
  }
  {
    MutexLock lock(mutex_);
    const bool taken = std::any_of(leases_.begin(), leases_.end(), [&](const auto& each) {
      return each.second->client.id == head.id();
    });
    if (taken || head.id() == 0) head.set_id(opened_ + 1);
    opened_ = std::max(opened_, head.id());
  }
  auto lease = std::make_shared<Lease>(this, head.token(), body.ticket(),
                                       client_of(head, body, limits_, engine_.catalog()), limits_);
  lease->relay_ = std::make_unique<Relay>(lease.get(), &lease->outbox());
  auto session =
      engine_.restore(options_of(lease->client), lease->relay_.get(), std::move(image), read);
  if (!session.ok()) return session.status();
  lease->session_ = std::move(*session);
  lease->restore(head, body, file);
  return lease;
}

Status Leases::admit(const LeaseRef& lease) {
  MutexLock lock(mutex_);
  if (closed_) return shutting_down();
  if (!leases_.emplace(lease->token, lease).second) return core::invalid("a second one");
  return {};
}

bool Leases::move_away(Lease& lease, const std::string& address) {
  // UNAVAILABLE, because uploads and downloads receive no reason word; with this code their clients
  // continue at the new daemon.
  return retire(lease, Status(Code::kUnavailable, "the session has moved to " + address), "moved",
                false);
}

Status Leases::room_for(const std::string& user, std::uint64_t quota,
                        const std::map<std::string, std::uint64_t>& bytes) {
  {
    MutexLock lock(mutex_);
    TT_RETURN_IF_ERROR(place_for(user));
  }
  std::map<std::string, std::uint64_t> used;
  for (const LeaseRef& lease : all()) {
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

void Leases::refuse(const v1::SavedHead& head, Status why, std::string word,
                    std::function<bool()> holds) {
  MutexLock lock(mutex_);
  if (!head.token().empty()) remember_ending(head.token(), {why, std::move(word)});
  if (head.named()) {
    refused_.insert_or_assign({head.user(), head.name()},
                              Refusal{std::move(why), std::move(holds)});
  }
}

}  // namespace teletensor::server
