// Session: the native half of a client's session. Holds the mirror (names and tape without data),
// writes frames, and keeps what progress has told. No Python in here but through three virtuals.
//
// Two kinds of threads: API threads, one at a time (Python's are, under the GIL), and transport
// threads (next_frame, on_progress, lost), which may come at any time. The transport is a Stream
// (attach()), or somebody outside who calls next_frame() and on_progress().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "clients/session/origin.h"
#include "clients/session/recorder.h"
#include "clients/session/transforms.h"
#include "engine/autograd/backward.h"
#include "engine/autograd/callable.h"
#include "engine/autograd/graph.h"
#include "engine/autograd/tracer.h"
#include "engine/core/mutex.h"
#include "engine/program/amounts.h"
#include "engine/program/inventory.h"
#include "proto/wire/frame.h"
#include "proto/wire/progress.h"

namespace teletensor::client {

// The error of a tensor without an id.
inline core::Status outside_its_vmap() {
  return core::invalid("a tensor inside vmap, or of a vmap that has ended, cannot be used here");
}

using autograd::Handle;
using autograd::HandleRef;
using autograd::Handles;
using core::Status;
using ops::OpId;
using ops::Var;

class Call;
class Stream;
class StreamEnd;
// A frame that has left, or is about to.
using FrameRef = std::shared_ptr<const std::string>;

struct SessionLimits {
  std::uint64_t credit_upto = 65536;
  std::uint64_t credit_bytes = 64ull << 20;
  wire::FrameLimits frame;
  // From one frame to the next that nobody waits for. Without, one of a loop of small ops has 35 of
  // them, with it 200, and each wakes three threads.
  std::chrono::microseconds pace{150};
  std::uint64_t quota = 0;  // bytes a device; 0: unknown
  program::Amounts most;    // handles, programs and kept names; 0: unknown
  bool keeps = false;       // the session outlives its stream: frames are kept until they have run
  // Of frames that have run since the daemon last wrote the session down, for a daemon that comes
  // back with it as it was then; from retain() on. 0: none.
  std::size_t retained_bytes = 0;
};

// A late error that is being raised. It stands for itself and for the later failures of the same
// kind (status code), which are raised by the same exception.
struct LateError {
  Status status;                // of the earliest failed command; ok where nothing is pending
  std::uint64_t root = 0;       // the number of that command
  std::uint64_t count = 0;      // of failed commands, the earliest included
  std::uint64_t last_root = 0;  // the number of the last one
};

// The calling thread waits for a value, for its life: not for room in the queue.
class AwaitsValue {
 public:
  AwaitsValue();
  ~AwaitsValue();
  AwaitsValue(const AwaitsValue&) = delete;
  AwaitsValue& operator=(const AwaitsValue&) = delete;
};

// The calling thread's grad mode, and the process's default float dtype: resolved into each
// command.
bool grad_mode();
void set_grad_mode(bool on);
bool inference_mode();
void set_inference_mode(bool on);
core::DType default_dtype();
void set_default_dtype(core::DType dtype);

class Session : public autograd::Issuer {
 public:
  explicit Session(const SessionLimits& limits);
  ~Session() override;

  autograd::Graph& graph() { return graph_; }
  const ops::Catalog& catalog() const { return graph_.catalog(); }
  std::uint64_t last_seq() const { return seq_; }
  // Names of tensors that the program has not let go.
  std::uint64_t held() const { return amounts_.handles - releases_.size(); }

