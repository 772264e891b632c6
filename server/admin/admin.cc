#include "server/admin/admin.h"

#include <algorithm>

#include "server/base/log.h"
#include "server/base/text.h"
#include "server/session/codec.h"
#include "server/session/streams.h"

namespace teletensor::server {

using namespace std::string_literals;
using core::Result;
using core::Status;

namespace {

constexpr char kAdminService[] = "/teletensor.v1.Admin/";
constexpr std::uint32_t kHoldings = 20, kMaxHoldings = 200;
constexpr std::size_t kMaxReason = 200;

void fill(const engine::MemoryUse& use, v1::MemoryUse& out) {
  out.set_device(core::to_string(use.device));
  out.set_used(use.used);
  out.set_peak(use.peak);
  out.set_quota(use.quota);
  out.set_device_used(use.device_used);
  out.set_device_total(use.device_total);
  out.set_away(use.away);
  out.set_disk_used(use.disk_used);
  out.set_disk_quota(use.disk_quota);
  out.set_device_held(use.device_held);
}

void fill(core::Device device, const program::Activity& did, v1::DeviceActivity& out) {
  out.set_device(core::to_string(device));
  out.set_busy_seconds(did.busy_seconds());
  out.set_in_flight(did.in_flight);
  out.set_instructions(did.instructions);
  out.set_loops(did.loops);
  out.set_on_host(did.calls_on_host());
  out.set_kernels(did.loaded);
}

void fill(const SessionView& view, v1::SessionInfo& out) {
  out.set_name(view.name);
  out.set_age_seconds(view.age_seconds);
  out.set_handles(view.handles);
  out.set_queued(view.queued);
  out.set_completed_upto(view.completed);
  for (const engine::MemoryUse& use : view.memory) fill(use, *out.add_memory());
  out.set_attached(view.attached);
  out.set_detached_seconds(view.detached_seconds);
  out.set_client_version(view.client_version);
  out.set_id(view.id);
  out.set_user(view.user);
  out.set_lane_seconds(view.lane_seconds);
  out.set_peer(view.peer);
  out.set_ahead(view.ahead);
  out.set_wait_seconds(view.wait_seconds);
  out.set_not_saved(view.unsaved);
  out.set_repeated(view.repeated);
  for (const program::AmountField& each : program::kAmountFields) {
    v1::AmountUse& use = *out.add_amounts();
    use.set_name(std::string(each.name));
    use.set_used(view.amounts.*each.field);
    use.set_limit(view.limits.*each.field);
  }
}

void fill(const DrainFacts& facts, v1::DrainReply& out) {
  out.set_kept(static_cast<std::uint32_t>(facts.kept));
  for (const DrainFacts::Lost& lost : facts.lost) {
    v1::DrainReply::Lost& item = *out.add_lost();
    item.set_session(lost.session);
    item.set_name(lost.name);
    item.set_user(lost.user);
    item.set_reason(lost.reason);
    item.set_goes_back(lost.goes_back);
  }
}

}  // namespace

void kill(Leases& leases, Lease& lease, const Caller& caller, const std::string& reason) {
  const std::string text = readable(reason, kMaxReason);
  log_info("session_killed", {{"session", lease.client.name},
                              {"id", lease.client.id},
                              {"by", caller.user},
                              {"reason", text}});
  leases.end(
      lease,
      Status(core::Code::kAborted, "ended by " + caller.user + (text.empty() ? "" : ": " + text)),
      "killed");
}

Status interrupt(Lease& lease, const Caller& caller) {
  log_info("session_interrupted",
           {{"session", lease.client.name}, {"id", lease.client.id}, {"by", caller.user}});
  return lease.with_session([](engine::Session& session) {
    session.interrupt();
    return Status();
  });
}

// Answers a call of `method` with the result of act(caller), if the caller may make the call.
template <class Act>
grpc::ServerUnaryReactor* AdminService::answer_to(grpc::CallbackServerContext* context,
                                                  const char* method, Act act) {
  return answer(context, [&]() -> Status {
    const Result<Caller> caller =
        auth_.check(*context, entrance_, kAdminService + std::string(method));
    return caller.ok() ? act(*caller) : caller.status();
  });
}

// The lease of the session with this number, or, for 0, of the session that the call's metadata
// names.
Result<LeaseRef> AdminService::lease(grpc::CallbackServerContext& context, std::uint64_t session,
                                     const Result<Caller>& caller) {
  if (!caller.ok()) return caller.status();
  return session == 0 ? lease_of(context, leases_, caller) : visible(leases_, session, *caller);
}

grpc::ServerUnaryReactor* AdminService::Sessions(grpc::CallbackServerContext* context,
                                                 const v1::SessionsRequest*,
                                                 v1::SessionsReply* reply) {
  return answer_to(context, "Sessions", [&](const Caller& caller) {
    const Overview all = overview(leases_, leases_.engine(), caller);
    for (const SessionView& view : all.sessions) fill(view, *reply->add_sessions());
    if (all.others_count > 0) fill(all.others, *reply->mutable_others());
    reply->set_others_count(static_cast<std::uint32_t>(all.others_count));
    return Status();
  });
}

grpc::ServerUnaryReactor* AdminService::Memory(grpc::CallbackServerContext* context,
                                               const v1::MemoryRequest*, v1::MemoryReply* reply) {
  return answer_to(context, "Memory", [&](const Caller&) {
    for (const engine::MemoryUse& use : leases_.engine().memory()) fill(use, *reply->add_devices());
    for (const auto& [device, did] : leases_.engine().activity()) {
      fill(device, did, *reply->add_activity());
    }
    return Status();
  });
}

grpc::ServerUnaryReactor* AdminService::Holdings(grpc::CallbackServerContext* context,
                                                 const v1::HoldingsRequest* request,
                                                 v1::HoldingsReply* reply) {
  return answer_to(context, "Holdings", [&](const Caller& caller) -> Status {
    const Result<LeaseRef> lease = this->lease(*context, request->session(), caller);
    if (!lease.ok()) return lease.status();
    const std::uint32_t most = request->most() == 0 ? kHoldings : request->most();
    for (const HoldingView& view : holdings(**lease, std::min(most, kMaxHoldings))) {
      v1::Holding& out = *reply->add_holdings();
      out.set_device(core::to_string(view.holding.device));
      out.set_bytes(view.holding.bytes);
      out.set_seq(view.holding.seq);
      out.set_away(view.holding.away);
      out.set_site(view.site);
      if (!view.holding.dtype) continue;
      out.set_dtype(std::string(core::name_of(*view.holding.dtype)));
      for (const std::int64_t size : view.holding.shape) out.add_shape(size);
    }
    const Result<SessionView> view = view_of(**lease);
    if (view.ok()) fill(*view, *reply->mutable_session());
    if (view.ok() && request->reset_peaks() && request->session() == 0) {
      (void)(*lease)->with_session([](engine::Session& session) {
        session.reset_peaks();
        return Status();
      });
    }
    return view.status();
  });
}

grpc::ServerUnaryReactor* AdminService::SlowLog(grpc::CallbackServerContext* context,
                                                const v1::SlowLogRequest* request,
                                                v1::SlowLogReply* reply) {
  return answer_to(context, "SlowLog", [&](const Caller& caller) {
    const std::size_t most = request->most();
    for (const SlowEntry& entry : leases_.slow_log().entries()) {
      if (!caller.admin() && entry.user != caller.user) continue;
      if (most != 0 && static_cast<std::size_t>(reply->entries_size()) >= most) break;
      v1::SlowEntry& out = *reply->add_entries();
      out.set_age_seconds(std::chrono::duration<double>(Clock::now() - entry.at).count());
      out.set_session(entry.session);
      out.set_session_name(entry.session_name);
      out.set_user(entry.user);
      out.set_op(entry.op);
      out.set_seconds(std::chrono::duration<double>(entry.took).count());
      out.set_seq(entry.seq);
      out.set_site(entry.site);
    }
    return Status();
  });
}

grpc::ServerUnaryReactor* AdminService::Publications(grpc::CallbackServerContext* context,
                                                     const v1::PublicationsRequest*,
                                                     v1::PublicationsReply* reply) {
  return answer_to(context, "Publications", [&](const Caller& caller) {
    for (const engine::Publication& each : publications(leases_.engine(), caller)) {
      fill_publication(each, *reply->add_publications());
    }
    return Status();
  });
}

grpc::ServerUnaryReactor* AdminService::Groups(grpc::CallbackServerContext* context,
                                               const v1::GroupsRequest*, v1::GroupsReply* reply) {
  return answer_to(context, "Groups", [&](const Caller& caller) {
    for (const runtime::GroupFacts& each : groups(leases_.engine(), caller)) {
      v1::Group& out = *reply->add_groups();
      out.set_user(each.user);
      out.set_name(each.name);
      out.set_ranks(each.ranks);
      out.set_state(text_of(each.state));
      out.set_why(each.why);
      out.set_collectives(each.collectives);
      for (const runtime::GroupFacts::Member& member : each.members) {
        v1::GroupMember& one = *out.add_members();
        one.set_rank(member.rank);
        one.set_daemon(member.daemon);
        one.set_who(member.who);
        one.set_waits(member.waits);
      }
    }
    return Status();
  });
}

grpc::ServerUnaryReactor* AdminService::Kill(grpc::CallbackServerContext* context,
                                             const v1::KillRequest* request, v1::KillReply*) {
  return answer_to(context, "Kill", [&](const Caller& caller) {
    const Result<LeaseRef> lease = visible(leases_, request->session(), caller);
    if (lease.ok()) kill(leases_, **lease, caller, request->reason());
    return lease.status();
  });
}

grpc::ServerUnaryReactor* AdminService::InterruptSession(grpc::CallbackServerContext* context,
                                                         const v1::InterruptSessionRequest* request,
                                                         v1::InterruptSessionReply*) {
  return answer_to(context, "InterruptSession", [&](const Caller& caller) {
    const Result<LeaseRef> lease = visible(leases_, request->session(), caller);
    return lease.ok() ? interrupt(**lease, caller) : lease.status();
  });
}

grpc::ServerUnaryReactor* AdminService::Snapshot(grpc::CallbackServerContext* context,
                                                 const v1::SnapshotRequest* request,
                                                 v1::SnapshotReply* reply) {
  return answer_later(context, [&](const AnswerRef& later) -> Status {
    const Result<LeaseRef> lease =
        this->lease(*context, request->session(),
                    auth_.check(*context, entrance_, kAdminService + "Snapshot"s));
    if (!lease.ok()) return lease.status();
    recovery_.snapshot(*lease, [later, reply](const Result<SnapshotFacts>& facts) {
      if (facts.ok()) {
        reply->set_completed_upto(facts->completed_upto);
        reply->set_bytes(facts->bytes);
        reply->set_seconds(facts->seconds);
      }
      later->give(facts.status());
    });
    return {};
  });
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* request,
                                              v1::DrainReply* reply) {
  return answer_later(context, [&](const AnswerRef& later) -> Status {
    const Result<Caller> caller = auth_.check(*context, entrance_, kAdminService + "Drain"s);
    if (!caller.ok()) return caller.status();
    log_info("drain_asked", {{"by", caller->user}, {"milliseconds", request->milliseconds()}});
    recovery_.ask_to_drain(std::chrono::milliseconds(request->milliseconds()),
                           [later, reply](const Result<DrainFacts>& facts) {
                             if (facts.ok()) fill(*facts, *reply);
                             later->give(facts.status());
                           });
    return {};
  });
}

grpc::ServerUnaryReactor* AdminService::Move(grpc::CallbackServerContext* context,
                                             const v1::MoveRequest* request, v1::MoveReply* reply) {
  return answer_later(context, [&](const AnswerRef& later) -> Status {
    const Result<Caller> caller = auth_.check(*context, entrance_, kAdminService + "Move"s);
    if (!caller.ok()) return caller.status();
    const Result<LeaseRef> lease = visible(leases_, request->session(), *caller);
    if (!lease.ok()) return lease.status();
    log_info("move_asked", {{"session", (*lease)->client.name},
                            {"id", (*lease)->client.id},
                            {"to", readable(request->to(), kMaxReason)},
                            {"by", caller->user}});
    moves_.move({*lease, request->to(), std::chrono::milliseconds(request->milliseconds()),
                 [context] { return !context->IsCancelled(); },
                 [later, reply](const Result<MoveFacts>& facts) {
                   if (facts.ok()) {
                     reply->set_address(facts->address);
                     reply->set_bytes(facts->bytes);
                     reply->set_seconds(facts->seconds);
                   }
                   later->give(facts.status());
                 }});
    return {};
  });
}

grpc::ServerUnaryReactor* AdminService::Admit(grpc::CallbackServerContext* context,
                                              const v1::AdmitRequest* request, v1::AdmitReply*) {
  return answer_to(context, "Admit", [&](const Caller& caller) -> Status {
    if (!request->to().empty()) TT_RETURN_IF_ERROR(moves_.check_peer(request->to()));
    const std::string why = readable(request->why(), kMaxReason);
    log_info("new_sessions",
             {{"refused", request->refuse()}, {"by", caller.user}, {"reason", why}});
    leases_.table().refuse_new(!request->refuse() ? ""
                               : why.empty()      ? "an administrator says so"
                                                  : why);
    return {};
  });
}

grpc::ServerUnaryReactor* AdminService::CreateToken(grpc::CallbackServerContext* context,
                                                    const v1::CreateTokenRequest* request,
                                                    v1::CreateTokenReply* reply) {
  return answer_to(context, "CreateToken", [&](const Caller& caller) -> Status {
    constexpr std::uint64_t kLongest = 100ull * 366 * 24 * 3600;
    const Result<NewToken> made = auth_.tokens().create(
        request->user(), role_of(request->role()),
        static_cast<std::int64_t>(std::min(request->lifetime_seconds(), kLongest)));
    if (!made.ok()) return made.status();
    log_info("token_created", {{"id", made->id},
                               {"user", request->user()},
                               {"role", request->role()},
                               {"by", caller.user}});
    reply->set_id(made->id);
    reply->set_secret(made->secret);
    return {};
  });
}

grpc::ServerUnaryReactor* AdminService::ListTokens(grpc::CallbackServerContext* context,
                                                   const v1::ListTokensRequest*,
                                                   v1::ListTokensReply* reply) {
  return answer_to(context, "ListTokens", [&](const Caller&) -> Status {
    const Result<std::vector<TokenFacts>> found = auth_.tokens().list();
    if (!found.ok()) return found.status();
    for (const TokenFacts& facts : *found) {
      v1::TokenInfo& out = *reply->add_tokens();
      out.set_id(facts.id);
      out.set_user(facts.user);
      out.set_role(std::string(to_string(facts.role)));
      out.set_created(static_cast<std::uint64_t>(facts.created));
      out.set_expires(static_cast<std::uint64_t>(facts.expires));
      out.set_revoked(facts.revoked);
    }
    return {};
  });
}

grpc::ServerUnaryReactor* AdminService::RevokeToken(grpc::CallbackServerContext* context,
                                                    const v1::RevokeTokenRequest* request,
                                                    v1::RevokeTokenReply*) {
  return answer_to(context, "RevokeToken", [&](const Caller& caller) {
    Status status = auth_.tokens().revoke(request->id());
    if (status.ok()) {
      log_info("token_revoked", {{"id", readable(request->id(), kMaxReason)}, {"by", caller.user}});
    }
    return status;
  });
}

}  // namespace teletensor::server
