// FrameConsumer: passes the commands of a session's frames to its front end, one frame at a time,
// and publishes the resulting entries to the back end.
//
// A frame is consumed on the thread that submitted it. If the consumer must wait (for room in the
// queue, or for a Raise), it returns, and the lane that ends the wait continues the frame by
// pump(). Hence no thread ever waits for kernels here.
//
// The front end belongs to one thread at a time: the frame consumer, or between frames a thread
// that reports progress to it. Functions that need it say so.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "engine/autograd/front.h"
#include "engine/core/mutex.h"
#include "engine/runtime/back/back.h"
#include "engine/session/bookkeeping.h"

namespace teletensor::session {

struct Frame {
  std::uint64_t first_seq = 0;
  std::vector<program::Command> commands;
  std::size_t position = 0;  // index of the next command; the earlier ones are consumed
  std::function<void(core::Status)> done;
  bool thin = false;  // The frame is a thin client's.
  // Seq of the last consumed command.
  std::uint64_t consumed() const { return first_seq + position - 1; }
};

class FrameConsumer {
 public:
  // While an error waits for its Raise, later failures and the values that the Raise could restore
  // are kept, up to these limits.
  static constexpr std::size_t kMaxFailures = 1u << 20;
  static constexpr std::uint64_t kMaxCommandsKept = 1u << 22;

  class Session {
   public:
    virtual ~Session() = default;
    // The frame with this `done` is consumed, or a command of it was refused with `status`.
    // `next_id` is the id that the next handle gets. The front end is free again.
    virtual void on_consumed(core::Status status, program::HandleId next_id,
                             std::function<void(core::Status)> done) = 0;
  };

  // With `templates`, commands that the client repeats are executed together (autograd/known/).
  FrameConsumer(autograd::Front& front, runtime::Back& back, Bookkeeping& bookkeeping,
                Session* session, bool templates)
      : front_(front),
        back_(back),
        bookkeeping_(bookkeeping),
        session_(session),
        templates_(templates) {}

  // ---- The frame. The session calls these functions only while no frame is being consumed.

  void set_frame(Frame frame) { frame_ = std::move(frame); }
  bool has_frame() const { return frame_.done != nullptr; }
  // Consumes the frame, or continues it. Any thread that the back end has asked to continue may
  // call it while a frame is being consumed.
  void pump();
  // Seq of the next command of the frame. Precondition: is_stopped().
  std::uint64_t next_seq() const { return frame_.consumed() + 1; }
  // Consumes no further command.
  void close() { closing_ = true; }
  bool closing() const { return closing_; }

  // ---- The front end.

  void take_front();
  // After this call, the thread must check for progress that happened meanwhile
  // (forget_completed()).
  void give_front_back();
  // Frees the values that a Raise could restore of commands that have run, also in a session that
  // sends no more frames.
  void forget_completed();
  // Adds the contents of kept names. Returns false if the front end is in use.
  bool kept_contents(std::unordered_set<const void*>& contents);
  // These functions need the front end.
  void forget_upto(std::uint64_t completed);
  void publish_counts();
  // Sets the state of a restored session.
  void begin_at(std::uint64_t completed) { forgotten_ = completed; }
  // From now on all commands are executed one by one. A session in a group calls this: its commands
  // may have to wait for other ranks, one at a time.
  void forbid_templates() { templates_ = false; }

  // Counts of the front end when it last published them. Any thread.
  std::size_t handles() const { return handles_.load(std::memory_order_relaxed); }
  program::Amounts amounts() const;
  // The number of commands that were executed as repetitions of templates. Any thread.
  std::uint64_t repeated() const { return repeated_.load(std::memory_order_relaxed); }

  // ---- Stops before each command, for a snapshot of all groups. Any thread.

  void stop_at_each_command() { stops_ = true; }
  bool stops() const { return stops_; }
  // Returns true if the consumer stands before a command, because it must not consume it or because
  // it waits for the back end.
  bool is_stopped() const;
  bool is_paused() const;
  // Lets the consumer run the commands up to and including the next one that may contain a
  // collective. Returns true if it was paused; the caller must then call pump().
  bool allow_collective();
  // Lets the consumer run no further command. Returns is_stopped(), where a wait for the back end
  // counts only if the back end has not asked to continue.
  bool forbid_collective();

 private:
  bool try_take_front() { return !front_taken_.exchange(true, std::memory_order_acq_rel); }
  void run();
  bool consume_frame(core::Status& status);
  core::Status consume_commands();
  // Returns true if the next commands may be executed together.
  bool may_repeat() const {
    return templates_ && !frame_.thin && !stops_ && !back_.queue().refusing() &&
           bookkeeping_.fits_template();
  }
  bool pause();
  void set_blocked(bool blocked);
  void finish_frame(core::Status status) noexcept;
  const program::Command* next_command() const {
    return front_.busy() ? nullptr : &frame_.commands[frame_.position];
  }

  autograd::Front& front_;
  runtime::Back& back_;
  Bookkeeping& bookkeeping_;
  Session* const session_;
  std::atomic<bool> closing_{false};
  std::atomic<bool> stops_{false};
  std::atomic<bool> front_taken_{false};
  // The front end knows that all commands up to this one have run.
  std::atomic<std::uint64_t> forgotten_{0};
  std::atomic<std::size_t> handles_{0};
  std::atomic<std::uint64_t> repeated_{0};
  bool templates_;  // used by the frame consumer
  Frame frame_;
  mutable core::Mutex mu_;
  program::Amounts amounts_ TT_GUARDED_BY(mu_);
  bool may_go_ TT_GUARDED_BY(mu_) = false;   // allow_collective() was called
  bool paused_ TT_GUARDED_BY(mu_) = false;   // before a command that must not be consumed
  bool blocked_ TT_GUARDED_BY(mu_) = false;  // waits for the back end before a command
};

}  // namespace teletensor::session
