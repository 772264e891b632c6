// The gRPC services: Compute for clients, Admin for operators. Callback API; Run, Upload and
// Download see raw bytes.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/codec.h"
#include "server/streams.h"
#include "teletensor/v1/admin.grpc.pb.h"
#include "teletensor/v1/session.grpc.pb.h"

namespace teletensor::server {

using ComputeCallbacks = v1::Compute::WithCallbackMethod_Hello<
    v1::Compute::WithRawCallbackMethod_Run<v1::Compute::WithRawCallbackMethod_Upload<
        v1::Compute::WithRawCallbackMethod_Download<v1::Compute::WithCallbackMethod_Interrupt<
            v1::Compute::WithCallbackMethod_Attach<v1::Compute::WithCallbackMethod_Close<
                v1::Compute::WithCallbackMethod_Describe<v1::Compute::Service>>>>>>>>;

class ComputeService final : public ComputeCallbacks {
 public:
  ComputeService(Leases& leases, const ServerFacts& facts) : leases_(leases), facts_(facts) {}

  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext* context,
                                  const v1::HelloRequest* request, v1::HelloReply* reply) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Run(
      grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* Upload(grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* reply) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Download(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Attach(grpc::CallbackServerContext* context,
                                   const v1::AttachRequest* request,
                                   v1::AttachReply* reply) override;
  grpc::ServerUnaryReactor* Close(grpc::CallbackServerContext* context,
                                  const v1::CloseRequest* request, v1::CloseReply* reply) override;
  grpc::ServerUnaryReactor* Interrupt(grpc::CallbackServerContext* context,
                                      const v1::InterruptRequest* request,
                                      v1::InterruptReply* reply) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeReply* reply) override;

 private:
  bool too_many_streams() const { return streams_ >= leases_.limits().streams; }

  Leases& leases_;
  const ServerFacts& facts_;
  StreamTotal streams_{0};
};

class AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(Leases& leases) : leases_(leases) {}

  grpc::ServerUnaryReactor* Sessions(grpc::CallbackServerContext* context,
                                     const v1::SessionsRequest* request,
                                     v1::SessionsReply* reply) override;
  grpc::ServerUnaryReactor* Memory(grpc::CallbackServerContext* context,
                                   const v1::MemoryRequest* request,
                                   v1::MemoryReply* reply) override;

 private:
  Leases& leases_;
};

}  // namespace teletensor::server
