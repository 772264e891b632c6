#include "server/stream/service.h"

#include "server/base/log.h"

namespace teletensor::server {

using namespace std::string_literals;

namespace {

constexpr char kComputeService[] = "/teletensor.v1.Compute/";
constexpr std::size_t kSpansPerReply = 16384;

}  // namespace

// Answers a call of `method` with the result of act(lease), if the caller may make the call and
// owns the lease.
template <class Act>
grpc::ServerUnaryReactor* ComputeService::answer_for(grpc::CallbackServerContext* context,
                                                     const char* method, Act act) {
  return answer(context, [&]() -> core::Status {
    const core::Result<LeaseRef> lease = this->lease(*context, method);
    return lease.ok() ? act(**lease) : lease.status();
  });
}

// Returns the reactor that start(lease, place, number) creates for a call of `method`; the number
// is the metadata entry `number`, which may be null. If the caller may not make the call, does not
// own the lease, or has too many streams, returns one that refuses the call.
template <class Reactor, class Start>
Reactor* ComputeService::stream(grpc::CallbackServerContext* context, const char* method,
                                StreamShares::Kind kind, const char* number, Start start) noexcept {
  Reactor* reactor = nullptr;
  const core::Status status = core::with_memory("a stream", [&]() -> core::Status {
    core::Result<LeaseRef> lease = this->lease(*context, method);
    if (!lease.ok()) return lease.status();
    core::Result<std::uint64_t> stated = std::uint64_t{0};
    if (number != nullptr) stated = number_of(*context, number);
    if (!stated.ok()) return stated.status();
    const ClientInfo& client = (*lease)->client;
    auto place = leases_.stream_shares().enter(client.user, client.id, kind);
    if (!place.ok()) {
      leases_.counters().refused(Refusal::kGrpcStreams);
      const std::string word = "streams";
      context->AddTrailingMetadata(kReasonKey, word);
      return place.status();
    }
    reactor = start(std::move(*lease), std::move(*place), *stated);
    return {};
  });
  return status.ok() ? reactor : new RefusedStream<Reactor>(status);
}

grpc::ServerUnaryReactor* ComputeService::Hello(grpc::CallbackServerContext* context,
                                                const v1::HelloRequest* request,
                                                v1::HelloReply* reply) {
  return answer_later(
      context, [&](const AnswerRef& later) { return hello(*context, *request, *reply, later); });
}

core::Status ComputeService::hello(grpc::CallbackServerContext& context,
                                   const v1::HelloRequest& request, v1::HelloReply& reply,
                                   const AnswerRef& later) {
  const core::Result<Caller> caller = auth_.check(context, entrance_, kComputeService + "Hello"s);
  if (!caller.ok()) return caller.status();
  engine::Engine& engine = leases_.engine();
  core::Result<server::Hello> hello =
      read_hello(request, engine.catalog(), leases_.limits(), facts_);
  if (!hello.ok()) {
    ++leases_.counters().refused_sessions;
    log_warn("hello_refused", {{"peer", context.peer()}, {"reason", hello.status().message()}});
    return hello.status();
  }
  hello->client.peer = context.peer();
  hello->client.user = caller->user;
  hello->client.by_socket = by_socket(context) && context.client_metadata().find("authorization") ==
                                                      context.client_metadata().end();
  const UserLimits limits = limits_of(leases_.limits(), caller->user);
  hello->client.limits = limits.amounts;
  hello->client.memory_asked = request.memory_quota();
  hello->client.memory_quota = limits.quota(hello->client.memory_asked);
  // An anonymous caller cannot be identified, so it may not take over a session by its name.
  if (caller->user == kAnonymous) hello->client.takes_over = false;
  const bool local = entrance_.neighbour.empty() && by_socket(context);
  auto ready = [this, later, &context, &reply, peer = context.peer(), user = caller->user,
                name = hello->client.name, shares = local && facts_.shares,
                unsupported = std::move(hello->unsupported)](core::Result<LeaseRef> lease) {
    if (!lease.ok()) {
      ++leases_.counters().refused_sessions;
      if (lease.status().code() == core::Code::kUnavailable) {
        const bool arrives = leases_.moved_sessions().expected(user, name);
        context.AddTrailingMetadata(kReasonKey, arrives ? "arriving" : "daemon");
      }
      log_warn("session_refused", {{"peer", peer}, {"reason", lease.status().message()}});
      return later->give(lease.status());
    }
    later->give(core::with_memory("a call", [&] {
      fill_hello_reply(**lease, unsupported, leases_.engine(), leases_.limits(), facts_, shares,
                       reply);
      return core::Status();
    }));
  };
  if (request.take_back()) {
    const core::Result<LeaseRef> old = lease_of(context, leases_, caller);
    if (!old.ok()) {
      ready(old.status());
    } else if ((*old)->client.instance != hello->client.instance) {
      ready(core::Status(core::Code::kPermissionDenied,
                         "the session belongs to another client instance"));
    } else {
      leases_.takeovers().begin(std::move(hello->client), std::move(ready), *old);
    }
  } else if (hello->client.takes_over) {
    if (const auto place = leases_.moved_sessions().find(caller->user, hello->client.name);
        place && !leases_.table().find_name(caller->user, hello->client.name)) {
      return moved_away(*place, context, request, reply, later);
    }
    leases_.takeovers().begin(std::move(hello->client), std::move(ready));
  } else {
    ready(leases_.open(std::move(hello->client)));
  }
  return {};
}

// Answers a Hello for a session that has moved to a peer.
core::Status ComputeService::moved_away(const MovedSessions::Place& place,
                                        const grpc::CallbackServerContext& context,
                                        const v1::HelloRequest& request, v1::HelloReply& reply,
                                        const AnswerRef& later) const {
  const std::string& address = place.for_client(by_socket(context));
  if (!request.follows()) {
    return core::Status(
        core::Code::kFailedPrecondition,
        "session \"" + place.name + "\" has moved to the daemon at " + address + ": connect there");
  }
  reply.set_moved_to(address);
  later->give({});
  return {};
}

bool ComputeService::by_socket(const grpc::CallbackServerContext& context) const {
  return !entrance_.remote && context.peer().starts_with("unix:");
}

grpc::ServerUnaryReactor* ComputeService::Attach(grpc::CallbackServerContext* context,
                                                 const v1::AttachRequest* request,
                                                 v1::AttachReply* reply) {
  return answer(context, [&] { return attach(*context, *request, *reply); });
}

core::Status ComputeService::attach(grpc::CallbackServerContext& context,
                                    const v1::AttachRequest& request, v1::AttachReply& reply) {
  const core::Result<Caller> caller = auth_.check(context, entrance_, kComputeService + "Attach"s);
  const std::string_view token = text_of(context, "teletensor-token");
  std::string why;
  if (caller.ok() && !leases_.table().find(token, &why).ok() && why == "moved") {
    const auto place = leases_.moved_sessions().find(token);
    if (place && place->user == caller->user) {
      reply.set_moved_to(place->for_client(by_socket(context)));
      return {};
    }
  }
  const core::Result<LeaseRef> lease = lease_of(context, leases_, caller);
  if (!lease.ok()) {
    const bool restarted = request.server_epoch() != facts_.epoch;
    return restarted && lease.status().code() == core::Code::kNotFound
               ? core::Status(core::Code::kNotFound,
                              "the server has been restarted and kept no session")
               : lease.status();
  }
  std::string word;
  const core::Result<Attached> attached =
      (*lease)->attach({request.instance_id(), request.attach_counter(), request.progress_upto(),
                        request.completed_upto(), request.uploads(), request.replay_from()},
                       &word);
  if (!attached.ok()) {
    if (!word.empty()) context.AddTrailingMetadata(kReasonKey, word);
    return attached.status();
  }
  reply.set_server_epoch(facts_.epoch);
  reply.set_attach_counter(request.attach_counter());
  reply.set_received_upto(attached->received_upto);
  reply.set_completed_upto(attached->completed_upto);
  reply.set_lease_seconds(static_cast<std::uint32_t>((*lease)->client.lease.count()));
  reply.set_replay(attached->replay);
  reply.set_credit_upto(attached->credits.upto);
  reply.set_credit_bytes(attached->credits.bytes);
  reply.set_bytes_received(attached->credits.received);
  return {};
}

grpc::ServerUnaryReactor* ComputeService::Close(grpc::CallbackServerContext* context,
                                                const v1::CloseRequest*, v1::CloseReply*) {
  return answer_for(context, "Close", [&](Lease& lease) {
    leases_.end(lease, core::Status(core::Code::kCancelled, "its client closed it"), "closed");
    return core::Status();
  });
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ComputeService::Run(
    grpc::CallbackServerContext* context) {
  return stream<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>>(
      context, "Run", StreamShares::Kind::kRun, "teletensor-attach",
      [&](LeaseRef lease, StreamShares::Place place, std::uint64_t attach) {
        return start_run(context, leases_, std::move(lease), std::move(place), attach);
      });
}

grpc::ServerReadReactor<grpc::ByteBuffer>* ComputeService::Upload(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* reply) {
  return stream<grpc::ServerReadReactor<grpc::ByteBuffer>>(
      context, "Upload", StreamShares::Kind::kTransfer, "teletensor-upload",
      [&](LeaseRef lease, StreamShares::Place place, std::uint64_t key) {
        return start_upload(context, reply, leases_, std::move(lease), std::move(place), key);
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* ComputeService::Download(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return stream<grpc::ServerWriteReactor<grpc::ByteBuffer>>(
      context, "Download", StreamShares::Kind::kTransfer, nullptr,
      [&](LeaseRef lease, StreamShares::Place place, std::uint64_t) {
        return start_download(context, request, leases_, std::move(lease), std::move(place));
      });
}

grpc::ServerUnaryReactor* ComputeService::Staged(grpc::CallbackServerContext* context,
                                                 const v1::StagedRequest* request,
                                                 v1::StagedReply* reply) {
  return answer_for(context, "Staged", [&](Lease& lease) {
    const wire::StagedAnswer staged = lease.staging().answer(request->key(), request->give_up());
    reply->set_received(staged.received);
    reply->set_upload(staged.upload);
    return core::Status();
  });
}

grpc::ServerUnaryReactor* ComputeService::Interrupt(grpc::CallbackServerContext* context,
                                                    const v1::InterruptRequest* request,
                                                    v1::InterruptReply*) {
  return answer(context, [&]() -> core::Status {
    const core::Result<LeaseRef> lease = request->session_name().empty()
                                             ? this->lease(*context, "Interrupt")
                                             : named(*context, request->session_name());
    if (!lease.ok()) return lease.status();
    return (*lease)->with_session([&](engine::Session& session) {
      session.interrupt(request->upto());
      return core::Status();
    });
  });
}

core::Result<LeaseRef> ComputeService::lease(grpc::CallbackServerContext& context,
                                             const char* method) const {
  return lease_of(context, leases_,
                  auth_.check(context, entrance_, kComputeService + std::string(method)));
}

// The caller's session with this name.
core::Result<LeaseRef> ComputeService::named(grpc::CallbackServerContext& context,
                                             const std::string& name) const {
  const core::Result<Caller> caller =
      auth_.check(context, entrance_, kComputeService + "Interrupt"s);
  if (!caller.ok()) return caller.status();
  LeaseRef found;
  if (caller->user != kAnonymous) found = leases_.table().find_name(caller->user, name);
  if (!found) return core::Status(core::Code::kNotFound, "no session has this name");
  return found;
}

grpc::ServerUnaryReactor* ComputeService::Describe(grpc::CallbackServerContext* context,
                                                   const v1::DescribeRequest* request,
                                                   v1::DescribeReply* reply) {
  return answer(context, [&]() -> core::Status {
    const core::Result<Caller> caller =
        auth_.check(*context, entrance_, kComputeService + "Describe"s);
    if (!caller.ok()) return caller.status();
    fill_describe_reply(leases_.engine(), leases_.limits(), facts_, leases_.table().all().size(),
                        request->declarations(), *reply);
    return {};
  });
}

grpc::ServerUnaryReactor* ComputeService::ReportSites(grpc::CallbackServerContext* context,
                                                      const v1::SitesReport* request,
                                                      v1::SitesReply* reply) {
  return answer_for(context, "ReportSites", [&](Lease& lease) -> core::Status {
    const core::Result<CommandHistory::Sites> sites = read_sites(*request);
    if (!sites.ok()) return sites.status();
    lease.set_sites(*sites);
    if (request->upto() == 0) return {};
    for (const std::uint64_t seq : lease.wanted_sites(request->upto())) reply->add_wanted(seq);
    return {};
  });
}

grpc::ServerUnaryReactor* ComputeService::Published(grpc::CallbackServerContext* context,
                                                    const v1::PublishedRequest* request,
                                                    v1::PublishedReply* reply) {
  return answer_for(context, "Published", [&](Lease& lease) {
    return lease.with_session([&](engine::Session& session) {
      for (const engine::Publication& each : session.published(request->name())) {
        fill_publication(each, *reply->add_publications());
      }
      return core::Status();
    });
  });
}

grpc::ServerUnaryReactor* ComputeService::Profile(grpc::CallbackServerContext* context,
                                                  const v1::ProfileRequest* request,
                                                  v1::ProfileReply* reply) {
  return answer_for(context, "Profile", [&](Lease& lease) {
    return lease.with_session([&](engine::Session& session) {
      session.profile(request->record());
      fill_profile_reply(session.take_profile(kSpansPerReply), leases_.engine().catalog(), *reply);
      return core::Status();
    });
  });
}

}  // namespace teletensor::server
