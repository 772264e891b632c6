#include "engine/autograd/backward.h"

#include <algorithm>

#include "engine/ops/functions.h"

namespace teletensor::autograd {

using core::invalid;
using core::Status;
using ops::Var;

namespace {

// Returns true if a tensor of shape `from` broadcasts to exactly the shape `to`.
bool expands_to(const core::Dims& from, const core::Dims& to) {
  const auto shape = core::broadcast_shapes(from, to, "backward");
  return shape.ok() && *shape == to;
}

}  // namespace

// ---------------------------------------------------------------- the plan

std::int32_t Backward::visit(const Edge& edge) {
  if (!edge) return -1;
  if (edge.node) {
    Node& node = *edge.node;
    if (node.visit.search != search_) {
      node.visit.search = search_;
      node.visit.index = static_cast<std::uint32_t>(targets_.size());
      Target& target = targets_.emplace_back();
      target.node = &node;
      target.outputs = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(node.results.size()));
    }
    targets_[node.visit.index].reached |= 1ull << std::min(edge.output, 63u);
    return static_cast<std::int32_t>(node.visit.index);
  }
  Handle& leaf = *edge.leaf;
  if (leaf.visit.search != search_) {
    leaf.visit.search = search_;
    leaf.visit.index = static_cast<std::uint32_t>(targets_.size());
    targets_.emplace_back().leaf = &leaf;
  }
  targets_[leaf.visit.index].reached = 1;
  return static_cast<std::int32_t>(leaf.visit.index);
}

// Refuses a node whose op does not implement a gradient that this backward needs. `key` marks the
// targets that are inputs of the call.
Status Backward::check_derivative(const Target& target, const std::vector<bool>& key) const {
  const ops::OpDef& def = graph_.catalog().at(target.node->op);
  for (std::uint32_t e = 0; def.refused != 0 && e < target.edges; ++e) {
    const std::int32_t to = links_[target.first_edge + e].target;
    if (to < 0 || !ops::refuses(def, e)) continue;
    const auto t = static_cast<std::size_t>(to);
    if (!call_.has_inputs || key[t] || targets_[t].runs) {
      return ops::not_implemented(def, target.node->attributes, e);
    }
  }
  return {};
}

core::Result<std::unique_ptr<Backward>> Backward::plan(Graph& graph, BackwardCall call) {
  std::unique_ptr<Backward> backward(new Backward(graph, std::move(call)));
  TT_RETURN_IF_ERROR(backward->search());
  return backward;
}

