#include "capture/expanded.h"

#include "engine/passes/rewrite.h"

namespace teletensor::client {

using program::Operand;
using program::Step;
using program::View;

Expanded::Expanded(const program::Program& program, const std::vector<std::uint32_t>& results)
    : program_(program),
      results_(results),
      steps_(program.body.steps.size(), false),
      values_(program.values.size(), false) {
  for (const std::uint32_t r : results) values_[program.body.results.at(r).value] = true;
  for (std::size_t s = steps_.size(); s-- > 0;) {
    const Step& step = program.body.steps[s];
    for (const program::StepResult& result : step.results) {
      steps_[s] = steps_[s] || values_[result.view.value];
    }
    if (!steps_[s]) continue;
    for (const program::StepOperand& operand : step.operands) {
      if (operand.kind == Operand::Kind::kTensor) values_[operand.view.value] = true;
    }
    for (const program::Block& block : step.blocks) {
      passes::for_each_use(block, [&](const View& view) { values_[view.value] = true; });
    }
  }
}

std::vector<std::uint32_t> Expanded::parameters() const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t p = 0; p < program_.body.parameters.size(); ++p) {
    if (values_[program_.body.parameters[p].value]) out.push_back(p);
  }
  return out;
}

Status Expanded::run(PySession& session, const Given& given, Handles& out) {
  shown_.assign(program_.values.size(), {});
  for (std::size_t p = 0; p < given.inputs.size(); ++p) {
    const View& view = program_.body.parameters[p];
    shown_[view.value].push_back({given.inputs[p], view.geometry});
  }
  for (const program::Literal& literal : program_.literals) {
    if (values_[literal.value]) TT_RETURN_IF_ERROR(constant(session, literal));
  }
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    if (steps_[s]) TT_RETURN_IF_ERROR(call(session, given, program_.body.steps[s]));
  }
  for (const std::uint32_t r : results_) {
    const auto found = find(session, program_.body.results[r]);
    TT_RETURN_IF_ERROR(found.status());
    out.push_back(*found);
  }
  return {};
}

Status Expanded::constant(PySession& session, const program::Literal& literal) {
  const program::ValueType& type = program_.values[literal.value];
  const core::Dims shape{type.elements};
  const auto made = session.constant(type.dtype, type.device, shape, std::string(literal.bytes));
  TT_RETURN_IF_ERROR(made.status());
  shown_[literal.value].push_back({*made, core::Geometry(shape)});
  return {};
}

Status Expanded::call(PySession& session, const Given& given, const Step& step) {
  if (step.kind != Step::Kind::kOp) return refuse("branches or loops on tensors");
  std::vector<Var> operands;
  for (const program::StepOperand& operand : step.operands) {
    Var& var = operands.emplace_back();
    if (operand.kind == Operand::Kind::kTensor) {
      const auto found = find(session, operand.view);
      TT_RETURN_IF_ERROR(found.status());
      var = Var(&session, *found);
    } else if (operand.kind == Operand::Kind::kNumber) {
      const std::uint32_t argument = operand.number.argument;
      var = Var(argument == 0 ? operand.number : given.numbers.at(argument - 1));
    }
  }
  core::Attributes attributes = step.attributes;
  if (ops::catalog().at(step.op).random) {
    attributes = {};
    const std::size_t own = step.attributes.size() - 2;
    for (std::size_t i = 0; i < own; ++i) attributes.push_back(step.attributes.at(i));
    attributes.push_back(core::Attribute::of(given.seed));
    attributes.push_back(core::Attribute::of(given.ordinal + step.attributes.integer(own + 1)));
  }
  Handles made;
  TT_RETURN_IF_ERROR(
      session.apply(step.op, operands, {step.counts.data(), step.counts.size()}, attributes, made));
  for (std::size_t r = 0; r < step.results.size(); ++r) {
    const program::StepResult& result = step.results[r];
    const View& view = result.view;
    // A result that overwrites a whole value becomes a new value here. If it overwrites a part, the
    // rest would be needed.
    if (r >= made.size() || made[r]->layout.dtype != program_.values[view.value].dtype ||
        !(made[r]->geometry() == view.geometry) ||
        (result.overwrites >= 0 && view.geometry.numel() != program_.values[view.value].elements)) {
      return refuse("writes into a part of a tensor");
    }
    shown_[view.value].push_back({made[r], view.geometry});
  }
  return {};
}

core::Result<HandleRef> Expanded::find(PySession& session, const View& view) {
  const std::vector<Shown>& ways = shown_[view.value];
  for (const Shown& way : ways) {
    if (way.geometry == view.geometry) return way.handle;
  }
  if (ways.size() != 1) return refuse("several views of one tensor as its inputs");
  static const ops::OpRef as_strided("as_strided");
  const std::int64_t offset =
      ways[0].handle->geometry().offset + view.geometry.offset - ways[0].geometry.offset;
  const Var base(&session, ways[0].handle);
  Handles made;
  TT_RETURN_IF_ERROR(
      session.apply(as_strided, {&base, 1}, {},
                    {core::Attribute::of(view.geometry.shape),
                     core::Attribute::of(view.geometry.strides), core::Attribute::of(offset)},
                    made));
  return made[0];
}

Status Expanded::refuse(std::string_view why) {
  return core::invalid("no second derivative (create_graph=True) of a captured function that has " +
                       std::string(why) + ": call the function itself");
}

}  // namespace teletensor::client
