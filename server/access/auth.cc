#include "server/access/auth.h"

#include <grpc/grpc_security_constants.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "server/base/log.h"
#include "server/base/os/users.h"
#include "server/base/secrets.h"

namespace teletensor::server {

using core::Result;
using core::Status;

namespace {

// Extracts SECRET from "Bearer SECRET". The first word may be in upper or lower case. Returns an
// empty text for anything else.
std::string_view bearer(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return "";
  for (std::size_t i = 0; i < kScheme.size(); ++i) {
    // Sets the bit that makes a letter lower-case; the space already has it set.
    if ((authorization[i] | 0x20) != kScheme[i]) return "";
  }
  return authorization.substr(kScheme.size());
}

// Number of refusals that are logged; afterwards every 100th is.
constexpr std::uint64_t kRefusalsLogged = 100;

}  // namespace

Auth::Auth(Tokens& tokens, bool certificate_users, bool allow_anonymous)
    : tokens_(tokens),
      certificate_users_(certificate_users),
      allow_anonymous_(allow_anonymous),
      own_user_(user_name(getuid())) {}

Result<Caller> Auth::caller(Way way, std::string_view authorization, std::string_view name,
                            std::string_view run_secret) const {
  if (!authorization.empty()) {
    if (!run_secret.empty() && same_secret(bearer(authorization), run_secret)) {
      return Caller{own_user_, Role::kAdmin};
    }
    const Result<std::optional<Caller>> found = tokens_.find(bearer(authorization));
    if (!found.ok()) return found.status();
    if (*found) return **found;
    return Status(kUnauthenticated, "the token is unknown, expired or revoked");
  }
  if (way == Way::kOtherUser) return Caller{std::string(name), Role::kUser};
  if (way == Way::kOwnSocket) return Caller{own_user_, Role::kAdmin};
  if (way == Way::kRemote) {
    if (!certificate_users_ || name.empty()) return Caller{};
    if (good_user(name) && name != kAnonymous) return Caller{std::string(name), Role::kUser};
    return Status(kUnauthenticated, "the certificate's common name is not a valid user name");
  }
  return allow_anonymous_ ? Caller{kAnonymous, Role::kUser} : Caller{};
}

Result<Caller> Auth::check(Way way, std::string_view authorization, std::string_view method,
                           std::string_view name, std::string_view run_secret) const {
  Result<Caller> who = caller(way, authorization, name, run_secret);
  if (who.ok()) {
    Status status = check_right(method, *who);
    if (status.ok()) return who;
    who = Result<Caller>(std::move(status));
  }
  const std::uint64_t count = refused_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (count <= kRefusalsLogged || count % kRefusalsLogged == 0) {
    log_warn(
        "call_refused",
        {{"method", method}, {"code", static_cast<int>(who.status().code())}, {"count", count}});
  }
  return who;
}

std::string_view text_of(const grpc::CallbackServerContext& context, const char* key) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string_view()
                                 : std::string_view(found->second.data(), found->second.size());
}

Result<Caller> Auth::check(const grpc::CallbackServerContext& context, const Entrance& entrance,
                           std::string_view method) const {
  const std::string_view authorization = text_of(context, "authorization");
  if (!entrance.neighbour.empty()) {
    return check(Way::kOtherUser, authorization, method, entrance.neighbour);
  }
  if (!entrance.remote) {
    const bool own = context.peer().starts_with("unix:");
    return check(own ? Way::kOwnSocket : Way::kLoopback, authorization, method);
  }
  std::string certified;
  if (const auto peer = context.auth_context();
      certificate_users_ && peer && peer->IsPeerAuthenticated()) {
    const auto names = peer->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
    if (names.size() == 1) certified.assign(names[0].data(), names[0].size());
  }
  return check(Way::kRemote, authorization, method, certified);
}

}  // namespace teletensor::server
