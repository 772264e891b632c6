#include "engine/autograd/program_maker.h"

#include <functional>

namespace teletensor::autograd {

using core::Geometry;
using program::Instruction;
using program::Operand;
using program::Program;
using program::ValueId;
using program::View;

ValueId ProgramMaker::id_of(const program::Value& value) {
  const auto [at, added] = ids_.try_emplace(&value, static_cast<ValueId>(program_->values.size()));
  if (added) {
    program_->values.push_back({value.dtype, value.device, value.elements});
    base_.push_back(0);
  }
  return at->second;
}

View ProgramMaker::view(const program::Value& value, const Geometry& geometry) {
  const ValueId id = id_of(value);
  View out{id, geometry};
  out.geometry.offset -= base_[id];
  return out;
}

std::uint32_t ProgramMaker::origin(const std::string& line) {
  if (line.empty()) return 0;
  const auto [at, added] =
      origins_.try_emplace(line, static_cast<std::uint32_t>(program_->origins.size()));
  if (added) program_->origins.push_back(line);
  return at->second;
}

std::uint32_t ProgramMaker::parameter(const program::Value& value, const Geometry& geometry,
                                      std::int64_t base, std::int64_t elements) {
  const ValueId id = id_of(value);
  base_[id] = base;
  program_->values[id].elements = elements;
  program_->body.parameters.push_back(view(value, geometry));
  program_->parameter_names.emplace_back();
  return static_cast<std::uint32_t>(program_->body.parameters.size() - 1);
}

void ProgramMaker::literal(const program::Value& value, const std::string& bytes) {
  program_->literals.push_back({id_of(value), bytes});
}

void ProgramMaker::step(const Instruction& instruction,
                        const std::map<std::uint32_t, std::uint32_t>& numbers,
                        std::uint32_t origin) {
  program::Step& step = program_->body.steps.emplace_back();
  step.op = instruction.op;
  step.counts = instruction.counts;
  step.attributes = *instruction.attributes;
  step.origin = origin;
  for (const Operand& operand : instruction.operands) {
    program::StepOperand& out = step.operands.emplace_back();
    out.kind = operand.kind;
    if (operand.kind == Operand::Kind::kTensor) out.view = view(*operand.value, *operand.geometry);
    if (operand.kind == Operand::Kind::kNumber) {
      out.number = operand.number;
      const auto found = numbers.find(operand.number.argument);
      out.number.argument = found == numbers.end() ? 0 : found->second + 1;
    }
  }
  for (const program::ResultSlot& slot : instruction.results) {
    const ValueId id = id_of(*slot.value);
    if (slot.overwrites >= 0) {
      const auto& operand = step.operands[static_cast<std::size_t>(slot.overwrites)];
      base_[id] = base_[operand.view.value];
      program_->values[id].elements = program_->values[operand.view.value].elements;
    }
    program::StepResult& out = step.results.emplace_back();
    out.view = view(*slot.value, *slot.geometry);
    out.overwrites = slot.overwrites;
  }
}

void ProgramMaker::call(const program::Invocation& call, std::uint64_t begun,
                        const ops::Catalog& catalog) {
  const Program& called = *call.program;
  std::vector<View> at(called.values.size());  // by value: its place here, and how far it is off
  const auto moved = [&](View& v) {
    const View& to = at[v.value];
    v.value = to.value;
    v.geometry.offset += to.geometry.offset;
  };
  for (std::size_t i = 0; i < called.body.parameters.size(); ++i) {
    const View& parameter = called.body.parameters[i];
    View& to = at[parameter.value];
    to = view(*call.inputs[i].value, *call.inputs[i].geometry);
    to.geometry = Geometry();
    to.geometry.offset =
        call.inputs[i].geometry->offset - base_[to.value] - parameter.geometry.offset;
  }
  std::vector<bool> given(called.values.size(), false);
  for (const View& parameter : called.body.parameters) given[parameter.value] = true;
  for (ValueId v = 0; v < called.values.size(); ++v) {
    if (given[v]) continue;
    at[v].value = static_cast<ValueId>(program_->values.size());
    program_->values.push_back(called.values[v]);
    base_.push_back(0);
  }
  for (const program::Literal& literal : called.literals) {
    program_->literals.push_back({at[literal.value].value, literal.bytes});
  }
  const auto first = static_cast<std::uint32_t>(program_->origins.size()) - 1;
  program_->origins.insert(program_->origins.end(), called.origins.begin() + 1,
                           called.origins.end());
  const std::uint64_t drawn = static_cast<std::uint64_t>(call.ordinal) - begun;
  const std::function<void(program::Block&)> rename = [&](program::Block& block) {
    for (View& v : block.parameters) moved(v);
    for (View& v : block.results) moved(v);
    for (program::Step& step : block.steps) {
      if (step.origin != 0) step.origin += first;
      for (program::StepOperand& operand : step.operands) {
        if (operand.kind == Operand::Kind::kTensor) moved(operand.view);
      }
      for (program::StepResult& result : step.results) {
        if (result.overwrites >= 0) {  // it lies where that lies
          const auto o = static_cast<std::size_t>(result.overwrites);
          const View& old = step.operands[o].view;
          View& to = at[result.view.value];
          to.geometry.offset = old.geometry.offset - result.view.geometry.offset;
          program_->values[to.value].elements = program_->values[old.value].elements;
        }
        moved(result.view);
      }
      for (program::Block& inner : step.blocks) rename(inner);
      if (step.kind != program::Step::Kind::kOp || !catalog.at(step.op).random) continue;
      core::Attributes attributes;
      const std::size_t last = step.attributes.size() - 1;
      for (std::size_t i = 0; i < last; ++i) attributes.push_back(step.attributes.at(i));
      attributes.push_back(
          core::Attribute::of(step.attributes.integer(last) + static_cast<std::int64_t>(drawn)));
      step.attributes = std::move(attributes);
    }
  };
  program::Block body = called.body;
  rename(body);
  for (program::Step& step : body.steps) program_->body.steps.push_back(std::move(step));
  for (const program::Invocation::Outcome& outcome : call.outcomes) {
    ids_[outcome.becomes.get()] = at[outcome.value].value;
  }
}

}  // namespace teletensor::autograd
