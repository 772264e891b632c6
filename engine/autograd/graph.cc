#include "engine/autograd/graph.h"

#include <algorithm>
#include <utility>

#include "engine/autograd/known/known_call.h"
#include "engine/ops/sizes.h"

namespace teletensor::autograd {

using core::Geometry;
using core::invalid;
using core::Layout;
using core::Status;
using ops::OpDef;
using ops::Var;
using program::Instruction;
using program::ValueRef;

namespace {

// Checks the rank limit for views that are complex on a real base, or the reverse. The tape records
// such a view through a view of the complex tensor as real parts, which has one more dimension.
Status check_parts(const std::string& what, const Layout& base, core::DType dtype,
                   std::span<const Geometry> views) {
  if (core::is_complex(base.dtype) == core::is_complex(dtype)) return {};
  int rank = core::is_complex(base.dtype) ? base.geometry.rank() : 0;
  for (const Geometry& view : views) {
    if (core::is_complex(dtype)) rank = std::max(rank, view.rank());
  }
  if (rank < core::kMaxRank) return {};
  return invalid(what + ": a view as " + std::string(core::name_of(dtype)) + " of a tensor of " +
                 std::string(core::name_of(base.dtype)) + ", where the complex one has rank " +
                 std::to_string(rank) + "; with its parts that is above the limit of " +
                 std::to_string(core::kMaxRank));
}

// Leaves operands and device empty; infer() fills them in.
ops::InferContext context_of(const Call& call, const OpDef& def) {
  return {.op = def.name,
          .operands = {},
          .counts = call.counts,
          .attributes = *call.attributes,
          .default_dtype = call.default_dtype,
          .device = {},
          .results = {}};
}

// Returns true if the call becomes a node of the tape.
bool records(const Call& call, const OpDef& def, std::span<const Layout> layouts) {
  return call.record && def.vjp != nullptr &&
         std::any_of(call.arguments.begin(), call.arguments.end(),
                     [&](const Var& argument) {
                       return argument.is_tensor() && handle_of(argument).requires_grad();
                     }) &&
         std::any_of(layouts.begin(), layouts.end(),
                     [](const Layout& result) { return core::is_inexact(result.dtype); });
}

// Returns true if the layout of the result may be known from an equal call. Calls of random ops are
// never equal, because their attributes contain an ordinal number.
bool may_be_known(const Call& call, const OpDef& def) {
  return !def.random && def.view == nullptr && call.counts.empty();
}

// Returns true if inference would accept every equal call too.
bool may_be_remembered(const Call& call, const OpDef& def, const ops::InferContext& context) {
  return may_be_known(call, def) && context.results.size() == 1 &&
         !infers_from_storage(call.arguments);
}

}  // namespace

Graph::Graph(const ops::Catalog& catalog, Sink* sink)
    : catalog_(catalog),
      sink_(sink),
      fill_(catalog.id(*catalog.find("fill"))),
      copy_(catalog.id(*catalog.find("copy"))),
      data_(catalog.id(*catalog.find("data"))),
      undo_(objects_),
      tape_(catalog, objects_, undo_) {}

// The objects that the undo log refers to die without a report.
Graph::~Graph() { objects_.on_death = nullptr; }

// ---------------------------------------------------------------- values and instructions

ValueRef Graph::new_value(const Layout& layout, std::int64_t elements) const {
  if (is_mirror()) return nullptr;
  return core::make_ref<program::Value>(layout.dtype, layout.device, elements);
}

ValueRef Graph::publish(Handle& h) {
  ValueRef value = written_value(h);
  value->through = true;
  h.cell->shared = true;
  h.cell->value = value;
  return value;
}

Instruction& Graph::instruction_of(const Call& call) const {
  Instruction& instruction = sink_->instruction(tape_.seq());
  instruction.op = call.op;
  program::Interner& interner = sink_->interner();
  instruction.attributes = interner.attributes(*call.attributes);
  for (std::uint32_t count : call.counts) instruction.counts.push_back(count);
  instruction.operands.resize(call.arguments.size());
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const Var& argument = call.arguments[i];
    program::Operand& operand = instruction.operands[i];
    if (argument.is_tensor()) {
      handle_of(argument).fill(operand, interner);
    } else if (argument.is_number()) {
      operand.kind = program::Operand::Kind::kNumber;
      operand.number = argument.number();
    }
  }
  return instruction;
}

