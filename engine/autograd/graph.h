// Graph: the handles, cells, alias groups and tape of one session.
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
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/autograd/front.h"
#include "engine/autograd/known_layouts.h"
#include "engine/core/geometry.h"
#include "engine/core/inline_vector.h"
#include "engine/core/recycled.h"
#include "engine/core/ref.h"
#include "engine/core/status.h"
#include "engine/ops/op.h"
#include "engine/program/command.h"
#include "engine/program/instruction.h"

namespace teletensor::autograd {

class Callable;
class Graph;
class Handle;
class KnownCall;
class Node;
using HandleRef = core::Ref<Handle>;
using Handles = core::InlineVector<HandleRef, 1>;

// An object of the graph. The graph destroys its objects from a list, never recursively, because a
// chain of nodes may be a million long.
class GraphObject : public ops::Named {
 public:
  explicit GraphObject(Graph* graph);
  ~GraphObject() override;
  Graph* graph() const { return graph_; }
  // Drops the references to all other objects. The graph calls it at its end, because objects can
  // refer to each other in a cycle (a leaf that requires grad and was overwritten with a value
  // computed from itself).
  virtual void let_go() = 0;

 protected:
  friend class Graph;
  friend class ImageCapture;
  void last_reference_dropped() const override;
  virtual bool is_handle() const { return false; }
  Graph* const graph_;

 private:
  GraphObject* before_ = nullptr;  // doubly linked list of all objects of the graph
  GraphObject* after_ = nullptr;
  // List of the objects that the graph destroys next.
  mutable const GraphObject* next_dead_ = nullptr;
};

// Counts the writes to a base, to its views and to its detach()ed aliases. A cell is the clock of
// all of them; assigning `.data` starts another clock.
class Clock : public core::Counted {
 public:
  std::uint32_t now() const { return now_; }
  std::uint32_t tick() { return ++now_; }
  // Marks `tick` as a write that failed and therefore did not happen.
  void take_back(std::uint32_t tick);
  bool moved_since(std::uint32_t seen) const { return moved_between(seen, now_); }
  bool moved_between(std::uint32_t from, std::uint32_t to) const {
    return failed_ticks_.empty() ? from != to : to - from > taken_back(from, to);
  }

 private:
  std::uint32_t taken_back(std::uint32_t from, std::uint32_t to) const;

  friend class ImageCapture;
  friend class ImageBuilder;

  std::uint32_t now_ = 0;
  std::vector<std::uint32_t> failed_ticks_;  // ticks of failed writes, ascending
};

// One storage. On the client `value` is null.
class Cell final : public Clock, public core::Recycled<Cell> {
 public:
  Cell(std::int64_t bytes, program::ValueRef value) : bytes(bytes), value(std::move(value)) {}
  const std::int64_t bytes;  // in bytes, because its handles may have several dtypes
  program::ValueRef value;
  bool shared = false;     // published: other sessions use the same storage
  bool read_only = false;  // published by another session, which does not allow writes
  // On a client: contents that it knows without a Fetch. Every write drops them.
  core::Ref<core::Counted> known;
};

// The destination of a gradient: output `output` of a node, or a leaf. If both are null, the
// gradient is not needed.
struct Edge {
  core::Ref<Node> node{};
  HandleRef leaf{};
  std::uint32_t output = 0;
  explicit operator bool() const { return node != nullptr || leaf != nullptr; }
};

// A search through the graph marks the objects that it has visited.
struct Visit {
  std::uint64_t search = 0;  // number of the last search
  std::uint32_t index = 0;   // in the list of that search
};

using HookId = std::uint64_t;  // identifies a Python callable; only clients have hooks

// One tensor as the client names it. Its autograd state (flag, node, grad, hooks) belongs to this
// handle alone and is never shared within its alias group.
class Handle final : public GraphObject {
 public:
  // How a view was created. Recorded in-place writes refuse views that were created under no_grad,
  // and views that are one of several results of an op.
  enum class Made : std::uint8_t { kDefault, kNoGrad, kMulti };

