// Auth: who is it that calls? From the way in and the call's metadata.
//
// The daemon's own UNIX socket: its mode lets only the user that the daemon runs as, and root,
// connect, so whoever comes there is that user and an admin. TCP on loopback: nobody in particular,
// the user "anonymous". Thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "server/rights.h"

namespace teletensor::server {

class Auth {
 public:
  Auth();

  Caller caller(const grpc::CallbackServerContext& context) const;
  // The caller if it may call `method`.
  core::Result<Caller> check(const grpc::CallbackServerContext& context,
                             std::string_view method) const;
  // check_right(), counted.
  core::Status check_right(std::string_view method, const Caller& caller) const;
  const std::string& own_user() const { return own_user_; }
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  const std::string own_user_;                     // that the daemon runs as
  mutable std::atomic<std::uint64_t> refused_{0};  // calls
};

}  // namespace teletensor::server
