// The three streams of a session (Run, Upload, Download), and helpers to answer gRPC calls. gRPC
// owns a stream's reactor from its creation to OnDone.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "engine/core/with_memory.h"
#include "server/access/rights.h"
#include "server/session/leases/leases.h"
#include "server/session/stream_shares.h"

namespace teletensor::server {

// Key of the trailing metadata entry with the reason why a session or a stream has ended, in one
// word (Ending).
inline constexpr char kReasonKey[] = "teletensor-reason";

grpc::Status to_grpc(const core::Status& status);
// The lease that the call's metadata names. NOT_FOUND if there is none or if it belongs to another
// user. If it has ended, the reason is added to the trailing metadata.
core::Result<LeaseRef> lease_of(grpc::CallbackServerContext& context, const Leases& leases,
                                const core::Result<Caller>& caller);
// The value of a numeric entry in the call's metadata. 0 if there is none; INVALID_ARGUMENT if it
// is not a number.
core::Result<std::uint64_t> number_of(const grpc::CallbackServerContext& context, const char* key);

// gRPC discards exceptions of its callbacks; a stream would then wait forever, or a call would be
// answered as an unknown method. Therefore the callbacks are noexcept. Code that may need memory
// for a call runs inside core::with_memory(); all other code of a callback uses the reserve of
// memory (core::UsesReserve), and an exception there ends the process, which a supervisor restarts.

// Ends a unary call with the result of act().
template <class Act>
grpc::ServerUnaryReactor* answer(grpc::CallbackServerContext* context, Act act) noexcept {
  const core::Status status = core::with_memory("a call", act);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(to_grpc(status));
  return reactor;
}

// A reactor that refuses a stream and does nothing else.
template <class Reactor>
class RefusedStream final : public Reactor {
 public:
  explicit RefusedStream(const core::Status& why) { this->Finish(to_grpc(why)); }
  void OnDone() override { delete this; }
};

// The answer of a unary call that is given later, once, by any thread. If the last reference is
// dropped before the answer was given, the call fails for lack of memory.
class Answer {
 public:
  explicit Answer(grpc::ServerUnaryReactor* reactor) : reactor_(reactor) {}
  ~Answer();
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  void give(const core::Status& status) noexcept;

 private:
  grpc::ServerUnaryReactor* reactor_;  // The reactor of the call. Null after the answer was given.
};
using AnswerRef = std::shared_ptr<Answer>;

// Starts a unary call. It fails with the result of act(answer), or, if that is OK, is answered
// later through `answer`.
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

// Each start function creates the reactor of a stream that uses `lease` and is counted by `place`.
// `attach` and `key` are the numbers that the call's metadata states, or 0.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* start_run(
    grpc::CallbackServerContext* context, Leases& leases, LeaseRef lease, StreamShares::Place place,
    std::uint64_t attach);
grpc::ServerReadReactor<grpc::ByteBuffer>* start_upload(grpc::CallbackServerContext* context,
                                                        grpc::ByteBuffer* reply, Leases& leases,
                                                        LeaseRef lease, StreamShares::Place place,
                                                        std::uint64_t key);
grpc::ServerWriteReactor<grpc::ByteBuffer>* start_download(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           Leases& leases, LeaseRef lease,
                                                           StreamShares::Place place);

}  // namespace teletensor::server
