// ComputeService is the gRPC service for clients (proto/teletensor/v1/session.proto). It uses
// gRPC's callback API; Run, Upload and Download exchange raw bytes.
//
// gRPC calls the methods from its own threads, several at a time, and they never wait: an answer
// that takes time is given later. Every method first checks the caller's right to it (Auth::check).
// Except for Hello and Describe, a call names its session by the token in its metadata and is
// refused unless the caller owns the session.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/access/auth.h"
#include "server/session/codec.h"
#include "server/session/streams.h"
#include "teletensor/v1/session.grpc.pb.h"

namespace teletensor::server {

using ComputeCallbacks =
    v1::Compute::WithCallbackMethod_Hello<v1::Compute::WithRawCallbackMethod_Run<
        v1::Compute::WithRawCallbackMethod_Upload<v1::Compute::WithRawCallbackMethod_Download<
            v1::Compute::WithCallbackMethod_Interrupt<v1::Compute::WithCallbackMethod_Attach<
                v1::Compute::WithCallbackMethod_Close<v1::Compute::WithCallbackMethod_Describe<
                    v1::Compute::WithCallbackMethod_ReportSites<
                        v1::Compute::WithCallbackMethod_Published<
                            v1::Compute::WithCallbackMethod_Staged<
                                v1::Compute::WithCallbackMethod_Profile<
                                    v1::Compute::Service>>>>>>>>>>>>;

class ComputeService final : public ComputeCallbacks {
 public:
  // `entrance` describes the listener that accepts the calls. The other arguments must outlive this
  // object.
  ComputeService(Leases& leases, const Auth& auth, Entrance entrance, const ServerFacts& facts)
      : leases_(leases), auth_(auth), entrance_(std::move(entrance)), facts_(facts) {}

  // Opens a session, or takes over the one that has the client's name or token. Tells a client
  // whose session has moved the address of the daemon that has it.
  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext* context,
                                  const v1::HelloRequest* request, v1::HelloReply* reply) override;
  // The three streams: frames of commands and their progress (run_stream.cc), the bytes of one
  // upload (upload_stream.cc), and the value of one bulk Fetch (download_stream.cc). Each counts
  // against the user's share of streams (StreamShares).
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Run(
      grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* Upload(grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* reply) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Download(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  // Precedes the next Run of a client that has lost its stream: both sides tell what they have
  // received (Lease::attach).
  grpc::ServerUnaryReactor* Attach(grpc::CallbackServerContext* context,
                                   const v1::AttachRequest* request,
                                   v1::AttachReply* reply) override;
  // Ends the session.
  grpc::ServerUnaryReactor* Close(grpc::CallbackServerContext* context,
                                  const v1::CloseRequest* request, v1::CloseReply* reply) override;
  // Cancels the queued commands of the session, which may also be named: a program can then
  // interrupt another session of its user.
  grpc::ServerUnaryReactor* Interrupt(grpc::CallbackServerContext* context,
                                      const v1::InterruptRequest* request,
                                      v1::InterruptReply* reply) override;
  // Describes the daemon: devices, limits and, if asked, the declarations of the operators.
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeReply* reply) override;
  // Receives source lines of commands; the reply names commands whose lines are wanted.
  grpc::ServerUnaryReactor* ReportSites(grpc::CallbackServerContext* context,
                                        const v1::SitesReport* request,
                                        v1::SitesReply* reply) override;
  // Lists the published tensors that the session may open under a name.
  grpc::ServerUnaryReactor* Published(grpc::CallbackServerContext* context,
                                      const v1::PublishedRequest* request,
                                      v1::PublishedReply* reply) override;
  // Tells how many bytes of an interrupted upload have arrived, or gives the upload up.
  grpc::ServerUnaryReactor* Staged(grpc::CallbackServerContext* context,
                                   const v1::StagedRequest* request,
                                   v1::StagedReply* reply) override;
  // Starts or stops the record of what the session runs, and returns the oldest part of the record.
  grpc::ServerUnaryReactor* Profile(grpc::CallbackServerContext* context,
                                    const v1::ProfileRequest* request,
                                    v1::ProfileReply* reply) override;

 private:
  template <class Act>
  grpc::ServerUnaryReactor* answer_for(grpc::CallbackServerContext* context, const char* method,
                                       Act act);
  template <class Reactor, class Start>
  Reactor* stream(grpc::CallbackServerContext* context, const char* method, StreamShares::Kind kind,
                  const char* number, Start start) noexcept;
  // Answers Hello, at once with the returned error or through `later`.
  core::Status hello(grpc::CallbackServerContext& context, const v1::HelloRequest& request,
                     v1::HelloReply& reply, const AnswerRef& later);
  core::Status attach(grpc::CallbackServerContext& context, const v1::AttachRequest& request,
                      v1::AttachReply& reply);
  core::Status moved_away(const MovedSessions::Place& place,
                          const grpc::CallbackServerContext& context,
                          const v1::HelloRequest& request, v1::HelloReply& reply,
                          const AnswerRef& later) const;
  // Returns true if the call came through a UNIX socket of this machine.
  bool by_socket(const grpc::CallbackServerContext& context) const;
  // The lease that a call of `method` names, if the caller may make the call and owns the lease.
  core::Result<LeaseRef> lease(grpc::CallbackServerContext& context, const char* method) const;
  core::Result<LeaseRef> named(grpc::CallbackServerContext& context, const std::string& name) const;

  Leases& leases_;
  const Auth& auth_;
  const Entrance entrance_;
  const ServerFacts& facts_;
};

}  // namespace teletensor::server
