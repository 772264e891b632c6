// Graph: names, cells, alias groups and the tape of one session.
//
// The same code is the daemon's front (values behind cells, instructions go to a Sink) and the
// client's mirror (no sink, no values): so the client answers every question about shape,
// requires_grad, is_leaf, .grad and raises every eager error without I/O. Lines marked RULE come
// from the executable specification of names, views, in-place and tape, which is fuzzed against
// PyTorch.
//
// One thread at a time. Handles must not outlive their Graph.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "engine/autograd/front.h"
#include "engine/core/geometry.h"
#include "engine/core/inline_vector.h"
#include "engine/core/ref.h"
#include "engine/core/status.h"
#include "engine/ops/op.h"
#include "engine/program/command.h"
#include "engine/program/instruction.h"

namespace teletensor::autograd {

class Callable;
class Graph;
class Handle;
class Node;
using HandleRef = core::Ref<Handle>;
using Handles = core::InlineVector<HandleRef, 1>;

// Freed through the graph's list, never recursively: a chain may be 10^6 long.
class GraphObject : public ops::Named {
 public:
  explicit GraphObject(Graph* graph);
  ~GraphObject() override;
  Graph* graph() const { return graph_; }
  // Lets go of every other object, so that a graph can end although some refer to each other in a
  // circle (a leaf that requires grad and was written with what was computed from it).
  virtual void let_go() = 0;

 protected:
  friend class Graph;
  friend class ImageTaker;
  void last_reference_dropped() const override;
  virtual bool is_handle() const { return false; }
  Graph* const graph_;

 private:
  GraphObject* before_ = nullptr;  // all of a graph's objects
  GraphObject* after_ = nullptr;
  mutable const GraphObject* next_dead_ = nullptr;  // of those that the graph buries
};

// Counts the writes to a base, its views and its detach()ed names. A cell is the clock of those;
// `.data` starts another.
class Clock : public core::Counted {
 public:
  std::uint32_t now() const { return now_; }
  std::uint32_t tick() { return ++now_; }
  // `tick` belonged to a write that did not happen.
  void take_back(std::uint32_t tick);
  bool moved_since(std::uint32_t seen) const { return moved_between(seen, now_); }
  bool moved_between(std::uint32_t from, std::uint32_t to) const {
    return void_.empty() ? from != to : to - from > taken_back(from, to);
  }

 private:
  std::uint32_t taken_back(std::uint32_t from, std::uint32_t to) const;

  friend class ImageTaker;
  friend class ImageBuilder;

  std::uint32_t now_ = 0;
  std::vector<std::uint32_t> void_;  // ascending
};

// One storage identity. On the client `value` is null.
class Cell final : public Clock {
 public:
  Cell(std::int64_t bytes, program::ValueRef value) : bytes(bytes), value(std::move(value)) {}
  const std::int64_t bytes;  // its names may be of several dtypes
  program::ValueRef value;
  bool shared = false;     // published: its storage is other sessions' as well
  bool read_only = false;  // by another session, which has not made it writable
};

// Where a gradient goes: output `output` of a node, or a leaf. Neither: nowhere.
struct Edge {
  core::Ref<Node> node{};
  HandleRef leaf{};
  std::uint32_t output = 0;
  explicit operator bool() const { return node != nullptr || leaf != nullptr; }
};

using HookId = std::uint64_t;  // of a Python callable; only the client has any

// A client's name. Everything here but cell and geometry is the handle's own, never its group's.
class Handle final : public GraphObject {
 public:
  // How a view came to be: a view made under no_grad and one of several outputs refuse recorded
  // writes.
  enum class Made : std::uint8_t { kDefault, kNoGrad, kMulti };

  // With the cell's own clock, unless another is given.
  Handle(Graph* graph, core::Ref<Cell> cell, const core::Layout& layout,
         core::Ref<Clock> clock = nullptr);

