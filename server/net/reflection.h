// ReflectionService tells the services and messages of the daemon to callers with a token, for
// tools such as grpcurl. gRPC's own library for reflection answers every caller: it has no way to
// refuse a call, and interceptors of gRPC 1.51 can only cancel one.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/access/auth.h"

namespace teletensor::server {

class ReflectionService final
    : public grpc::reflection::v1alpha::ServerReflection::CallbackService {
 public:
  using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
  using Response = grpc::reflection::v1alpha::ServerReflectionResponse;

  // `services` are the full names of the other services of the server. `auth` must outlive this
  // object.
  ReflectionService(const Auth& auth, Entrance entrance, std::vector<std::string> services);

  grpc::ServerBidiReactor<Request, Response>* ServerReflectionInfo(
      grpc::CallbackServerContext* context) override;

 private:
  const Auth& auth_;
  const Entrance entrance_;
  const std::vector<std::string> services_;
};

}  // namespace teletensor::server