std::string described(const Layout& layout) {
  return std::string(core::name_of(layout.dtype)) + " " + core::to_string(layout.geometry.shape) +
         " on " + core::to_string(layout.device);
}

bool same_kind(const Layout& a, const Layout& b) {
  return a.dtype == b.dtype && a.device == b.device && a.geometry.shape == b.geometry.shape;
}

bool infers_from_storage(std::span<const Var> arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const Var& argument) {
    return argument.is_tensor() && argument.layout().geometry.numel() > ops::kMaxRepeated;
  });
}

Status Graph::infer(const Call& call, const OpDef& def, ops::InferContext& context,
                    core::InlineVector<ops::OperandInfo, 3>& infos) const {
  bool any = false;
  for (const Var& argument : call.arguments) {
    ops::OperandInfo& info = infos.emplace_back();
    if (argument.is_tensor()) {
      info.layout = &argument.layout();
      const std::int64_t elements = info.layout->geometry.numel();
      if (elements > ops::kMaxRepeated && elements > handle_of(argument).stored() &&
          def.infer != nullptr) {
        return invalid(def.name + ": an operand of shape " +
                       core::to_string(info.layout->geometry.shape) + " repeats " +
                       std::to_string(handle_of(argument).stored()) +
                       " stored elements more often than one instruction may work on");
      }
      if (!any) {
        context.device = info.layout->device;
        any = true;
      } else if (!(info.layout->device == context.device)) {
        return invalid(def.name + ": operands are on different devices, " +
                       core::to_string(context.device) + " and " +
                       core::to_string(info.layout->device));
      }
    } else if (argument.is_number()) {
      info.number = &argument.number();
    }
  }
  context.operands = {infos.data(), infos.size()};
  static const ops::OpRef to_device("to_device");
  if (!any || call.op == to_device) {
    for (std::size_t i = call.attributes->size(); i-- > 0;) {
      if (call.attributes->at(i).kind == core::Attribute::Kind::kDevice) {
        context.device = call.attributes->device(i);
      }
    }
  }
  if (def.infer == nullptr) return {};
  TT_RETURN_IF_ERROR(def.infer(context));
  for (const Layout& result : context.results) {
    const auto count = core::checked_numel(result.geometry.shape.span());
    std::int64_t bytes = 0;
    if (!count.ok() ||
        __builtin_mul_overflow(*count, static_cast<std::int64_t>(core::size_of(result.dtype)),
                               &bytes) ||
        bytes > INT64_MAX / 16) {
      return invalid(def.name + ": a result of shape " + core::to_string(result.geometry.shape) +
                     " is too large to address");
    }
    if (largest_result != 0 && static_cast<std::uint64_t>(bytes) > largest_result) {
      return Status(core::Code::kResourceExhausted,
                    def.name + ": a result of shape " + core::to_string(result.geometry.shape) +
                        " needs " + std::to_string(bytes) + " bytes, the session's quota is " +
                        std::to_string(largest_result));
    }
  }
  return {};
}

Status Graph::apply(const Call& call, Handles& results) {
  const OpDef& def = catalog_.at(call.op);
  if (!def.mutates.empty()) return apply_mutating(call, def, results);
  if (call.op == tape_.ids.client_node) return apply_client_node(call, def, results);
  program::Interner* const queue_interner = sink_ == nullptr ? nullptr : &sink_->interner();
  if (may_be_known(call, def)) {
    if (const KnownLayout* known = known_layouts_.find(call, queue_interner)) {
      return apply(call, def, {&known->layout, 1}, known, results);
    }
  }
  core::InlineVector<ops::OperandInfo, 3> infos;
  ops::InferContext context = context_of(call, def);
  if (def.view != nullptr) {
    const Status status = apply_view(call, def, context, results);
    // This view needs a copy (as in reshape), so the op computes its result.
    if (status.code() != core::Code::kFailedPrecondition || def.infer == nullptr) return status;
  }
  TT_RETURN_IF_ERROR(infer(call, def, context, infos));
  if (may_be_remembered(call, def, context)) {
    known_layouts_.add(call, context.results[0], queue_interner);
  }
  return apply(call, def, {context.results.data(), context.results.size()}, nullptr, results);
}