  program::HandleId id = 0;
  core::Ref<Cell> cell;
  core::Ref<Clock> clock;
  HandleRef base;           // null: not a view. A base is kept alive by its views.
  std::uint32_t views = 0;  // of a base: how many live
  Made made = Made::kDefault;
  bool flag = false;         // its own requires_grad_()
  bool retains = false;      // retain_grad(): `node` points back here
  core::Ref<Node> node;      // as of `seen`; ask Graph::node_of
  std::uint32_t output = 0;  // which result of node
  std::uint32_t seen = 0;    // the clock when node was made
  HandleRef leaf;            // null: gradients of this leaf go to itself (a saved leaf's do not)
  HandleRef grad;
  std::vector<HookId> hooks;       // of a leaf
  std::vector<HookId> post_hooks;  // of a leaf, after its .grad was written
  void* owner = nullptr;           // the client's Python object, not counted
  bool inference = false;  // made in the client's inference mode: refuses to be saved or flagged
  core::Ref<core::Counted> extra;  // the client's: what its transforms know of this name
  std::uint64_t visit = 0;         // scratch of Backward's search
  std::uint32_t visit_index = 0;

  const core::Geometry& geometry() const { return layout.geometry; }
  const core::Dims& shape() const { return layout.geometry.shape; }
  // How many elements of its dtype the whole storage has.
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

// One recorded instruction.
class Node final : public GraphObject {
 public:
  struct Operand {
    core::Layout layout;  // of tensors
    core::Number number;
    bool is_number = false;
  };
  struct SavedSlot {
    int slot;                 // operand number, or ops::kResult + result number
    program::ValueRef value;  // null on the client
    std::int64_t elements;    // of its storage
    core::Layout layout;
    Edge edge;  // as of the save; of a result: this node itself (not counted)
    bool requires_grad;
    const Cell* cell = nullptr;  // as of the save, for on_save alone
  };
  struct Hook {
    std::uint32_t output;  // or kWhole: it sees the gradients of all outputs
    HookId id;
  };
  static constexpr std::uint32_t kWhole = ~0u;

  Node(Graph* graph, std::uint64_t at, ops::OpId op)
      : GraphObject(graph), at(at), op(op), label(op) {}
  ~Node() override;
  void let_go() override;

  // Bytes, with what its lists hold beyond their own room.
  std::size_t size() const;
  std::size_t saved_size() const;  // of it, what `saved` adds

  const std::uint64_t at;  // position on the tape
  ops::OpId op;
  ops::OpId label;                    // what the user called (views record a region op)
  std::uint64_t seq = 0;              // of the command; names the node on the wire
  core::InlineVector<Edge, 2> edges;  // one per operand
  core::InlineVector<Operand, 2> operands;
  core::InlineVector<std::uint32_t, 1> counts;
  core::Attributes attributes;
  core::InlineVector<SavedSlot, 2> saved;
  std::vector<core::Layout> results;                        // only of nodes with several
  std::vector<Hook> hooks;                                  // before the vjp
  std::vector<HookId> post_hooks;                           // after it
  std::vector<std::pair<std::uint32_t, Handle*>> retained;  // (output, who)
  Handle* remade_for = nullptr;    // the living view whose node was made again as this one
  core::Ref<core::Counted> extra;  // the client's: its own backward, where the node was recorded
  bool forgotten = false;          // what it saved was dropped: only the client can run its vjp
  bool keeps_number = false;  // its vjp reads a number: used up by a backward like a saved value
  bool freed = false;
  std::uint64_t visit = 0;  // scratch of Backward's search
  std::uint32_t visit_index = 0;
  std::size_t counted = 0;  // of size(), in its graph's sum
  std::uint64_t place = 0;  // in its graph's list of nodes that have saved; 0: it is not there
};

// Memory for objects that come and go with every instruction. To give it back takes none.
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
  bool record = false;  // grad mode
  core::DType default_dtype = core::DType::kF32;
  std::span<const ops::Var> arguments;
  std::span<const std::uint32_t> counts;
  const core::Attributes* attributes = &none();  // not owned

  static const core::Attributes& none();
};

class Graph {
 public:
  // `sink` null: a mirror. Precondition: the catalog outlives the graph.
  Graph(const ops::Catalog& catalog, Sink* sink);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  const ops::Catalog& catalog() const { return catalog_; }
  bool is_mirror() const { return sink_ == nullptr; }

