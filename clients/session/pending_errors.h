// PendingErrors: the asynchronous errors of a session, and interruptions by Ctrl-C.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "clients/session/client_hooks.h"
#include "clients/session/commands.h"
#include "clients/session/frames/command_stream.h"
#include "clients/session/frames/late_errors.h"
#include "clients/session/value_reads.h"
#include "engine/autograd/graph.h"
#include "proto/wire/progress.h"

namespace teletensor::client {

// While an object exists, the calling thread waits for a value, which includes the wait until the
// queue has room for its Fetch, and not for room for another command.
class AwaitsValue {
 public:
  AwaitsValue();
  ~AwaitsValue();
  AwaitsValue(const AwaitsValue&) = delete;
  AwaitsValue& operator=(const AwaitsValue&) = delete;
};

// Owns the state of errors and interruptions that the mirror does not show yet: an interruption
// whose commands may still be running. (What the daemon has reported belongs to the CommandStream.)
// While unsettled(), no command may be issued except a Raise: settle() first makes the mirror equal
// to the daemon's state.
//
// Used by API threads, one at a time; they block in ClientHooks::block().
class PendingErrors final : public Unsettled {
 public:
  // All references are to parts of the same session.
  PendingErrors(ClientHooks& hooks, autograd::Graph& graph, CommandStream& stream,
                ValueReads& reads, Commands& commands)
      : hooks_(hooks), graph_(graph), stream_(stream), reads_(reads), commands_(commands) {}

  // ---- Errors
  bool any() const { return !stream_.origin().is_parents() && stream_.received().errors.any(); }
  // The asynchronous errors that were received and not raised, oldest first. Their status codes may
  // differ.
  std::vector<wire::ErrorEvent> all() const;
  // Removes and returns the lost ranks of groups that were received, in the order of the losses.
  std::vector<wire::LostRankEvent> take_lost_ranks();
  // Returns the oldest pending error, together with all others of its status code. The in-place
  // writes that failed with them are reverted on both sides, and the errors are not pending any
  // more.
  LateError raise() { return raise_those(std::nullopt); }
  // Takes the pending errors of one status code, before the caller raises an error of that code
  // from the current line. Returns a sentence that describes them. Empty if there were none.
  std::string join(core::Code code);
  // Reverts the effects of all pending errors without raising them.
  void clear();
  // Raises the oldest pending error if a command failed for lack of memory so long ago that the
  // program apparently does not read its results.
  Status raise_shortage();

  // ---- Interruptions
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
  // Handles Ctrl-C. Returns true if this thread waits for a value and commands that were queued at
  // an earlier Ctrl-C have not run yet; these are then to be cancelled.
  bool interrupt_again();
  // Returns true if commands that were queued at the last Ctrl-C have not run yet.
  bool interrupt_pending() const { return stream_.completed_upto() < first_interrupt_; }

  // Whether a Raise or an interruption is still open.
  bool unsettled() const override {
    return interrupted_upto_ != 0 || stream_.received().raises.open();
  }
  Status settle() override;

 private:
  Status finish_raises();
  void send_raise(std::uint64_t root);
  // Sends a Raise for each of `errors`, and completes them unless the wait is interrupted.
  void take_back(const std::vector<wire::ErrorEvent>& errors);
  LateError raise_those(std::optional<core::Code> code);

  ClientHooks& hooks_;
  autograd::Graph& graph_;
  CommandStream& stream_;
  ValueReads& reads_;
  Commands& commands_;
  // The last command that an interruption has cancelled. 0 if there is nothing to settle.
  std::uint64_t interrupted_upto_ = 0;
  std::uint64_t first_interrupt_ = 0;  // Last command before a Ctrl-C.
};

}  // namespace teletensor::client
