// Stream: the hot stream of a session over clients/wire, by threads that never touch Python.
//
// Who waits for something flushes and reads on its own thread (help()): a value then costs no
// hand-over between threads. Beside that there are two threads. The writer sends what others
// append, and sleeps on a condition: a frame closes when the one before it has been written. The
// keeper reads when nobody else has for a while, so that pings are answered and credits and late
// errors arrive in programs that only issue.
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "clients/session/channel.h"
#include "clients/session/session.h"

namespace teletensor::client {

// How a stream ended; outlives it.
class StreamEnd {
 public:
  void set(core::Status status, std::string word);
  // False when the time has passed.
  bool wait(std::chrono::milliseconds most);
  // Once it is set. `word`: the daemon's for why.
  const core::Status& status() const { return status_; }
  const std::string& word() const { return word_; }

 private:
  core::Mutex mutex_;
  core::CondVar changed_;
  bool over_ = false;
  core::Status status_;
  std::string word_;
};

class Stream {
 public:
  using Duration = std::chrono::steady_clock::duration;

  // Starts. The session outlives the stream, and calls help() and wake_writer().
  Stream(Session& session, std::unique_ptr<Call> call);
  // Cuts the stream if it has not ended. Nobody is in help(). In the child of a fork: leave it
  // undestroyed.
  ~Stream();

  // Both with the session's lock. Sends or reads something, with the lock released meanwhile; false
  // when another thread is at it, or the stream is over.
  bool help(Duration most);
  // The writer is to be woken, if it sleeps: true. Then notify `work` without the lock.
  bool wake_writer() { return std::exchange(writer_sleeps_, false); }

  core::CondVar work;
  int waiters = 0;  // threads that sleep until another one has read; with the session's lock

  // Cuts the stream if it has not ended. Nobody begins to send or read afterwards.
  void end();
  std::shared_ptr<StreamEnd> outcome() const { return outcome_; }

 private:
  void write_loop();
  void keep_loop();
  // With the lock, which they release meanwhile.
  void write_one(std::int64_t most) TT_ANNOTATION(no_thread_safety_analysis);
  void end_write(int done);
  void read_one(std::int64_t most) TT_ANNOTATION(no_thread_safety_analysis);

  Session& session_;
  const std::unique_ptr<Call> call_;
  const tt_wire_api& api_;
  const std::shared_ptr<StreamEnd> outcome_ = std::make_shared<StreamEnd>();

  // Guarded by the session's lock.
  bool writing_ = false;    // a write is under way
  bool abandoned_ = false;  // by a helper that waited too long: the writer finishes it
  bool writer_sleeps_ = false;
  bool broken_ = false;  // nothing can be written any more
  bool reading_ = false;
  bool over_ = false;  // the end was read
  bool stop_ = false;
  std::uint64_t reads_ = 0;
  core::CondVar keeper_;

  std::thread writer_thread_, keeper_thread_;
};

}  // namespace teletensor::client
