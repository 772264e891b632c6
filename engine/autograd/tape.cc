// The Graph's tape: recording, lazily made nodes of views, flags, and taking back.

#include <algorithm>

#include "engine/autograd/graph.h"

namespace teletensor::autograd {

using core::invalid;
using core::Status;
using ops::Var;

namespace {

template <class T, std::size_t N>
std::size_t beyond(const core::InlineVector<T, N>& list) {
  return list.size() > N ? list.size() * sizeof(T) : 0;
}

}  // namespace

std::size_t Node::size() const {
  std::size_t bytes = sizeof(Node) + beyond(edges) + beyond(operands) + beyond(counts) +
                      beyond(saved) + saved.size() * sizeof(program::Value) +
                      results.size() * sizeof(core::Layout);
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    bytes += beyond(attributes.at(i).ints) + attributes.at(i).text.size() +
             (i < 3 ? 0 : sizeof(core::Attribute));
  }
  return bytes;
}

void Graph::count(Node& node) {
  object_bytes_ -= node.counted;
  object_bytes_ += node.counted = node.size();
}

// ---------------------------------------------------------------- recording

core::Ref<Node> Graph::record(const Call& call, core::InlineVector<Edge, 2> edges) {
  ++live_nodes_;
  core::Ref<Node> node(new Node(this, ++tape_length_, call.op));
  node->seq = seq_;
  node->edges = std::move(edges);
  node->attributes = *call.attributes;
  for (std::uint32_t count : call.counts) node->counts.push_back(count);
  for (const Var& argument : call.arguments) {
    Node::Operand& operand = node->operands.emplace_back();
    if (argument.is_tensor()) {
      operand.layout = argument.layout();
    } else if (argument.is_number()) {
      operand.is_number = true;
      operand.number = argument.number();
    }
  }
  count(*node);
  if (on_record) on_record(*node);
  return node;
}

core::Ref<Node> Graph::record_region(ops::OpId label, const core::Layout& operand, Edge edge,
                                     const core::Geometry& base, const core::Geometry& view) {
  ++live_nodes_;
  core::Ref<Node> node(new Node(this, ++tape_length_, index_region_));
  node->label = label;
  node->seq = seq_;
  node->edges.push_back(std::move(edge));
  node->operands.push_back({operand, {}, false});
  node->attributes = {core::Attribute::of(base.shape), core::Attribute::of(base.strides),
                      core::Attribute::of(view.shape), core::Attribute::of(view.strides),
                      core::Attribute::of(view.offset - base.offset)};
  count(*node);
  if (on_record) on_record(*node);
  return node;
}

namespace {

std::uint32_t wanted_of(std::span<const Edge> edges) {
  std::uint32_t wanted = 0;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (edges[i]) wanted |= i < 32 ? 1u << i : ~0u;
  }
  return wanted;
}

}  // namespace

Status Graph::may_save(const ops::OpDef& def, const Call& call, std::span<const Edge> edges) const {
  bool any = false;
  for (const Var& argument : call.arguments) {
    any = any || (argument.is_tensor() && handle_of(argument).inference);
  }
  if (!any) return {};
  const std::uint32_t wanted = wanted_of(edges);
  for (const ops::Save& rule : def.saves) {
    if ((rule.when & wanted) == 0 || rule.slot >= ops::kResult) continue;
    const auto i = static_cast<std::size_t>(rule.slot);
    if (i < call.arguments.size() && call.arguments[i].is_tensor() &&
        handle_of(call.arguments[i]).inference) {
      return invalid(
          "Inference tensors cannot be saved for backward. Please do not use Tensors created in "
          "inference mode in computation tracked by autograd. To work around this, you can make "
          "a clone to get a normal tensor and use it in autograd, or use `no_grad()` instead of "
          "`inference_mode()`.");
    }
  }
  return {};
}

// RULE: the tape keeps values, never names, each with its edge as of now, and only what the
// gradients that are wanted read.
void Graph::save(Node& node, const ops::OpDef& def, const Call& call,
                 std::span<const HandleRef> results) {
  const std::uint32_t wanted = wanted_of({node.edges.data(), node.edges.size()});
  for (const ops::Save& rule : def.saves) {
    if ((rule.when & wanted) == 0) continue;
    if (rule.slot >= ops::kResult) {
      const Handle& h = *results[static_cast<std::size_t>(rule.slot - ops::kResult)];
      node.saved.push_back({rule.slot, h.cell->value, h.cell->elements, h.layout, {}, true});
      continue;
    }
    const auto i = static_cast<std::size_t>(rule.slot);
    if (i >= call.arguments.size()) continue;
    if (call.arguments[i].is_number()) node.keeps_number = true;
    if (!call.arguments[i].is_tensor()) continue;
    Handle& h = handle_of(call.arguments[i]);
    node.saved.push_back(
        {rule.slot, h.cell->value, h.cell->elements, h.layout, node.edges[i], requires_grad(h)});
  }
  if (!node.saved.empty()) saved(node);
}

