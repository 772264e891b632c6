// Session is the native part of a client's session. It keeps the mirror (tensors and autograd tape
// without data), writes frames, and stores the results that progress messages bring. It contains no
// Python; a client supplies its hooks through virtual functions (ClientHooks).
// There are two kinds of threads: API threads, one at a time (for Python, the holder of the GIL),
// and transport threads, which use stream() at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "clients/session/client_hooks.h"
#include "clients/session/commands.h"
#include "clients/session/forgets.h"
#include "clients/session/frames/command_stream.h"
#include "clients/session/frames/recorder.h"
#include "clients/session/frames/session_limits.h"
#include "clients/session/pending_errors.h"
#include "clients/session/programs/programs.h"
#include "clients/session/shared_names.h"
#include "clients/session/transforms/transforms.h"
#include "clients/session/value_reads.h"
#include "engine/autograd/backward.h"
#include "engine/autograd/graph.h"
#include "engine/program/inventory.h"
#include "proto/wire/progress.h"

namespace teletensor::client {

using autograd::Handle;
using autograd::HandleRef;
using autograd::Handles;
using ops::OpId;
using ops::Var;

// The calling thread's gradient mode, and the process's default floating-point type. Both become
// part of each command.
bool grad_mode();
void set_grad_mode(bool on);
bool inference_mode();
void set_inference_mode(bool on);
core::DType default_dtype();
void set_default_dtype(core::DType dtype);

// The session of a client: the mirror, the commands that keep the daemon equal to it, and the
// values that were read. Each call first changes the mirror, which raises every eager error, and
// then issues its command, so mirror and daemon change in the same order.
class Session : public autograd::Issuer, public ClientHooks {
 public:
  explicit Session(const SessionLimits& limits);

  autograd::Graph& graph() { return graph_; }
  const ops::Catalog& catalog() const { return graph_.catalog(); }
  Commands& commands() { return commands_; }
  const Commands& commands() const { return commands_; }
  PendingErrors& errors() { return errors_; }
  const PendingErrors& errors() const { return errors_; }
  Programs& programs() { return programs_; }
  SharedNames& names() { return names_; }
  Forgets& forgets() { return forgets_; }
  // How clients read values of at most ValueReads::kLargest bytes. They use fetch() and
  // wait_fetched() for larger ones.
  ValueReads& value_reads() { return value_reads_; }
  Recorder& recorder() { return recorder_; }
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
  // These functions do what the functions of the same names of Tape, Handle and Graph do. They may
  // create the node of a view again. If a retain_grad mark moves to the new node, the daemon does
  // the same.
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
  // Number of the last upload that was bound to a handle.
  std::uint64_t uploads_upto() const { return uploads_upto_; }
  // Creates a handle without a command. Precondition: the session is not connected to a daemon.
  HandleRef stand_in(const core::Layout& layout) {
    HandleRef h = graph_.objects().adopt(layout, nullptr);
    commands_.give_id(*h);
    return h;
  }
  // Continues a session that was taken over at the position of its previous client. Must precede
  // all other calls.
  core::Result<std::vector<HandleRef>> resume(std::uint64_t next_seq, program::HandleId next_id,
                                              std::uint64_t completed_upto,
                                              const program::Inventory& inventory);

  // ---- Waiting (API threads; they block in block())
  // Waits for a fetched value. The caller must raise pending asynchronous errors of the session
  // before it uses the value.
  core::Result<wire::FetchedValue> wait_fetched(std::uint64_t seq);
  // Waits until all issued commands have run.
  Status synchronize();

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

 private:
  Status usable(std::span<const Var> arguments, bool inplace) const;
  Status follow_program(std::span<const Var> arguments, bool writes);

  // ---- used by API threads
  ValueReads value_reads_;
  autograd::Graph graph_;
  Recorder recorder_;
  Programs programs_;
  PendingErrors errors_;
  Forgets forgets_;
  Commands commands_;
  SharedNames names_;
  bool recording_ = false;

  std::atomic<std::uint64_t> uploads_upto_ = 0;

  CommandStream stream_;  // Declared last, because its threads use the other members.
};

}  // namespace teletensor::client