  // Uses the cell as its clock unless `clock` is given.
  Handle(Graph* graph, core::Ref<Cell> cell, const core::Layout& layout,
         core::Ref<Clock> clock = nullptr);

  program::HandleId id = 0;
  core::Ref<Cell> cell;
  core::Ref<Clock> clock;
  HandleRef base;           // null if this handle is no view; a view keeps its base alive
  std::uint32_t views = 0;  // number of live views of this base
  Made made = Made::kDefault;
  bool flag = false;         // set by requires_grad_()
  bool retains = false;      // retain_grad() was called; `node` lists this handle in `retained`
  core::Ref<Node> node;      // valid if `seen` is current; use Graph::node_of to read it
  std::uint32_t output = 0;  // index among the results of `node`
  std::uint32_t seen = 0;    // time of `clock` when `node` was set
  // The leaf that gets the gradients (the original of a saved leaf). Null if it is this handle.
  HandleRef leaf;
  HandleRef grad;
  std::vector<HookId> hooks;       // hooks of a leaf
  std::vector<HookId> post_hooks;  // hooks of a leaf that run after its .grad was written
  void* owner = nullptr;           // the client's Python object; not reference-counted
  bool inference = false;  // created in inference mode: it cannot be saved, nor require grad
  // The geometry as the daemon's queue has interned it last.
  struct Interned {
    const core::Geometry* geometry = nullptr;
    std::uint64_t interner = 0;  // number of the interner that has it; 0: none
  };
  Interned interned;
  // Returns the geometry in this interner.
  const core::Geometry* geometry_in(program::Interner& interner) {
    if (interned.interner != interner.number()) {
      interned = {interner.geometry(layout.geometry), interner.number()};
    }
    return interned.geometry;
  }
  // Fills an operand with the present value.
  void fill(program::Operand& operand, program::Interner& interner) {
    operand.kind = program::Operand::Kind::kTensor;
    operand.value = cell->value;
    operand.dtype = layout.dtype;
    operand.geometry = geometry_in(interner);
  }
  // On a client: what its function transforms know about this tensor.
  core::Ref<core::Counted> extra;
  Visit visit;

  const core::Geometry& geometry() const { return layout.geometry; }
  const core::Dims& shape() const { return layout.geometry.shape; }
  // The number of elements of this handle's dtype that the whole storage holds.
  std::int64_t stored() const {
    return cell->bytes / static_cast<std::int64_t>(core::size_of(layout.dtype));
  }
  bool is_view() const { return base != nullptr; }
  Handle& group() { return base ? *base : *this; }
  ~Handle() override;
  void let_go() override;

 protected:
  bool is_handle() const override { return true; }
};

// One instruction recorded on the tape.
class Node final : public GraphObject {
 public:
  struct Operand {
    core::Layout layout;  // only for tensors
    core::Number number;
    bool is_number = false;
  };
  struct SavedSlot {
    int slot;                 // operand index, or ops::kResult + result index
    program::ValueRef value;  // null on the client
    std::int64_t elements;    // number of elements in the storage
    core::Layout layout;
    Edge edge;  // at the time of the save; empty for a result, which belongs to this node
    bool requires_grad;
    const Cell* cell = nullptr;  // at the time of the save; read only by on_save
  };
  struct Hook {
    std::uint32_t output;  // kWhole for a hook that gets the gradients of all outputs
    HookId id;
  };
  static constexpr std::uint32_t kWhole = ~0u;

  Node(Graph* graph, std::uint64_t at, ops::OpId op)
      : GraphObject(graph), at(at), op(op), label(op) {}
  ~Node() override;
  void let_go() override;

  // Size in bytes, with the heap memory of its lists.
  std::size_t size() const;
  std::size_t saved_size() const;  // the part of size() that `saved` adds