Status Graph::apply(const Call& call, const OpDef& def, std::span<const Layout> layouts,
                    const KnownLayout* known, Handles& results) {
  const auto adopt_all = [&] {
    if (known != nullptr) {
      results.push_back(adopt(*known));
    } else {
      for (const Layout& layout : layouts) {
        results.push_back(objects_.adopt(layout, new_value(layout, layout.geometry.storage_end())));
      }
    }
  };
  if (records(call, def, layouts)) {
    core::InlineVector<Edge, 2> edges;
    for (const Var& argument : call.arguments) {
      Edge& edge = edges.emplace_back();
      if (argument.is_tensor()) TT_RETURN_IF_ERROR(tape_.edge_of(handle_of(argument), edge));
    }
    TT_RETURN_IF_ERROR(may_save(def, call, {edges.data(), edges.size()}));
    adopt_all();
    record(call, def, std::move(edges), {results.data(), results.size()});
  } else {
    adopt_all();
  }
  if (sink_ != nullptr) {
    Instruction& instruction = instruction_of(call);
    for (const HandleRef& h : results) {
      program::ResultSlot& slot = instruction.results.emplace_back();
      slot.value = h->cell->value;
      slot.geometry = h->geometry_in(sink_->interner());
    }
  }
  return {};
}

void Graph::record(const Call& call, const OpDef& def, core::InlineVector<Edge, 2>&& edges,
                   std::span<const HandleRef> results) {
  const core::Ref<Node> node = tape_.record(call, std::move(edges));
  if (results.size() > 1) {
    for (const HandleRef& h : results) node->results.push_back(h->layout);
    objects_.count(*node);
  }
  tape_.save(*node, def, call, results);
  for (std::uint32_t i = 0; i < results.size(); ++i) {
    if (!core::is_inexact(results[i]->layout.dtype)) continue;
    results[i]->node = node;
    results[i]->output = i;
  }
}

HandleRef Graph::adopt(const KnownLayout& known) {
  const Layout& layout = known.layout;
  HandleRef h = objects_.adopt(layout, known.elements, new_value(layout, known.elements));
  h->interned = {known.geometry, known.interner};
  return h;
}

HandleRef Graph::apply_known(const KnownCall& known, const program::Apply& apply,
                             std::span<Handle* const> operands, bool record) {
  const Layout layout = known.result();
  HandleRef h = objects_.adopt(layout, known.elements(), new_value(layout, known.elements()));
  if (record) record_known(apply, operands, h);
  Instruction& instruction = sink_->instruction(tape_.seq());
  known.fill(apply, operands, *h, sink_->interner(), instruction);
  return h;
}

// The edges of tensors that are no views cannot fail, and only a client's tensors can refuse to be
// saved.
void Graph::record_known(const program::Apply& apply, std::span<Handle* const> operands,
                         const HandleRef& result) {
  core::InlineVector<Var, 3> arguments;
  core::InlineVector<Edge, 2> edges;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    Edge& edge = edges.emplace_back();
    if (Handle* h = operands[i]) {
      arguments.emplace_back(nullptr, HandleRef(h));
      (void)tape_.edge_of(*h, edge);
    } else if (apply.arguments[i].kind == program::Argument::Kind::kNumber) {
      arguments.emplace_back(apply.arguments[i].number);
    } else {
      arguments.emplace_back();
    }
  }
  Call call;
  call.op = apply.op;
  call.arguments = {arguments.data(), arguments.size()};
  call.counts = {apply.counts.data(), apply.counts.size()};
  call.attributes = &apply.attributes;
  record(call, catalog_.at(apply.op), std::move(edges), {&result, 1});
}