Status Backward::search() {
  search_ = graph_.objects().begin_search();
  for (std::size_t i = 0; i < call_.roots.size(); ++i) {
    Handle& root = *call_.roots[i];
    const Handle* seed = i < call_.seeds.size() ? call_.seeds[i].get() : nullptr;
    if (seed == nullptr && root.requires_grad() && root.geometry().numel() != 1) {
      return invalid(
          "backward: grad can be created implicitly only for scalar outputs, this one "
          "has shape " +
          core::to_string(root.shape()));
    }
    const core::DType dtype = root.layout.dtype;
    if (seed == nullptr && root.requires_grad() && core::is_complex(dtype)) {
      return invalid(
          "backward: grad can be created implicitly only for real scalar outputs, this one is " +
          std::string(core::name_of(dtype)));
    }
    if (seed != nullptr && core::is_complex(dtype) != core::is_complex(seed->layout.dtype)) {
      return invalid("backward: gradient and tensor must both be complex or both be real: " +
                     std::string(core::name_of(seed->layout.dtype)) + " and " +
                     std::string(core::name_of(dtype)));
    }
    if (seed != nullptr && !(seed->shape() == root.shape())) {
      return invalid("backward: Mismatch in shape: gradient has shape " +
                     core::to_string(seed->shape()) + ", the tensor " +
                     core::to_string(root.shape()));
    }
  }
  std::vector<Edge> starts(call_.roots.size());
  for (std::size_t i = 0; i < starts.size(); ++i) {
    TT_RETURN_IF_ERROR(graph_.tape().edge_of(*call_.roots[i], starts[i]));
  }
  for (const Edge& start : starts) {
    if (!start) {
      return invalid(
          "backward: element 0 of tensors does not require grad and does not have a "
          "grad_fn");
    }
  }
  if (call_.has_inputs) {
    for (const HandleRef& input : call_.inputs) {
      if (!input->requires_grad()) {
        return invalid("grad: one of the differentiated Tensors does not require grad");
      }
    }
  }
  std::vector<Edge> wanted(call_.inputs.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    TT_RETURN_IF_ERROR(graph_.tape().edge_of(*call_.inputs[i], wanted[i]));
  }

  for (const Edge& start : starts) roots_.push_back({visit(start), start.output});
  for (std::size_t t = 0; t < targets_.size(); ++t) {  // targets_ grows during this loop
    Node* node = targets_[t].node;
    if (node == nullptr) continue;
    targets_[t].first_edge = static_cast<std::uint32_t>(links_.size());
    targets_[t].edges = static_cast<std::uint32_t>(node->edges.size());
    for (std::size_t e = 0; e < node->edges.size(); ++e) {
      const Edge& edge = node->edges[e];
      const std::int32_t to = visit(edge);
      if (to >= 0) {
        Target& target = targets_[static_cast<std::size_t>(to)];
        ++target.uses;
        if (target.leaf && !same_kind(target.leaf->layout, node->operands[e].layout)) {
          return invalid(
              "backward: a leaf of this graph has since been given data of another shape, dtype or "
              "device");
        }
      }
      links_.push_back({to, edge.output});
    }
    order_.push_back(static_cast<std::int32_t>(t));
  }
  std::sort(order_.begin(), order_.end(), [this](std::int32_t a, std::int32_t b) {
    return targets_[static_cast<std::size_t>(a)].node->at >
           targets_[static_cast<std::size_t>(b)].node->at;
  });

  // Which nodes run: all of them or, if the call has inputs, only those on a path to an input.
  // Hooks run on the nodes that run, at the inputs and at the roots.
  std::vector<bool> key(targets_.size(), false);
  for (const Edge& edge : wanted) {
    Link link;
    const bool node_seen = edge.node && edge.node->visit.search == search_;
    const bool leaf_seen = edge.leaf && !edge.node && edge.leaf->visit.search == search_;
    if (node_seen || leaf_seen) {
      link.target =
          static_cast<std::int32_t>(node_seen ? edge.node->visit.index : edge.leaf->visit.index);
      link.output = edge.output;
      const Target& target = targets_[static_cast<std::size_t>(link.target)];
      if ((target.reached >> std::min(edge.output, 63u) & 1) == 0) link.target = -1;
    }
    if (link.target >= 0) key[static_cast<std::size_t>(link.target)] = true;
    wanted_.push_back(link);
  }
  for (auto i = order_.rbegin(); i != order_.rend(); ++i) {  // operands before their consumers
    Target& target = targets_[static_cast<std::size_t>(*i)];
    target.runs = !call_.has_inputs;
    for (std::uint32_t e = 0; e < target.edges && !target.runs; ++e) {
      const std::int32_t to = links_[target.first_edge + e].target;
      target.runs = to >= 0 && (key[static_cast<std::size_t>(to)] ||
                                targets_[static_cast<std::size_t>(to)].runs);
    }
  }
  for (std::size_t t = 0; t < targets_.size(); ++t) {
    Target& target = targets_[t];
    target.hooked = !call_.has_inputs || target.runs || key[t];
  }
  for (const Link& root : roots_) targets_[static_cast<std::size_t>(root.target)].hooked = true;

  std::uint32_t sums = 0;
  for (Target& target : targets_) {
    target.first_sum = sums;
    sums += target.outputs;
    if (target.hooked) {
      has_hooks_ =
          has_hooks_ || (target.node ? !target.node->hooks.empty()
                                     : !target.leaf->hooks.empty() ||
                                           (!call_.has_inputs && !target.leaf->post_hooks.empty()));
    }
    if (target.node && target.runs) {
      has_hooks_ = has_hooks_ || target.node->forgotten || !target.node->post_hooks.empty() ||
                   graph_.tape().is_client_node(*target.node);
    }
    if (target.node && target.runs) TT_RETURN_IF_ERROR(check_derivative(target, key));
    if (target.node && target.runs && target.node->freed) {
      return invalid(
          "backward: Trying to backward through the graph a second time: the values it "
          "saved were freed by an earlier backward; use retain_graph=True there");
    }
  }
  if (call_.has_inputs && !call_.allow_unused) {
    for (const Link& link : wanted_) {
      if (link.target < 0) {
        return invalid(
            "grad: one of the differentiated Tensors appears to not have been used in "
            "the graph; set allow_unused=True to get None for it");
      }
    }
  }
  if (!call_.has_inputs) {
    for (const Target& target : targets_) {
      if (target.leaf == nullptr) continue;
      const auto leaf = graph_.tape().is_leaf(*target.leaf);
      if (!leaf.ok()) return leaf.status();
      if (!*leaf) {
        return invalid(
            "backward: leaf variable has been moved into the graph interior: a leaf of "
            "this graph was given a history since");
      }
    }
  }
  if (!call_.create_graph) {
    for (const Target& target : targets_) TT_RETURN_IF_ERROR(may_accumulate(target));
  }
  captured_.resize(wanted_.size());
  return {};
}

