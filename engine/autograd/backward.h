// Backward: one reverse pass over the tape, in three uses of one plan:
// the daemon runs it (vjps become instructions), the client's mirror settles it (only its effects
// on names), and a client with hooks or create_graph runs it itself through an Issuer that sends
// instructions.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/autograd/graph.h"

namespace teletensor::autograd {

// What a running backward may do to the session. The daemon's applies to its graph; the client's
// also puts the command on the wire.
class Issuer : public ops::Builder {
 public:
  // create_graph: what is issued is recorded, and .grad is replaced instead of written.
  virtual bool recording() const = 0;
  // Through argument 0.
  virtual core::Status inplace(ops::OpId op, std::span<const ops::Var> arguments) = 0;
  virtual core::Status set_grad(Handle& h, const HandleRef& grad) = 0;
  virtual ops::Var saved(const Node::SavedSlot& slot, Node& node) = 0;
  // As saved(), where the node's values were dropped; absent where it kept nothing in that slot.
  virtual ops::Var saved_again(int, Node&) { return {}; }
  // What the hook makes of g (g itself where it returned None).
  virtual core::Result<ops::Var> run_hook(HookId hook, const ops::Var& g) = 0;
  // Only on a client: a node that is its own, hooks of whole nodes and of leaves' .grad, and
  // looking at a node's gradients after its vjp. `gradients` and `given` may be changed; absent:
  // none.
  virtual core::Status run_function(Node& node, std::span<ops::Var> gradients,
                                    std::span<ops::Var> given) = 0;
  virtual core::Status run_pre_hook(HookId, Node&, std::span<ops::Var>) { return {}; }
  virtual core::Status run_post_hook(HookId, Node&, std::span<ops::Var> /*given*/,
                                     std::span<const ops::Var> /*gradients*/) {
    return {};
  }
  virtual core::Status run_grad_hook(HookId, Handle&) { return {}; }
  virtual core::Status ran(Node&, std::span<const ops::Var> /*given*/, bool /*retain_graph*/) {
    return {};
  }
  // A leaf has its gradient; false: step() returns here.
  virtual bool leaf_done(Handle&) { return true; }
  // g as a fresh base with a cell of its own and these dense strides.
  virtual core::Result<HandleRef> own(const ops::Var& g, const core::Dims& strides) = 0;
  // Gives the client's next id to h, which it will find as .grad or as a result.
  virtual void name(Handle& h) = 0;
};

struct BackwardCall {
  std::vector<HandleRef> roots;
  std::vector<HandleRef> seeds;   // null: ones
  std::vector<HandleRef> inputs;  // with has_inputs: gradients of these, and .grad stays alone
  bool has_inputs = false;
  bool retain_graph = false;
  bool allow_unused = false;
};

class Backward {
 public:
  // Searches the graph and refuses (no history, not scalar, freed, unused, moved leaf) before any
  // effect.
  static core::Result<std::unique_ptr<Backward>> plan(Graph& graph, BackwardCall call);

  // True if a hook or a node of the client's own lies on the path, so that only it can run this.
  bool has_hooks() const { return has_hooks_; }

  // The effects on names without gradients: marks nodes freed, makes .grad handles (or the results
  // for the inputs), each passed to `name` in the order in which step() makes them.
  void settle(const std::function<void(Handle&)>& name);

  // Runs about `nodes` more nodes. Errors are our own bugs, or a Python hook's.
  core::Status step(Issuer& issuer, int nodes);
  bool done() const { return done_; }
  // With inputs, once done: one per input, null where it was not used.
  const std::vector<HandleRef>& results() const { return results_; }

  // After a client ran this itself: frees what step() would have.
  void free_saved();

 private:
  struct Target {
    Node* node = nullptr;  // or
    Handle* leaf = nullptr;
    std::uint32_t uses = 0;
    std::uint32_t first_edge = 0, edges = 0;
    std::uint32_t first_sum = 0, outputs = 1;
    std::uint64_t reached = 0;  // outputs that some edge or root names
    bool runs = false, hooked = false;
  };
  struct Link {
    std::int32_t target = -1;
    std::uint32_t output = 0;
  };

  Backward(Graph& graph, BackwardCall call) : graph_(graph), call_(std::move(call)) {}
  core::Status search();
  core::Status check_derivative(const Target& target, const std::vector<bool>& key) const;
  std::int32_t visit(const Edge& edge);
  core::Status start(Issuer& issuer);
  core::Status run_node(Issuer& issuer, Target& target);
  bool add_to_region(const Target& target);
  core::Status run_leaf(Issuer& issuer, Target& target);
  core::Status hooks_of(Issuer& issuer, Target& target);
  core::Status accumulate(Issuer& issuer, Handle& leaf, const ops::Var& g);
  void capture(const Target& target, std::span<const ops::Var> before);
  core::Status finish(Issuer& issuer);
  void free_node(Node& node);
  static core::Dims grad_strides(const Handle& h);

  Graph& graph_;
  BackwardCall call_;
  std::vector<Target> targets_;
  std::vector<Link> links_;  // edges of all targets
  std::vector<Link> roots_, wanted_;
  std::vector<std::int32_t> order_;  // nodes by descending position
  std::vector<ops::Var> sums_;
  std::vector<ops::Var> captured_;  // one per input
  std::vector<HandleRef> results_;
  std::size_t at_ = 0;
  bool has_hooks_ = false, started_ = false, done_ = false, pause_ = false;
};

}  // namespace teletensor::autograd
