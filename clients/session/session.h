// Session is the native part of a client's session. It keeps the mirror (tensors and autograd tape
// without data), writes frames, and stores the results that progress messages bring. It contains no
// Python; a client supplies its hooks through virtual functions (ClientHooks).
// There are two kinds of threads: API threads, one at a time (for Python, the holder of the GIL),
// and transport threads, which use stream() at any time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "clients/session/client_hooks.h"
#include "clients/session/frames/command_stream.h"
#include "clients/session/frames/recorder.h"
#include "clients/session/frames/session_limits.h"
#include "clients/session/program_table.h"
#include "clients/session/transforms/transforms.h"
#include "clients/session/value_reads.h"
#include "engine/autograd/backward.h"
#include "engine/autograd/callable.h"
#include "engine/autograd/graph.h"
#include "engine/autograd/trace/tracer.h"
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

// The error of an operation that needs the values of tensors of the device meta.
inline core::Status no_data() {
  return {core::Code::kUnimplemented, "Cannot copy out of meta tensor; no data!"};
}

// Returns an error if no command of the session with this graph can name the tensor.
core::Status nameable(const autograd::Graph& graph, const autograd::Handle& h);

using autograd::Handle;
using autograd::HandleRef;
using autograd::Handles;
using core::Status;
using ops::OpId;
using ops::Var;

// While an object exists, the calling thread waits for a value, which includes the wait until the
// queue has room for its Fetch, and not for room for another command.
class AwaitsValue {
 public:
  AwaitsValue();
  ~AwaitsValue();
  AwaitsValue(const AwaitsValue&) = delete;
  AwaitsValue& operator=(const AwaitsValue&) = delete;
};

// The calling thread's gradient mode, and the process's default floating-point type. Both become
// part of each command.
bool grad_mode();
void set_grad_mode(bool on);
bool inference_mode();
void set_inference_mode(bool on);
core::DType default_dtype();
void set_default_dtype(core::DType dtype);

class Session : public autograd::Issuer, public ClientHooks {
 public:
  explicit Session(const SessionLimits& limits);
  ~Session() override;

  autograd::Graph& graph() { return graph_; }
  const ops::Catalog& catalog() const { return graph_.catalog(); }
  std::uint64_t last_seq() const { return seq_; }
  // Number of tensors that the program holds.
  std::uint64_t held() const { return handles_ - releases_.size(); }

  // The transport, for the threads that send and receive.
  CommandStream& stream() { return stream_; }
  const CommandStream& stream() const { return stream_; }

  // ---- Called by API threads. These functions return eager errors; they wait only for credits.
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
  // These functions do what Graph's functions of the same names do. They may create the node of a
  // view again. If a retain_grad mark moves to the new node, the daemon does the same.
  core::Result<autograd::Node*> node_of(Handle& h);
  Status register_hook(Handle& h, autograd::HookId hook);
  Status assign_grad(Handle& h, Handle* grad);
  Status set_data(Handle& h, Handle& other);
  // Runs a backward pass. Returns results only if `call` has inputs.
  Status backward(autograd::BackwardCall call, bool create_graph, std::vector<HandleRef>& results);
  // Whether backward passes are always expanded by this client, node by node, and not only if a
  // Python hook requires it.
  bool expand_backward = false;
  core::Result<std::uint64_t> fetch(Handle& h, bool bulk);
  // Reports that this bulk fetch was received completely or is not needed any more. Never waits.
  void taken(std::uint64_t fetch);
  // Number of the last upload that was bound to a handle.
  std::uint64_t uploads_upto() const { return uploads_upto_; }

  // Makes the daemon keep h under this name beyond the life of this client. Null removes the name.
  Status keep(const std::string& name, Handle* h);
  // Makes the session a member of a group (see program::Join), or ends its membership.
  Status join(const program::Join& join);
  Status leave(std::uint64_t group);
  // Publishes h for other sessions under this name (see program::Publish). Null withdraws the
  // publication.
  Status publish(const std::string& name, Handle* h, bool writable, const std::string& users);
  // Creates a handle for a publication that the daemon has described.
  core::Result<HandleRef> published(const program::Published& described);
  // Continues a session that was taken over at the position of its previous client. Must precede
  // all other calls.
  core::Result<std::vector<HandleRef>> resume(std::uint64_t next_seq, program::HandleId next_id,
                                              std::uint64_t completed_upto,
                                              const program::Inventory& inventory);
  // ---- Programs
  // Starts to record this thread's commands. Refused while a trace is active.
  Status begin_trace(std::uint64_t seed, std::uint64_t ordinal);
  autograd::Tracer* tracer() {
    return tracer_ != nullptr && tracer_->follows() ? tracer_.get() : nullptr;
  }
  std::unique_ptr<autograd::Tracer> end_trace() { return std::move(tracer_); }
  // Defines a program in the daemon and returns its number.
  core::Result<std::uint64_t> define(const program::Program& program);
  ProgramTable& programs() { return programs_; }
  // Creates a handle without a command. Precondition: the session is not connected to a daemon.
  HandleRef stand_in(const core::Layout& layout) {
    HandleRef h = graph_.objects().adopt(layout, nullptr);
    give_id(*h);
    return h;
  }
  // Calls a program. Inputs and results are in the program's order; `call` has no ids yet.
  Status call(const autograd::Callable& callable, program::Call call,
              std::span<const HandleRef> inputs, Handles& results);

