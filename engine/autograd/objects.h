// The objects of a graph: handles with their cells and clocks, the nodes of the tape, and
// GraphObjects, which owns the memory of the handles and nodes.
//
// Not thread-safe. Handles and nodes must not outlive their GraphObjects.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/geometry.h"
#include "engine/core/inline_vector.h"
#include "engine/core/recycled.h"
#include "engine/core/ref.h"
#include "engine/core/status.h"
#include "engine/ops/op.h"
#include "engine/program/command.h"
#include "engine/program/instruction.h"
#include "engine/program/interner.h"

namespace teletensor::autograd {

class GraphObjects;
class Handle;
class Node;
using HandleRef = core::Ref<Handle>;
using Handles = core::InlineVector<HandleRef, 1>;

// A handle or a node. GraphObjects owns its memory, and destroys it when no reference is left.
class GraphObject : public ops::Named {
 public:
  explicit GraphObject(GraphObjects* objects);
  ~GraphObject() override;
  GraphObjects* objects() const { return objects_; }
  // The object that was made before this one and is still alive, or null.
  GraphObject* older() const { return older_; }
  // Drops the references to all other objects. The graph calls it at its end, because objects can
  // refer to each other in a cycle (a leaf that requires grad and was overwritten with a value
  // computed from itself).
  virtual void let_go() = 0;

 protected:
  friend class GraphObjects;
  void last_reference_dropped() const override;
  virtual bool is_handle() const { return false; }
  GraphObjects* const objects_;

 private:
  GraphObject* newer_ = nullptr;  // doubly linked list of all objects of the graph
  GraphObject* older_ = nullptr;
  // List of the objects that are destroyed next.
  mutable const GraphObject* next_dead_ = nullptr;
};

// Counts the writes to a base, to its views and to its detach()ed aliases. A cell is the clock of
// all of them; assigning `.data` starts another clock. The time never decreases, and writes that
// failed are no longer counted between two times.
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
  const std::vector<std::uint32_t>& failed_ticks() const { return failed_ticks_; }
  // Sets the state of a clock in a snapshot. Precondition: the failed ticks ascend.
  void restore(std::uint32_t now, std::vector<std::uint32_t> failed_ticks) {
    now_ = now;
    failed_ticks_ = std::move(failed_ticks);
  }

 private:
  std::uint32_t taken_back(std::uint32_t from, std::uint32_t to) const;

  std::uint32_t now_ = 0;
  std::vector<std::uint32_t> failed_ticks_;  // ticks of failed writes, ascending
};

// One storage, with its present value. On the client `value` is null.
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
// handle alone and is never shared within its alias group. The base of a view is no view itself,
// and a node lists a handle in `retained` as long as that handle has the node and its mark.
class Handle final : public GraphObject {
 public:
  // How a view was created. Recorded in-place writes refuse views that were created under no_grad,
  // and views that are one of several results of an op.
  enum class Made : std::uint8_t { kDefault, kNoGrad, kMulti };

  // Uses the cell as its clock unless `clock` is given.
  Handle(GraphObjects* objects, core::Ref<Cell> cell, const core::Layout& layout,
         core::Ref<Clock> clock = nullptr);

  program::HandleId id = 0;
  core::Ref<Cell> cell;
  core::Ref<Clock> clock;
  HandleRef base;           // null if this handle is no view; a view keeps its base alive
  std::uint32_t views = 0;  // number of live views of this base
  Made made = Made::kDefault;
  bool flag = false;         // set by requires_grad_()
  bool retains = false;      // retain_grad() was called; `node` lists this handle in `retained`
  core::Ref<Node> node;      // valid if `seen` is current; use Tape::node_of to read it
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
  // Whether a gradient of this tensor is needed: a view requires grad also because its base does.
  bool requires_grad() const {
    return flag || node != nullptr || (base != nullptr && base->requires_grad());
  }
  // Gives the tensor the history that `node` recorded at the present time of its clock.
  // retain_grad() marks move to the new node; hooks stay with the old node.
  void set_node(core::Ref<Node> node, std::uint32_t output);
  // Gives the tensor an earlier history again. An empty edge, or one to a leaf, removes the
  // history with its retain_grad() mark.
  void set_history(const Edge& edge);
  // Assigns .grad (null: none). Returns an error if the gradient does not fit the tensor.
  core::Status set_grad(Handle* gradient);
  void remove_hook(HookId hook);
  // Return an error, which begins with `what`, if the tensor cannot be written, or if its cell
  // cannot be published.
  core::Status may_write(const std::string& what) const;
  core::Status may_publish() const;
  ~Handle() override;
  void let_go() override;

 protected:
  bool is_handle() const override { return true; }
};

