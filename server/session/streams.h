// The three streams of a session. gRPC owns them from creation to OnDone.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "engine/core/with_memory.h"
#include "server/access/rights.h"
#include "server/session/leases.h"

namespace teletensor::server {

// Trailing metadata: why a session or a stream is over, in one word (Ending).
inline constexpr char kReasonKey[] = "teletensor-reason";

grpc::Status to_grpc(const core::Status& status);
// The lease that the call's metadata names, if it is the caller's: NOT_FOUND else, as for no lease.
// Where it has ended, the trailing metadata say why.
core::Result<LeaseRef> lease_of(grpc::CallbackServerContext& context, const Leases& leases,
                                const core::Result<Caller>& caller);
// A number of the call's metadata; 0 where there is none.
std::uint64_t number_of(const grpc::CallbackServerContext& context, const char* key);

// gRPC drops what its callbacks throw, and a stream would wait for ever, or answers as if there
// were no such method: so they are noexcept, what may need memory on behalf of a call is done
// core::with_memory(), and what escapes ends the process, which a supervisor starts again.

// Ends a unary call with what act() returns.
template <class Act>
grpc::ServerUnaryReactor* answer(grpc::CallbackServerContext* context, Act act) noexcept {
  const core::Status status = core::with_memory("a call", act);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(to_grpc(status));
  return reactor;
}

// The answer of a unary call that comes later, once, from any thread. Whoever lets go of it as the
// last without having given it had no memory for that.
class Answer {
 public:
  explicit Answer(grpc::ServerUnaryReactor* reactor) : reactor_(reactor) {}
  ~Answer();
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  void give(const core::Status& status) noexcept;

 private:
  grpc::ServerUnaryReactor* reactor_;  // null: given
};
using AnswerRef = std::shared_ptr<Answer>;

// A unary call that act(answer) sees to: it fails with what that returns, or has somebody give the
// answer.
template <class Act>
grpc::ServerUnaryReactor* answer_later(grpc::CallbackServerContext* context, Act act) noexcept {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  AnswerRef later;
  const core::Status status = core::with_memory("a call", [&] {
    later = std::make_shared<Answer>(reactor);
    const core::Status refused = act(later);
    if (!refused.ok()) later->give(refused);
    return core::Status();
  });
  if (!later) reactor->Finish(to_grpc(status));
  return reactor;
}

// Counts the streams of the server, to refuse too many before they cost anything.
class StreamCount {
 public:
  explicit StreamCount(std::atomic<std::size_t>& count) : count_(count) { ++count_; }
  ~StreamCount() { --count_; }
  StreamCount(const StreamCount&) = delete;
  StreamCount& operator=(const StreamCount&) = delete;

 private:
  std::atomic<std::size_t>& count_;
};

using StreamTotal = std::atomic<std::size_t>;

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* start_run(
    grpc::CallbackServerContext* context, Leases& leases, core::Result<LeaseRef> lease,
    StreamTotal& total);
grpc::ServerReadReactor<grpc::ByteBuffer>* start_upload(grpc::CallbackServerContext* context,
                                                        grpc::ByteBuffer* reply, Leases& leases,
                                                        core::Result<LeaseRef> lease,
                                                        StreamTotal& total);
grpc::ServerWriteReactor<grpc::ByteBuffer>* start_download(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           Leases& leases,
                                                           core::Result<LeaseRef> lease,
                                                           StreamTotal& total);

}  // namespace teletensor::server