Status Graph::apply_view(const Call& call, const OpDef& def, ops::InferContext& context,
                         Handles& results) {
  Handle& source = handle_of(call.arguments[0]);
  // Ops that cut the history start an alias group of their own: either that is their purpose, or
  // they reinterpret bytes.
  const bool detached = def.vjp == nullptr && !def.not_differentiable.empty();
  if (call.record && !detached && source.requires_grad()) {
    const auto node = tape_.node_of(source);  // if this view may not be used, report that first
    if (!node.ok()) return node.status();
  }
  ops::OperandInfo info{&source.layout, nullptr};
  context.operands = {&info, 1};
  context.device = source.layout.device;
  std::vector<Geometry> views;
  TT_RETURN_IF_ERROR(def.view(context, views));
  const core::DType dtype =
      context.results.empty() ? source.layout.dtype : context.results[0].dtype;
  if (!detached) TT_RETURN_IF_ERROR(check_parts(def.name, source.group().layout, dtype, views));

  const bool record = call.record && !detached && source.requires_grad();
  // Regions are the views of a row-major operand with this shape. The tape keeps them for ops that
  // have no vjp.
  const Layout row_major{source.layout.dtype, source.layout.device, Geometry(source.shape())};
  std::vector<Geometry> regions;
  Edge edge;
  if (record) {
    TT_RETURN_IF_ERROR(tape_.edge_of(source, edge));
    if (def.vjp == nullptr) {
      info.layout = &row_major;
      TT_RETURN_IF_ERROR(def.view(context, regions));
    }
  }
  for (std::size_t i = 0; i < views.size(); ++i) {
    Layout layout{dtype, source.layout.device, views[i]};
    const core::Ref<Clock> clock = call.op == data_ ? core::make_ref<Clock>() : source.clock;
    HandleRef h = objects_.new_handle(source.cell, layout, clock);
    if (!detached) {
      // RULE: a view joins the alias group of its base, also under no_grad. The handle remembers
      // under which mode it was made.
      h->base = HandleRef(&source.group());
      ++h->base->views;
      const Handle::Made made = !call.record      ? Handle::Made::kNoGrad
                                : def.results < 0 ? Handle::Made::kMulti
                                                  : Handle::Made::kDefault;
      h->made = made == Handle::Made::kDefault ? source.made : made;
      if (record) {
        if (def.vjp != nullptr) {
          h->node = tape_.record(call, {edge});
        } else {
          h->node =
              tape_.record_reading(call.op, row_major, edge, {dtype, row_major.device, regions[i]});
        }
      }
    }
    results.push_back(std::move(h));
  }
  return {};
}

// The results share the memory of the given values. Each is a base of its own, and all have one
// node.
Status Graph::apply_client_node(const Call& call, const OpDef& def, Handles& results) {
  const std::size_t inputs = call.counts[0], values = call.counts[1];
  bool record = false;
  core::InlineVector<Edge, 2> edges;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    if (!call.arguments[i].is_tensor()) return invalid(def.name + ": takes tensors");
    Edge& edge = edges.emplace_back();
    if (i >= inputs || !call.record) continue;
    Handle& h = handle_of(call.arguments[i]);
    record = record || h.requires_grad();
    TT_RETURN_IF_ERROR(tape_.edge_of(h, edge));
  }
  core::InlineVector<Node::SavedSlot, 2> slots;
  for (std::size_t i = inputs + values; record && i < call.arguments.size(); ++i) {
    Handle& h = handle_of(call.arguments[i]);
    Node::SavedSlot slot{static_cast<int>(i), h.cell->value, h.stored(), h.layout, {},
                         h.requires_grad(),   h.cell.get()};
    for (std::size_t v = 0; v < values; ++v) {
      if (&handle_of(call.arguments[inputs + v]) != &h) continue;
      slot.slot = ops::kResult + static_cast<int>(v);
      slot.requires_grad = true;
    }
    if (slot.slot < ops::kResult) TT_RETURN_IF_ERROR(tape_.edge_of(h, slot.edge));
    slots.push_back(std::move(slot));
  }
  for (std::size_t v = 0; v < values; ++v) {
    const Handle& value = handle_of(call.arguments[inputs + v]);
    results.push_back(objects_.new_handle(value.cell, value.layout, value.clock));
  }
  if (!record || results.empty()) return {};
  const core::Ref<Node> node = tape_.record(call, std::move(edges));
  if (results.size() > 1) {
    for (const HandleRef& h : results) node->results.push_back(h->layout);
    objects_.count(*node);
  }
  for (std::uint32_t i = 0; i < results.size(); ++i) {
    if (!core::is_inexact(results[i]->layout.dtype)) continue;
    results[i]->node = node;
    results[i]->output = i;
  }
  node->saved = std::move(slots);
  if (!node->saved.empty()) tape_.list_saved(*node);
  return {};
}