void Graph::saved(Node& node) {
  count(node);
  recorded_.emplace_back(seq_, &node);
  if (on_save) on_save(node);
}

void Graph::forget_saved(Node& node) {
  node.saved.clear();
  node.forgotten = true;
}

Node* Graph::recorded_by(std::uint64_t seq) const {
  const auto at =
      std::lower_bound(recorded_.begin(), recorded_.end(), seq,
                       [](const auto& entry, std::uint64_t s) { return entry.first < s; });
  return at != recorded_.end() && at->first == seq ? at->second : nullptr;
}

HandleRef Graph::name_saved(const Node::SavedSlot& saved, Node& node) {
  HandleRef h = new_handle(core::make_ref<Cell>(saved.elements, saved.value), saved.layout);
  if (saved.slot >= ops::kResult) {
    h->node = core::Ref<Node>(&node);
    h->output = static_cast<std::uint32_t>(saved.slot - ops::kResult);
  } else if (saved.edge.node) {
    h->node = saved.edge.node;
    h->output = saved.edge.output;
  } else {
    h->flag = saved.requires_grad;
    h->leaf = saved.edge.leaf;
  }
  return h;
}

// ---------------------------------------------------------------- nodes of views

bool Graph::requires_grad(Handle& h) {
  Handle& base = h.group();
  if (!base.forgotten.empty()) drop_forgotten(h);
  return h.flag || h.node != nullptr || (h.is_view() && requires_grad(base));
}

// RULE: a view's node is made again, as a region of the base's present history, when the clock has
// moved since it was made. A view made under no_grad, or one of several outputs, refuses instead.
core::Result<Node*> Graph::node_of(Handle& h) {
  drop_forgotten(h);
  Handle& base = h.group();
  if (!h.is_view() || (h.node == nullptr && !requires_grad(base))) return h.node.get();
  if (h.clock->moved_since(h.seen)) {
    if (h.made != Handle::Made::kDefault) {
      return invalid(
          h.made == Handle::Made::kNoGrad
              ? "a view was created in no_grad mode and its base or another view of its "
                "base has been modified in place"
              : "this view is one of multiple views that one call returned, and its base "
                "or another view of it has been modified in place");
    }
    Edge edge;
    TT_RETURN_IF_ERROR(edge_of(base, edge));
    set_node(h, record_region(index_region_, base.layout, edge, base.geometry(), h.geometry()), 0);
  }
  return h.node.get();
}

core::Result<bool> Graph::is_leaf(Handle& h) {
  const auto node = node_of(h);
  if (!node.ok()) return node.status();
  return *node == nullptr;
}

// A view's node that was made on a history since taken back is made again, however it came to be.
void Graph::drop_forgotten(Handle& h) {
  if (!h.is_view()) return;
  Handle& base = *h.base;
  const bool lost =
      std::any_of(base.forgotten.begin(), base.forgotten.end(),
                  [&](const auto& span) { return span.first <= h.seen && h.seen < span.second; });
  if (!lost) return;
  h.seen = h.clock->now();
  if (!requires_grad(base)) {
    h.node = nullptr;
  } else if (h.node && h.node->edges[0]) {
    Edge edge;
    if (edge_of(base, edge).ok()) {
      h.node = record_region(index_region_, base.layout, edge, base.geometry(), h.geometry());
      h.output = 0;
    }
  }
}

// RULE: retain_grad moves to the new node; hooks stay with the old one.
void Graph::set_node(Handle& h, core::Ref<Node> node, std::uint32_t output) {
  if (h.retains) {
    if (h.node) std::erase_if(h.node->retained, [&](const auto& e) { return e.second == &h; });
    node->retained.emplace_back(output, &h);
  }
  h.node = std::move(node);
  h.output = output;
  h.seen = h.clock->now();
}

// A leaf that requires grad only through its base gets nothing.
Status Graph::edge_of(Handle& h, Edge& edge) {
  const auto node = node_of(h);
  if (!node.ok()) return node.status();
  if (*node != nullptr) {
    edge.node = core::Ref<Node>(*node);
    edge.output = h.output;
  } else if (h.flag) {
    edge.leaf = h.leaf ? h.leaf : HandleRef(&h);
  }
  return {};
}

// ---------------------------------------------------------------- flags, .grad, .data

Status Graph::set_requires_grad(Handle& h, bool on) {
  const auto leaf = is_leaf(h);
  if (!leaf.ok()) return leaf.status();
  if (on && !core::is_inexact(h.layout.dtype)) {
    return invalid(
        "requires_grad_: only floating point and complex tensors can require gradients, this one "
        "is " +
        std::string(core::name_of(h.layout.dtype)));
  }
  if (!on && !*leaf) {
    return invalid("requires_grad_: you can only change requires_grad flags of leaf tensors");
  }
  h.flag = on;
  return {};
}