// Checks whether the gradients of a target can be added to the .grad that its leaf, or the tensors
// that retain their gradients, already have. Only an assignment to .grad.data can make that
// impossible, because set_grad() has checked the rest.
Status Backward::may_accumulate(const Target& target) const {
  if (target.node != nullptr) {
    for (const auto& [output, h] : target.node->retained) {
      if (!target.hooked || h->grad == nullptr || same_kind(h->grad->layout, h->layout)) continue;
      return invalid("backward: the retained .grad of a tensor has been given data of another " +
                     std::string("shape, dtype or device: ") + described(h->grad->layout) +
                     ", the tensor has " + described(h->layout));
    }
    return {};
  }
  Handle& leaf = *target.leaf;
  if (call_.has_inputs || leaf.grad == nullptr || !leaf.requires_grad()) return {};
  const Handle& grad = *leaf.grad;
  TT_RETURN_IF_ERROR(grad.may_write("backward: the .grad of a leaf"));
  if (!expands_to(leaf.shape(), grad.shape()) ||
      !core::can_cast(leaf.layout.dtype, grad.layout.dtype) ||
      !(leaf.layout.device == grad.layout.device)) {
    return invalid("backward: the .grad of a leaf has been given other data, to which the " +
                   std::string("gradient cannot be added in place: ") + described(grad.layout) +
                   ", the leaf has " + described(leaf.layout));
  }
  if (grad.geometry().overlaps_itself()) {
    return invalid(
        "backward: more than one element of the written-to tensor refers to a single memory "
        "location: the .grad of a leaf has been given such data");
  }
  return {};
}

core::Dims Backward::grad_strides(const Handle& h) {
  return h.geometry().dense() ? h.geometry().strides : core::contiguous_strides(h.shape());
}

void Backward::free_node(Node& node) {
  if (!node.saved.empty() || node.keeps_number || node.forgotten ||
      node.op == graph_.tape().ids.update_region) {
    node.freed = true;
    node.saved.clear();
  }
}

void Backward::free_saved() {
  if (call_.retain_graph) return;
  for (const Target& target : targets_) {
    if (target.node && target.runs) free_node(*target.node);
  }
}

// ---------------------------------------------------------------- settling the client's mirror

