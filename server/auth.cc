#include "server/auth.h"

#include <pwd.h>
#include <unistd.h>

#include <vector>

namespace teletensor::server {

namespace {

std::string user_name(uid_t uid) {
  std::vector<char> space(16384);
  passwd entry{}, *found = nullptr;
  if (getpwuid_r(uid, &entry, space.data(), space.size(), &found) == 0 && found != nullptr) {
    return entry.pw_name;
  }
  return "uid-" + std::to_string(uid);
}

}  // namespace

Auth::Auth() : own_user_(user_name(getuid())) {}

Caller Auth::caller(const grpc::CallbackServerContext& context) const {
  if (context.peer().starts_with("unix:")) return {own_user_, Role::kAdmin};
  return {"anonymous", Role::kUser};
}

core::Status Auth::check_right(std::string_view method, const Caller& caller) const {
  core::Status status = server::check_right(method, caller);
  if (!status.ok()) refused_.fetch_add(1, std::memory_order_relaxed);
  return status;
}

core::Result<Caller> Auth::check(const grpc::CallbackServerContext& context,
                                 std::string_view method) const {
  Caller who = caller(context);
  TT_RETURN_IF_ERROR(check_right(method, who));
  return who;
}

}  // namespace teletensor::server
