// Commands: issues the commands of a session. It gives them their numbers and the ids of their
// results, encodes them into the frames of the stream, and shows them to a trace.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "clients/session/client_hooks.h"
#include "clients/session/frames/command_stream.h"
#include "clients/session/frames/recorder.h"
#include "clients/session/frames/session_limits.h"
#include "clients/session/programs/program_table.h"
#include "engine/autograd/graph.h"
#include "engine/autograd/trace/tracer.h"

namespace teletensor::client {

using core::Status;

// What must be completed before the next command may be issued, because the mirror does not show it
// yet. PendingErrors implements it; this class keeps Commands from knowing errors. Used by API
// threads, one at a time.
class Unsettled {
 public:
  virtual ~Unsettled() = default;
  // Returns true if something is open. Called before every command, so it takes no lock.
  virtual bool unsettled() const = 0;
  // Completes it, in ClientHooks::block() and with commands of its own. Returns the error of an
  // interrupted wait or of a lost session; then it is still open.
  virtual Status settle() = 0;
};

// The error of a tensor without an id.
inline Status outside_its_vmap() {
  return core::invalid("a tensor inside vmap, or of a vmap that has ended, cannot be used here");
}

// The error of an operation that needs the values of tensors of the device meta.
inline Status no_data() {
  return {core::Code::kUnimplemented, "Cannot copy out of meta tensor; no data!"};
}

// Returns an error if no command of the session with this graph can name the tensor.
Status nameable(const autograd::Graph& graph, const autograd::Handle& h);

// Owns the position of the session: the number of the last command, the id that the next tensor
// gets, and what the daemon has not been told yet (tensors that died, downloads that ended). The
// daemon counts commands and ids in the same way, so both sides agree on them without a message.
//
// Used by API threads, one at a time. Only ready() and wait_until() wait.
class Commands {
 public:
  // All references are to parts of the same session.
  Commands(const SessionLimits& limits, ClientHooks& hooks, autograd::Graph& graph,
           CommandStream& stream, Recorder& recorder, ProgramTable& programs, Unsettled& open);
  ~Commands();
  Commands(const Commands&) = delete;
  Commands& operator=(const Commands&) = delete;

  const SessionLimits& limits() const { return limits_; }
  std::uint64_t last_seq() const { return seq_; }
  program::HandleId next_id() const { return next_id_; }
  // Number of tensors that the program holds.
  std::uint64_t held() const { return handles_ - releases_.size(); }
  // Number of commands that have not run, as far as the daemon has reported.
  std::uint64_t queued() const {
    const std::uint64_t completed = stream_.completed_upto();
    return stream_.over() || completed >= seq_ ? 0 : seq_ - completed;
  }
  // Continues at the position of the session's previous client, which had `handles` ids in use.
  // Precondition: no command was issued.
  void start_at(std::uint64_t next_seq, program::HandleId next_id, std::uint64_t completed_upto,
                std::uint64_t handles);

  // While the status is not OK, tensors can be read, released and computed, but commands that would
  // change existing state fail with it.
  void freeze(Status why) { frozen_ = std::move(why); }
  bool frozen() const { return !frozen_.ok(); }

  // ---- One command: ready(), then begin() if the mirror records nodes or writes, then give_id()
  // for each result, then issue().
  // Completes what is open (Unsettled::settle) and waits for credits. `reads` is set for
  // commands that change no existing state.
  Status ready(bool reads = false);
  // Returns an error if so many tensors and numbers do not fit into any frame, which would end the
  // session.
  Status fits_frame(std::string_view what, std::size_t items) const;
  Status fits_frame(ops::OpId op, std::span<const ops::Var> arguments,
                    const core::Attributes& attributes) const;
  void begin() { graph_.tape().set_seq(seq_ + 1); }
  // Another daemon would not repeat the next command with the same effect.
  void mark_fragile() { stream_.mark_fragile(seq_ + 1); }
  void give_id(autograd::Handle& h) {
    h.id = next_id_++;
    ++handles_;
    if (tracer_) [[unlikely]]
      trace_made(h);
  }
  // `made` is the number of ids that were given since the last command.
  void issue(const program::Command& command, std::uint32_t made);
  void issue(const autograd::Call& call, bool inplace, std::uint32_t made);

  // Waits until is_done() returns true or the stream has ended. CommandStream::wake() makes it
  // check is_done() again.
  Status wait_until(const std::function<bool()>& is_done);

  // ---- Releases
  // Sends what the daemon has not been told yet.
  void flush_releases();
  // Sends it if that needs no wait: this runs in the sender's thread, and anything that it waited
  // for would need the sender.
  void idle();
  bool has_releases() const { return !releases_.empty(); }
  // Reports that a command failed for lack of memory. For some commands from now on,
  // short_of_memory() is true and ready() sends releases at once instead of collecting them.
  void note_shortage();
  bool short_of_memory() const { return seq_ < short_until_; }
  // Reports that this bulk fetch was received completely or is not needed any more. Never waits.
  void taken(std::uint64_t fetch) {
    takens_.push_back(fetch);
    idle();
  }

  // ---- Traces
  // The trace that records the commands of this thread, or null.
  autograd::Tracer* tracer() {
    return tracer_ != nullptr && tracer_->follows() ? tracer_.get() : nullptr;
  }
  // Whether a trace records the commands of any thread.
  bool traced() const { return tracer_ != nullptr; }
  void set_trace(std::unique_ptr<autograd::Tracer> tracer) { tracer_ = std::move(tracer); }
  std::unique_ptr<autograd::Tracer> end_trace() { return std::move(tracer_); }

 private:
  // Returns true if releases must be sent at once, because memory or handles are exhausted or
  // nearly so.
  bool short_of_room() const;
  void trace_made(autograd::Handle& h);

  const SessionLimits limits_;
  ClientHooks& hooks_;
  autograd::Graph& graph_;
  CommandStream& stream_;
  Recorder& recorder_;
  ProgramTable& programs_;
  Unsettled& open_;
  std::uint64_t seq_ = 0;
  program::HandleId next_id_ = 1;
  std::uint64_t handles_ = 0;      // Number of ids in use, with those in releases_.
  std::uint64_t trimmed_ = 0;      // Last command whose undo data was dropped.
  std::uint64_t short_until_ = 0;  // Command number until which short_of_memory() holds.
  std::vector<program::HandleId> releases_;
  std::vector<std::uint64_t> takens_;
  std::unique_ptr<autograd::Tracer> tracer_;
  Status frozen_;
};

}  // namespace teletensor::client
