// Limits on the resources that one client may use. The client receives most of them in Hello.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/program/amounts.h"
#include "proto/wire/frame.h"

namespace teletensor::server {

// Limits of one user that differ from the general ones.
struct UserLimits {
  std::size_t sessions = 0;
  std::uint64_t memory = 0;
  std::uint64_t session_memory = 0;
  double weight = 1;                                 // Relative share of the execution lanes.
  program::Amounts amounts = program::kUsualLimits;  // Limits of one session.
  // Maximum size of the files of the user's sessions and published tensors in the state directory,
  // in bytes. Unset: no limit.
  std::optional<std::uint64_t> state_memory = {};

  // The memory quota of a session that asks for `asked` bytes. 0 means no limit.
  std::uint64_t quota(std::uint64_t asked) const {
    return asked == 0 || (session_memory != 0 && asked > session_memory) ? session_memory : asked;
  }
};

struct Limits {
  wire::FrameLimits frame;
  // Maximum number of commands that were sent and have not run.
  std::uint64_t credit_instructions = 16384;
  // Maximum size of the frames that have not run, in bytes.
  std::uint64_t credit_bytes = 8ull << 20;
  // Maximum size of a chunk of an upload or a download, in bytes.
  std::size_t chunk_bytes = 1 << 20;
  // Approximate maximum size of the values in one Progress, in bytes.
  std::size_t progress_bytes = 1 << 20;
  // While commands run for long, their progress is reported after this time.
  std::chrono::milliseconds progress_every{100};
  // Maximum size of the values that the client has not read, in bytes.
  std::size_t outbox_bytes = 64ull << 20;
  std::size_t sessions = 64;
  // Maximum number of concurrent streams of all clients (StreamShares).
  std::size_t streams = 1024;
  // Maximum number of sessions of one user. 0 means that only `sessions` limits it.
  std::size_t user_sessions = 0;
  // Maximum memory of a user's sessions on each device, in bytes. 0 means no limit.
  std::uint64_t user_memory = 0;
  // Maximum memory of one session on each device, in bytes. 0 means the engine's budget.
  std::uint64_t session_memory = 0;
  // Maximum size of a user's files in the state directory, in bytes. Unset: no limit.
  std::optional<std::uint64_t> state_memory;
  program::Amounts amounts = program::kUsualLimits;      // Limits of one session.
  std::map<std::string, UserLimits, std::less<>> users;  // Users with limits of their own.
  // Time that a disconnected client has to return before its session may be ended to make room.
  std::chrono::milliseconds safe{30'000};
  // Time after which a client that reads nothing is disconnected.
  std::chrono::milliseconds stall{30'000};
  // Time after which a session without a client leaves its groups, so that other ranks do not wait
  // for it.
  std::chrono::milliseconds rank_grace{30'000};
  bool templates = true;  // engine::SessionOptions::templates, of every session
  // Maximum time that an upload waits for its next chunk, and that a download of a command that has
  // not arrived waits for the next command of an attached client all of whose commands have run.
  // A chunk has at most `chunk_bytes` and a frame at most `frame.bytes`, which a connection of 20
  // kB/s transfers in that time.
  std::chrono::milliseconds chunk_wait{60'000};
  std::chrono::milliseconds attach{15'000};  // Maximum time from Hello to Run.
  // Maximum time that a session outlives its stream and its last command. 0 means that it ends with
  // its stream.
  std::chrono::seconds lease{0};
  // Run time above which an instruction is recorded in the slow log.
  std::chrono::milliseconds slow{200};
  // Period in which clients report source lines. 0 means never.
  std::chrono::milliseconds sites{5000};
};

inline UserLimits limits_of(const Limits& all, std::string_view user) {
  const auto found = all.users.find(user);
  return found != all.users.end()
             ? found->second
             : UserLimits{all.user_sessions, all.user_memory, all.session_memory, 1,
                          all.amounts,       all.state_memory};
}

}  // namespace teletensor::server