  const std::uint64_t at;  // position on the tape
  ops::OpId op;
  ops::OpId label;        // the op that the user called (a view is recorded as a region op)
  std::uint64_t seq = 0;  // of the command that recorded it; identifies the node in the protocol
  core::InlineVector<Edge, 2> edges;  // one per operand
  core::InlineVector<Operand, 2> operands;
  core::InlineVector<std::uint32_t, 1> counts;
  core::Attributes attributes;
  core::InlineVector<SavedSlot, 2> saved;
  std::vector<core::Layout> results;  // filled only for nodes with several results
  std::vector<Hook> hooks;            // run before the vjp
  std::vector<HookId> post_hooks;     // run after the vjp
  // (output, handle) for which retain_grad() was called
  std::vector<std::pair<std::uint32_t, Handle*>> retained;
  Handle* remade_for = nullptr;  // the live view for which this node was rebuilt
  // On a client: its own backward function or its record of this node.
  core::Ref<core::Counted> extra;
  bool forgotten = false;     // the saved values were dropped: only the client can run the vjp
  bool keeps_number = false;  // the vjp reads a number: like a saved value, a backward uses it up
  bool freed = false;
  Visit visit;
  // The graph's records of this node.
  struct Listed {
    std::size_t bytes = 0;  // the part of size() that is in the graph's total
    // Position in the graph's list of nodes with saved values; 0 if absent.
    std::uint64_t place = 0;
  } listed;
};

// Free list for objects that are created and destroyed with every instruction. Returning memory to
// it never allocates.
template <class T, std::size_t kMax>
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    while (free_ != nullptr) ::operator delete(take());
  }
  void* take() {
    if (free_ == nullptr) return ::operator new(sizeof(T));
    --count_;
    return std::exchange(free_, free_->next);
  }
  void give(void* memory) {
    if (count_ == kMax) return ::operator delete(memory);
    ++count_;
    free_ = new (memory) Free{free_};
  }

 private:
  struct Free {
    Free* next;
  };
  Free* free_ = nullptr;
  std::size_t count_ = 0;
};

struct Call {
  ops::OpId op = 0;
  bool record = false;  // whether grad mode is on
  core::DType default_dtype = core::DType::kF32;
  std::span<const ops::Var> arguments;
  std::span<const std::uint32_t> counts;
  const core::Attributes* attributes = &none();  // not owned

