// Names of the users that sessions and tokens belong to.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace teletensor::server {

// Returns true if `user` is a valid name: 1 to 64 letters, digits and characters of "._@-".
bool good_user(std::string_view user);

// The login name of a user of this machine, or "uid-N" if it has none that is a valid name here.
std::string user_name(uid_t uid);

// Returns true if the user has an entry in the system's database of users. Subordinate user ids
// have none.
bool has_account(uid_t uid);

}  // namespace teletensor::server
