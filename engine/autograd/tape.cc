// The tape of a Graph: recording, the lazily rebuilt nodes of views, requires_grad and .grad, and
// undoing failed writes.

#include <algorithm>

#include "engine/autograd/graph.h"
#include "engine/ops/functions.h"

namespace teletensor::autograd {

using core::invalid;
using core::Layout;
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
                      saved_size() + results.size() * sizeof(core::Layout);
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    bytes += beyond(attributes.at(i).ints) + attributes.at(i).text.size() +
             (i < 3 ? 0 : sizeof(core::Attribute));
  }
  return bytes;
}

std::size_t Node::saved_size() const {
  return beyond(saved) + saved.size() * sizeof(program::Value);
}

void Graph::count(Node& node) {
  object_bytes_ -= node.listed.bytes;
  object_bytes_ += node.listed.bytes = node.size();
}

// ---------------------------------------------------------------- recording

core::Ref<Node> Graph::recorded(core::Ref<Node> node) {
  ++live_nodes_;
  node->seq = seq_;
  count(*node);
  if (on_record) on_record(*node);
  return node;
}

core::Ref<Node> Graph::record(const Call& call, core::InlineVector<Edge, 2>&& edges) {
  core::Ref<Node> node = new_node(call.op);
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
  return recorded(std::move(node));
}

core::Ref<Node> Graph::record_step(ops::OpId op, std::initializer_list<core::Layout> operands,
                                   std::initializer_list<Edge> edges, core::Attributes attributes) {
  core::Ref<Node> node = new_node(op);
  for (const Edge& edge : edges) node->edges.push_back(edge);
  for (const core::Layout& layout : operands) node->operands.push_back({layout, {}, false});
  node->attributes = std::move(attributes);
  return recorded(std::move(node));
}

core::Ref<Node> Graph::record_reading(ops::OpId label, const Layout& base, Edge edge,
                                      const Layout& view) {
  core::Ref<Node> node;
  if (base.dtype == view.dtype) {
    node = record_step(index_region_, {base}, {std::move(edge)},
                       ops::region_attributes(base.geometry, view.geometry));
  } else if (core::is_complex(base.dtype)) {
    const Layout parts{view.dtype, base.device, ops::parts_of(base.geometry)};
    node = record_step(index_region_, {parts},
                       {{record_step(view_as_real_, {base}, {std::move(edge)})}},
                       ops::region_attributes(parts.geometry, view.geometry));
  } else {
    const Layout parts{base.dtype, base.device, ops::parts_of(view.geometry)};
    node = record_step(view_as_complex_, {parts},
                       {{record_step(index_region_, {base}, {std::move(edge)},
                                     ops::region_attributes(base.geometry, parts.geometry))}});
  }
  node->label = label;
  return node;
}

