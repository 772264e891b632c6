// Auth: who is it that calls? From the way in and the token that comes with the call
// ("authorization: Bearer ..."). Thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <atomic>

#include "server/access/rights.h"
#include "server/access/tokens.h"

namespace teletensor::server {

// Where a call came in.
enum class Way : std::uint8_t {
  // The daemon's own UNIX socket, by another user of this machine: whom the kernel names.
  kNeighbour,
  // The same, by the user that the daemon runs as, or root: without a token that user, an admin.
  kOwnSocket,
  // Plain TCP on loopback: without a token nobody, or, where that is allowed, the user "anonymous".
  kLoopback,
  // TLS, or a socket behind a proxy: without a token, or a client certificate that is one's name,
  // nobody.
  kRemote,
};

// What is known of all calls of a listener.
struct Entrance {
  bool remote = false;    // the way is kRemote
  std::string neighbour;  // not "": the way is kNeighbour, of that user
};

// An entry of a call's metadata; "" for a call without this entry.
std::string_view text_of(const grpc::CallbackServerContext& context, const char* key);

// Who says nothing about himself.
inline constexpr char kAnonymous[] = "anonymous";

class Auth {
 public:
  // `tokens` outlives it. certificate_users: whoever comes with a client certificate and no token
  // is the user of that name. allow_anonymous: callers on loopback need no token.
  Auth(Tokens& tokens, bool certificate_users, bool allow_anonymous);

  // By the "authorization" header's value; "" where there is none. A token that is not good is
  // never less than no token: UNAUTHENTICATED. `name`: the common name of the client certificate
  // that was verified, or of a neighbour; "" without. `run_secret`, if not "": a token that is kept
  // nowhere and makes its holder the own user, an admin.
  core::Result<Caller> caller(Way way, std::string_view authorization, std::string_view name = "",
                              std::string_view run_secret = "") const;
  // The caller if it may call `method`; refusals are counted.
  core::Result<Caller> check(Way way, std::string_view authorization, std::string_view method,
                             std::string_view name = "", std::string_view run_secret = "") const;
  // The same for a gRPC call.
  core::Result<Caller> check(const grpc::CallbackServerContext& context, const Entrance& entrance,
                             std::string_view method) const;

  Tokens& tokens() const { return tokens_; }
  const std::string& own_user() const { return own_user_; }
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  Tokens& tokens_;
  const bool certificate_users_, allow_anonymous_;
  const std::string own_user_;                     // that the daemon runs as
  mutable std::atomic<std::uint64_t> refused_{0};  // calls
};

}  // namespace teletensor::server