  // ---- names. All refusals come before any effect.
  // A fresh base; `value` null on the client.
  HandleRef adopt(const core::Layout& layout, program::ValueRef value);
  HandleRef new_handle(core::Ref<Cell> cell, const core::Layout& layout,
                       core::Ref<Clock> clock = nullptr) {
    return HandleRef(new (handles_.take()) Handle(this, std::move(cell), layout, std::move(clock)));
  }
  // A base on another session's publication.
  HandleRef adopt_published(const core::Layout& layout, program::ValueRef value, bool writable);
  // May its cell be published? Then, on the daemon, the cell gets `value`, which takes the place of
  // the one it had.
  core::Status may_publish(const Handle& h) const;
  program::ValueRef publish(Handle& h);
  // Out of place, views, and list ops that mutate (then the results are the mutated handles).
  core::Status apply(const Call& call, Handles& results);
  // Through argument 0, which is the result.
  core::Status apply_inplace(const Call& call);
  // Runs a program over inputs: `results` are its new names. Nothing is recorded.
  core::Status call(const Callable& callable, const program::Call& call,
                    std::span<const HandleRef> inputs, Handles& results);
  static constexpr std::uint32_t kMaxRounds = 1 << 20;  // of a loop
  core::Status set_data(Handle& h, Handle& other);
  core::Status set_requires_grad(Handle& h, bool on);
  core::Status set_grad(Handle& h, Handle* grad);
  core::Status retain_grad(Handle& h);
  core::Status register_hook(Handle& h, HookId hook);
  void remove_hook(Handle& h, HookId hook);

  // ---- facts
  bool requires_grad(Handle& h);
  // nullptr for a leaf. May make a view's node again; refuses for marked views whose base was
  // written.
  core::Result<Node*> node_of(Handle& h);
  core::Result<bool> is_leaf(Handle& h);

  // ---- failures
  // The sequence number of the command now executed.
  void set_seq(std::uint64_t seq) { seq_ = seq; }
  // Everything up to seq has happened; forgets how to take it back.
  void completed(std::uint64_t seq);
  // The in-place commands `rebinds` (ascending) did not happen.
  void take_back(const std::vector<std::uint64_t>& rebinds, std::uint64_t root);

  // A failed rewrite will only get its value back, no history: the names that had one are gone.
  void forget_history() {
    for (Undo& undo : undo_) {
      undo.base = nullptr;
      undo.node = undo.old_node = nullptr;
    }
    remade_.clear();
  }

  // The node recorded by the command `seq` that has saved values; nullptr if it is gone.
  Node* recorded_by(std::uint64_t seq) const;
  // A name for what a node saved: a new handle with the edge it was saved with.
  HandleRef name_saved(const Node::SavedSlot& saved, Node& node);
  // Drops what it saved; the client computes that again for its backward.
  void forget_saved(Node& node);
  bool is_client_node(const Node& node) const { return node.op == client_node_; }

  std::size_t live_nodes() const { return live_nodes_; }
  // What names, cells, tape and the means to take back cost, about.
  std::size_t bookkeeping_bytes() const {
    return object_bytes_ + undo_.size() * sizeof(Undo) + remade_.size() * sizeof(Remade) +
           recorded_.size() * sizeof(recorded_[0]);
  }
  // Bytes above which a result is refused at its line; 0: no limit here (the daemon admits later).
  std::uint64_t largest_result = 0;
  // Called when a handle with an id has died (the client releases the id).
  std::function<void(program::HandleId)> on_death;
  // Called for every node as it is recorded, and for one that has saved something.
  std::function<void(Node&)> on_record, on_save;

 private:
  friend class GraphObject;
  friend class Handle;
  friend class Node;
  friend class Backward;
  friend class ImageTaker;
  friend class ImageBuilder;

