// The backward passes of a session: a single command, or the same expansion issued by this client.

#include <algorithm>

#include "clients/session/session.h"

namespace teletensor::client {

using autograd::Backward;

Status Session::backward(autograd::BackwardCall call, bool create_graph,
                         std::vector<HandleRef>& results) {
  if (watching) TT_RETURN_IF_ERROR(before_backward());
  TT_RETURN_IF_ERROR(commands_.ready());
  commands_.flush_releases();  // Released tensors are reported first, so that the daemon gives them
                               // no .grad.
  program::Backward command;
  // A gradient inside vmap, which has one value for each sample, flows through ordinary nodes.
  bool inside = false;
  for (const HandleRef& h : call.seeds) {
    if (!h) continue;
    inside = inside || h->id == 0;
    if (h->id != 0) TT_RETURN_IF_ERROR(nameable(graph_, *h));
  }
  for (const HandleRef& h : call.roots) {
    TT_RETURN_IF_ERROR(nameable(graph_, *h));
    command.roots.push_back(h->id);
  }
  for (const HandleRef& h : call.inputs) TT_RETURN_IF_ERROR(nameable(graph_, *h));
  for (const HandleRef& h : call.seeds) command.seeds.push_back(h ? h->id : 0);
  for (const HandleRef& h : call.inputs) command.inputs.push_back(h->id);
  command.has_inputs = call.has_inputs;
  command.retain_graph = call.retain_graph;
  command.allow_unused = call.allow_unused;
  call.create_graph = create_graph;
  if (autograd::Tracer* trace = commands_.tracer()) {
    for (const auto* list : {&call.roots, &call.seeds, &call.inputs}) {
      for (const HandleRef& h : *list) {
        if (h) trace->know(*h);
      }
    }
  }
  TT_RETURN_IF_ERROR(commands_.fits_frame(
      "backward", command.roots.size() + command.seeds.size() + command.inputs.size()));
  commands_.begin();
  auto plan = Backward::plan(graph_, std::move(call));
  if (!plan.ok()) return plan.status();
  if (!create_graph && !inside && !expand_backward && !(*plan)->has_hooks()) {
    const program::HandleId first = commands_.next_id();
    (*plan)->settle([this](Handle& h) { commands_.give_id(h); });
    command.made = static_cast<std::uint32_t>(commands_.next_id() - first);
    commands_.issue(program::Command(command), command.made);
  } else {
    // A Python hook is on the path, or the instructions must be recorded: the client issues the
    // same expansion itself.
    const bool outer_recording = recording_, outer_mode = grad_mode();
    recording_ = create_graph;
    set_grad_mode(create_graph);
    Status outer_status = take_status();
    const Status status = (*plan)->step(*this, INT32_MAX);
    put_status(std::move(outer_status));
    recording_ = outer_recording;
    set_grad_mode(outer_mode);
    TT_RETURN_IF_ERROR(status);
    if (!command.retain_graph) {
      // Frees also the saved values of nodes that no gradient has reached, like the daemon.
      (*plan)->free_saved();
      command.expanded = true;
      // The seeds are ignored except for their shapes, which are those of the roots.
      command.seeds = command.roots;
      commands_.begin();
      commands_.issue(program::Command(command), 0);
    }
  }
  results = (*plan)->results();
  return {};
}

ops::Vars Session::call(OpId op, std::span<const Var> arguments, core::Attributes attributes,
                        std::span<const std::uint32_t> counts) {
  ops::Vars out;
  Handles results;
  if (status_.ok()) status_ = apply(op, arguments, counts, attributes, results);
  if (!status_.ok()) {
    for (int i = 0; i < std::max(catalog().at(op).results, 1); ++i) out.push_back({});
    return out;
  }
  for (HandleRef& h : results) out.push_back(Var(this, std::move(h)));
  return out;
}

Status Session::inplace(OpId op, std::span<const Var> arguments) {
  const ops::OpDef& def = catalog().at(op);
  core::Attributes attributes;
  for (std::size_t p = static_cast<std::size_t>(def.operand_parameters); p < def.parameters.size();
       ++p) {
    attributes.push_back(def.parameters[p].fallback);
  }
  return apply_inplace(op, arguments, {}, attributes);
}

Var Session::saved(const autograd::Node::SavedSlot& slot, autograd::Node& node) {
  if (status_.ok()) status_ = commands_.ready();
  HandleRef h = graph_.objects().adopt_saved(slot, node);
  commands_.give_id(*h);
  commands_.issue(program::Command(program::Saved{node.seq, static_cast<std::uint32_t>(slot.slot)}),
                  1);
  return Var(this, std::move(h));
}

Var Session::saved_again(int slot, autograd::Node& node) {
  if (!status_.ok()) return {};
  auto other = again(node);
  if (!other.ok()) {
    status_ = other.status();
    return {};
  }
  for (const autograd::Node::SavedSlot& each : (*other)->saved) {
    if (each.slot == slot) return saved(each, **other);
  }
  return {};
}

core::Result<HandleRef> Session::own(const Var& g, const core::Dims& strides) {
  static const ops::OpRef relayout("relayout");
  const Var arguments[] = {g};
  Handles results;
  const core::Attributes attributes = {core::Attribute::of(strides)};
  TT_RETURN_IF_ERROR(apply(relayout, arguments, {}, attributes, results));
  return results[0];
}

}  // namespace teletensor::client