  // ---- API thread. Eager errors; nothing waits but for credits.
  Status apply(OpId op, std::span<const Var> arguments, std::span<const std::uint32_t> counts,
               const core::Attributes& attributes, Handles& results);
  Status apply_inplace(OpId op, std::span<const Var> arguments,
                       std::span<const std::uint32_t> counts, const core::Attributes& attributes);
  core::Result<HandleRef> constant(core::DType dtype, core::Device device, const core::Dims& shape,
                                   std::string bytes);
  core::Result<HandleRef> uploaded(std::uint64_t upload, core::DType dtype, core::Device device,
                                   const core::Dims& shape);
  Status set_requires_grad(Handle& h, bool on);
  Status retain_grad(Handle& h);
  // As the graph's. They may make a view's node again; where a mark of retain_grad moves to it, the
  // daemon does the same.
  core::Result<autograd::Node*> node_of(Handle& h);
  Status register_hook(Handle& h, autograd::HookId hook);
  Status assign_grad(Handle& h, Handle* grad);
  Status set_data(Handle& h, Handle& other);
  // Results only with inputs.
  Status backward(autograd::BackwardCall call, bool create_graph, std::vector<HandleRef>& results);
  // Runs backwards here, node by node, also where no Python lies on the way.
  bool expand_backward = false;
  core::Result<std::uint64_t> fetch(Handle& h, bool bulk);
  // The bytes of this bulk fetch have come, or are not wanted any more. Never waits.
  void taken(std::uint64_t fetch);
  // Number of the last upload that was bound to a handle.
  std::uint64_t uploads_upto() const { return uploads_upto_; }

  // The daemon keeps h under this name beyond this client; null: not any more.
  Status keep(const std::string& name, Handle* h);
  // The session takes part in a group from here on, as program::Join says; or leaves it.
  Status join(const program::Join& join);
  Status leave(std::uint64_t group);
  // Other sessions may use h under this name; null: not any more. program::Publish has the rest.
  Status publish(const std::string& name, Handle* h, bool writable, const std::string& users);
  // A name for a publication that the daemon has described.
  core::Result<HandleRef> published(const program::Published& described);
  // The session was taken over: this client goes on where another one was. Before anything else.
  core::Result<std::vector<HandleRef>> resume(std::uint64_t next_seq, program::HandleId next_id,
                                              std::uint64_t completed_upto,
                                              const program::Inventory& inventory);
  // ---- Programs
  // From here on this thread's commands are recorded. Refuses where a trace is under way.
  Status begin_trace(std::uint64_t seed, std::uint64_t ordinal);
  autograd::Tracer* tracer() {
    return tracer_ != nullptr && tracer_->follows() ? tracer_.get() : nullptr;
  }
  std::unique_ptr<autograd::Tracer> end_trace() { return std::move(tracer_); }
  // The number of a program on the daemon.
  core::Result<std::uint64_t> define(const program::Program& program);
  // Nobody calls it any more. From any API thread, also inside a finalizer.
  void undefine(std::uint64_t number) { undefined_.push_back(number); }
  // A name without a command, for sessions that nobody runs.
  HandleRef stand_in(const core::Layout& layout) {
    HandleRef h = graph_.adopt(layout, nullptr);
    give_id(*h);
    return h;
  }
  // Inputs and results as the program has them; `call` without ids.
  Status call(const autograd::Callable& callable, program::Call call,
              std::span<const HandleRef> inputs, Handles& results);