void Backward::settle(const std::function<void(Handle&)>& name) {
  const auto fresh = [&](const Handle& like, const core::Dims& strides) {
    HandleRef h = graph_.objects().adopt(
        {like.layout.dtype, like.layout.device, core::Geometry(like.shape(), strides)}, nullptr);
    name(*h);
    return h;
  };
  const auto leaf = [&](Handle& h) {
    if (call_.has_inputs || !h.requires_grad()) return;
    if (h.grad == nullptr) {
      h.grad = fresh(h, grad_strides(h));
    } else {
      graph_.write(*h.grad, nullptr);
    }
  };
  std::vector<std::uint32_t> uses(targets_.size());
  for (std::size_t t = 0; t < targets_.size(); ++t) uses[t] = targets_[t].uses;
  std::vector<bool> started(targets_.size(), false);
  for (const Link& root : roots_) {
    const auto t = static_cast<std::size_t>(root.target);
    if (targets_[t].leaf && uses[t] == 0 && !started[t]) leaf(*targets_[t].leaf);
    started[t] = true;
  }
  for (std::int32_t index : order_) {
    Target& target = targets_[static_cast<std::size_t>(index)];
    if (target.hooked) {
      for (const auto& [output, h] : target.node->retained) {
        if ((target.reached >> std::min(output, 63u) & 1) == 0) continue;
        h->grad = fresh(*h, core::contiguous_strides(h->shape()));
      }
    }
    if (target.runs && !call_.retain_graph) free_node(*target.node);
    for (std::uint32_t e = 0; e < target.edges; ++e) {
      const std::int32_t to = links_[target.first_edge + e].target;
      if (to < 0) continue;
      if (--uses[static_cast<std::size_t>(to)] == 0 &&
          targets_[static_cast<std::size_t>(to)].leaf) {
        leaf(*targets_[static_cast<std::size_t>(to)].leaf);
      }
    }
  }
  results_.resize(wanted_.size());
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    if (wanted_[i].target < 0) continue;
    results_[i] = fresh(*call_.inputs[i], core::contiguous_strides(call_.inputs[i]->shape()));
  }
  done_ = true;
}

// ---------------------------------------------------------------- running

namespace {

// The context that a node's vjp gets: the recorded node, and the summed gradients of its outputs.
class NodeContext final : public ops::VjpContext {
 public:
  // With `keeps`, a product that a ProductSum may keep is not computed. No code of the client may
  // run in such a backward, because it could change the factors.
  NodeContext(Node& node, Issuer& issuer, std::span<Var> gradients, bool keeps)
      : node_(node), issuer_(issuer), gradients_(gradients), keeps_(keeps) {
    given_.resize(node.edges.size());
  }

  const core::Attributes& attributes() const override { return node_.attributes; }
  std::span<const std::uint32_t> counts() const override {
    return {node_.counts.data(), node_.counts.size()};
  }
  std::size_t operands() const override { return node_.operands.size(); }
  ops::Builder& builder() override { return issuer_; }

  Var gradient(std::size_t i) override {
    if (i >= gradients_.size()) return {};
    if (gradients_[i].absent() && i < node_.results.size()) {
      gradients_[i] = ops::zeros(issuer_, node_.results[i]);
    }
    return gradients_[i];
  }
  Var operand(std::size_t i) override {
    if (i < node_.operands.size() && node_.operands[i].is_number) return node_.operands[i].number;
    return slot(static_cast<int>(i));
  }
  Var result(std::size_t i) override { return slot(ops::kResult + static_cast<int>(i)); }
  const core::Layout& operand_layout(std::size_t i) const override {
    return node_.operands[i].layout;
  }
  bool needs(std::size_t i) const override { return static_cast<bool>(node_.edges[i]); }
  void give(std::size_t i, const Var& gradient) override {
    if (i >= given_.size() || !needs(i) || !gradient.is_tensor()) return;
    const core::Layout& layout = node_.operands[i].layout;
    Var g = ops::sum_to(gradient, layout.geometry.shape);
    if (g.is_tensor() && g.dtype() != layout.dtype) g = ops::cast(g, layout.dtype);
    given_[i] = std::move(g);
  }
  void give_product(std::size_t i, const Var& a, const Var& b, bool tf32) override {
    if (i >= given_.size() || !needs(i)) return;
    Product product{a, b, tf32};
    const core::Layout& layout = node_.operands[i].layout;
    if (keeps_ && product_.a.absent() && a.is_tensor() && b.is_tensor() &&
        a.dtype() == layout.dtype && b.dtype() == layout.dtype && ProductSum::may_keep(product)) {
      product_ = std::move(product);
      product_at_ = i;
    } else {
      give(i, product.value());
    }
  }

