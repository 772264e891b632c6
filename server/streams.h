// The three streams of a session. gRPC owns them from creation to OnDone.
#pragma once

#include <grpcpp/grpcpp.h>

#include <new>

#include "server/leases.h"
#include "server/rights.h"

namespace teletensor::server {

// Trailing metadata: why a session or a stream is over, in one word (Ending).
inline constexpr char kReasonKey[] = "teletensor-reason";

grpc::Status to_grpc(const core::Status& status);
// Ends a unary call.
grpc::ServerUnaryReactor* answer(grpc::CallbackServerContext* context, const core::Status& status);
// The lease that the call's metadata names, if it is the caller's: NOT_FOUND else, as for no lease.
// Where it has ended, the trailing metadata say why.
core::Result<LeaseRef> lease_of(grpc::CallbackServerContext& context, const Leases& leases,
                                const core::Result<Caller>& caller);
// A number of the call's metadata; 0 where there is none.
std::uint64_t number_of(const grpc::CallbackServerContext& context, const char* key);

// What may need memory on behalf of a call: without it the call fails. gRPC itself drops what its
// callbacks throw, and the call would wait for ever: so they are noexcept, and what escapes ends
// the process, which a supervisor starts again.
template <class Act>
core::Status with_memory(Act act) {
  try {
    return act();
  } catch (const std::bad_alloc&) {
    return core::Status(core::Code::kResourceExhausted, "the daemon is out of memory");
  } catch (...) {
    return core::internal("the daemon threw an exception");
  }
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