  // ---- Waiting (API thread; blocks through block())
  // The fetched value. The caller raises pending late errors of the session before it uses this.
  core::Result<wire::FetchedValue> wait_fetched(std::uint64_t seq);
  // Until everything issued has run.
  Status synchronize();
  // The oldest pending late error, together with all others of its status code: the in-place writes
  // that failed with them are taken back on both sides. They are not pending any more.
  LateError raise_pending();
  // The same for the errors of one status code, before the caller raises an error of that code that
  // arose at the present line. Says in a sentence which they were; "" where there are none.
  std::string join_pending(core::Code code);
  bool has_pending() const;
  // The late errors that have arrived and have not been raised, oldest first. The status codes of a
  // result may differ.
  std::vector<wire::ErrorEvent> pending_errors() const;
  // Takes back what all pending errors touched, and raises none of them.
  void clear_pending();
  // The daemon's text with the lines of the program in the place of the numbers of commands, and
  // the line that issued command `root`.
  std::string explained(const std::string& text, std::uint64_t root) const;
  // The same for a late error that the present line raises: with both lines, and with how many
  // further commands have failed.
  std::string explained(const LateError& error);
  // Nothing that was issued so far is wanted any more: the number of the last command, or 0 where
  // all has run. The caller asks the daemon to drop it. The next command or wait first sees it gone
  // and takes back what did not happen, without another error.
  std::uint64_t mark_interrupted();
  // What was dropped of the commands up to `upto`: the first one, and how many. Waits for at most
  // `most` until the daemon has said so; else by what it has said so far.
  struct Dropped {
    std::uint64_t first = 0, commands = 0;
  };
  Dropped dropped_commands(std::uint64_t upto, std::chrono::milliseconds most);
  // Commands that have not run, as far as the daemon has said.
  std::uint64_t queued() const { return over_ || completed_ >= seq_ ? 0 : seq_ - completed_; }
  // Ctrl-C. True where this thread waits for a value, and what an earlier Ctrl-C has found in the
  // queue has not run yet: that is to be dropped.
  bool interrupt_again();
  // Has what the last Ctrl-C has found in the queue not run yet?
  bool interrupt_pending() const { return completed_ < first_interrupt_; }
  // Sends releases that wait for company; never waits.
  void idle();
  // Until ready(), which wake() makes looked at again, or the stream is gone.
  Status wait_until(const std::function<bool()>& ready);
  void wake();
  // Refuses in the child of a fork.
  Status alive() const { return origin_.check(); }
  // The value of this fetch will not be waited for.
  void unwanted(std::uint64_t seq);
  // How often a call has waited for the daemon's answer.
  std::uint64_t waits() const { return waits_; }
  Recorder& recorder() { return recorder_; }

  // ---- Transport threads
  // Waits for commands, or for at most `seconds`; false when the session is closed and all is
  // taken, or `stream` is not the last that was begun. An empty frame means that the time has
  // passed.
  bool next_frame(std::string& frame, double seconds, std::uint64_t stream);
  // The next stream, of attach `attach`: frames behind command `received_upto` go again, the older
  // stream gets none any more. Its number; the first is 1.
  std::uint64_t take_up(std::uint64_t attach, std::uint64_t received_upto);
  // The daemon writes the session down, or is about to: frames that have run are retained.
  void retain();
  // The first command from which on all frames are here, and would do again what they did; 0: none.
  std::uint64_t replay_from() const;
  // As take_up(), where the daemon is older than this client, but not than replay_from(): frames
  // behind `received_upto` go again as if for the first time. What they tell is known already; one
  // that fails where it had not is the end of the session.
  std::uint64_t replay(std::uint64_t attach, std::uint64_t received_upto, std::uint64_t credit_upto,
                       std::uint64_t credit_bytes, std::uint64_t bytes_received);
  // Number of the last Progress that has come.
  std::uint64_t progress_upto() const;
  bool over() const { return over_; }  // lost or closed
  Status on_progress(std::string_view bytes);
  // The stream is gone for good: every wait ends with this.
  void lost(Status why);
  // API thread. Until it is ok, nothing but reading, letting go and computing what is new: this is
  // the error of whatever would change what is there.
  void freeze(Status why) { frozen_ = std::move(why); }
  bool frozen() const { return !frozen_.ok(); }
  // No more commands; next_frame gives the rest, then false.
  void close();
  // After take_up(): frames go out and progress comes in by `call`, until that ends.
  std::shared_ptr<StreamEnd> attach(std::unique_ptr<Call> call);
  // Cuts the stream.
  void detach();
  // Frames that have left and whose commands have not all run, oldest first: what a new stream
  // would have to send again. Bounded by the credits.
  std::vector<FrameRef> unconfirmed() const;
  std::uint64_t completed_upto() const;

  // The Builder's failure, taken out and put back around what may fail by itself.
  Status take_status() { return std::exchange(status_, Status()); }
  void put_status(Status status) { status_ = std::move(status); }

  // ---- Issuer (a backward that this client runs itself)
  bool recording() const override { return recording_; }
  ops::Vars call(OpId op, std::span<const Var> arguments, core::Attributes attributes,
                 std::span<const std::uint32_t> counts) override;
  Status inplace(OpId op, std::span<const Var> arguments) override;
  Status set_grad(Handle& h, const HandleRef& grad) override;
  Var saved(const autograd::Node::SavedSlot& slot, autograd::Node& node) override;
  Var saved_again(int slot, autograd::Node& node) override;
  core::Result<HandleRef> own(const Var& g, const core::Dims& strides) override;
  void name(Handle&) override {}

