// The Admin gRPC service, for operators and for users who manage their own sessions
// (proto/teletensor/v1/admin.proto).
//
// gRPC calls the methods from its own threads, several at a time, and they never wait: an answer
// that takes time is given later. Each method checks the caller's right to it first
// (server/access/rights.h). A caller who is no admin sees only sessions of the own user; for other
// sessions a call fails as if they did not exist.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/access/auth.h"
#include "server/admin/overview.h"
#include "server/peer/moves.h"
#include "server/state/recovery.h"
#include "teletensor/v1/admin.grpc.pb.h"

namespace teletensor::server {

class AdminService final : public v1::Admin::CallbackService {
 public:
  // `entrance` describes the listener that accepts the calls. The other arguments must outlive this
  // object.
  AdminService(Leases& leases, Recovery& recovery, Moves& moves, const Auth& auth,
               Entrance entrance)
      : leases_(leases),
        recovery_(recovery),
        moves_(moves),
        auth_(auth),
        entrance_(std::move(entrance)) {}

  // ---- Reports
  grpc::ServerUnaryReactor* Sessions(grpc::CallbackServerContext* context,
                                     const v1::SessionsRequest* request,
                                     v1::SessionsReply* reply) override;
  grpc::ServerUnaryReactor* Memory(grpc::CallbackServerContext* context,
                                   const v1::MemoryRequest* request,
                                   v1::MemoryReply* reply) override;
  // The largest storages of a session. Number 0 means the session that the call's metadata names;
  // only then can the caller reset its peaks.
  grpc::ServerUnaryReactor* Holdings(grpc::CallbackServerContext* context,
                                     const v1::HoldingsRequest* request,
                                     v1::HoldingsReply* reply) override;
  grpc::ServerUnaryReactor* SlowLog(grpc::CallbackServerContext* context,
                                    const v1::SlowLogRequest* request,
                                    v1::SlowLogReply* reply) override;
  grpc::ServerUnaryReactor* Publications(grpc::CallbackServerContext* context,
                                         const v1::PublicationsRequest* request,
                                         v1::PublicationsReply* reply) override;
  grpc::ServerUnaryReactor* Groups(grpc::CallbackServerContext* context,
                                   const v1::GroupsRequest* request,
                                   v1::GroupsReply* reply) override;
  // ---- Actions on one session
  grpc::ServerUnaryReactor* Kill(grpc::CallbackServerContext* context,
                                 const v1::KillRequest* request, v1::KillReply* reply) override;
  grpc::ServerUnaryReactor* InterruptSession(grpc::CallbackServerContext* context,
                                             const v1::InterruptSessionRequest* request,
                                             v1::InterruptSessionReply* reply) override;
  // Writes the session to the state directory; answered when the file is complete.
  grpc::ServerUnaryReactor* Snapshot(grpc::CallbackServerContext* context,
                                     const v1::SnapshotRequest* request,
                                     v1::SnapshotReply* reply) override;
  // ---- Actions on the daemon
  // Writes all sessions to files and then ends the daemon; answered with what could not be written.
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request, v1::DrainReply* reply) override;
  // Moves a session to a peer; answered when the peer has it. The move ends if the caller
  // disconnects before that.
  grpc::ServerUnaryReactor* Move(grpc::CallbackServerContext* context,
                                 const v1::MoveRequest* request, v1::MoveReply* reply) override;
  // Refuses new sessions, with a reason for their clients, or accepts them again.
  grpc::ServerUnaryReactor* Admit(grpc::CallbackServerContext* context,
                                  const v1::AdmitRequest* request, v1::AdmitReply* reply) override;
  // ---- Tokens (server/access/tokens.h)
  grpc::ServerUnaryReactor* CreateToken(grpc::CallbackServerContext* context,
                                        const v1::CreateTokenRequest* request,
                                        v1::CreateTokenReply* reply) override;
  grpc::ServerUnaryReactor* ListTokens(grpc::CallbackServerContext* context,
                                       const v1::ListTokensRequest* request,
                                       v1::ListTokensReply* reply) override;
  grpc::ServerUnaryReactor* RevokeToken(grpc::CallbackServerContext* context,
                                        const v1::RevokeTokenRequest* request,
                                        v1::RevokeTokenReply* reply) override;

 private:
  template <class Act>
  grpc::ServerUnaryReactor* answer_to(grpc::CallbackServerContext* context, const char* method,
                                      Act act);
  core::Result<LeaseRef> lease(grpc::CallbackServerContext& context, std::uint64_t session,
                               const core::Result<Caller>& caller);

  Leases& leases_;
  Recovery& recovery_;
  Moves& moves_;
  const Auth& auth_;
  const Entrance entrance_;
};

// Ends a session on behalf of `caller`, whose right to do so was checked before. The session's
// client is told the name of the caller and the reason.
void kill(Leases& leases, Lease& lease, const Caller& caller, const std::string& reason);
// Cancels the queued commands of a session on behalf of `caller`, whose right to do so was checked
// before.
core::Status interrupt(Lease& lease, const Caller& caller);

}  // namespace teletensor::server