Status Graph::apply_mutating(const Call& call, const OpDef& def, Handles& results) {
  // The operands that the op overwrites: all operands of each mutated parameter of the signature.
  core::InlineVector<std::uint32_t, 8> written;
  std::uint32_t at = 0;
  std::size_t list = 0;
  for (int p = 0; p < def.operand_parameters; ++p) {
    const bool is_list =
        def.parameters[static_cast<std::size_t>(p)].type == ops::Parameter::Type::kTensorList;
    const std::uint32_t count = is_list ? call.counts[list++] : 1;
    if (std::find(def.mutates.begin(), def.mutates.end(), p) != def.mutates.end()) {
      for (std::uint32_t i = 0; i < count; ++i) written.push_back(at + i);
    }
    at += count;
  }
  core::InlineVector<ops::OperandInfo, 3> infos;
  ops::InferContext context = context_of(call, def);
  TT_RETURN_IF_ERROR(infer(call, def, context, infos));
  std::vector<const Cell*> cells;
  for (std::uint32_t i : written) {
    if (!call.arguments[i].is_tensor()) continue;
    Handle& h = handle_of(call.arguments[i]);
    if (call.record && h.requires_grad()) {
      return invalid(def.name + ": writes a tensor that requires grad; call it under no_grad");
    }
    TT_RETURN_IF_ERROR(h.may_write(def.name));
    if (h.geometry().overlaps_itself()) {
      return invalid(def.name + ": several elements of a written tensor are one memory location");
    }
    cells.push_back(h.cell.get());
  }
  std::sort(cells.begin(), cells.end());
  if (std::adjacent_find(cells.begin(), cells.end()) != cells.end()) {
    return invalid(def.name + ": two of the written tensors share memory");
  }
  Instruction* instruction = sink_ != nullptr ? &instruction_of(call) : nullptr;
  for (std::uint32_t i : written) {
    if (!call.arguments[i].is_tensor()) continue;
    Handle& h = handle_of(call.arguments[i]);
    const ValueRef value = written_value(h);
    if (sink_ != nullptr) {
      instruction->results.push_back(
          {value, h.geometry_in(sink_->interner()), static_cast<int>(i)});
    }
    write(h, value);
    results.push_back(HandleRef(&h));
  }
  return {};
}

namespace {

// Checks whether autograd allows a recorded op to write h in place.
Status may_rewrite(Tape& tape, Handle& h, const OpDef& def) {
  const auto refuse_leaf = [&](Handle& of, const char* what) -> Status {
    const auto leaf = tape.is_leaf(of);
    if (!leaf.ok()) return leaf.status();
    if (!*leaf) return {};
    return invalid(def.name + ": a " + what +
                   " that requires grad is being used in an in-place operation");
  };
  if (h.is_view()) {
    if (h.made == Handle::Made::kNoGrad) {
      return invalid(def.name +
                     ": a view was created in no_grad mode and is being modified in place with "
                     "grad mode enabled");
    }
    if (h.made == Handle::Made::kMulti) {
      return invalid(def.name +
                     ": this view is one of multiple views that one call returned and cannot be "
                     "modified in place with grad mode enabled");
    }
    if (h.requires_grad()) {
      TT_RETURN_IF_ERROR(refuse_leaf(h.group(), "view of a leaf Variable"));
    }
  }
  if (h.requires_grad()) TT_RETURN_IF_ERROR(refuse_leaf(h, "leaf Variable"));
  if (def.vjp == nullptr) {
    return invalid(def.name +
                   ": is not differentiable, so it cannot write a tensor in place "
                   "while gradients are recorded");
  }
  return {};
}

// Checks whether the result of an in-place op can be written into tensor h: its shape and device
// must be those of h, and, unless `any` is set, its dtype must be convertible.
Status fits_into(const Handle& h, const Layout& result, const OpDef& def, bool any) {
  if (!(result.geometry.shape == h.shape())) {
    return invalid(def.name + "_: the result's shape " + core::to_string(result.geometry.shape) +
                   " does not fit the destination " + core::to_string(h.shape()));
  }
  if (!(result.device == h.layout.device)) {
    return invalid(def.name + "_: the result is on " + core::to_string(result.device) +
                   ", the destination on " + core::to_string(h.layout.device));
  }
  if (!any && !core::can_cast(result.dtype, h.layout.dtype)) {
    return invalid(def.name + "_: result type " + std::string(core::name_of(result.dtype)) +
                   " can't be cast to the destination's type " +
                   std::string(core::name_of(h.layout.dtype)));
  }
  return {};
}

}  // namespace