  std::span<Var> given() { return {given_.data(), given_.size()}; }
  // The product that was not computed, for operand product_at(); without factors if there is none.
  const Product& product() const { return product_; }
  std::size_t product_at() const { return product_at_; }

 private:
  Var slot(int slot) {
    if (node_.forgotten) return issuer_.saved_again(slot, node_);
    for (const Node::SavedSlot& saved : node_.saved) {
      if (saved.slot == slot) return issuer_.saved(saved, node_);
    }
    return {};
  }

  Node& node_;
  Issuer& issuer_;
  std::span<Var> gradients_;
  bool keeps_;
  core::InlineVector<Var, 3> given_;
  Product product_;
  std::size_t product_at_ = 0;
};

}  // namespace

Status Backward::start(Issuer& issuer) {
  started_ = true;
  std::uint32_t sums = 0;
  for (const Target& target : targets_) sums += target.outputs;
  sums_.resize(sums);
  for (std::size_t i = 0; i < roots_.size(); ++i) {
    Target& target = targets_[static_cast<std::size_t>(roots_[i].target)];
    const HandleRef seed = i < call_.seeds.size() ? call_.seeds[i] : HandleRef();
    const core::Layout& layout = call_.roots[i]->layout;
    Var g = seed ? Var(&issuer, seed)
                 : ops::full(issuer, layout.geometry.shape, core::Number::of_int(1), layout.dtype,
                             layout.device);
    TT_RETURN_IF_ERROR(issuer.status());
    Var& sum = sums_[target.first_sum + std::min(roots_[i].output, target.outputs - 1)];
    sum = sum.absent() ? g : sum + g;
  }
  std::vector<bool> begun(targets_.size(), false);
  for (const Link& root : roots_) {
    const auto t = static_cast<std::size_t>(root.target);
    if (targets_[t].leaf && targets_[t].uses == 0 && !begun[t]) {
      TT_RETURN_IF_ERROR(run_leaf(issuer, targets_[t]));
    }
    begun[t] = true;
  }
  return issuer.status();
}

Status Backward::step(Issuer& issuer, int nodes) {
  if (!started_) TT_RETURN_IF_ERROR(start(issuer));
  pause_ = false;
  for (; nodes > 0 && at_ < order_.size() && !pause_; --nodes) {
    TT_RETURN_IF_ERROR(run_node(issuer, targets_[static_cast<std::size_t>(order_[at_++])]));
  }
  if (at_ == order_.size() && !done_) {
    TT_RETURN_IF_ERROR(finish(issuer));
    done_ = true;
  }
  return issuer.status();
}

Status Backward::hooks_of(Issuer& issuer, Target& target) {
  const auto run = [&](HookId hook, Var& g) -> Status {
    auto changed = issuer.run_hook(hook, g);
    if (!changed.ok()) return changed.status();
    if (!(changed->shape() == g.shape()) || changed->dtype() != g.dtype()) {
      return invalid("backward: a hook has changed the gradient's shape or dtype: " +
                     core::to_string(g.shape()) + " to " + core::to_string(changed->shape()));
    }
    g = *changed;
    return {};
  };
  if (target.leaf != nullptr) {
    // copied, because a hook may remove itself
    const std::vector<HookId> hooks = target.leaf->hooks;
    for (HookId hook : hooks) TT_RETURN_IF_ERROR(run(hook, sums_[target.first_sum]));
    return {};
  }
  const std::vector<Node::Hook> hooks = target.node->hooks;
  for (const Node::Hook& hook : hooks) {
    if (hook.output == Node::kWhole) {
      TT_RETURN_IF_ERROR(
          issuer.run_pre_hook(hook.id, *target.node, {&sums_[target.first_sum], target.outputs}));
      continue;
    }
    Var& g = sums_[target.first_sum + hook.output];
    if (!g.absent()) TT_RETURN_IF_ERROR(run(hook.id, g));
  }
  const auto retained = target.node->retained;
  for (const auto& [output, h] : retained) {
    const Var& g = sums_[target.first_sum + output];
    if (g.absent()) continue;
    auto kept =
        issuer.own(h->grad ? Var(&issuer, h->grad) + g : g, core::contiguous_strides(h->shape()));
    if (!kept.ok()) return kept.status();
    issuer.name(**kept);
    TT_RETURN_IF_ERROR(issuer.set_grad(*h, *kept));
  }
  return {};
}