 protected:
  // Waits until ready() (called with the session's lock) holds, for at most `most`; does the
  // stream's work meanwhile.
  bool wait_for(const std::function<bool()>& ready, std::chrono::milliseconds most);
  // Blocks until ready() holds, letting other API threads run: by wait_for(), again and again.
  // Errors: the wait was interrupted by the person.
  virtual Status block(const std::function<bool()>& ready) = 0;
  // From the stream's writer: releases have waited for company for a while. An API thread's duty,
  // for a client whose API other threads may enter.
  virtual void tick() {}
  // Called when command `seq` was issued, to note the caller's line.
  virtual void note_site(std::uint64_t seq) = 0;
  // The caller's line, for a message; "" where that is unknown.
  virtual std::string here() { return ""; }
  // Which line issued this command: "at train.py:12 in step"; "" where that is not known any more.
  virtual std::string issued(std::uint64_t) const { return ""; }
  // For a node whose saved values were dropped: one that has them again.
  virtual core::Result<autograd::Node*> again(autograd::Node& node) = 0;
  // Drops what the node saved, on both sides, once its own command is issued.
  void forget(autograd::Node& node) { forgets_.emplace_back(&node); }
  Status flush_forgets();
  // Called before what the node saved is dropped.
  virtual Status before_forget(autograd::Node&) { return {}; }

  // Calls that a client puts off, where there are any: `watching`. Called before whatever
  // they could see: a write to h or a change of its flags, gradients, a Raise.
  bool watching = false;
  virtual Status before_write(const Handle&) { return {}; }
  virtual Status before_backward() { return {}; }
  virtual Status before_raise() { return {}; }
  // The commands up to `upto` are dropped.
  virtual void interrupted(std::uint64_t) {}
  // Tensors that show memory of the program's, where there are any: `following`. Called before a
  // command that uses h, or (`writes`) writes to it.
  bool following = false;
  virtual Status before_use(Handle&, bool) { return {}; }

  mutable core::Mutex mutex_;
  core::CondVar changed_;

 private:
  friend class Stream;
  // With the lock. Is there a frame that the credits allow?
  bool sendable() const;
  // There is a frame that takes no more commands.
  bool whole_frame() const { return again_ != 0 || !frames_.empty(); }
  bool all_taken() const { return again_ == 0 && frames_.empty() && writer_.empty(); }
  // The next frame. Precondition: sendable().
  FrameRef take_frame();
  // With the lock: there may be something to send.
  void wake_sender();
  bool has_room() const;
  // What is let go matters at once: something has run out, or is about to.
  bool short_of_room() const {
    return seq_ < short_until_ ||
           (limits_.most.handles != 0 && amounts_.handles + 1024 > limits_.most.handles);
  }
  Status ready_to_issue(bool reads = false);
  // Ends what a Raise or an interruption has left open.
  Status settle();
  Status finish_raises();
  void send_raise(std::uint64_t root);
  // Sends a Raise for each of `errors` and finishes them as far as the wait is not interrupted.
  void take_back(const std::vector<wire::ErrorEvent>& errors);
  LateError raise_those(std::optional<core::Code> code);
  std::vector<wire::ErrorEvent> take_errors(
      const std::function<bool(const wire::ErrorEvent&)>& which);
  bool unsettled() const { return interrupted_upto_ != 0 || !raises_.empty(); }
  // Is there room for so much more?
  Status fits(std::string_view what, std::uint64_t program::Amounts::*field, std::uint64_t used,
              std::uint64_t more, std::string_view advice) const;
  void issue(const program::Command& command, std::uint32_t made);
  void issue(const autograd::Call& call, bool inplace, std::uint32_t made);
  void begin_command();
  void give_id(Handle& h) {
    h.id = next_id_++;
    ++amounts_.handles;
    if (tracer_) [[unlikely]]
      trace_made(h);
  }
  void trace_made(Handle& h);
  core::Status fits_frame(std::string_view what, std::size_t items) const;
  core::Status fits_frame(OpId op, std::span<const Var> arguments,
                          const core::Attributes& attributes) const;
  Status usable(std::span<const Var> arguments, bool inplace) const;
  Status follow_program(std::span<const Var> arguments, bool writes);
  void flush_releases();
  void close_frame();
  Status diverged(const wire::ErrorEvent& error);
  void forget_sent(std::uint64_t snapshot_upto);
  void mark_fragile();
  Status lost_status() const;

