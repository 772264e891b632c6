// LeaseStreams has the calls that hold a lease, of which one at most is its Run stream, and knows
// whether the lease has ended. It decides which stream's frames count: after an Attach those of
// the earlier stream are ignored. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/core/status.h"
#include "proto/wire/frame.h"
#include "server/session/lease/client_info.h"
#include "server/session/lease/lease_call.h"
#include "server/session/lease/saved_file.h"
#include "server/session/outbox.h"

namespace teletensor::server {

class LeaseStreams {
 public:
  // `client` and `outbox` are those of the lease, and outlive this object.
  LeaseStreams(const ClientInfo& client, Outbox& outbox)
      : client_(client), outbox_(outbox), attach_(client.attach_counter) {}

  // Returns true while the lease has a Run stream.
  bool attached() const;
  // Seconds since the last Run stream ended; 0 while there is one.
  double detached_seconds() const;
  // The time since which the lease has had no Run stream. The epoch if it has one or has ended.
  Clock::time_point detached_since() const;
  // Returns UNAVAILABLE from the restart of the daemon until the client has called Attach.
  core::Status wants_attach() const;

  // Registers a call. With `attach`, the call is the Run stream of that attach, of which there is
  // at most one. `word` receives the reason in one word if the lease has ended.
  core::Status join(std::weak_ptr<LeaseCall> call, std::optional<std::uint64_t> attach,
                    std::string* word = nullptr);
  // Reports that the stream has ended. Returns false if the lease has no further use and should
  // end.
  bool detach(const LeaseCall* run);
  // The calls that have not finished.
  std::vector<std::shared_ptr<LeaseCall>> calls() const;
  // The Run stream. Null if there is none.
  std::shared_ptr<LeaseCall> run() const;

  struct Presence {
    std::shared_ptr<LeaseCall> run;  // The Run stream. Null if there is none.
    bool met = false;                // Whether there has been a stream.
    Clock::time_point detached_at;   // Time of the last Attach, or of the end of a stream.
  };
  Presence presence() const;

  // ---- frames of the Run stream
  enum class Arrival : std::uint8_t {
    kReplaced,  // From a replaced stream; the client sends the frame again on its own stream.
    kKnown,     // Received before.
    kNew,       // Counts as received. The next frame must wait until consumed() was called.
  };
  // Decides about a frame of the stream `run`, which had this many bytes. On failure the lease
  // should end.
  core::Result<Arrival> arrive(const LeaseCall* run, const wire::Frame& frame, std::size_t bytes);
  // Returns true if the session has consumed the last frame.
  bool readable() const { return !consuming_.load(); }
  void consumed() { consuming_ = false; }

  // ---- Attach
  struct Reattached {
    Attached reply;
    std::shared_ptr<LeaseCall> older;  // The stream that was replaced, which should end.
  };
  // Reconnects the client. Returns FAILED_PRECONDITION with the word "rollback" if this session is
  // in an earlier state than the client and the client cannot send the missing frames again; other
  // words if the lease has ended. `saved` says why later commands were not saved.
  core::Result<Reattached> attach(const AttachCall& call, const SavedFile& saved,
                                  std::string* word);
  std::uint64_t attach_counter() const;

  // Facts of a restored session that the daemon which wrote its file has stored.
  struct Restored {
    std::uint64_t uploads = 0;  // Number of its last upload.
    // Whether the session has tensors that are shared with other sessions. Its commands must not be
    // replayed: they would see later writes of other sessions and their own writes twice.
    bool shares = false;
  };
  // Continues with the last attach of the earlier daemon. Must precede the first call.
  void restore(std::uint64_t attach, Restored restored);

  // ---- the end of the lease
  // Ends the lease and returns the calls that must be told. Returns nothing if it had ended before;
  // the first reason counts.
  std::optional<std::vector<std::weak_ptr<LeaseCall>>> end(const Ending& ending);
  // The error of a call that names the lease after its end.
  core::Status ended_status() const;
  // Returns true if the lease has ended and will not be restored by the next daemon.
  bool over() const;

 private:
  const ClientInfo& client_;
  Outbox& outbox_;                      // Its lock is acquired while mutex_ is locked.
  std::atomic<bool> consuming_{false};  // Whether the session is processing a frame.

  mutable core::Mutex mutex_;
  std::optional<Ending> ending_ TT_GUARDED_BY(mutex_);
  std::uint64_t attach_ TT_GUARDED_BY(mutex_);  // Counter of the last attach.
  bool awaited_ TT_GUARDED_BY(mutex_) = true;   // Whether the first stream is still expected.
  // How the lease began: by Hello, or restored from a file, without and with an Attach since. Until
  // that Attach a restored lease refuses Run and Upload. A Run call may follow an Attach at the
  // previous daemon that is later than the snapshot, and the numbers of new uploads would hide from
  // Attach that the client knows an upload that the snapshot lacks.
  enum class Origin : std::uint8_t { kHello, kRestored, kAttached };
  Origin origin_ TT_GUARDED_BY(mutex_) = Origin::kHello;
  Restored restored_ TT_GUARDED_BY(mutex_);
  bool met_ TT_GUARDED_BY(mutex_) = false;  // Whether there has been a stream.
  Clock::time_point detached_at_ TT_GUARDED_BY(mutex_) = Clock::now();
  std::weak_ptr<LeaseCall> run_ TT_GUARDED_BY(mutex_);
  // The object that run_ refers to; null if there is no stream. It is compared and never
  // dereferenced, because it may be destroyed already.
  const LeaseCall* run_now_ TT_GUARDED_BY(mutex_) = nullptr;
  std::vector<std::weak_ptr<LeaseCall>> calls_ TT_GUARDED_BY(mutex_);
};

}  // namespace teletensor::server
