// Front: executes commands over ids. The daemon's authority on names, cells and tape; it computes
// nothing and waits for nothing: instructions over values go to a Sink.
//
// Not thread-safe: one thread at a time (the session's pump).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/core/ref.h"
#include "engine/core/status.h"
#include "engine/ops/op.h"
#include "engine/program/amounts.h"
#include "engine/program/command.h"
#include "engine/program/image.h"
#include "engine/program/instruction.h"
#include "engine/program/interner.h"
#include "engine/program/inventory.h"
#include "engine/program/program.h"

namespace teletensor::autograd {

// Where the front's instructions go (the session's back).
class Sink {
 public:
  virtual ~Sink() = default;
  // A cleared instruction at the end of the queue, with its number; the front fills it in place
  // before its next call into the sink.
  virtual program::Instruction& instruction(std::uint64_t seq) = 0;
  // Of the layouts and attributes of what is filled in next.
  virtual program::Interner& interner() = 0;
  // Gives `value` its contents. constant: the frame's bytes. uploaded: the finished upload's
  // storage; refuses an upload that is unknown, unfinished, or of another size.
  virtual core::Status constant(std::uint64_t seq, program::Constant constant,
                                program::ValueRef value) = 0;
  virtual core::Status uploaded(std::uint64_t seq, const program::Uploaded& uploaded,
                                program::ValueRef value) = 0;
  virtual void fetch(std::uint64_t seq, bool bulk, program::Operand operand) = 0;
  // A command of a thin client is refused: a late error with root `seq`.
  virtual void refused(std::uint64_t seq, const core::Status& status) { (void)seq, (void)status; }
  // The answer to a Fetch that is refused, because of command `root`.
  virtual void fetch_refused(std::uint64_t seq, bool bulk, const core::Status& status,
                             std::uint64_t root) {
    (void)seq, (void)bulk, (void)status, (void)root;
  }
  // The answer to a Fetch that asks to `describe`.
  virtual void described(std::uint64_t seq, const core::Layout& layout, bool requires_grad) {
    (void)seq, (void)layout, (void)requires_grad;
  }
  virtual void taken(std::uint64_t fetch) { (void)fetch; }
  // `value` becomes what `operand` is and, where that goes well, a publication; with handle 0 in
  // `publish` a name is withdrawn, without either. What goes wrong is a late error.
  virtual void publish(std::uint64_t seq, program::Publish publish, program::Operand operand,
                       program::ValueRef value) {
    (void)seq, (void)publish, (void)operand, (void)value;
  }
  // Gives `value` the storage of a publication.
  virtual void published(std::uint64_t seq, const program::Published& published,
                         program::ValueRef value) {
    (void)seq, (void)published, (void)value;
  }
  virtual void join(std::uint64_t seq, program::Join join) { (void)seq, (void)join; }
  virtual void leave(std::uint64_t seq, std::uint64_t group) { (void)seq, (void)group; }
  // Runs a program, later, in its turn.
  virtual core::Status call(std::uint64_t seq, program::Invocation invocation) {
    (void)seq, (void)invocation;
    return core::Status(core::Code::kUnimplemented, "programs cannot be called here");
  }
  // A backward has met a node of this command whose vjp is the client's own code; why it cannot go
  // on.
  virtual core::Status own_backward(std::uint64_t seq) {
    return core::internal("backward: the vjp of command " + std::to_string(seq) +
                          " is the client's own code");
  }
  // In-place commands (ascending seqs) that failed with this root. Called for a Raise, when
  // everything before it has run.
  virtual std::vector<std::uint64_t> failed_rebinds(std::uint64_t root) = 0;
  virtual void raised(std::uint64_t seq, std::uint64_t root,
                      const std::vector<std::uint64_t>& rebinds) = 0;
};

class Graph;
class Handle;
class ImageMaker;

class Front {
 public:
  // `limits`: of programs and kept names, which whoever sends the commands must know; what else is
  // bounded is up to the caller.
  Front(const ops::Catalog& catalog, Sink* sink,
        const program::Amounts& limits = program::kUsualLimits);
  ~Front();

  // Executes one command with sequence number `seq`. Precondition for a Raise: everything before it
  // has run. Errors mean a hostile client or a disagreeing mirror; the session ends.
  // What the command holds is used up. With `thin` a refusal is no error here: it is told as a late
  // error, the ids that the command declares fail with it, and nothing else has changed.
  core::Status execute(std::uint64_t seq, program::Command&& command, bool thin = false);
  // A Backward may have more instructions to come than fit the queue: while busy(), call resume()
  // (which issues those of about `nodes` tape nodes) before the next execute().
  bool busy() const;
  core::Status resume(int nodes);
  // Everything up to seq has run; forgets what a Raise could have taken back. Not called while an
  // error has not been raised.
  void completed(std::uint64_t seq);

  // ---- For a front that follows a part of another session's stream (tracer.h).
  Graph& graph();
  // The next handle that a command makes gets this id. Ids only grow.
  void skip_to(program::HandleId next);
  // A name for what was there before.
  void introduce(program::HandleId id, core::Ref<Handle> h);
  // Null where there is none.
  core::Ref<Handle> find(program::HandleId id) const;
  bool differentiable(const core::Ref<Handle>& root, const core::Ref<Handle>& seed,
                      const std::vector<core::Ref<Handle>>& inputs);
  // Gradients of `roots` with respect to `inputs`, by instructions; null where there is none.
  core::Status gradients(std::vector<core::Ref<Handle>> roots, std::vector<core::Ref<Handle>> seeds,
                         std::vector<core::Ref<Handle>> inputs,
                         std::vector<core::Ref<Handle>>& results);

  std::uint64_t next_id() const;
  std::size_t handles() const;  // ids alive
  // A new client takes the session over: kept tensors stay, without history, all other names go.
  // Precondition: not busy().
  program::Inventory take_over();
  // What the tensors that it keeps by name, and their gradients, have in memory.
  void kept_contents(std::unordered_set<const void*>& contents) const;
  // Everything, for a snapshot: fills `image` up to `next_id`. The front stays as it is.
  // Preconditions: not busy(); everything has run.
  void take_image(ImageMaker& maker, program::Image& image) const;
  // A front that has begun nothing becomes what the image says; `values` are the image's. On
  // failure it is of no use.
  core::Status put_up_image(const program::Image& image,
                            const std::vector<program::ValueRef>& values);
  std::size_t tape_nodes() const;  // nodes alive
  // What names and tape cost beside the values, about.
  std::size_t bookkeeping_bytes() const;
  // How much there is of handles, programs and kept names.
  program::Amounts amounts() const;
  // How long checking its programs has taken.
  std::uint64_t checked_ns() const;
  // False: that was given up for want of time; the program must not run. Precondition: it is
  // defined.
  bool is_checked(const program::Program& program) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace teletensor::autograd
