// CommandStream is the transport of a session: it passes frames to the current stream, receives the
// daemon's messages, and continues with another stream after a cut or a restart of the daemon.
// A transport is a Stream (attach()), or external code that calls next_frame() and on_progress().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "clients/session/frames/fetches.h"
#include "clients/session/frames/held_releases.h"
#include "clients/session/frames/late_errors.h"
#include "clients/session/frames/origin.h"
#include "clients/session/frames/outgoing.h"
#include "clients/session/frames/session_limits.h"
#include "engine/core/mutex.h"
#include "proto/wire/frame.h"

namespace teletensor::client {

class Call;
class Stream;
class StreamEnd;

// The results that a session has received and has not used yet.
struct Received {
  Fetches fetches;
  LateErrors errors;
  Raises raises;
  std::vector<wire::LostRankEvent> lost_ranks;
};

class CommandStream {
 public:
  // `recorder` must outlive this object. `on_pause` is called by the writer of a Stream, without
  // the lock, when there was nothing to send for some time.
  CommandStream(const SessionLimits& limits, Recorder& recorder, std::function<void()> on_pause);
  ~CommandStream();
  CommandStream(const CommandStream&) = delete;
  CommandStream& operator=(const CommandStream&) = delete;

  const Origin& origin() const { return origin_; }
  // Whether the session is that of the device meta: its commands have run when they are issued.
  bool is_meta() const { return limits_.meta; }

  // ---- Called by API threads
  // Sets the position at which a session continues that was taken over.
  void start_at(std::uint64_t next_seq, program::HandleId next_id, std::uint64_t completed_upto);
  // Returns true if commands may be issued after command `seq`.
  bool takes_after(std::uint64_t seq) const {
    return !over_.load(std::memory_order_relaxed) && outgoing_.has_room(seq);
  }
  // Appends the next command, which makes `made` ids. Never waits.
  template <class Command>
  void append(const Command& command, std::uint32_t made) {
    if (limits_.meta) [[unlikely]] {
      completed_.fetch_add(1);
      return;
    }
    core::MutexLock lock(mutex_);
    outgoing_.append(command, made);
    wake_sender();
  }
  // Another daemon would not repeat command `seq` with the same effect.
  void mark_fragile(std::uint64_t seq);
  // Waits until ready(), which is called with the lock held, returns true, but at most `most`. Does
  // the stream's I/O meanwhile.
  bool wait_for(const std::function<bool()>& ready, std::chrono::milliseconds most);
  // Makes the waiting threads call ready() again.
  void wake();
  // Reports that no call will wait for the value of this fetch.
  void drop_value(std::uint64_t fetch);
  // Reports that releases wait to be sent together with another command. If no other command
  // follows before held_releases().let_go(), the writer of a Stream calls `on_pause` after a while.
  void hold_releases() {
    if (held_releases_.hold()) limit_rest();
  }
  // Returns an error if no more commands are accepted.
  core::Status status() const;

  // ---- Called by any thread
  // Last command that has run, as far as the daemon has reported.
  std::uint64_t completed_upto() const { return completed_.load(std::memory_order_acquire); }
  // Returns true if the session is lost or closed.
  bool over() const { return over_; }
  HeldReleases& held_releases() { return held_releases_; }
  // Waits for commands, at most `seconds`, and returns the next frame. An empty frame means that
  // the time has passed. Returns false if the session is closed and all frames were taken, or if
  // `stream` is not the latest one.
  bool next_frame(std::string& frame, double seconds, std::uint64_t stream);
  // Starts the next stream, of attach `attach`. Frames after command `received_upto` are sent
  // again, and the older stream receives no more frames. Returns the stream's number; the first is
  // 1.
  std::uint64_t take_up(std::uint64_t attach, std::uint64_t received_upto);
  // Frames that have run are retained from now on, because the daemon writes a snapshot of the
  // session or is about to.
  void retain();
  // The first command from which all frames are available and would have the same effect if they
  // were sent again. 0 means none.
  std::uint64_t replay_from() const;
  // Starts the next stream like take_up(), for a daemon with an older state than this client, but
  // not older than replay_from(). Frames after `received_upto` are sent as if for the first time.
  // Their results are already known; if a command fails that had succeeded before, the session
  // ends.
  std::uint64_t replay(std::uint64_t attach, std::uint64_t received_upto, std::uint64_t credit_upto,
                       std::uint64_t credit_bytes, std::uint64_t bytes_received);
  // Number of the last Progress that was received.
  std::uint64_t progress_upto() const;
  core::Status on_progress(std::string_view bytes);
  // Reports that the stream is lost for good. Every wait ends with this error.
  void lost(core::Status why);
  // Accepts no more commands. next_frame() returns the remaining frames, and then false.
  void close();
  // Sends frames and receives progress through `call` until it ends. Must follow take_up().
  std::shared_ptr<StreamEnd> attach(std::unique_ptr<Call> call);
  // Closes the stream.
  void detach();
  // Frames that were sent and have not run completely, oldest first; a new stream would have to
  // send them again. The credits bound their number.
  std::vector<FrameRef> unconfirmed() const;

  // ---- The lock and what it guards. LateErrors::any() and the functions of Raises for API threads
  // need no lock.
  core::Mutex& mutex() const { return mutex_; }
  // Notified when anything that a thread waits for may have changed.
  core::CondVar& changed() { return changed_; }
  Outgoing& outgoing() { return outgoing_; }
  Received& received() { return received_; }
  const Received& received() const { return received_; }
  bool closed() const { return closed_; }
  // The error with which the session was lost. OK if it was not.
  const core::Status& lost_status() const { return lost_; }
  // A copy of that; thread-safe.
  core::Status loss() const {
    core::MutexLock lock(mutex_);
    return lost_;
  }

  // ---- For Stream
  std::chrono::microseconds pace() const { return limits_.pace; }
  void pause() { on_pause_(); }

 private:
  // Precondition for these functions: the lock is held.
  // Tells the sender that there may be something to send.
  void wake_sender();
  // Limits the sleep of the writer, because a release waits. Takes the lock.
  void limit_rest();
  // Starts the next stream and returns its number.
  std::uint64_t next_stream();
  core::Status diverged(const wire::ErrorEvent& error);

  const SessionLimits limits_;
  const std::function<void()> on_pause_;
  const Origin origin_;
  mutable core::Mutex mutex_;
  core::CondVar changed_;

  // ---- guarded by mutex_
  Outgoing outgoing_;
  Received received_;
  std::uint64_t fragile_upto_ = 0;  // Last command that another daemon would not repeat.
  std::uint64_t replay_upto_ = 0;   // Events up to this command were reported before.
  std::uint64_t stream_ = 0;        // Number of the current stream.
  std::shared_ptr<Stream> link_;    // The current or last stream.
  bool sender_sleeps_ = false;      // Whether a thread waits in next_frame().
  core::CondVar work_;              // Wakes the thread that waits in next_frame().
  bool closed_ = false;
  core::Status lost_;

  // Written with mutex_ locked, and read without it by every operator call.
  std::atomic<std::uint64_t> completed_ = 0;
  std::atomic<bool> over_ = false;  // Whether the session is lost or closed.
  HeldReleases held_releases_;
};

}  // namespace teletensor::client