// RULE (as in PyTorch): the result for an input shows the changes of its hooks only if the node of
// the input does not run itself.
void Backward::capture(const Target& target, std::span<const Var> before) {
  const auto index = static_cast<std::int32_t>(&target - targets_.data());
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    if (wanted_[i].target != index) continue;
    const std::uint32_t output = std::min(wanted_[i].output, target.outputs - 1);
    captured_[i] = target.runs ? before[output] : sums_[target.first_sum + output];
  }
}

// Adds a product to sum number `sum`, which belongs to the target `to`.
void Backward::add_product(const Target& to, std::uint32_t sum, const Product& product) {
  Var value;
  const auto kept = products_.find(sum);
  if (kept == products_.end() && to.uses == 1) {
    value = product.value();
  } else {
    ProductSum& products = kept == products_.end() ? products_[sum] : kept->second;
    if (products.add(product)) return;
    value = products.value();
    products.add(product);
  }
  sums_[sum] = sums_[sum].absent() ? std::move(value) : sums_[sum] + value;
}

// Adds the kept products of the sums first to end - 1.
void Backward::add_kept(std::uint32_t first, std::uint32_t end) {
  auto kept = products_.lower_bound(first);
  while (kept != products_.end() && kept->first < end) {
    const Var value = kept->second.value();
    Var& sum = sums_[kept->first];
    sum = sum.absent() ? value : sum + value;
    kept = products_.erase(kept);
  }
}

Status Backward::run_leaf(Issuer& issuer, Target& target) {
  add_kept(target.first_sum, target.first_sum + target.outputs);
  TT_RETURN_IF_ERROR(issuer.add_rows(*target.leaf, call_.has_inputs, sums_[target.first_sum]));
  const Var before = sums_[target.first_sum];
  if (!before.absent() && target.hooked) TT_RETURN_IF_ERROR(hooks_of(issuer, target));
  if (call_.has_inputs) capture(target, {&before, 1});
  const Var g = std::move(sums_[target.first_sum]);
  sums_[target.first_sum] = {};
  if (call_.has_inputs || g.absent()) return {};
  TT_RETURN_IF_ERROR(accumulate(issuer, *target.leaf, g));
  if (!target.leaf->requires_grad()) return {};
  const std::vector<HookId> post_hooks = target.leaf->post_hooks;
  for (HookId hook : post_hooks) TT_RETURN_IF_ERROR(issuer.run_grad_hook(hook, *target.leaf));
  if (!issuer.leaf_done(*target.leaf)) pause_ = true;
  return issuer.status();
}

// If the gradient of a base already has a sum, the gradient of a view is added to the view's
// elements of that sum alone. So the cost of a loop over the parts of a tensor does not grow with
// the square of their number.
bool Backward::add_to_region(const Target& target) {
  const Node& node = *target.node;
  const Link& link = links_[target.first_edge];
  if (node.op != graph_.tape().ids.index_region || !node.post_hooks.empty() || link.target < 0)
    return false;
  const Target& to = targets_[static_cast<std::size_t>(link.target)];
  Var& sum = sums_[to.first_sum + std::min(link.output, to.outputs - 1)];
  Var& g = sums_[target.first_sum];
  if (sum.absent() || sum.dtype() != g.dtype()) return false;
  const Var part = std::move(g), all = std::move(sum);
  sum = ops::apply(graph_.tape().ids.add_region, {all, part}, node.attributes);
  return true;
}