core::Ref<Node> Graph::record_writing(const Layout& base, Edge edge, const Layout& view,
                                      Edge written) {
  if (base.dtype == view.dtype) {
    return record_step(update_region_, {base, view}, {std::move(edge), std::move(written)},
                       ops::region_attributes(base.geometry, view.geometry));
  }
  if (!core::is_complex(base.dtype)) {
    const Layout parts{base.dtype, base.device, ops::parts_of(view.geometry)};
    return record_step(
        update_region_, {base, parts},
        {std::move(edge), {record_step(view_as_real_, {view}, {std::move(written)})}},
        ops::region_attributes(base.geometry, parts.geometry));
  }
  const Layout parts{view.dtype, base.device, ops::parts_of(base.geometry)};
  if (edge) edge = {record_step(view_as_real_, {base}, {std::move(edge)})};
  return record_step(
      view_as_complex_, {parts},
      {{record_step(update_region_, {parts, view}, {std::move(edge), std::move(written)},
                    ops::region_attributes(parts.geometry, view.geometry))}});
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

// RULE: the tape keeps values and never handles, each with its edge at this time, and only the
// values that the wanted gradients read.
void Graph::save(Node& node, const ops::OpDef& def, const Call& call,
                 std::span<const HandleRef> results) {
  // RULE: a node with one operand keeps what its vjp reads even if no gradient leaves it (a view
  // made in no_grad mode). As in PyTorch, a backward uses it up.
  const std::uint32_t wanted =
      node.edges.size() == 1 ? 1 : wanted_of({node.edges.data(), node.edges.size()});
  for (const ops::Save& rule : def.saves) {
    if ((rule.when & wanted) == 0) continue;
    const bool result = rule.slot >= ops::kResult;
    const auto i = static_cast<std::size_t>(result ? rule.slot - ops::kResult : rule.slot);
    if (!result) {
      if (i >= call.arguments.size()) continue;
      if (call.arguments[i].is_number()) node.keeps_number = true;
      if (!call.arguments[i].is_tensor()) continue;
    }
    Handle& h = result ? *results[i] : handle_of(call.arguments[i]);
    Node::SavedSlot& slot = node.saved.emplace_back();
    slot.slot = rule.slot;
    slot.value = h.cell->value;
    slot.elements = h.stored();
    slot.layout = h.layout;
    if (!result) slot.edge = node.edges[i];
    slot.requires_grad = result || requires_grad(h);
    slot.cell = h.cell.get();
  }
  if (!node.saved.empty()) saved(node);
}

void Graph::saved(Node& node) {
  const std::size_t bytes = node.saved_size();
  node.listed.bytes += bytes;
  object_bytes_ += bytes;
  note_recorded(seq_, node);
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
  const auto size = static_cast<std::int64_t>(core::size_of(saved.layout.dtype));
  HandleRef h = new_handle(core::make_ref<Cell>(saved.elements * size, saved.value), saved.layout);
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

namespace {

// Precondition: the edge is empty.
void set_present(Handle& h, Edge& edge) {
  if (h.node) {
    edge.node = h.node;
    edge.output = h.output;
  } else if (h.flag) {
    edge.leaf = h.leaf ? h.leaf : HandleRef(&h);
  }
}

}  // namespace

bool Graph::requires_grad(Handle& h) {
  return h.flag || h.node != nullptr || (h.is_view() && requires_grad(*h.base));
}

// RULE: the node of a view is rebuilt, as a region of the base's current history, if the clock has
// advanced since the node was made. A view that was made under no_grad, or as one of several
// results, is refused instead.
core::Result<Node*> Graph::node_of(Handle& h) {
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
    Edge edge, old;
    TT_RETURN_IF_ERROR(edge_of(base, edge));
    set_present(h, old);
    const std::uint32_t old_seen = h.seen;
    set_node(h, record_reading(index_region_, base.layout, std::move(edge), h.layout), 0);
    if (!undo_.empty()) {
      h.node->remade_for = &h;
      rebuilt_.push_back({seq_, h.clock, h.node, std::move(old), old_seen, h.seen});
    }
  }
  return h.node.get();
}

core::Result<bool> Graph::is_leaf(Handle& h) {
  const auto node = node_of(h);
  if (!node.ok()) return node.status();
  return *node == nullptr;
}

// RULE: retain_grad moves to the new node; hooks stay with the old node.
void Graph::set_node(Handle& h, core::Ref<Node> node, std::uint32_t output) {
  if (h.retains) {
    if (h.node) std::erase_if(h.node->retained, [&](const auto& e) { return e.second == &h; });
    node->retained.emplace_back(output, &h);
  }
  if (h.node && h.node->remade_for == &h) h.node->remade_for = nullptr;
  h.node = std::move(node);
  h.output = output;
  h.seen = h.clock->now();
}

// A view that requires grad only because its base does is no leaf of its own: its edge comes from
// its node.
Status Graph::edge_of(Handle& h, Edge& edge) {
  if (h.is_view()) TT_RETURN_IF_ERROR(node_of(h).status());
  set_present(h, edge);
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
    if (grad->cell->read_only) {
      return invalid("grad: a tensor that another session has published read-only");
    }
    if (!(grad->shape() == h.shape())) {
      return invalid("grad: attempting to assign a gradient of size " +
                     core::to_string(grad->shape()) + " to a tensor of size " +
                     core::to_string(h.shape()));
    }
    if (grad->layout.dtype != h.layout.dtype || !(grad->layout.device == h.layout.device)) {
      return invalid("grad: the assigned gradient has another dtype or device than the tensor: " +
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
  const auto leaf = is_leaf(h);
  if (!leaf.ok()) return leaf.status();
  if (!*leaf && !same_kind(h.layout, other.layout)) {
    return invalid("data: a tensor with a grad_fn keeps its shape, dtype and device, because " +
                   std::string("gradients flow through it: it has ") + described(h.layout) +
                   ", the assigned tensor " + described(other.layout) +
                   "; call detach_() first, or use a new tensor");
  }
  // If no other handle uses the old cell, it stays alive only as h's clock, so its contents can be
  // freed.
  const bool only = h.cell->references() == 2 && h.clock.get() == h.cell.get();
  if (only && other.cell.get() != h.cell.get()) h.cell->value = nullptr;
  h.cell = other.cell;
  h.layout = other.layout;
  h.interned = {};
  return {};
}

// ---------------------------------------------------------------- undoing failed writes

void Clock::take_back(std::uint32_t tick) {
  failed_ticks_.insert(std::upper_bound(failed_ticks_.begin(), failed_ticks_.end(), tick), tick);
}

std::uint32_t Clock::taken_back(std::uint32_t from, std::uint32_t to) const {
  const auto first = std::upper_bound(failed_ticks_.begin(), failed_ticks_.end(), from);
  return static_cast<std::uint32_t>(std::upper_bound(first, failed_ticks_.end(), to) - first);
}

void Graph::completed(std::uint64_t seq) {
  while (!undo_.empty() && undo_.front().seq <= seq) undo_.pop_front();
  while (!rebuilt_.empty() && rebuilt_.front().seq <= seq) rebuilt_.pop_front();
}

// RULE: a failed write did not happen: the base gets its former history back, and so do its views.
// Nodes that were recorded on the lost history since then, mostly of views, are connected to the
// former one.
void Graph::take_back(const std::vector<std::uint64_t>& rebinds, std::uint64_t root) {
  if (rebinds.empty()) return;
  std::vector<Lost> lost;
  const auto failed = [&](const Undo& undo) {
    return std::binary_search(rebinds.begin(), rebinds.end(), undo.seq);
  };
  for (auto undo = undo_.rbegin(); undo != undo_.rend(); ++undo) {
    if (!failed(*undo)) continue;
    const program::ValueRef& value = undo->cell->value;
    if (value && value->failure && value->failure->seq == root && value->good) {
      undo->cell->value = core::Ref<program::Value>(value->good);
    }
    undo->clock->take_back(undo->tick);
    if (!undo->base) continue;
    Handle& base = *undo->base;
    Edge old;
    if (undo->old_node) {
      old.node = undo->old_node;
      old.output = undo->old_output;
    } else if (base.flag) {
      old.leaf = base.leaf ? base.leaf : HandleRef(&base);
    }
    if (base.node == undo->node) give_back(base, old);
    lost.push_back({undo->node, std::move(old), undo->base});
  }
  std::erase_if(undo_, failed);
  std::vector<Remade> kept;
  for (; !rebuilt_.empty(); rebuilt_.pop_back()) {
    Remade& remade = rebuilt_.back();
    if (remade.clock->moved_between(remade.old_seen, remade.seen)) {
      kept.push_back(std::move(remade));
      continue;
    }
    if (Handle* h = remade.node->remade_for) undo_rebuild(*h, remade);
    lost.push_back({std::move(remade.node), std::move(remade.old), nullptr});
  }
  for (; !kept.empty(); kept.pop_back()) rebuilt_.push_back(std::move(kept.back()));
  if (!lost.empty()) replace(lost);
}

void Graph::give_back(Handle& h, const Edge& old) {
  if (old.node) return set_node(h, old.node, old.output);
  if (h.retains && h.node) {
    std::erase_if(h.node->retained, [&](const auto& entry) { return entry.second == &h; });
  }
  if (h.node && h.node->remade_for == &h) h.node->remade_for = nullptr;
  h.retains = false;
  h.node = nullptr;
  h.output = 0;
}

void Graph::undo_rebuild(Handle& h, const Remade& remade) {
  give_back(h, remade.old);
  h.seen = remade.old_seen;
  if (h.node) h.node->remade_for = &h;
}

void Graph::replace(std::vector<Lost>& lost) {
  std::sort(lost.begin(), lost.end(),
            [](const Lost& a, const Lost& b) { return a.node->at < b.node->at; });
  const auto redirect = [&](Edge& edge) {
    if (!edge.node) return;
    const auto found =
        std::lower_bound(lost.begin(), lost.end(), edge.node->at,
                         [](const Lost& entry, std::uint64_t at) { return entry.node->at < at; });
    if (found != lost.end() && found->node == edge.node) edge = Edge(found->old);
  };
  for (Lost& entry : lost) redirect(entry.old);
  // Objects older than the first lost node cannot refer to a lost node.
  std::vector<Node*> nodes;
  std::vector<HandleRef> views;
  for (GraphObject* object = objects_; object != lost[0].node.get(); object = object->after_) {
    if (auto* node = dynamic_cast<Node*>(object)) {
      nodes.push_back(node);
      for (Edge& edge : node->edges) redirect(edge);
      for (Node::SavedSlot& slot : node->saved) redirect(slot.edge);
    } else if (auto* h = dynamic_cast<Handle*>(object); h && h->is_view() && h->node) {
      views.emplace_back(h);
    }
  }
  // A view that was made in the meantime, of a base that no longer requires grad, loses its node:
  // without the failed write it would not have got one.
  const std::uint64_t nowhere = ++visits_;
  for (const Lost& entry : lost) {
    if (entry.base) entry.base->visit.search = nowhere;
  }
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    const Edge* edge = (*node)->edges.size() == 1 ? &(*node)->edges[0] : nullptr;
    if (edge && (!*edge || (edge->node && edge->node->visit.search == nowhere)))
      (*node)->visit.search = nowhere;
  }
  const auto has_needless_node = [&](const Handle& h) {
    return h.node && h.node->visit.search == nowhere && h.base->visit.search == nowhere &&
           !requires_grad(*h.base);
  };
  for (auto remade = rebuilt_.rbegin(); remade != rebuilt_.rend(); ++remade) {
    Handle* h = remade->node->remade_for;
    if (h == nullptr || !has_needless_node(*h)) continue;
    if (remade->old.node && remade->old.node->visit.search != nowhere) {
      h->node->visit.search = 0;  // the view already had a node before
    } else {
      undo_rebuild(*h, *remade);
    }
  }
  for (const HandleRef& h : views) {
    if (has_needless_node(*h)) give_back(*h, {});
  }
}

}  // namespace teletensor::autograd
