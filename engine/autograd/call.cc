// Calls of programs: the effects on handles, and the one queue entry that the session back end
// gets.

#include <algorithm>
#include <utility>

#include "engine/autograd/callable.h"
#include "engine/autograd/graph.h"
#include "engine/ops/verify.h"

namespace teletensor::autograd {

using core::Geometry;
using core::invalid;
using core::Layout;
using core::Status;
using program::Operand;
using program::ValueRef;
using program::View;

Callable::Callable(std::shared_ptr<const program::Program> program) : program_(std::move(program)) {
  const program::Program& p = *program_;
  has_collectives_ = ops::has_collectives(p, ops::catalog());
  const auto& views = p.body.parameters;
  std::vector<std::uint32_t> root(p.values.size(), kNone);
  for (std::uint32_t i = 0; i < views.size(); ++i) {
    if (root[views[i].value] == kNone) root[views[i].value] = i;
    parameters_.push_back({root[views[i].value]});
  }
  for (std::uint32_t i = 0; i < p.rebinds.size(); ++i) {
    parameters_[parameters_[p.rebinds[i].parameter].leader].rebind = i;
  }
  for (const program::Step& step : p.body.steps) {
    if (step.kind != program::Step::Kind::kOp) continue;
    for (const program::StepResult& result : step.results) {
      if (result.overwrites < 0) continue;
      const auto& operand = step.operands[static_cast<std::size_t>(result.overwrites)];
      root[result.view.value] = root[operand.view.value];
    }
  }
  for (const View& view : p.body.results) {
    Result& result = results_.emplace_back();
    result.root = root[view.value];
    result.untouched = result.root != kNone && views[result.root].value == view.value;
  }
  for (const program::Alias& alias : p.aliases) {
    Result& result = results_[alias.result];
    result.aliases = true;
    result.of_parameter = alias.of_parameter;
    result.index = alias.index;
  }
  for (const program::Gradient& g : p.gradients) results_[g.result].is_gradient = true;
}

namespace {

Status refused(const program::Program& p, std::size_t i, const std::string& what) {
  const std::string& name = p.parameter_names[i];
  return invalid("call of " + (p.name.empty() ? "a program" : "'" + p.name + "'") + ": parameter " +
                 (name.empty() ? std::to_string(i) : "'" + name + "'") + " " + what);
}

bool is_sliced(const program::Call& call, std::size_t i) {
  return std::binary_search(call.sliced.begin(), call.sliced.end(), static_cast<std::uint32_t>(i));
}

}  // namespace

// Checks the layouts of the inputs, and computes where the storage of each parameter begins.
Status Graph::check_call(const Callable& callable, const program::Call& call,
                         std::span<const HandleRef> inputs,
                         std::vector<std::int64_t>& displacement) const {
  const program::Program& p = callable.program();
  const auto& views = p.body.parameters;
  const std::size_t rounds = std::max<std::uint32_t>(call.times, 1);
  if (inputs.size() != views.size()) {
    return invalid("call: " + std::to_string(inputs.size()) + " inputs for " +
                   std::to_string(views.size()) + " parameters");
  }
  if (call.times > kMaxRounds) {
    return invalid("call: " + std::to_string(call.times) + " times, at most " +
                   std::to_string(kMaxRounds));
  }
  if (call.numbers.size() != p.numbers.size() * rounds) {
    return invalid("call: " + std::to_string(call.numbers.size()) + " numbers for " +
                   std::to_string(p.numbers.size()) + " of a program that runs " +
                   std::to_string(rounds) + " times");
  }
  for (std::size_t i = 0; i < call.numbers.size(); ++i) {
    if (call.numbers[i].kind != p.numbers[i % p.numbers.size()].kind) {
      return invalid(
          "call: a number has another kind (bool, int, float or complex) than the program "
          "declares");
    }
  }
  if (!call.sliced.empty() && (call.times == 0 || call.sliced.back() >= views.size() ||
                               std::adjacent_find(call.sliced.begin(), call.sliced.end(),
                                                  std::greater_equal<>()) != call.sliced.end())) {
    return invalid(
        "call: sliced inputs must be parameters, in ascending order, of a call with `times`");
  }
  displacement.resize(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Handle& h = *inputs[i];
    const View& view = views[i];
    const program::ValueType& type = p.values[view.value];
    const Geometry& g = h.geometry();
    const bool sliced = is_sliced(call, i);
    bool fits = h.layout.dtype == type.dtype && h.layout.device == type.device &&
                g.rank() == view.geometry.rank() + sliced && (!sliced || g.shape[0] > 0);
    for (int d = 0; fits && d < view.geometry.rank(); ++d) {
      fits = g.shape[d + sliced] == view.geometry.shape[d] &&
             g.strides[d + sliced] == view.geometry.strides[d];
    }
    if (!fits) {
      return refused(p, i,
                     "is of " + std::string(core::name_of(type.dtype)) + " " +
                         core::to_string(view.geometry.shape) + " with strides " +
                         core::to_string(view.geometry.strides) + " on " +
                         core::to_string(type.device) + ", but the argument is of " +
                         std::string(core::name_of(h.layout.dtype)) + " " +
                         core::to_string(g.shape) + " with strides " + core::to_string(g.strides) +
                         " on " + core::to_string(h.layout.device));
    }
    displacement[i] = g.offset - view.geometry.offset;
    const std::uint32_t leader = callable.parameters()[i].leader;
    if (leader != i &&
        (inputs[leader]->cell != h.cell || displacement[leader] != displacement[i] || sliced)) {
      return refused(
          p, i, "shares memory with other inputs in another way than the program's parameters do");
    }
    // Every view that the program has on this value lies within its first type.elements elements.
    std::int64_t end = 0;
    const std::int64_t most = sliced ? g.shape[0] - 1 : 0;
    if (displacement[i] < 0 || __builtin_mul_overflow(most, sliced ? g.strides[0] : 0, &end) ||
        __builtin_add_overflow(end, displacement[i], &end) ||
        __builtin_add_overflow(end, type.elements, &end) || end > h.stored()) {
      return refused(p, i, "is in a smaller storage than the program requires");
    }
  }
  std::vector<const Cell*> cells;
  cells.reserve(p.rebinds.size());
  for (const program::Rebind& rebind : p.rebinds) {
    if (is_sliced(call, rebind.parameter)) {
      return refused(p, rebind.parameter, "is written, so it cannot be sliced");
    }
    const Status written = inputs[rebind.parameter]->may_write("call");
    if (!written.ok()) return refused(p, rebind.parameter, "is written: " + written.message());
    cells.push_back(inputs[rebind.parameter]->cell.get());
  }
  std::sort(cells.begin(), cells.end());
  if (std::adjacent_find(cells.begin(), cells.end()) != cells.end()) {
    return invalid("call: two parameters that are written share memory");
  }
  return {};
}

Status Graph::call(const Callable& callable, const program::Call& call,
                   std::span<const HandleRef> inputs, Handles& results) {
  const program::Program& p = callable.program();
  std::vector<std::int64_t> displacement;
  TT_RETURN_IF_ERROR(check_call(callable, call, inputs, displacement));
  program::Invocation invocation;
  if (sink_ != nullptr) {
    invocation.program = callable.shared();
    invocation.numbers = call.numbers;
    invocation.seed = call.seed;
    invocation.ordinal = call.ordinal;
    invocation.times = call.times;
    invocation.sliced = call.sliced;
    invocation.inputs.reserve(inputs.size());
    invocation.outcomes.reserve(p.body.results.size() + p.rebinds.size());
    for (const HandleRef& h : inputs) {
      h->fill(invocation.inputs.emplace_back(), sink_->interner());
    }
  }
  for (std::size_t r = 0; r < p.body.results.size(); ++r) {
    const View& view = p.body.results[r];
    const program::ValueType& type = p.values[view.value];
    const Callable::Result& how = callable.results()[r];
    Layout layout{type.dtype, type.device, view.geometry};
    const bool stacked = call.times != 0 && !how.is_gradient;
    if (how.aliases && !stacked) {
      Handle& source = how.of_parameter ? *inputs[how.index] : *results[how.index];
      // A result that aliases another result gets that result's displacement, which is the one of
      // its root parameter.
      if (how.of_parameter) {
        layout.geometry.offset += displacement[how.index];
      } else if (how.root != Callable::kNone) {
        layout.geometry.offset += displacement[how.root];
      }
      HandleRef h = objects_.new_handle(source.cell, layout, source.clock);
      h->base = HandleRef(&source.group());
      ++h->base->views;
      h->made = Handle::Made::kNoGrad;
      results.push_back(std::move(h));
      continue;
    }
    if (stacked) {
      if (layout.geometry.rank() == core::kMaxRank) {
        return invalid("call: the results of a loop have too many dimensions");
      }
      core::Dims shape{static_cast<std::int64_t>(call.times)};
      for (const std::int64_t size : view.geometry.shape) shape.push_back(size);
      const auto count = core::checked_numel(shape.span());
      if (!count.ok() || *count > INT64_MAX / 64) {
        return invalid("call: the results of a loop are too large to address");
      }
      layout.geometry = Geometry(shape);
      const ValueRef value = new_value(layout, layout.geometry.numel());
      if (sink_ != nullptr) {
        invocation.outcomes.push_back({view.value, value, static_cast<std::uint32_t>(r)});
      }
      results.push_back(objects_.adopt(layout, value));
      continue;
    }
    std::int64_t elements = type.elements;
    ValueRef value;
    if (how.root != Callable::kNone) {
      elements = inputs[how.root]->stored();
      layout.geometry.offset += displacement[how.root];
      if (how.untouched) value = inputs[how.root]->cell->value;
    }
    if (sink_ != nullptr && !value) {
      value = new_value(layout, elements);
      invocation.outcomes.push_back({view.value, value, program::Invocation::kWhole});
    }
    const auto size = static_cast<std::int64_t>(core::size_of(type.dtype));
    results.push_back(
        objects_.new_handle(core::make_ref<Cell>(elements * size, std::move(value)), layout));
  }
  // A published parameter, whose shared storage gets the new value when the program has run.
  struct Through {
    Handle* h;
    ValueRef old, result, value;
  };
  std::vector<Through> through;
  for (const program::Rebind& rebind : p.rebinds) {
    Handle& h = *inputs[rebind.parameter];
    ValueRef value = written_value(h);
    if (sink_ != nullptr) {
      invocation.outcomes.push_back({rebind.value, value, program::Invocation::kWhole});
      if (h.cell->shared) {
        ValueRef written = written_value(h);
        through.push_back({&h, h.cell->value, std::exchange(value, written), written});
      }
    }
    write(h, std::move(value));
  }
  for (const program::Gradient& g : p.gradients) {
    inputs[g.parameter]->grad = results[g.result];
  }
  if (sink_ == nullptr) return {};
  TT_RETURN_IF_ERROR(sink_->call(tape_.seq(), std::move(invocation)));
  for (Through& each : through) {
    const Geometry whole(core::Dims{each.h->stored()});
    program::Instruction& copy = sink_->instruction(tape_.seq());
    copy.op = copy_;
    copy.attributes = sink_->interner().attributes(Call::none());
    const Geometry* geometry = sink_->interner().geometry(whole);
    for (ValueRef* value : {&each.old, &each.result}) {
      program::Operand& operand = copy.operands.emplace_back();
      operand.kind = Operand::Kind::kTensor;
      operand.value = std::move(*value);
      operand.dtype = each.h->layout.dtype;
      operand.geometry = geometry;
    }
    copy.results.push_back({std::move(each.value), geometry, 0});
  }
  return {};
}

}  // namespace teletensor::autograd
