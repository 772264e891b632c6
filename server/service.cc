#include "server/service.h"

#include <spdlog/spdlog.h>

namespace teletensor::server {

using namespace std::string_literals;

namespace {

constexpr char kService[] = "/teletensor.v1.Compute/";

// A stream that is refused before it costs anything.
template <class Reactor>
class Refused final : public Reactor {
 public:
  explicit Refused(const char* text) {
    this->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, text));
  }
  void OnDone() override { delete this; }
};
constexpr std::size_t kSpansPerReply = 16384;
constexpr char kTooMany[] = "the server has too many streams";

}  // namespace

grpc::ServerUnaryReactor* ComputeService::Hello(grpc::CallbackServerContext* context,
                                                const v1::HelloRequest* request,
                                                v1::HelloReply* reply) {
  const core::Result<Caller> caller = auth_.check(*context, entrance_, kService + "Hello"s);
  if (!caller.ok()) return answer(context, caller.status());
  engine::Engine& engine = leases_.engine();
  core::Result<server::Hello> hello =
      read_hello(*request, engine.catalog(), leases_.limits(), facts_);
  if (!hello.ok()) {
    ++leases_.counters().refused_sessions;
    spdlog::warn("event=hello_refused peer=\"{}\" reason=\"{}\"", context->peer(),
                 hello.status().message());
    return answer(context, hello.status());
  }
  hello->client.peer = context->peer();
  hello->client.user = caller->user;
  const UserLimits limits = leases_.limits().of(caller->user);
  hello->client.limits = limits.amounts;
  hello->client.memory_asked = request->memory_quota();
  hello->client.memory_quota = limits.quota(hello->client.memory_asked);
  // Who comes without a name is nobody in particular: a session is nobody's to take by its name.
  if (caller->user == kAnonymous) hello->client.takes_over = false;
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const bool local =
      !entrance_.remote && entrance_.neighbour.empty() && context->peer().starts_with("unix:");
  auto ready = [this, reactor, reply, peer = context->peer(), shares = local && facts_.shares,
                unsupported = std::move(hello->unsupported)](core::Result<LeaseRef> lease) {
    if (!lease.ok()) {
      ++leases_.counters().refused_sessions;
      spdlog::warn("event=session_refused peer=\"{}\" reason=\"{}\"", peer,
                   lease.status().message());
      return reactor->Finish(to_grpc(lease.status()));
    }
    fill_hello_reply(**lease, unsupported, leases_.engine(), leases_.limits(), facts_, shares,
                     *reply);
    reactor->Finish(grpc::Status::OK);
  };
  if (request->take_back()) {
    const core::Result<LeaseRef> old = lease_of(*context, leases_, caller);
    if (!old.ok()) {
      ready(old.status());
    } else if ((*old)->client.instance != hello->client.instance) {
      ready(core::Status(core::Code::kPermissionDenied,
                         "the session belongs to another client instance"));
    } else {
      leases_.take_over(std::move(hello->client), std::move(ready), *old);
    }
  } else if (hello->client.takes_over) {
    leases_.take_over(std::move(hello->client), std::move(ready));
  } else {
    ready(leases_.open(std::move(hello->client)));
  }
  return reactor;
}

grpc::ServerUnaryReactor* ComputeService::Attach(grpc::CallbackServerContext* context,
                                                 const v1::AttachRequest* request,
                                                 v1::AttachReply* reply) {
  const core::Result<LeaseRef> lease = this->lease(*context, kService + "Attach"s);
  if (!lease.ok()) {
    const bool restarted = request->server_epoch() != facts_.epoch;
    return answer(context, restarted && lease.status().code() == core::Code::kNotFound
                               ? core::Status(core::Code::kNotFound,
                                              "the server has been restarted and kept no session")
                               : lease.status());
  }
  std::string word;
  const core::Result<Attached> attached =
      (*lease)->attach({request->instance_id(), request->attach_counter(), request->progress_upto(),
                        request->completed_upto(), request->uploads(), request->replay_from()},
                       &word);
  if (!attached.ok()) {
    if (!word.empty()) context->AddTrailingMetadata(kReasonKey, word);
    return answer(context, attached.status());
  }
  reply->set_server_epoch(facts_.epoch);
  reply->set_attach_counter(request->attach_counter());
  reply->set_received_upto(attached->received_upto);
  reply->set_completed_upto(attached->completed_upto);
  reply->set_lease_seconds(static_cast<std::uint32_t>((*lease)->client.lease.count()));
  reply->set_replay(attached->replay);
  reply->set_credit_upto(attached->credits.upto);
  reply->set_credit_bytes(attached->credits.bytes);
  reply->set_bytes_received(attached->credits.received);
  return answer(context, {});
}