  // ---- Waiting (API threads; they block in block())
  // Waits for a fetched value. The caller must raise pending asynchronous errors of the session
  // before it uses the value.
  core::Result<wire::FetchedValue> wait_fetched(std::uint64_t seq);
  // Waits until all issued commands have run.
  Status synchronize();
  // Returns the oldest pending asynchronous error, together with all others of its status code. The
  // in-place writes that failed with them are reverted on both sides, and the errors are not
  // pending any more.
  LateError raise_pending();
  // Takes the pending errors of one status code, before the caller raises an error of that code
  // from the current line. Returns a sentence that describes them. Empty if there were none.
  std::string join_pending(core::Code code);
  bool has_pending() const;
  // The asynchronous errors that were received and not raised, oldest first. Their status codes may
  // differ.
  std::vector<wire::ErrorEvent> pending_errors() const;
  // Reverts the effects of all pending errors without raising them.
  void clear_pending();
  // Marks all issued commands as not needed any more. Returns the number of the last one, or 0 if
  // all have run. The caller then asks the daemon to cancel them. The next command or wait first
  // waits for that, and reverts the in-place writes that did not happen, without raising another
  // error.
  std::uint64_t mark_interrupted();
  // Returns the first of the commands up to `upto` that were cancelled, and their number. Waits at
  // most `most` until the daemon has reported all of them, and otherwise uses what it has reported.
  struct Dropped {
    std::uint64_t first = 0, commands = 0;
  };
  Dropped dropped_commands(std::uint64_t upto, std::chrono::milliseconds most);
  // Number of commands that have not run, as far as the daemon has reported.
  std::uint64_t queued() const {
    const std::uint64_t completed = stream_.completed_upto();
    return stream_.over() || completed >= seq_ ? 0 : seq_ - completed;
  }
  // Handles Ctrl-C. Returns true if this thread waits for a value and commands that were queued at
  // an earlier Ctrl-C have not run yet; these are then to be cancelled.
  bool interrupt_again();
  // Returns true if commands that were queued at the last Ctrl-C have not run yet.
  bool interrupt_pending() const { return stream_.completed_upto() < first_interrupt_; }
  // Sends releases that wait to be sent together. Never waits.
  void idle();
  // Waits until ready() returns true or the stream has ended. CommandStream::wake() makes it check
  // ready() again.
  Status wait_until(const std::function<bool()>& ready);
  // Returns an error in the child of a fork.
  Status alive() const { return stream_.origin().check(); }
  // Reports that no call will wait for the value of this fetch.
  void unwanted(std::uint64_t seq);
  // How clients read values of at most ValueReads::kLargest bytes. They use fetch() and
  // wait_fetched() for larger ones.
  ValueReads& value_reads() { return value_reads_; }
  Recorder& recorder() { return recorder_; }

  // While the status is not OK, tensors can be read, released and computed,
  // but commands that would change existing state fail with it.
  void freeze(Status why) { frozen_ = std::move(why); }
  bool frozen() const { return !frozen_.ok(); }

  // Takes the Builder's error out and restores it, around code that may set an error of its own.
  Status take_status() { return std::exchange(status_, Status()); }
  void put_status(Status status) { status_ = std::move(status); }

  // ---- Issuer (for a backward pass that this client runs itself)
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
  // Drops the values that the node saved, on both sides, after the node's own command is issued.
  void forget(autograd::Node& node) { forgets_.emplace_back(&node); }
  Status flush_forgets();

 private:
  // Returns true if releases must be sent at once, because memory or handles are exhausted or
  // nearly so.
  bool short_of_room() const {
    return seq_ < short_until_ ||
           (limits_.most.handles != 0 && handles_ + 1024 > limits_.most.handles);
  }
  Status ready_to_issue(bool reads = false);
  // Completes a Raise or an interruption that is still open.
  Status settle();
  Status finish_raises();
  void send_raise(std::uint64_t root);
  // Sends a Raise for each of `errors`, and completes them unless the wait is interrupted.
  void take_back(const std::vector<wire::ErrorEvent>& errors);
  LateError raise_those(std::optional<core::Code> code);
  bool unsettled() const { return interrupted_upto_ != 0 || stream_.received().raises.open(); }
  void issue(const program::Command& command, std::uint32_t made);
  void issue(const autograd::Call& call, bool inplace, std::uint32_t made);
  void begin_command();
  void give_id(Handle& h) {
    h.id = next_id_++;
    ++handles_;
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

  // ---- used by API threads
  ValueReads value_reads_;
  autograd::Graph graph_;
  const SessionLimits limits_;
  std::uint64_t seq_ = 0;  // Number of the last command that was issued.
  program::HandleId next_id_ = 1;
  std::vector<program::HandleId> releases_;
  std::vector<std::uint64_t> takens_;
  std::vector<core::Ref<autograd::Node>> forgets_;
  std::unique_ptr<autograd::Tracer> tracer_;
  ProgramTable programs_;
  std::uint64_t handles_ = 0;  // Number of ids in use, with those in releases_.
  // The daemon's limits for these are checked before a command is issued.
  struct {
    std::set<std::string> kept;
    std::set<std::uint64_t> groups;  // by the session's own numbers
  } names_;
  std::uint64_t trimmed_ = 0;
  // The last command that an interruption has cancelled. 0 if there is nothing to settle.
  std::uint64_t interrupted_upto_ = 0;
  std::uint64_t first_interrupt_ = 0;  // Last command before a Ctrl-C.
  std::uint64_t short_until_ = 0;      // Command number until which short_of_room() holds.
  Status frozen_;
  bool recording_ = false;
  Recorder recorder_;

  std::atomic<std::uint64_t> uploads_upto_ = 0;

  CommandStream stream_;  // Declared last, because its threads use the other members.
};

}  // namespace teletensor::client
