// Overdraft: the memory of all sessions that could not be charged to the host's budget. A client
// learns late that an instruction was refused for lack of memory, and what it has sent until then
// still takes memory: the names and the tape of the refused instructions. The overdraft bounds that
// memory for the whole daemon. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/core/mutex.h"

namespace teletensor::memory {

class Overdraft {
 public:
  // The maximum of all users together, in bytes. A user gets at most half of what the other users
  // leave: one alone half of all, a second one a quarter, and so on; every further user gets some.
  static constexpr std::uint64_t kTotal = std::uint64_t{256} << 20;

  // Changes what a session of the user owes from `from` to `to` bytes. Returns false, without a
  // change, if the user's sessions would owe too much together; a decrease always succeeds.
  bool change(const std::string& user, std::uint64_t from, std::uint64_t to);

 private:
  core::Mutex mu_;
  std::map<std::string, std::uint64_t> users_ TT_GUARDED_BY(mu_);
  std::uint64_t used_ TT_GUARDED_BY(mu_) = 0;  // by all users together
};

}  // namespace teletensor::memory