grpc::ServerUnaryReactor* ComputeService::Close(grpc::CallbackServerContext* context,
                                                const v1::CloseRequest*, v1::CloseReply*) {
  const core::Result<LeaseRef> lease = this->lease(*context, kService + "Close"s);
  if (!lease.ok()) return answer(context, lease.status());
  leases_.end(**lease, core::Status(core::Code::kCancelled, "its client closed it"), "closed");
  return answer(context, {});
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ComputeService::Run(
    grpc::CallbackServerContext* context) {
  if (too_many_streams()) {
    return new Refused<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>>(kTooMany);
  }
  return start_run(context, leases_, lease(*context, kService + "Run"s), streams_);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* ComputeService::Upload(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* reply) {
  if (too_many_streams()) {
    return new Refused<grpc::ServerReadReactor<grpc::ByteBuffer>>(kTooMany);
  }
  return start_upload(context, reply, leases_, lease(*context, kService + "Upload"s), streams_);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* ComputeService::Download(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  if (too_many_streams()) {
    return new Refused<grpc::ServerWriteReactor<grpc::ByteBuffer>>(kTooMany);
  }
  return start_download(context, request, leases_, lease(*context, kService + "Download"s),
                        streams_);
}

grpc::ServerUnaryReactor* ComputeService::Staged(grpc::CallbackServerContext* context,
                                                 const v1::StagedRequest* request,
                                                 v1::StagedReply* reply) {
  const core::Result<LeaseRef> lease = this->lease(*context, kService + "Staged"s);
  if (!lease.ok()) return answer(context, lease.status());
  const wire::StagedAnswer staged = (*lease)->staged(request->key(), request->give_up());
  reply->set_received(staged.received);
  reply->set_upload(staged.upload);
  return answer(context, {});
}

grpc::ServerUnaryReactor* ComputeService::Interrupt(grpc::CallbackServerContext* context,
                                                    const v1::InterruptRequest* request,
                                                    v1::InterruptReply*) {
  core::Result<LeaseRef> lease = core::Status(core::Code::kNotFound, "no session has this name");
  if (request->session_name().empty()) {
    lease = this->lease(*context, kService + "Interrupt"s);
  } else {
    const core::Result<Caller> caller = auth_.check(*context, entrance_, kService + "Interrupt"s);
    if (!caller.ok()) return answer(context, caller.status());
    LeaseRef named;
    if (caller->user != kAnonymous) {
      named = leases_.find_name(caller->user, request->session_name());
    }
    if (named) lease = std::move(named);
  }
  if (!lease.ok()) return answer(context, lease.status());
  return answer(context, (*lease)->with_session([&](engine::Session& session) {
    session.interrupt(request->upto());
    return core::Status();
  }));
}

grpc::ServerUnaryReactor* ComputeService::Describe(grpc::CallbackServerContext* context,
                                                   const v1::DescribeRequest*,
                                                   v1::DescribeReply* reply) {
  const core::Result<Caller> caller = auth_.check(*context, entrance_, kService + "Describe"s);
  if (!caller.ok()) return answer(context, caller.status());
  fill_describe_reply(leases_.engine(), leases_.limits(), facts_, leases_.all().size(), *reply);
  return answer(context, {});
}

grpc::ServerUnaryReactor* ComputeService::ReportSites(grpc::CallbackServerContext* context,
                                                      const v1::SitesReport* request,
                                                      v1::SitesReply*) {
  const core::Result<LeaseRef> lease = this->lease(*context, kService + "ReportSites"s);
  if (!lease.ok()) return answer(context, lease.status());
  core::Result<Sites> sites = read_sites(*request);
  if (sites.ok()) (*lease)->set_sites(std::move(*sites));
  return answer(context, sites.status());
}

grpc::ServerUnaryReactor* ComputeService::Published(grpc::CallbackServerContext* context,
                                                    const v1::PublishedRequest* request,
                                                    v1::PublishedReply* reply) {
  const core::Result<LeaseRef> lease = this->lease(*context, kService + "Published"s);
  if (!lease.ok()) return answer(context, lease.status());
  return answer(context, (*lease)->with_session([&](engine::Session& session) {
    for (const engine::Publication& each : session.published(request->name())) {
      fill_publication(each, *reply->add_publications());
    }
    return core::Status();
  }));
}

grpc::ServerUnaryReactor* ComputeService::Profile(grpc::CallbackServerContext* context,
                                                  const v1::ProfileRequest* request,
                                                  v1::ProfileReply* reply) {
  const core::Result<LeaseRef> lease = this->lease(*context, kService + "Profile"s);
  if (!lease.ok()) return answer(context, lease.status());
  return answer(context, (*lease)->with_session([&](engine::Session& session) {
    session.profile(request->record());
    fill_profile_reply(session.take_profile(kSpansPerReply), leases_.engine().catalog(), *reply);
    return core::Status();
  }));
}

}  // namespace teletensor::server
