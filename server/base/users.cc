#include "server/base/users.h"

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

std::string user_name(uid_t uid) {
  std::vector<char> space(16384);
  passwd entry{}, *found = nullptr;
  if (getpwuid_r(uid, &entry, space.data(), space.size(), &found) == 0 && found != nullptr &&
      good_user(entry.pw_name)) {
    return entry.pw_name;
  }
  return "uid-" + std::to_string(uid);
}

}  // namespace teletensor::server