Status Graph::apply_inplace(const Call& call) {
  const OpDef& def = catalog_.at(call.op);
  Handle& h = handle_of(call.arguments[0]);
  Handle& base = h.group();
  const bool is_view = h.is_view();
  if (def.infer == nullptr || !def.mutates.empty() || def.results != 1) {
    return invalid(def.name + ": has no in-place form");
  }
  TT_RETURN_IF_ERROR(h.may_write(def.name + "_"));
  bool record = false;
  if (call.record) {
    for (const Var& argument : call.arguments) {
      record = record || (argument.is_tensor() && handle_of(argument).requires_grad());
    }
    record = record && core::is_inexact(h.layout.dtype);
  }
  if (record) TT_RETURN_IF_ERROR(may_rewrite(tape_, h, def));
  core::InlineVector<ops::OperandInfo, 3> infos;
  ops::InferContext context = context_of(call, def);
  TT_RETURN_IF_ERROR(infer(call, def, context, infos));
  const bool any = call.op == fill_ || call.op == copy_;
  TT_RETURN_IF_ERROR(fits_into(h, context.results[0], def, any));
  // As in PyTorch, filling with a number may write a tensor that overlaps itself.
  bool fill = call.op == fill_ && !call.arguments[1].is_tensor();
  if (call.op == copy_ && call.arguments[1].is_tensor()) {
    const Handle& from = handle_of(call.arguments[1]);
    fill = from.cell == h.cell && from.geometry() == h.geometry();
  }
  if ((h.geometry().overlaps_itself() && (record || !fill)) ||
      (record && base.geometry().overlaps_itself())) {
    return invalid(def.name +
                   "_: more than one element of the written-to tensor refers to a single memory "
                   "location");
  }

  core::InlineVector<Edge, 2> edges;
  Edge base_edge;
  if (record) {
    for (const Var& argument : call.arguments) {
      Edge& edge = edges.emplace_back();
      if (argument.is_tensor()) TT_RETURN_IF_ERROR(tape_.edge_of(handle_of(argument), edge));
    }
    if (is_view) {
      TT_RETURN_IF_ERROR(tape_.edge_of(base, base_edge));
      if (base_edge) {  // the old region is read through its own node
        edges[0] = {tape_.record_reading(tape_.ids.index_region, base.layout, base_edge, h.layout)};
      }
    }
    if (def.vjp != nullptr) TT_RETURN_IF_ERROR(may_save(def, call, {edges.data(), edges.size()}));
  }

  // RULE: the order is: refuse, compute, record, rebind the cell, rewrite the history.
  const core::Ref<Node> old_node = base.node;
  const std::uint32_t old_output = base.output;
  const ValueRef value = written_value(h);
  if (sink_ != nullptr) {
    instruction_of(call).results.push_back({value, h.geometry_in(sink_->interner()), 0});
  }
  core::Ref<Node> node, update;
  if (record && def.vjp != nullptr) {
    node = tape_.record(call, std::move(edges));
    // If the vjp reads the result, it reads the new value through h's view.
    const HandleRef result =
        objects_.new_handle(core::make_ref<Cell>(h.cell->bytes, value), h.layout);
    tape_.save(*node, def, call, std::span<const HandleRef>(&result, 1));
    update = is_view ? tape_.record_writing(base.layout, base_edge, h.layout, {node}) : node;
  }
  write(h, value);
  if (record && node) {
    undo_.note_history(base, update, old_node, old_output);
    base.set_node(update, 0);
    (void)tape_.node_of(h);
  }
  return {};
}

Status Graph::set_data(Handle& h, Handle& other) {
  if (h.is_view()) return invalid("data: cannot be assigned on a view");
  if (!core::is_inexact(other.layout.dtype) && h.requires_grad()) {
    return invalid("data: a tensor that requires grad cannot become " +
                   std::string(core::name_of(other.layout.dtype)));
  }
  const auto leaf = tape_.is_leaf(h);
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

void Graph::write(Handle& h, ValueRef value) {
  const std::uint32_t tick = h.clock->tick();
  if (value && h.cell->shared) value->through = true;
  h.cell->value = std::move(value);
  if (h.cell->known) h.cell->known = nullptr;
  undo_.add(UndoLog::Write{tape_.seq(), h.cell, h.clock, tick});
}

}  // namespace teletensor::autograd