Status Graph::retain_grad(Handle& h) {
  if (!requires_grad(h)) {
    return invalid("can't retain_grad on a tensor that has requires_grad=False");
  }
  const auto node = node_of(h);
  if (!node.ok()) return node.status();
  if (*node != nullptr && !h.retains) {
    h.retains = true;
    (*node)->retained.emplace_back(h.output, &h);
  }
  return {};
}

Status Graph::register_hook(Handle& h, HookId hook) {
  if (!requires_grad(h)) {
    return invalid("cannot register a hook on a tensor that doesn't require gradient");
  }
  const auto node = node_of(h);
  if (!node.ok()) return node.status();
  if (*node == nullptr) {
    h.hooks.push_back(hook);
  } else {
    (*node)->hooks.push_back({h.output, hook});
  }
  return {};
}

void Graph::remove_hook(Handle& h, HookId hook) {
  std::erase(h.hooks, hook);
  std::erase(h.post_hooks, hook);
  if (h.node)
    std::erase_if(h.node->hooks, [&](const Node::Hook& entry) { return entry.id == hook; });
}

Status Graph::set_grad(Handle& h, Handle* grad) {
  if (grad == &h)
    return invalid("grad: a tensor cannot be its own grad: can't assign Variable as its own grad");
  if (grad != nullptr) {
    if (!(grad->shape() == h.shape())) {
      return invalid("grad: attempting to assign a gradient of size " +
                     core::to_string(grad->shape()) + " to a tensor of size " +
                     core::to_string(h.shape()));
    }
    if (grad->layout.dtype != h.layout.dtype || !(grad->layout.device == h.layout.device)) {
      return invalid("grad: attempting to assign a gradient of another dtype or device: " +
                     std::string(core::name_of(grad->layout.dtype)) + " on " +
                     core::to_string(grad->layout.device) + " to " +
                     std::string(core::name_of(h.layout.dtype)) + " on " +
                     core::to_string(h.layout.device));
    }
    if (grad->geometry().overlaps_itself()) {
      return invalid(
          "grad: more than one element of the written-to tensor refers to a single "
          "memory location (gradients are accumulated in place)");
    }
  }
  h.grad = HandleRef(grad);
  return {};
}

Status Graph::set_data(Handle& h, Handle& other) {
  if (h.is_view()) return invalid("data: cannot be assigned on a view");
  if (!core::is_inexact(other.layout.dtype) && requires_grad(h)) {
    return invalid("data: a tensor that requires grad cannot become " +
                   std::string(core::name_of(other.layout.dtype)));
  }
  // Only h knew the old cell, which stays as its clock: the contents need not.
  const bool only = h.cell->references() == 2 && h.clock.get() == h.cell.get();
  if (only && other.cell.get() != h.cell.get()) h.cell->value = nullptr;
  h.cell = other.cell;
  h.layout = other.layout;
  return {};
}

// ---------------------------------------------------------------- taking back

void Graph::completed(std::uint64_t seq) {
  while (!undo_.empty() && undo_.front().seq <= seq) undo_.pop_front();
}

void Graph::take_back(const std::vector<std::uint64_t>& rebinds, std::uint64_t root) {
  for (auto undo = undo_.rbegin(); undo != undo_.rend(); ++undo) {
    if (!std::binary_search(rebinds.begin(), rebinds.end(), undo->seq)) continue;
    const program::ValueRef& value = undo->cell->value;
    if (value && value->failure && value->failure->seq == root && value->good) {
      undo->cell->value = core::Ref<program::Value>(value->good);
    }
    undo->clock->take_back(undo->tick);
    if (undo->recorded) forget(*undo);
  }
  std::erase_if(undo_, [&](const Undo& undo) {
    return std::binary_search(rebinds.begin(), rebinds.end(), undo.seq);
  });
}

// RULE: a failed rewrite did not happen: the base has its former history, its views make theirs
// again.
void Graph::forget(const Undo& undo) {
  Handle& base = *undo.base;
  if (base.retains && undo.old_node) {
    set_node(base, undo.old_node, undo.old_output);
  } else {
    if (base.retains && base.node) {
      std::erase_if(base.node->retained, [&](const auto& e) { return e.second == &base; });
    }
    base.node = undo.old_node;
    base.output = undo.old_output;
    base.retains = false;
  }
  const std::uint32_t tick = base.clock->tick();
  base.clock->take_back(tick);
  base.forgotten.emplace_back(undo.base_tick, tick);
}

}  // namespace teletensor::autograd
