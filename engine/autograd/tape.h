// Tape: records instructions as nodes, and answers what the history of a tensor is.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>

#include "engine/autograd/objects.h"
#include "engine/autograd/undo_log.h"
#include "engine/core/attributes.h"
#include "engine/core/inline_vector.h"
#include "engine/core/status.h"
#include "engine/ops/op.h"

namespace teletensor::autograd {

// An op with its arguments, as a client has called it.
struct Call {
  ops::OpId op = 0;
  bool record = false;  // whether grad mode is on
  core::DType default_dtype = core::DType::kF32;
  std::span<const ops::Var> arguments;
  std::span<const std::uint32_t> counts;
  const core::Attributes* attributes = &none();  // not owned

  static const core::Attributes& none();
};

// The ids of the ops that the tape records for views and for functions of the client.
struct TapeOps {
  explicit TapeOps(const ops::Catalog& catalog);
  const ops::OpId index_region, add_region, update_region, view_as_real, view_as_complex,
      client_node;
};

// Returns an error if the op would have to save an argument that was made in inference mode.
core::Status may_save(const ops::OpDef& def, const Call& call, std::span<const Edge> edges);

// Owns the length of the tape and the number of the command that is executed now. Each node that is
// recorded gets the next position and the number of that command, so nodes are in the order of the
// commands. The nodes themselves belong to GraphObjects; the tape keeps values and never handles.
// All errors come before any effect.
class Tape {
 public:
  // Precondition: the objects and the log outlive the tape.
  Tape(const ops::Catalog& catalog, GraphObjects& objects, UndoLog& undo)
      : ids(catalog), objects_(objects), undo_(undo) {}

  const TapeOps ids;
  bool is_client_node(const Node& node) const { return node.op == ids.client_node; }

  // The sequence number of the command that is executed now.
  std::uint64_t seq() const { return seq_; }
  void set_seq(std::uint64_t seq) { seq_ = seq; }
  // Number of nodes that were recorded since the start, in an earlier process too.
  std::uint64_t length() const { return length_; }
  // Continues the tape of a snapshot.
  void restore(std::uint64_t length) { length_ = length; }

  // ---- the history of a handle
  // Returns nullptr for a leaf. If the base was written, the node of a view is rebuilt; a view that
  // was created under no_grad or as one of several results is refused instead.
  core::Result<Node*> node_of(Handle& h);
  core::Result<bool> is_leaf(Handle& h);
  // Sets `edge` to the destination of h's gradient. Precondition: `edge` is empty.
  core::Status edge_of(Handle& h, Edge& edge);
  core::Status set_requires_grad(Handle& h, bool on);
  core::Status retain_grad(Handle& h);
  core::Status register_hook(Handle& h, HookId hook);

  // ---- recording
  core::Ref<Node> record(const Call& call, core::InlineVector<Edge, 2>&& edges);
  // record_reading() records how a view's history follows from its base's history. record_writing()
  // records the base's history after a write through the view, where `written` is the history of
  // the written value. If one of them is complex and the other real, both go through a view of the
  // complex tensor as real parts.
  core::Ref<Node> record_reading(ops::OpId label, const core::Layout& base, Edge edge,
                                 const core::Layout& view);
  core::Ref<Node> record_writing(const core::Layout& base, Edge edge, const core::Layout& view,
                                 Edge written);
  // Saves what the vjp of the node reads. Precondition: may_save().
  void save(Node& node, const ops::OpDef& def, const Call& call,
            std::span<const HandleRef> results);
  // Must be called when the last recorded node has got its saved values.
  void list_saved(Node& node);

  // on_record is called for every node when it is recorded, on_save for every node that has saved
  // values.
  std::function<void(Node&)> on_record, on_save;

 private:
  core::Ref<Node> new_node(ops::OpId op) { return objects_.new_node(++length_, op); }
  core::Ref<Node> record_step(ops::OpId op, std::initializer_list<core::Layout> operands,
                              std::initializer_list<Edge> edges, core::Attributes attributes = {});
  core::Ref<Node> recorded(core::Ref<Node> node);

  GraphObjects& objects_;
  UndoLog& undo_;
  std::uint64_t seq_ = 0;
  std::uint64_t length_ = 0;
};

}  // namespace teletensor::autograd
