// Backward: one reverse pass over the tape. One plan serves three uses: the daemon runs it (the
// vjps become instructions), the client's mirror settles it (it applies only the effects on
// handles), and a client with hooks or create_graph runs it itself through an Issuer that sends
// instructions.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "engine/autograd/graph.h"
#include "engine/autograd/product_sum.h"

namespace teletensor::autograd {

// The effects that a running backward may have on the session. The daemon's implementation changes
// its graph; the client's implementation also sends each command to the daemon.
class Issuer : public ops::Builder {
 public:
  // True under create_graph: the issued ops are recorded on the tape, and .grad is replaced instead
  // of written.
  virtual bool recording() const = 0;
  // Runs an op in place: it overwrites argument 0.
  virtual core::Status inplace(ops::OpId op, std::span<const ops::Var> arguments) = 0;
  virtual core::Status set_grad(Handle& h, const HandleRef& grad) = 0;
  virtual ops::Var saved(const Node::SavedSlot& slot, Node& node) = 0;
  // Like saved(), for a node whose saved values were dropped and are computed again. The result is
  // absent if the node kept nothing in that slot.
  virtual ops::Var saved_again(int, Node&) { return {}; }
  // Returns the gradient after the hook: the hook's result, or g if the hook returned None.
  virtual core::Result<ops::Var> run_hook(HookId hook, const ops::Var& g) = 0;
  // The next six functions have a meaning only on a client: nodes with the client's own backward,
  // hooks of whole nodes, hooks that run after a leaf's .grad was written, and a look at a node's
  // gradients after its vjp. The functions may change `gradients` and `given`; an absent entry
  // means no gradient.
  virtual core::Status run_function(Node& node, std::span<ops::Var> gradients,
                                    std::span<ops::Var> given) = 0;
  virtual core::Status run_pre_hook(HookId, Node&, std::span<ops::Var>) { return {}; }
  virtual core::Status run_post_hook(HookId, Node&, std::span<ops::Var> /*given*/,
                                     std::span<const ops::Var> /*gradients*/) {
    return {};
  }
  virtual core::Status run_grad_hook(HookId, Handle&) { return {}; }
  // Called before the hooks of a leaf, when all nodes that use the leaf have run. `gradient` is
  // absent if no vjp has given one. A client whose functions have given rows of the gradient adds
  // them to it, or, if it is absent, keeps the rows itself. `input` says that the gradient is a
  // result of the backward, and is not accumulated.
  virtual core::Status add_rows(Handle& /*leaf*/, bool /*input*/, ops::Var& /*gradient*/) {
    return {};
  }
  virtual core::Status ran(Node&, std::span<const ops::Var> /*given*/, bool /*retain_graph*/) {
    return {};
  }
  // Returns true if ran() reads the gradients; then every one is computed before it.
  virtual bool reads_gradients() const { return false; }
  // Called when a leaf has received its gradient. If it returns false, step() returns at this
  // point.
  virtual bool leaf_done(Handle&) { return true; }
  // Returns g as a new base with its own cell and the given dense strides.
  virtual core::Result<HandleRef> own(const ops::Var& g, const core::Dims& strides) = 0;
  // Gives h the next handle id. The client assigns the same id to the .grad or to the result that
  // it expects.
  virtual void name(Handle& h) = 0;
};

struct BackwardCall {
  std::vector<HandleRef> roots;
  std::vector<HandleRef> seeds;  // a null seed means ones
  // Used if has_inputs: the call returns their gradients and leaves .grad unchanged.
  std::vector<HandleRef> inputs;
  bool has_inputs = false;
  bool retain_graph = false;
  bool allow_unused = false;
  bool create_graph = false;  // each .grad is replaced by a sum, instead of written in place
};

class Backward {
 public:
  // Searches the graph. All errors come here, before any effect: no history, not a scalar, freed
  // values, an unused input, a leaf whose data or history has changed since it was recorded, or a
  // .grad that cannot take the gradient.
  static core::Result<std::unique_ptr<Backward>> plan(Graph& graph, BackwardCall call);

  // True if a hook or a node with the client's own backward lies on the path. Then only the client
  // can run this backward.
  bool has_hooks() const { return has_hooks_; }

  // Applies the effects on handles without computing gradients: marks nodes as freed, and makes the
  // .grad handles (or the results for the inputs). Passes each new handle to `name`, in the order
  // in which step() makes them.
  void settle(const std::function<void(Handle&)>& name);

  // Runs about `nodes` more nodes. An error is either an internal error or the error of a Python
  // hook.
  core::Status step(Issuer& issuer, int nodes);
  bool done() const { return done_; }
  // One result per input of the call, null if the graph does not use that input. Valid once done().
  const std::vector<HandleRef>& results() const { return results_; }

  // Frees the saved values that step() would have freed, after a client has run this backward
  // itself.
  void free_saved();

 private:
  struct Target {
    Node* node = nullptr;  // either a node or a leaf is set
    Handle* leaf = nullptr;
    std::uint32_t uses = 0;
    std::uint32_t first_edge = 0, edges = 0;
    std::uint32_t first_sum = 0, outputs = 1;
    std::uint64_t reached = 0;  // bit set of the outputs that an edge or a root refers to
    bool runs = false, hooked = false;
  };
  struct Link {
    std::int32_t target = -1;
    std::uint32_t output = 0;
  };

  Backward(Graph& graph, BackwardCall call) : graph_(graph), call_(std::move(call)) {}
  core::Status search();
  core::Status may_accumulate(const Target& target) const;
  core::Status check_derivative(const Target& target, const std::vector<bool>& key) const;
  std::int32_t visit(const Edge& edge);
  core::Status start(Issuer& issuer);
  core::Status run_node(Issuer& issuer, Target& target);
  bool add_to_region(const Target& target);
  void add_product(const Target& to, std::uint32_t sum, const Product& product);
  void add_kept(std::uint32_t first, std::uint32_t end);
  core::Status run_leaf(Issuer& issuer, Target& target);
  core::Status hooks_of(Issuer& issuer, Target& target);
  core::Status accumulate(Issuer& issuer, Handle& leaf, const ops::Var& g);
  void capture(const Target& target, std::span<const ops::Var> before);
  core::Status finish(Issuer& issuer);
  void free_node(Node& node);
  static core::Dims grad_strides(const Handle& h);

  Graph& graph_;
  BackwardCall call_;
  std::uint64_t search_ = 0;  // number of the search that made the plan
  std::vector<Target> targets_;
  std::vector<Link> links_;  // the edges of all targets, one after another
  std::vector<Link> roots_, wanted_;
  std::vector<std::int32_t> order_;  // indices of the nodes, latest on the tape first
  std::vector<ops::Var> sums_;
  std::map<std::uint32_t, ProductSum> products_;  // by the index of the sum to which they belong
  std::vector<ops::Var> captured_;                // one gradient per input of the call
  std::vector<HandleRef> results_;
  std::size_t at_ = 0;
  bool has_hooks_ = false, started_ = false, done_ = false, pause_ = false;
};

}  // namespace teletensor::autograd
