// StoreService is the gRPC service for the key-value stores (proto/teletensor/v1/store.proto), on
// top of KeyStores. It uses gRPC's callback API, so a waiting call occupies no thread.
//
// gRPC calls the methods from its own threads, several at a time. A store belongs to the user who
// calls, so anonymous callers are refused. What the calls mean, and how a repeated call is
// recognised, is described in key_stores.h.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/access/auth.h"
#include "server/rendezvous/key_stores.h"
#include "teletensor/v1/store.grpc.pb.h"

namespace teletensor::server {

class StoreService final : public v1::Store::CallbackService {
 public:
  // `stores` and `auth` must outlive this object.
  StoreService(KeyStores& stores, const Auth& auth, Entrance entrance)
      : stores_(stores), auth_(auth), entrance_(std::move(entrance)) {}

  grpc::ServerUnaryReactor* Open(grpc::CallbackServerContext* context,
                                 const v1::StoreOpenRequest* request,
                                 v1::StoreOpenReply* reply) override;
  grpc::ServerUnaryReactor* Set(grpc::CallbackServerContext* context,
                                const v1::StoreSetRequest* request,
                                v1::StoreSetReply* reply) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const v1::StoreGetRequest* request,
                                v1::StoreGetReply* reply) override;
  grpc::ServerUnaryReactor* Add(grpc::CallbackServerContext* context,
                                const v1::StoreAddRequest* request,
                                v1::StoreAddReply* reply) override;
  grpc::ServerUnaryReactor* Append(grpc::CallbackServerContext* context,
                                   const v1::StoreAppendRequest* request,
                                   v1::StoreAppendReply* reply) override;
  grpc::ServerUnaryReactor* CompareSet(grpc::CallbackServerContext* context,
                                       const v1::StoreCompareSetRequest* request,
                                       v1::StoreCompareSetReply* reply) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const v1::StoreDeleteRequest* request,
                                   v1::StoreDeleteReply* reply) override;
  grpc::ServerUnaryReactor* Count(grpc::CallbackServerContext* context,
                                  const v1::StoreCountRequest* request,
                                  v1::StoreCountReply* reply) override;
  grpc::ServerUnaryReactor* Drop(grpc::CallbackServerContext* context,
                                 const v1::StoreDropRequest* request,
                                 v1::StoreDropReply* reply) override;

 private:
  // answer_to() is for calls that are answered at once, and waiting() for those that may wait for a
  // key or a store until another client has made it.
  template <class Act>
  grpc::ServerUnaryReactor* answer_to(grpc::CallbackServerContext* context, const char* method,
                                      Act act) noexcept;
  template <class Act>
  grpc::ServerUnaryReactor* waiting(grpc::CallbackServerContext* context, const char* method,
                                    Act act) noexcept;
  // The user who makes the call. PERMISSION_DENIED if the caller is anonymous.
  core::Result<Caller> caller(const grpc::CallbackServerContext& context, const char* method) const;

  KeyStores& stores_;
  const Auth& auth_;
  const Entrance entrance_;
};

}  // namespace teletensor::server
