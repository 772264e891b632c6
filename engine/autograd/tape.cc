#include "engine/autograd/tape.h"

#include <algorithm>
#include <utility>

#include "engine/ops/functions.h"

namespace teletensor::autograd {

using core::invalid;
using core::Layout;
using core::Status;
using ops::Var;

const core::Attributes& Call::none() {
  static const core::Attributes none{};
  return none;
}

namespace {

ops::OpId required(const ops::Catalog& catalog, std::string_view name) {
  return catalog.id(*catalog.find(name));
}

}  // namespace

TapeOps::TapeOps(const ops::Catalog& catalog)
    : index_region(required(catalog, "index_region")),
      add_region(required(catalog, "add_region")),
      update_region(required(catalog, "update_region")),
      view_as_real(required(catalog, "view_as_real")),
      view_as_complex(required(catalog, "view_as_complex")),
      client_node(required(catalog, "client_node")) {}

// ---------------------------------------------------------------- recording

core::Ref<Node> Tape::recorded(core::Ref<Node> node) {
  node->seq = seq_;
  objects_.count(*node);
  if (on_record) on_record(*node);
  return node;
}

core::Ref<Node> Tape::record(const Call& call, core::InlineVector<Edge, 2>&& edges) {
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

core::Ref<Node> Tape::record_step(ops::OpId op, std::initializer_list<core::Layout> operands,
                                  std::initializer_list<Edge> edges, core::Attributes attributes) {
  core::Ref<Node> node = new_node(op);
  for (const Edge& edge : edges) node->edges.push_back(edge);
  for (const core::Layout& layout : operands) node->operands.push_back({layout, {}, false});
  node->attributes = std::move(attributes);
  return recorded(std::move(node));
}

core::Ref<Node> Tape::record_reading(ops::OpId label, const Layout& base, Edge edge,
                                     const Layout& view) {
  core::Ref<Node> node;
  if (base.dtype == view.dtype) {
    node = record_step(ids.index_region, {base}, {std::move(edge)},
                       ops::region_attributes(base.geometry, view.geometry));
  } else if (core::is_complex(base.dtype)) {
    const Layout parts{view.dtype, base.device, ops::parts_of(base.geometry)};
    node = record_step(ids.index_region, {parts},
                       {{record_step(ids.view_as_real, {base}, {std::move(edge)})}},
                       ops::region_attributes(parts.geometry, view.geometry));
  } else {
    const Layout parts{base.dtype, base.device, ops::parts_of(view.geometry)};
    node = record_step(ids.view_as_complex, {parts},
                       {{record_step(ids.index_region, {base}, {std::move(edge)},
                                     ops::region_attributes(base.geometry, parts.geometry))}});
  }
  node->label = label;
  return node;
}

core::Ref<Node> Tape::record_writing(const Layout& base, Edge edge, const Layout& view,
                                     Edge written) {
  if (base.dtype == view.dtype) {
    return record_step(ids.update_region, {base, view}, {std::move(edge), std::move(written)},
                       ops::region_attributes(base.geometry, view.geometry));
  }
  if (!core::is_complex(base.dtype)) {
    const Layout parts{base.dtype, base.device, ops::parts_of(view.geometry)};
    return record_step(
        ids.update_region, {base, parts},
        {std::move(edge), {record_step(ids.view_as_real, {view}, {std::move(written)})}},
        ops::region_attributes(base.geometry, parts.geometry));
  }
  const Layout parts{view.dtype, base.device, ops::parts_of(base.geometry)};
  if (edge) edge = {record_step(ids.view_as_real, {base}, {std::move(edge)})};
  return record_step(
      ids.view_as_complex, {parts},
      {{record_step(ids.update_region, {parts, view}, {std::move(edge), std::move(written)},
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

Status may_save(const ops::OpDef& def, const Call& call, std::span<const Edge> edges) {
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
void Tape::save(Node& node, const ops::OpDef& def, const Call& call,
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
    slot.requires_grad = result || h.requires_grad();
    slot.cell = h.cell.get();
  }
  if (!node.saved.empty()) list_saved(node);
}

void Tape::list_saved(Node& node) {
  objects_.add_saved(seq_, node);
  if (on_save) on_save(node);
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

// RULE: the node of a view is rebuilt, as a region of the base's current history, if the clock has
// advanced since the node was made. A view that was made under no_grad, or as one of several
// results, is refused instead.
core::Result<Node*> Tape::node_of(Handle& h) {
  Handle& base = h.group();
  if (!h.is_view() || (h.node == nullptr && !base.requires_grad())) return h.node.get();
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
    h.set_node(record_reading(ids.index_region, base.layout, std::move(edge), h.layout), 0);
    if (undo_.has_writes()) {
      h.node->remade_for = &h;
      undo_.add(UndoLog::Rebuilt{seq_, h.clock, h.node, std::move(old), old_seen, h.seen});
    }
  }
  return h.node.get();
}

core::Result<bool> Tape::is_leaf(Handle& h) {
  const auto node = node_of(h);
  if (!node.ok()) return node.status();
  return *node == nullptr;
}

// A view that requires grad only because its base does is no leaf of its own: its edge comes from
// its node.
Status Tape::edge_of(Handle& h, Edge& edge) {
  if (h.is_view()) TT_RETURN_IF_ERROR(node_of(h).status());
  set_present(h, edge);
  return {};
}

// ---------------------------------------------------------------- marks of handles

Status Tape::set_requires_grad(Handle& h, bool on) {
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

Status Tape::retain_grad(Handle& h) {
  if (!h.requires_grad()) {
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

Status Tape::register_hook(Handle& h, HookId hook) {
  if (!h.requires_grad()) {
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

}  // namespace teletensor::autograd
