// Stream: the hot stream of a session over clients/wire, by threads that never touch Python.
//
// Who waits for something flushes and reads on its own thread (help()): a value then costs no
// hand-over between threads. Beside that there are two threads. The writer sends what others
// append: the first frame leaves at once, the next one when that has been written and a moment
// (SessionLimits::pace) has passed. While frames follow each other and nobody waits it looks by
// itself, once in such a moment; else it sleeps. A program that has come to wait right behind its
// commands some times in a row is trusted to send the next ones so, and then wakes no writer: it
// moves its alarm. The keeper reads when nobody else has for a while, so that pings are answered
// and credits and late errors arrive in programs that only issue.
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "clients/session/alarm.h"
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
  using Clock = std::chrono::steady_clock;
  using Duration = Clock::duration;

  // Starts; without threads to be had it is over at once, as if it had been cut. The session
  // outlives the stream, and calls help() and call_writer().
  Stream(Session& session, std::unique_ptr<Call> call);
  // Cuts the stream if it has not ended. Nobody is in help(). In the child of a fork: leave it
  // undestroyed.
  ~Stream();

  // Both with the session's lock. Sends or reads something, with the lock released meanwhile; false
  // when another thread is at it, or the stream is over.
  bool help(Duration most);
  // There is something for the writer. With the session's lock.
  void call_writer();
  // The session goes on with another stream: this one takes no more of its frames. With the lock.
  void retire() { broken_ = true; }

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
  // The waiting thread has sent what the writer was called for.
  void excuse_writer();
  // The writer's.
  void sleep(Duration time) TT_ANNOTATION(no_thread_safety_analysis);
  void read_one(std::int64_t most) TT_ANNOTATION(no_thread_safety_analysis);

  Session& session_;
  const std::unique_ptr<Call> call_;
  const tt_wire_api& api_;
  const std::shared_ptr<StreamEnd> outcome_ = std::make_shared<StreamEnd>();

  // Guarded by the session's lock.
  bool writing_ = false;     // a write is under way
  Clock::time_point wrote_;  // when the writer's last one began
  bool abandoned_ = false;   // by a helper that waited too long: the writer finishes it
  bool writer_sleeps_ = false;
  enum class Due { kNothing, kLater, kNow } due_ = Due::kNothing;  // of the writer, while it sleeps
  bool issued_ = false;      // something, since somebody came to wait
  Clock::time_point began_;  // the first of it
  int trust_ = 0;            // how often in a row who issues came to wait soon
  bool broken_ = false;      // nothing can be written any more
  bool reading_ = false;
  bool waits_ = false;  // in help()
  bool over_ = false;   // the end was read
  bool stop_ = false;
  std::uint64_t reads_ = 0;
  core::CondVar keeper_;
  Alarm alarm_;  // the writer's

  std::thread writer_thread_, keeper_thread_;
};

}  // namespace teletensor::client
