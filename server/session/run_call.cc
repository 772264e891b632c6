#include "server/session/run_call.h"

#include <string>
#include <utility>

#include "engine/core/with_memory.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

void RunCall::join(LeaseRef lease, std::weak_ptr<LeaseCall> self, std::uint64_t attach) {
  std::string word;
  Status status = core::with_memory(
      "a stream", [&] { return lease->streams().join(std::move(self), attach, &word); });
  if (status.ok()) {
    MutexLock lock(mutex_);
    lease_ = std::move(lease);
  } else {
    finish({std::move(status), std::move(word)});
  }
}

void RunCall::lease_ended(const Ending& ending) {
  finish(ending);
  pump();
}

Clock::time_point RunCall::stalled_since() const {
  MutexLock lock(mutex_);
  return writing_ ? write_began_ : Clock::time_point{};
}

void RunCall::detach(const char* how) {
  finish({});
  const LeaseRef lease = this->lease();
  if (lease && !lease->streams().detach(this)) {
    leases_.end(*lease, Status(Code::kCancelled, how), "connection");
  }
}

void RunCall::finish(Ending ending) {
  MutexLock lock(mutex_);
  if (std::exchange(finish_wanted_, true)) return;
  answer_ = std::move(ending);
}

LeaseRef RunCall::lease() const {
  MutexLock lock(mutex_);
  return lease_;
}

}  // namespace teletensor::server
