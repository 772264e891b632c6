// What one client may make the server hold. Told to it in Hello.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "engine/program/amounts.h"
#include "proto/wire/frame.h"

namespace teletensor::server {

// What one user may have, where that is not everybody's.
struct UserLimits {
  std::size_t sessions = 0;
  std::uint64_t memory = 0;
  std::uint64_t session_memory = 0;
  double weight = 1;                                 // of its share of the lanes
  program::Amounts amounts = program::kUsualLimits;  // of one session

  // What a session that asks for so many bytes gets. 0: no limit.
  std::uint64_t quota(std::uint64_t asked) const {
    return asked == 0 || (session_memory != 0 && asked > session_memory) ? session_memory : asked;
  }
};

struct Limits {
  wire::FrameLimits frame;
  std::uint64_t credit_instructions = 16384;  // commands sent that have not run
  std::uint64_t credit_bytes = 8ull << 20;    // bytes of frames that have not run
  std::size_t chunk_bytes = 1 << 20;          // of an upload or a download
  std::size_t progress_bytes = 1 << 20;       // values in one Progress, about
  std::size_t outbox_bytes = 64ull << 20;     // values that the client has not read
  std::size_t sessions = 64;
  std::size_t streams = 1024;        // calls at once, of all clients
  std::size_t user_sessions = 0;     // of one user at once; 0: no limit but `sessions`
  std::uint64_t user_memory = 0;     // bytes a device of a user's sessions; 0: no limit
  std::uint64_t session_memory = 0;  // bytes a device; 0: the engine's budget
  program::Amounts amounts = program::kUsualLimits;      // of one session
  std::map<std::string, UserLimits, std::less<>> users;  // those who have limits of their own
  // A client that was cut off has so long to come back before its session may have to go.
  std::chrono::milliseconds safe{30'000};
  std::chrono::milliseconds stall{30'000};  // a client that does not read is detached after it
  // A session without a client leaves its groups after it, so that other ranks do not wait for it.
  std::chrono::milliseconds rank_grace{30'000};
  std::chrono::milliseconds attach{15'000};  // from Hello to Run
  // The longest that a session outlives its stream and its last work; 0: it ends with its stream.
  std::chrono::seconds lease{0};
  std::chrono::milliseconds slow{200};    // instructions that take longer are in the slow log
  std::chrono::milliseconds sites{5000};  // clients report lines so often; 0: never

  UserLimits of(std::string_view user) const {
    const auto found = users.find(user);
    return found != users.end()
               ? found->second
               : UserLimits{user_sessions, user_memory, session_memory, 1, amounts};
  }
};

}  // namespace teletensor::server
