// Front: the session front end. It executes the commands of a client on handle ids, and is the
// daemon's authority on handles, cells and the tape. It computes nothing and never waits: it passes
// instructions over values to a Sink.
//
// Not thread-safe: only one thread at a time may use it (in the daemon, the session's frame
// consumer).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/autograd/defined_programs.h"
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

namespace teletensor::program {
class Template;
struct TemplateCall;
}  // namespace teletensor::program

namespace teletensor::autograd {

// Receives the instructions of the front end. In the daemon this is the session back end.
class Sink {
 public:
  virtual ~Sink() = default;
  // Appends an empty instruction with sequence number `seq` to the queue. The front end fills it in
  // place, before its next call of the sink.
  virtual program::Instruction& instruction(std::uint64_t seq) = 0;
  // Interns the layouts and attributes of the instruction that is filled in next.
  virtual program::Interner& interner() = 0;
  // Both functions give `value` its contents. constant() takes the bytes that came in the frame.
  // uploaded() takes the storage of a finished upload; it refuses an upload that is unknown,
  // unfinished or of another size.
  virtual core::Status constant(std::uint64_t seq, program::Constant constant,
                                program::ValueRef value) = 0;
  virtual core::Status uploaded(std::uint64_t seq, const program::Uploaded& uploaded,
                                program::ValueRef value) = 0;
  virtual void fetch(std::uint64_t seq, bool bulk, program::Operand operand) = 0;
  // A command of a thin client is refused: a late error with root `seq`. Returns the failure of the
  // ids that the command declares.
  virtual std::shared_ptr<const program::Failure> refused(std::uint64_t seq,
                                                          const core::Status& status) {
    return std::make_shared<const program::Failure>(program::Failure{seq, status});
  }
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
  // `value` gets the contents of `operand` and, if that succeeds, is published under the name. If
  // `publish` has handle 0, the name is withdrawn and no value is involved. Failures are late
  // errors.
  virtual void publish(std::uint64_t seq, program::Publish publish, program::Operand operand,
                       program::ValueRef value) {
    (void)seq, (void)publish, (void)operand, (void)value;
  }
  // Gives `value` the storage of a published tensor.
  virtual void published(std::uint64_t seq, const program::Published& published,
                         program::ValueRef value) {
    (void)seq, (void)published, (void)value;
  }
  virtual void join(std::uint64_t seq, program::Join join) { (void)seq, (void)join; }
  virtual void leave(std::uint64_t seq, std::uint64_t group) { (void)seq, (void)group; }
  // Prepares a template, and returns its number of steps; or else returns the number of its first
  // steps that can be a template.
  virtual std::size_t prepare(program::Template& repeated) {
    (void)repeated;
    return 0;
  }
  // Queues a repetition of a template. Its last instruction is that of command `last_seq`.
  virtual void repeat(std::unique_ptr<program::TemplateCall>&& call, std::uint64_t last_seq) {
    (void)call, (void)last_seq;
  }
  // Queues the run of a program.
  virtual core::Status call(std::uint64_t seq, program::Invocation invocation) {
    (void)seq, (void)invocation;
    return core::Status(core::Code::kUnimplemented, "programs cannot be called here");
  }
  // Called when a backward reaches a node, recorded by this command, whose vjp is the client's own
  // code. The returned status says why the backward cannot continue.
  virtual core::Status client_backward(std::uint64_t seq) {
    return core::invalid("backward: the vjp of command " + std::to_string(seq) +
                         " is the client's own code");
  }
  // Returns the sequence numbers, in ascending order, of the in-place commands that failed because
  // of error `root`. Called for a Raise command, when all earlier commands have run.
  virtual std::vector<std::uint64_t> failed_rebinds(std::uint64_t root) = 0;
  virtual void raised(std::uint64_t seq, std::uint64_t root,
                      const std::vector<std::uint64_t>& rebinds) = 0;
};

class Graph;
class Handle;
class ImageIndexer;

class Front {
 public:
  // `limits` bounds the number and size of programs and kept names; the client has to know these
  // limits. The caller enforces all other bounds.
  Front(const ops::Catalog& catalog, Sink* sink,
        const program::Amounts& limits = program::kUsualLimits);
  ~Front();

  // Executes one command with sequence number `seq` and consumes its contents. Precondition for a
  // Raise: all earlier commands have run. An error means that the client is hostile or that its
  // mirror disagrees with the daemon; the session ends. With `thin`, a refused command is reported
  // as a late error instead: the ids that it declares fail, and nothing else changes.
  core::Status execute(std::uint64_t seq, program::Command&& command, bool thin = false);
  // Executes the first of these commands together if the client repeats them (Templates). Returns
  // how many it has executed; after 0, the first one must be executed by execute(). The effects are
  // the same, except that handles which the commands make and release never exist. Precondition:
  // not busy(), and the client is not thin.
  std::size_t repeat(std::uint64_t seq, std::span<const program::Command> commands);
  // A Backward may issue more instructions than the queue has room for. While busy(), call resume()
  // before the next execute(); each call issues the instructions of about `nodes` tape nodes.
  bool busy() const;
  core::Status resume(int nodes);
  // All commands up to seq have run, so the data for undoing them is dropped. Must not be called
  // while an error is waiting for its Raise.
  void completed(std::uint64_t seq);

  // ---- For a front end that replays a part of another session's stream (tracer.h).
  Graph& graph();
  // Sets the id that the next new handle gets. Ids only grow.
  void skip_to(program::HandleId next);
  // Adds a handle that existed before the replayed commands, under this id.
  void add_outer_handle(program::HandleId id, core::Ref<Handle> h);
  // Returns null if there is no such handle.
  core::Ref<Handle> find(program::HandleId id) const;
  bool differentiable(const core::Ref<Handle>& root, const core::Ref<Handle>& seed,
                      const std::vector<core::Ref<Handle>>& inputs);
  // Issues the instructions that compute the gradients of `roots` with respect to `inputs`. A
  // result is null if there is no gradient.
  core::Status gradients(std::vector<core::Ref<Handle>> roots, std::vector<core::Ref<Handle>> seeds,
                         std::vector<core::Ref<Handle>> inputs,
                         std::vector<core::Ref<Handle>>& results);

  std::uint64_t next_id() const;
  std::size_t handles() const;  // number of live ids
  // A new client takes the session over: kept tensors stay, without their history; all other
  // handles are released. Precondition: not busy().
  program::Inventory take_over();
  // Adds the storages of all kept tensors and of their gradients to `contents`.
  void kept_contents(std::unordered_set<const void*>& contents) const;
  // Captures the complete state for a snapshot: fills `image` up to `next_id`. The front end does
  // not change. Preconditions: not busy(), and all commands have run.
  void take_image(ImageIndexer& maker, program::Image& image) const;
  // Restores a front end, which has executed nothing so far, from a snapshot. `values` are the
  // values of the image. After an error the front end must not be used.
  core::Status restore_image(const program::Image& image,
                             const std::vector<program::ValueRef>& values);
  std::size_t tape_nodes() const;  // number of live nodes
  // Approximate memory that handles and tape use, without the tensors' values.
  std::size_t bookkeeping_bytes() const;
  // The current number of handles, programs and kept names.
  program::Amounts amounts() const;
  // Sums over the programs that are defined, with the memory of the templates.
  using Totals = ProgramTotals;
  Totals totals() const;
  // Returns false if the verification of the program ran out of time; such a program must not run.
  // Precondition: the program is defined.
  bool is_checked(const program::Program& program) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace teletensor::autograd