  static const core::Attributes& none();
};

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

  // ---- handles. All errors come before any effect.
  // Makes a new base; `value` is null on the client.
  HandleRef adopt(const core::Layout& layout, program::ValueRef value);
  HandleRef new_handle(core::Ref<Cell> cell, const core::Layout& layout,
                       core::Ref<Clock> clock = nullptr) {
    return HandleRef(new (handles_.take()) Handle(this, std::move(cell), layout, std::move(clock)));
  }
  // Makes a base on the storage that another session has published.
  HandleRef adopt_published(const core::Layout& layout, program::ValueRef value, bool writable);
  // may_publish() checks whether the handle's cell can be published. publish() then marks the cell
  // as shared and, on the daemon, replaces its value by the returned one.
  core::Status may_publish(const Handle& h) const;
  program::ValueRef publish(Handle& h);
  // Runs an op out of place: ops that compute, views, and ops that mutate lists of tensors, whose
  // results are the mutated handles.
  core::Status apply(const Call& call, Handles& results);
  // Runs an op out of place like apply(), with the results of an earlier inference. Precondition:
  // known.fits(operands), and this is the daemon's front end.
  HandleRef apply_known(const KnownCall& known, const program::Apply& apply,
                        std::span<Handle* const> operands);
  // Runs an op in place: it overwrites argument 0, which is also the result.
  core::Status apply_inplace(const Call& call);
  // Runs a program on inputs; `results` are the new handles. Nothing is recorded on the tape.
  core::Status call(const Callable& callable, const program::Call& call,
                    std::span<const HandleRef> inputs, Handles& results);
  static constexpr std::uint32_t kMaxRounds = 1 << 20;  // maximum number of rounds of a loop
  core::Status set_data(Handle& h, Handle& other);
  core::Status set_requires_grad(Handle& h, bool on);
  core::Status set_grad(Handle& h, Handle* grad);
  core::Status retain_grad(Handle& h);
  core::Status register_hook(Handle& h, HookId hook);
  void remove_hook(Handle& h, HookId hook);

  // ---- queries
  bool requires_grad(Handle& h);
  // Returns nullptr for a leaf. If the base was written, the node of a view is rebuilt; a view that
  // was created under no_grad or as one of several results is refused instead.
  core::Result<Node*> node_of(Handle& h);
  core::Result<bool> is_leaf(Handle& h);

  // ---- failures
  // Sets the sequence number of the command that is executed now.
  void set_seq(std::uint64_t seq) { seq_ = seq; }
  // All commands up to seq have run; drops the data for undoing them.
  void completed(std::uint64_t seq);
  // Undoes the in-place commands `rebinds` (ascending), which failed because of the error of
  // command `root`.
  void take_back(const std::vector<std::uint64_t>& rebinds, std::uint64_t root);

  // After this, undoing a failed write restores only the value and not the history, because the
  // handles that had a history are gone.
  void forget_history() {
    for (Undo& undo : undo_) {
      undo.base = nullptr;
      undo.node = undo.old_node = nullptr;
    }
    rebuilt_.clear();
  }

  // Returns the node with saved values that command `seq` recorded, or nullptr if it is gone.
  Node* recorded_by(std::uint64_t seq) const;
  // Makes a new handle for a saved value, with the edge that was saved with it.
  HandleRef name_saved(const Node::SavedSlot& saved, Node& node);
  // Drops the saved values of the node; the client recomputes them for its backward.
  void forget_saved(Node& node);
  bool is_client_node(const Node& node) const { return node.op == client_node_; }

  std::size_t live_nodes() const { return live_nodes_; }
  // Approximate memory of handles, cells, tape and undo data.
  std::size_t bookkeeping_bytes() const {
    return object_bytes_ + undo_.size() * sizeof(Undo) + rebuilt_.size() * sizeof(Remade) +
           recorded_.size() * sizeof(recorded_[0]);
  }
  // A result of more bytes than this is refused when its op is called. 0 means no limit here (on
  // the daemon, where admission comes later). Must be set before the first op is called.
  std::uint64_t largest_result = 0;
  // Called when a handle with an id was destroyed (the client then releases the id).
  std::function<void(program::HandleId)> on_death;
  // on_record is called for every node when it is recorded, on_save for every node that has saved
  // values.
  std::function<void(Node&)> on_record, on_save;

 private:
  friend class GraphObject;
  friend class Handle;
  friend class Node;
  friend class Backward;
  friend class ImageCapture;
  friend class ImageBuilder;

  struct Undo {
    std::uint64_t seq;
    core::Ref<Cell> cell;
    core::Ref<Clock> clock;
    std::uint32_t tick;
    HandleRef base;        // the base whose history changed; null if the write was not recorded
    core::Ref<Node> node;  // the node that the write recorded
    core::Ref<Node> old_node;
    std::uint32_t old_output;
  };
  // A node of a view that was rebuilt because the clock had advanced, by writes that may still turn
  // out to have failed.
  struct Remade {
    std::uint64_t seq;
    core::Ref<Clock> clock;
    core::Ref<Node> node;
    Edge old;
    std::uint32_t old_seen, seen;
  };
  // A node whose write was undone, and the edge that replaces it.
  struct Lost {
    core::Ref<Node> node;
    Edge old;
    HandleRef base;  // null if it was the node of a view
  };

  void queue_destruction(const GraphObject* object);
  void destroy_dead();
  void count(Node& node);
  core::Status infer(const Call& call, const ops::OpDef& def, ops::InferContext& context,
                     core::InlineVector<ops::OperandInfo, 3>& infos) const;
  // Makes the results of a call whose inference has returned `layouts`. If they were remembered,
  // `known` is not null.
  core::Status apply(const Call& call, const ops::OpDef& def, std::span<const core::Layout> layouts,
                     const KnownLayout* known, Handles& results);
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
  core::Status may_write(const Handle& h, const std::string& what) const;

  // Sets `edge` to the destination of h's gradient. Precondition: `edge` is empty.
  core::Status edge_of(Handle& h, Edge& edge);
  core::Ref<Node> new_node(ops::OpId op) {
    return core::Ref<Node>(new (nodes_.take()) Node(this, ++tape_length_, op));
  }
  core::Ref<Node> record(const Call& call, core::InlineVector<Edge, 2>&& edges);
  // record_reading() records how a view's history follows from its base's history. record_writing()
  // records the base's history after a write through the view, where `written` is the history of
  // the written value. If one of them is complex and the other real, both go through a view of the
  // complex tensor as real parts.
  core::Ref<Node> record_reading(ops::OpId label, const core::Layout& base, Edge edge,
                                 const core::Layout& view);
  core::Ref<Node> record_writing(const core::Layout& base, Edge edge, const core::Layout& view,
                                 Edge written);
  core::Ref<Node> record_step(ops::OpId op, std::initializer_list<core::Layout> operands,
                              std::initializer_list<Edge> edges, core::Attributes attributes = {});
  core::Ref<Node> recorded(core::Ref<Node> node);
  core::Status may_save(const ops::OpDef& def, const Call& call, std::span<const Edge> edges) const;
  void save(Node& node, const ops::OpDef& def, const Call& call,
            std::span<const HandleRef> results);
  void saved(Node& node);
  // Remembers a node that has saved values. Precondition: `seq` is not smaller than in earlier
  // calls.
  void note_recorded(std::uint64_t seq, Node& node) {
    recorded_.emplace_back(seq, &node);
    node.listed.place = recorded_gone_ + recorded_.size();
  }
  void set_node(Handle& h, core::Ref<Node> node, std::uint32_t output);
  void write(Handle& h, program::ValueRef value);
  void give_back(Handle& h, const Edge& old);
  void undo_rebuild(Handle& h, const Remade& remade);
  void replace(std::vector<Lost>& lost);

  const ops::Catalog& catalog_;
  Sink* const sink_;
  const ops::OpId index_region_, add_region_, update_region_, view_as_real_, view_as_complex_,
      fill_, copy_, data_, client_node_;
  std::uint64_t seq_ = 0;
  std::uint64_t tape_length_ = 0;
  std::uint64_t visits_ = 0;
  std::size_t live_nodes_ = 0;
  std::size_t object_bytes_ = 0;
  std::deque<Undo> undo_;
  std::deque<Remade> rebuilt_;
  std::deque<std::pair<std::uint64_t, Node*>> recorded_;
  // Number of entries that were removed from the front of recorded_.
  std::uint64_t recorded_gone_ = 0;
  KnownLayouts known_layouts_;
  Memory<Handle, 64> handles_;
  Memory<Node, 16> nodes_;
  GraphObject* objects_ = nullptr;
  const GraphObject* dead_ = nullptr;
  bool destroying_dead_ = false;
};

// The layout in messages, without strides: "float32 [2, 3] on cpu".
std::string described(const core::Layout& layout);

// Returns true if the layouts have the same dtype, device and shape.
bool same_kind(const core::Layout& a, const core::Layout& b);

// Returns true if an operand has more than ops::kMaxRepeated elements. Whether inference accepts it
// then depends on its storage, and not on its layout alone.
bool infers_from_storage(std::span<const ops::Var> arguments);

// The handle of a Var that was made by this graph's builder.
inline Handle& handle_of(const ops::Var& var) { return *static_cast<Handle*>(var.named().get()); }

}  // namespace teletensor::autograd