  struct Undo {
    std::uint64_t seq;
    core::Ref<Cell> cell;
    core::Ref<Clock> clock;
    std::uint32_t tick;
    HandleRef base;        // whose history changed; null: not recorded
    core::Ref<Node> node;  // the new one
    core::Ref<Node> old_node;
    std::uint32_t old_output;
  };
  // A view's node that was made again because the clock had moved; by writes which may yet turn out
  // not to have happened.
  struct Remade {
    std::uint64_t seq;
    core::Ref<Clock> clock;
    core::Ref<Node> node;
    Edge old;
    std::uint32_t old_seen, seen;
  };
  // A node of a history that was taken back, and what stood in its place.
  struct Lost {
    core::Ref<Node> node;
    Edge old;
    HandleRef base;  // null: the node was a view's
  };

  void bury(const GraphObject* object);
  void bury_dead();
  void count(Node& node);
  core::Status infer(const Call& call, const ops::OpDef& def, ops::InferContext& context,
                     core::InlineVector<ops::OperandInfo, 3>& infos) const;
  core::Status apply_view(const Call& call, const ops::OpDef& def, ops::InferContext& context,
                          Handles& results);
  core::Status apply_client_node(const Call& call, const ops::OpDef& def, Handles& results);
  core::Status check_call(const Callable& callable, const program::Call& call,
                          std::span<const HandleRef> inputs,
                          std::vector<std::int64_t>& displacement) const;
  core::Status apply_mutating(const Call& call, const ops::OpDef& def, Handles& results);
  // The next instruction of the sink, with the call's operands as they are now.
  program::Instruction& instruction_of(const Call& call) const;
  program::ValueRef new_value(const core::Layout& layout, std::int64_t elements) const;
  // What a write through h makes of its storage: a value of h's dtype.
  program::ValueRef written_value(const Handle& h) const { return new_value(h.layout, h.stored()); }
  core::Status may_write(const Handle& h, const std::string& what) const;
  // `elements`: of its storage.
  HandleRef make(const core::Layout& layout, program::ValueRef value, std::int64_t elements);

  // edge(h): where a gradient of h goes. Precondition: `edge` leads nowhere.
  core::Status edge_of(Handle& h, Edge& edge);
  core::Ref<Node> new_node(ops::OpId op) {
    return core::Ref<Node>(new (nodes_.take()) Node(this, ++tape_length_, op));
  }
  core::Ref<Node> record(const Call& call, core::InlineVector<Edge, 2>&& edges);
  // What of the base's history a view's is, and what becomes of it by a write through the view
  // whose history `written` is. Where one is complex and the other of parts, by way of the parts.
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
  // The node has saved something. Precondition: no later command's node was noted.
  void note_recorded(std::uint64_t seq, Node& node) {
    recorded_.emplace_back(seq, &node);
    node.place = recorded_gone_ + recorded_.size();
  }
  void set_node(Handle& h, core::Ref<Node> node, std::uint32_t output);
  void write(Handle& h, program::ValueRef value);
  void give_back(Handle& h, const Edge& old);
  void unmake(Handle& h, const Remade& remade);
  void replace(std::vector<Lost>& lost);

  const ops::Catalog& catalog_;
  Sink* const sink_;
  const ops::OpId index_region_, add_region_, update_region_, view_as_real_, view_as_complex_,
      fill_, copy_, data_, to_device_, client_node_;
  std::uint64_t seq_ = 0;
  std::uint64_t tape_length_ = 0;
  std::uint64_t visits_ = 0;
  std::size_t live_nodes_ = 0;
  std::size_t object_bytes_ = 0;
  std::deque<Undo> undo_;
  std::deque<Remade> remade_;
  std::deque<std::pair<std::uint64_t, Node*>> recorded_;
  std::uint64_t recorded_gone_ = 0;  // how many have left its front
  Memory<Handle, 64> handles_;
  Memory<Node, 16> nodes_;
  GraphObject* objects_ = nullptr;
  const GraphObject* dead_ = nullptr;
  bool burying_ = false;
};

// The handle behind a Var that this graph's builder made.
inline Handle& handle_of(const ops::Var& var) { return *static_cast<Handle*>(var.named().get()); }

}  // namespace teletensor::autograd