  // API thread
  autograd::Graph graph_;
  const SessionLimits limits_;
  std::uint64_t seq_ = 0;  // of the last command
  program::HandleId next_id_ = 1;
  std::vector<program::HandleId> releases_;
  std::vector<std::uint64_t> takens_;
  std::vector<core::Ref<autograd::Node>> forgets_;
  std::unique_ptr<autograd::Tracer> tracer_;
  std::vector<std::uint64_t> undefined_;
  std::uint64_t next_program_ = 1;
  struct Defined {
    std::uint64_t steps, bytes;
  };
  std::unordered_map<std::uint64_t, Defined> defined_;  // by number
  program::Amounts amounts_;                            // of handles and programs
  std::set<std::string> kept_;
  std::uint64_t trimmed_ = 0;
  std::uint64_t interrupted_upto_ = 0;  // 0: nothing to settle
  std::uint64_t first_interrupt_ = 0;   // the last command before a Ctrl-C
  std::uint64_t short_until_ = 0;       // seq
  Status frozen_;
  struct SentRaise {
    std::uint64_t seq, root;
  };
  std::deque<SentRaise> raises_;  // sent, and not finished on this side
  bool recording_ = false;
  std::uint64_t waits_ = 0;
  Recorder recorder_;

  // Guarded by mutex_
  struct Sent {
    std::uint64_t last_seq;
    FrameRef frame;
  };
  wire::FrameWriter writer_;
  std::deque<Sent> frames_;  // full ones, before the writer's
  std::deque<Sent> sent_;    // given to a stream, not known to have run
  std::deque<Sent> ran_;     // before those: retained
  std::size_t ran_bytes_ = 0;
  bool retains_ = false;
  std::uint64_t ran_upto_ = 0;       // as the present daemon says; completed_ may be ahead of it
  std::uint64_t dropped_upto_ = 0;   // the last command of frames that are not here any more
  std::uint64_t fragile_upto_ = 0;   // the last command that another daemon would not repeat
  std::uint64_t replay_upto_ = 0;    // what happens up to here has been told before
  std::set<std::uint64_t> awaited_;  // fetches whose values have not come
  std::size_t again_ = 0;            // how many frames of sent_, from its end, go again
  std::uint64_t stream_ = 0, attach_ = 1;
  std::uint64_t progress_upto_ = 0;
  std::size_t unacknowledged_ = 0;  // bytes of Progress since the last frame
  std::atomic<std::size_t> waiting_bytes_ = 0;
  bool sender_sleeps_ = false;  // in next_frame
  core::CondVar work_;          // for it
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t credit_bytes_;
  std::uint64_t received_ = 0;
  std::map<std::uint64_t, wire::FetchedValue> fetched_;
  std::set<std::uint64_t> unwanted_;  // fetches whose wait was interrupted
  std::map<std::uint64_t, wire::RaisedEvent> raised_;
  std::uint64_t finished_raise_ = 0;
  std::deque<wire::ErrorEvent> errors_;
  std::set<std::uint64_t> roots_;  // of errors told, above completed_: a restarted daemon may again
  bool closed_ = false;
  Status lost_;

  std::atomic<bool> releases_wait_ = false;
  std::atomic<std::uint64_t> uploads_upto_ = 0;

  // Written under mutex_; read without it on the way of every op.
  std::atomic<std::uint64_t> credit_upto_, completed_ = 0;
  std::atomic<bool> over_ = false;  // lost or closed
  std::atomic<bool> late_ = false;  // errors_ is not empty

  const Origin origin_;
  std::shared_ptr<Stream> link_;  // set under mutex_; the stream at work, or the last one
};

}  // namespace teletensor::client