Status Backward::run_node(Issuer& issuer, Target& target) {
  Node& node = *target.node;
  add_kept(target.first_sum, target.first_sum + target.outputs);
  core::InlineVector<Var, 1> before;
  bool any = false;
  for (std::uint32_t i = 0; i < target.outputs; ++i) {
    before.push_back(sums_[target.first_sum + i]);
    any = any || !before.back().absent();
  }
  if (any && target.hooked) TT_RETURN_IF_ERROR(hooks_of(issuer, target));
  if (call_.has_inputs) capture(target, {before.data(), before.size()});
  before.clear();  // drops the extra references, so that the buffers of the sums can be reused
  if (target.runs && any && add_to_region(target)) {
    if (!call_.retain_graph) free_node(node);
  } else if (target.runs && any) {
    NodeContext context(node, issuer, {&sums_[target.first_sum], target.outputs},
                        !has_hooks_ && !issuer.reads_gradients());
    const std::span<Var> sums{&sums_[target.first_sum], target.outputs};
    if (graph_.tape().is_client_node(node)) {
      core::InlineVector<Var, 3> given;
      given.resize(node.edges.size());
      TT_RETURN_IF_ERROR(issuer.run_function(node, sums, {given.data(), given.size()}));
      for (std::size_t e = 0; e < given.size(); ++e) context.give(e, given[e]);
    } else {
      graph_.catalog().at(node.op).vjp(context);
    }
    TT_RETURN_IF_ERROR(issuer.status());
    const std::vector<HookId> post_hooks = node.post_hooks;
    for (HookId hook : post_hooks) {
      TT_RETURN_IF_ERROR(issuer.run_post_hook(hook, node, context.given(), sums));
    }
    TT_RETURN_IF_ERROR(issuer.ran(node, context.given(), call_.retain_graph));
    for (std::uint32_t e = 0; e < target.edges; ++e) {
      const Link& link = links_[target.first_edge + e];
      if (link.target < 0) continue;
      const Target& to = targets_[static_cast<std::size_t>(link.target)];
      const std::uint32_t at = to.first_sum + std::min(link.output, to.outputs - 1);
      if (!context.product().a.absent() && context.product_at() == e) {
        add_product(to, at, context.product());
        continue;
      }
      Var g = context.given()[e];
      if (g.absent()) {
        // A gradient of None from the client's own function stays None.
        if (graph_.tape().is_client_node(node)) continue;
        g = ops::zeros(issuer, node.operands[e].layout);
      }
      Var& sum = sums_[at];
      sum = sum.absent() ? std::move(g) : sum + g;
    }
    if (!call_.retain_graph) free_node(node);
  }
  for (std::uint32_t i = 0; i < target.outputs; ++i) sums_[target.first_sum + i] = {};
  for (std::uint32_t e = 0; e < target.edges; ++e) {
    const std::int32_t to = links_[target.first_edge + e].target;
    if (to < 0) continue;
    Target& leaf = targets_[static_cast<std::size_t>(to)];
    if (--leaf.uses == 0 && leaf.leaf) TT_RETURN_IF_ERROR(run_leaf(issuer, leaf));
  }
  return issuer.status();
}

// RULE: without create_graph .grad is written in place, so every holder of that tensor sees the
// sum; with create_graph .grad is replaced.
Status Backward::accumulate(Issuer& issuer, Handle& leaf, const Var& g) {
  if (!leaf.requires_grad()) return {};
  if (leaf.grad == nullptr) {
    auto own = issuer.own(g, grad_strides(leaf));
    if (!own.ok()) return own.status();
    issuer.name(**own);
    return issuer.set_grad(leaf, *own);
  }
  static const ops::OpRef add("add");
  if (issuer.recording()) {
    const Var sum = Var(&issuer, leaf.grad) + g;
    TT_RETURN_IF_ERROR(issuer.status());
    return issuer.set_grad(leaf, HandleRef(&handle_of(sum)));
  }
  // A factor of a kept product may be a view of the .grad, which the addition overwrites.
  add_kept(0, static_cast<std::uint32_t>(sums_.size()));
  const Var arguments[] = {Var(&issuer, leaf.grad), g};
  return issuer.inplace(add, arguments);
}

Status Backward::finish(Issuer& issuer) {
  results_.resize(wanted_.size());
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    if (wanted_[i].target < 0 || captured_[i].absent()) continue;
    auto own = issuer.own(captured_[i], core::contiguous_strides(call_.inputs[i]->shape()));
    if (!own.ok()) return own.status();
    issuer.name(**own);
    results_[i] = *own;
  }
  return issuer.status();
}

}  // namespace teletensor::autograd
