// Auth finds out which user makes a call, and with which role. It uses the kind of connection and
// the token in the call's metadata ("authorization: Bearer ..."). Thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <atomic>

#include "server/access/rights.h"
#include "server/access/tokens.h"

namespace teletensor::server {

// The kind of connection by which a call reached the daemon.
enum class Way : std::uint8_t {
  // The daemon's own UNIX socket, from a process of another user of this machine. The kernel tells
  // which user that is.
  kOtherUser,
  // The daemon's own UNIX socket, from a process of root or of the user that the daemon runs as. A
  // caller without a token is treated as the daemon's user with the admin role.
  kOwnSocket,
  // Plain TCP on the loopback interface. A caller without a token has no identity, or is the user
  // "anonymous" if anonymous callers are allowed.
  kLoopback,
  // TLS, or a UNIX socket behind a proxy. A caller has no identity without a token or a client
  // certificate that names a user.
  kRemote,
};

// Properties that all calls of one listener share.
struct Entrance {
  bool remote = false;  // Whether the listener serves remote callers (Way::kRemote).
  // If it is not empty, all callers are processes of this user of the machine (Way::kOtherUser).
  std::string neighbour;
};

// The value of an entry in a call's metadata. Empty if the call has no such entry.
std::string_view text_of(const grpc::CallbackServerContext& context, const char* key);

// The user name of callers without an identity.
inline constexpr char kAnonymous[] = "anonymous";

class Auth {
 public:
  // `tokens` must outlive this object. With `certificate_users`, a caller with a client certificate
  // and no token is the user that the certificate names. With `allow_anonymous`, callers on the
  // loopback interface need no token.
  Auth(Tokens& tokens, bool certificate_users, bool allow_anonymous);

  // Identifies the caller. `authorization` is the value of the "authorization" header, or empty. An
  // invalid token is refused with UNAUTHENTICATED, also where no token would be needed. `name` is
  // the common name of the verified client certificate or the user of a kOtherUser connection, or
  // empty. `run_secret`, if not empty, is an additional token that is stored nowhere; its holder is
  // the daemon's own user with the admin role.
  core::Result<Caller> caller(Way way, std::string_view authorization, std::string_view name = "",
                              std::string_view run_secret = "") const;
  // Identifies the caller and checks that it may call `method`. Refusals are counted.
  core::Result<Caller> check(Way way, std::string_view authorization, std::string_view method,
                             std::string_view name = "", std::string_view run_secret = "") const;
  // Identifies the caller of a gRPC call and checks that it may call `method`.
  core::Result<Caller> check(const grpc::CallbackServerContext& context, const Entrance& entrance,
                             std::string_view method) const;

  Tokens& tokens() const { return tokens_; }
  const std::string& own_user() const { return own_user_; }
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  Tokens& tokens_;
  const bool certificate_users_, allow_anonymous_;
  const std::string own_user_;                     // The user that the daemon runs as.
  mutable std::atomic<std::uint64_t> refused_{0};  // Number of refused calls.
};

}  // namespace teletensor::server