// One instruction recorded on the tape. Its edges lead only to leaves and to nodes that are earlier
// on the tape.
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

  Node(GraphObjects* objects, std::uint64_t at, ops::OpId op);
  ~Node() override;
  void let_go() override;
  // Drops the saved values; the client recomputes them for its backward.
  void forget_saved() {
    saved.clear();
    forgotten = true;
  }

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
  // The records that GraphObjects has of this node.
  struct Listed {
    std::size_t bytes = 0;    // the part of size() that is in the total
    std::uint64_t place = 0;  // position in SavedNodes; 0 if absent
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

// Finds the node with saved values that a command recorded. It does not own the nodes: a node
// removes itself when it is destroyed. The entries are in ascending order of the commands, and the
// first entry always has a node.
class SavedNodes {
 public:
  // Precondition: `seq` is not smaller than in earlier calls.
  void add(std::uint64_t seq, Node& node) {
    nodes_.emplace_back(seq, &node);
    node.listed.place = gone_ + nodes_.size();
  }
  // Has no effect if the node was never added.
  void remove(const Node& node);
  // Returns null if the command recorded no such node, or if the node is gone.
  Node* find(std::uint64_t seq) const;
  // Pairs of a command's number and the node that it recorded; null if the node is gone.
  const std::deque<std::pair<std::uint64_t, Node*>>& all() const { return nodes_; }
  std::size_t bytes() const { return nodes_.size() * sizeof(nodes_[0]); }

 private:
  std::deque<std::pair<std::uint64_t, Node*>> nodes_;
  std::uint64_t gone_ = 0;  // number of entries that were removed from the front
};

// Owns all handles and nodes of a graph: their memory, and the list of those that are alive, from
// the newest to the oldest. An object without references is destroyed from a list, never
// recursively, because a chain of nodes may be a million long.
class GraphObjects {
 public:
  GraphObjects() = default;
  ~GraphObjects();
  GraphObjects(const GraphObjects&) = delete;
  GraphObjects& operator=(const GraphObjects&) = delete;

  HandleRef new_handle(core::Ref<Cell> cell, const core::Layout& layout,
                       core::Ref<Clock> clock = nullptr) {
    return HandleRef(new (handles_.take()) Handle(this, std::move(cell), layout, std::move(clock)));
  }
  // Makes a new base; `value` is null on the client.
  HandleRef adopt(const core::Layout& layout, program::ValueRef value);
  // The same for a storage of `elements` elements. Precondition: it has those of the layout.
  HandleRef adopt(const core::Layout& layout, std::int64_t elements, program::ValueRef value);
  // Makes a base on the storage that another session has published.
  HandleRef adopt_published(const core::Layout& layout, program::ValueRef value, bool writable);
  // Makes a handle for a value that `node` saved, with the edge that was saved with it.
  HandleRef adopt_saved(const Node::SavedSlot& saved, Node& node);
  // Makes a node of this op for position `at` of the tape.
  core::Ref<Node> new_node(std::uint64_t at, ops::OpId op) {
    return core::Ref<Node>(new (nodes_.take()) Node(this, at, op));
  }

  // The newest object, or null. GraphObject::older() leads to the others.
  GraphObject* newest() const { return newest_; }
  // Begins a search through the objects and returns its number, by which the search marks objects
  // (Visit).
  std::uint64_t begin_search() { return ++searches_; }
  SavedNodes& saved_nodes() { return saved_nodes_; }
  const SavedNodes& saved_nodes() const { return saved_nodes_; }

  // Must be called when the size of a node has changed.
  void count(Node& node);
  // Must be called when command `seq` has recorded a node with saved values.
  void add_saved(std::uint64_t seq, Node& node);
  std::size_t live_nodes() const { return live_nodes_; }
  // Approximate memory of handles, cells and nodes.
  std::size_t bytes() const { return bytes_ + saved_nodes_.bytes(); }

  // Called when a handle with an id was destroyed (the client then releases the id).
  std::function<void(program::HandleId)> on_death;

 private:
  friend class GraphObject;
  friend class Handle;
  friend class Node;

  void queue_destruction(const GraphObject* object);
  void destroy_dead();

  Memory<Handle, 64> handles_;
  Memory<Node, 64> nodes_;
  GraphObject* newest_ = nullptr;
  const GraphObject* dead_ = nullptr;
  bool destroying_dead_ = false;
  std::uint64_t searches_ = 0;
  std::size_t live_nodes_ = 0;
  std::size_t bytes_ = 0;  // of objects
  SavedNodes saved_nodes_;
};

// The handle of a Var that was made by this graph's builder.
inline Handle& handle_of(const ops::Var& var) { return *static_cast<Handle*>(var.named().get()); }

}  // namespace teletensor::autograd
