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

  // Sends the messages that wait for the client, and ends the stream if finish() was called. Called
  // by any thread.
  virtual void pump() = 0;
  // Makes this stream the Run stream of attach `attach` of the lease. `self` is this object, for
  // the lease's calls. If the lease refuses it, for example because the client has attached again,
  // the stream ends with the reason (finish()).
  void join(LeaseRef lease, std::weak_ptr<LeaseCall> self, std::uint64_t attach);
  // Must be called when the client has disconnected or the stream is over.
  void detach(const char* how);
  // Makes the stream end with this status after the messages that wait for the client. Has no
  // effect if an earlier call has set a status.
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
