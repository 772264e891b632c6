// RunCall is the part of a Run stream that does not depend on how its bytes travel: its lease, and
// how it ends. The streams are server/stream/run_stream.cc (gRPC) and
// server/net/local/local_stream.h.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/core/mutex.h"
#include "server/session/leases/leases.h"

namespace teletensor::server {

class RunCall : public LeaseCall {
 public:
  // LeaseCall
  void lease_ended(const Ending& ending) override;
  Clock::time_point stalled_since() const override;

 protected:
  explicit RunCall(Leases& leases) : leases_(leases) {}

  // Sends what there is to send, or ends the stream if that is wanted. Any thread.
  virtual void pump() = 0;
  // Makes this stream, `self`, the Run stream of attach `attach`. If the lease does not take it,
  // the stream is to end with the reason.
  void join(LeaseRef lease, std::weak_ptr<LeaseCall> self, std::uint64_t attach);
  // Must be called when the client has disconnected or the stream is over.
  void detach(const char* how);
  // The stream is to end with this status, unless it is to end already.
  void finish(Ending ending);
  LeaseRef lease() const;

  Leases& leases_;
  mutable core::Mutex mutex_;
  LeaseRef lease_ TT_GUARDED_BY(mutex_);
  bool writing_ TT_GUARDED_BY(mutex_) = false;  // Whether a message is being sent.
  Clock::time_point write_began_ TT_GUARDED_BY(mutex_);
  bool finish_wanted_ TT_GUARDED_BY(mutex_) = false;
  Ending answer_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
