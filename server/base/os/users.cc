#include "server/base/os/users.h"

#include <pwd.h>

#include <algorithm>
#include <vector>

namespace teletensor::server {

bool good_user(std::string_view user) {
  return !user.empty() && user.size() <= 64 && std::all_of(user.begin(), user.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '@' || c == '-';
  });
}

namespace {

// The login name of a user of this machine. Empty if the user has no account.
std::string login_name(uid_t uid) {
  std::vector<char> space(16384);
  passwd entry{}, *found = nullptr;
  const bool known =
      getpwuid_r(uid, &entry, space.data(), space.size(), &found) == 0 && found != nullptr;
  return known ? entry.pw_name : "";
}

}  // namespace

std::string user_name(uid_t uid) {
  const std::string login = login_name(uid);
  return good_user(login) ? login : "uid-" + std::to_string(uid);
}

bool has_account(uid_t uid) { return !login_name(uid).empty(); }

}  // namespace teletensor::server
