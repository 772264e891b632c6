// Graph: executes ops on the tensors of one session: their effects on handles, cells and the tape.
//
// The same code is the daemon's front end (cells have values, and instructions go to a Sink) and
// the client's mirror (no sink and no values). So the client answers every question about shape,
// requires_grad, is_leaf and .grad, and raises every eager error, without I/O. Comments marked RULE
// state rules of the executable specification of handles, views, in-place writes and tape, which is
// fuzzed against PyTorch.
//
// Not thread-safe. Handles must not outlive their Graph.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/autograd/front.h"
#include "engine/autograd/known/known_layouts.h"
#include "engine/autograd/objects.h"
#include "engine/autograd/tape.h"
#include "engine/autograd/undo_log.h"
#include "engine/core/geometry.h"
#include "engine/core/inline_vector.h"
#include "engine/core/status.h"
#include "engine/ops/op.h"
#include "engine/program/command.h"
#include "engine/program/instruction.h"

namespace teletensor::autograd {

class Callable;
class KnownCall;

// Executes the ops of one session. It owns the handles and nodes (objects()), their history
// (tape()), and what a failed write needs (undo()); each effect of an op reaches all three in the
// order of the commands. A refused op has changed nothing.
class Graph {
 public:
  // If `sink` is null, the graph is a client's mirror. Precondition: the catalog outlives the
  // graph.
  Graph(const ops::Catalog& catalog, Sink* sink);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  const ops::Catalog& catalog() const { return catalog_; }
  bool is_mirror() const { return sink_ == nullptr; }
  GraphObjects& objects() { return objects_; }
  const GraphObjects& objects() const { return objects_; }
  UndoLog& undo() { return undo_; }
  Tape& tape() { return tape_; }
  // Approximate memory of handles, cells, tape and undo data.
  std::size_t bookkeeping_bytes() const { return objects_.bytes() + undo_.bytes(); }

  // ---- All errors come before any effect.
  // Runs an op out of place: ops that compute, views, and ops that mutate lists of tensors, whose
  // results are the mutated handles.
  core::Status apply(const Call& call, Handles& results);
  // Runs an op out of place like apply(), with the results of an earlier inference, and records it
  // if `record`. Precondition: known.fits(operands), and this is the daemon's front end.
  HandleRef apply_known(const KnownCall& known, const program::Apply& apply,
                        std::span<Handle* const> operands, bool record);
  // Records a call of one result on the tape. The operands are one per argument, null for those
  // that are no tensors. Precondition: the call is valid, one of the operands requires a gradient,
  // none is a view, and this is the daemon's front end.
  void record_known(const program::Apply& apply, std::span<Handle* const> operands,
                    const HandleRef& result);
  // Runs an op in place: it overwrites argument 0, which is also the result.
  core::Status apply_inplace(const Call& call);
  // Runs a program on inputs; `results` are the new handles. Nothing is recorded on the tape.
  core::Status call(const Callable& callable, const program::Call& call,
                    std::span<const HandleRef> inputs, Handles& results);
  static constexpr std::uint32_t kMaxRounds = 1 << 20;  // maximum number of rounds of a loop
  // Assigns .data.
  core::Status set_data(Handle& h, Handle& other);
  // Marks the cell of h as shared and, on the daemon, replaces its value by the returned one.
  // Precondition: h.may_publish().
  program::ValueRef publish(Handle& h);
  // Overwrites the whole storage of h. Precondition: h.may_write().
  void write(Handle& h, program::ValueRef value);

  // A result of more bytes than this is refused when its op is called. 0 means no limit here (on
  // the daemon, where admission comes later). Must be set before the first op is called.
  std::uint64_t largest_result = 0;

 private:
  core::Status infer(const Call& call, const ops::OpDef& def, ops::InferContext& context,
                     core::InlineVector<ops::OperandInfo, 3>& infos) const;
  // Makes the results of a call whose inference has returned `layouts`. If they were remembered,
  // `known` is not null.
  core::Status apply(const Call& call, const ops::OpDef& def, std::span<const core::Layout> layouts,
                     const KnownLayout* known, Handles& results);
  // Makes the node of a call that has made `results`.
  void record(const Call& call, const ops::OpDef& def, core::InlineVector<Edge, 2>&& edges,
              std::span<const HandleRef> results);
  HandleRef adopt(const KnownLayout& known);
  // The storage has this number of elements.
  HandleRef adopt(const core::Layout& layout, std::int64_t elements, program::ValueRef value);
  core::Status apply_view(const Call& call, const ops::OpDef& def, ops::InferContext& context,
                          Handles& results);
  core::Status apply_client_node(const Call& call, const ops::OpDef& def, Handles& results);
  core::Status check_call(const Callable& callable, const program::Call& call,
                          std::span<const HandleRef> inputs,
                          std::vector<std::int64_t>& displacement) const;
  core::Status apply_mutating(const Call& call, const ops::OpDef& def, Handles& results);
  // Appends an instruction to the sink, with the current values of the call's operands.
  program::Instruction& instruction_of(const Call& call) const;
  program::ValueRef new_value(const core::Layout& layout, std::int64_t elements) const;
  // The value that replaces the whole storage after a write through h; it has h's dtype.
  program::ValueRef written_value(const Handle& h) const { return new_value(h.layout, h.stored()); }

  const ops::Catalog& catalog_;
  Sink* const sink_;
  const ops::OpId fill_, copy_, data_;
  GraphObjects objects_;
  UndoLog undo_;
  Tape tape_;
  KnownLayouts known_layouts_;
};

// The layout in messages, without strides: "float32 [2, 3] on cpu".
std::string described(const core::Layout& layout);

// Returns true if the layouts have the same dtype, device and shape.
bool same_kind(const core::Layout& a, const core::Layout& b);

// Returns true if an operand has more than ops::kMaxRepeated elements. Whether inference accepts it
// then depends on its storage, and not on its layout alone.
bool infers_from_storage(std::span<const ops::Var> arguments);

}  // namespace teletensor::autograd
