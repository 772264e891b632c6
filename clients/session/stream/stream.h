// Stream runs the Run call of a session over clients/wire, in threads that never execute Python.
// A thread that waits for a result sends and receives on its own (help()), so that a value needs no
// hand-over between threads. In addition there are two threads. The writer sends frames of other
// threads: the first frame at once, and each further one when the previous one was written and
// SessionLimits::pace has passed. While frames follow each other and no thread waits, the writer
// polls once in each such interval; otherwise it sleeps until there is something to send. If a
// program has several times in a row waited directly after its commands, it is expected to send the
// next ones itself, and then the writer is not woken but its alarm is postponed. The keeper reads
// when no other thread has read for a while, so that pings are answered, and credits and
// asynchronous errors arrive, in programs that only issue commands.
#pragma once

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "clients/session/frames/command_stream.h"
#include "clients/session/stream/alarm.h"
#include "clients/session/stream/channel.h"

namespace teletensor::client {

// The outcome of a stream; outlives it.
class StreamEnd {
 public:
  void set(core::Status status, std::string word);
  // Waits for the end of the stream. Returns false if the time has passed.
  bool wait(std::chrono::milliseconds most);
  // The final status; valid when the end was set. `word` is the daemon's reason in one word.
  const core::Status& status() const { return status_; }
  const std::string& word() const { return word_; }

 private:
  core::Mutex mutex_;
  core::CondVar changed_;
  bool over_ = false;
  core::Status status_;
  std::string word_;
};

// Predicts whether the program that issues commands will soon wait for a result, and send the
// commands itself.
class WaitHabit {
 public:
  using Clock = std::chrono::steady_clock;
  // A command was issued.
  void issued() {
    if (!std::exchange(issued_, true)) began_ = Clock::now();
  }
  // A thread waits for a result.
  void waits();
  // Returns true if the program has several times in a row waited directly after its commands.
  bool trusted() const;

 private:
  bool issued_ = false;      // Whether a command was issued since a thread last waited.
  Clock::time_point began_;  // Time of the first command since a thread last waited.
  int times_ = 0;            // Number of consecutive times that the program has waited soon.
};

class Stream {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = Clock::duration;

  // Starts the stream. If no threads can be created, it ends at once as if the connection were
  // lost. `commands` must outlive the stream; it calls help() and call_writer().
  Stream(CommandStream& commands, std::unique_ptr<Call> call);
  // Closes the stream if it has not ended. Precondition: no thread is in help(). In the child of a
  // fork, the object must not be destroyed.
  ~Stream();

  // Precondition for both functions: the lock of CommandStream is held. Sends or receives, with the
  // lock released meanwhile. Returns false if another thread is doing so, or if the stream has
  // ended.
  bool help(Duration most);
  // Tells the writer that there is something to send. Precondition: the lock of CommandStream is
  // held.
  void call_writer();
  // Ends the sleep of the writer soon, because a release waits to be sent. Precondition: the lock
  // of CommandStream is held.
  void limit_rest();
  // The session continues with another stream; this one takes no more frames. Precondition: the
  // lock is held.
  void retire() { broken_ = true; }

  // Number of threads that sleep until another thread has read. Guarded by the lock of
  // CommandStream.
  int waiters = 0;

  // Closes the stream if it has not ended. Afterwards no thread starts to send or receive.
  void end();
  std::shared_ptr<StreamEnd> outcome() const { return outcome_; }

 private:
  void write_loop();
  void keep_loop();
  // Precondition: the lock is held; it is released meanwhile.
  void write_one(std::int64_t most) TT_ANNOTATION(no_thread_safety_analysis);
  void end_write(int done);
  // Cancels the wake-up of the writer, because the waiting thread has sent the frames.
  void cancel_writer_wakeup();
  // The time for which the writer sleeps if there is nothing to send.
  Duration rest() const;
  // Lets the writer sleep. Called by the writer thread only.
  void sleep(Duration time) TT_ANNOTATION(no_thread_safety_analysis);
  void read_one(std::int64_t most) TT_ANNOTATION(no_thread_safety_analysis);

  CommandStream& commands_;
  const std::unique_ptr<Call> call_;
  const tt_wire_api& api_;
  const std::shared_ptr<StreamEnd> outcome_ = std::make_shared<StreamEnd>();

  // ---- guarded by the lock of CommandStream
  bool writing_ = false;     // Whether a write is in progress.
  Clock::time_point wrote_;  // Time when the writer's last write began.
  // Whether a waiting thread left a write unfinished; the writer completes it.
  bool abandoned_ = false;
  bool writer_sleeps_ = false;
  // The reason to wake the writer when it sleeps.
  enum class Due { kNothing, kLater, kNow } due_ = Due::kNothing;
  WaitHabit habit_;
  bool broken_ = false;  // Whether nothing can be written any more.
  bool reading_ = false;
  bool waits_ = false;  // Whether a thread waits in help().
  bool over_ = false;   // Whether the end of the call was read.
  bool stop_ = false;
  std::uint64_t reads_ = 0;
  core::CondVar keeper_;
  Alarm alarm_;  // The writer's alarm.

  std::thread writer_thread_, keeper_thread_;
};

}  // namespace teletensor::client
