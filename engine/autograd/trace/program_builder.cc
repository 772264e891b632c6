#include "engine/autograd/trace/program_builder.h"

#include <algorithm>
#include <functional>

namespace teletensor::autograd {

using core::Geometry;
using program::Instruction;
using program::Operand;
using program::Program;
using program::ValueId;
using program::View;

namespace {

std::int64_t bytes_of(const program::ValueType& type) {
  return type.elements * static_cast<std::int64_t>(core::size_of(type.dtype));
}

}  // namespace

ValueId ProgramBuilder::add(core::DType dtype, core::Device device, std::int64_t elements,
                            std::int64_t base) {
  program_->values.push_back({dtype, device, elements});
  base_.push_back(base);
  return static_cast<ValueId>(program_->values.size() - 1);
}

ValueId ProgramBuilder::id_of(const program::Value& value) {
  const auto found = ids_.find(&value);
  if (found != ids_.end()) return found->second;
  return ids_[&value] = add(value.dtype, value.device, value.elements, 0);
}

ValueId ProgramBuilder::copied_as(ValueId value, core::DType dtype) {
  static const ops::OpRef bitcast("bitcast");
  const program::ValueType type = program_->values[value];
  const auto from = static_cast<std::int64_t>(core::size_of(type.dtype));
  const auto to = static_cast<std::int64_t>(core::size_of(dtype));
  // How many elements of `type` make one element of `dtype`.
  const std::int64_t each = std::max<std::int64_t>(to / from, 1);
  const std::int64_t skip = (each - base_[value] % each) % each;
  const std::int64_t count = std::max<std::int64_t>(type.elements - skip, 0) / each * each;
  program::Step step;
  step.op = bitcast;
  step.attributes = {core::Attribute::of(dtype)};
  step.operands.push_back(
      {Operand::Kind::kTensor, {value, Geometry(core::Dims{count}, core::Dims{1}, skip)}, {}});
  const std::int64_t elements = count * from / to;
  const ValueId copy = add(dtype, type.device, elements, (base_[value] + skip) * from / to);
  step.results.push_back({{copy, Geometry(core::Dims{elements})}, -1});
  program_->body.steps.push_back(std::move(step));
  return copy;
}

View ProgramBuilder::view(const program::Value& value, const Geometry& geometry,
                          core::DType dtype) {
  ValueId id = id_of(value);
  if (program_->values[id].dtype != dtype) {
    const auto [copy, added] = read_as_.try_emplace({id, dtype});
    if (added) copy->second = copied_as(id, dtype);
    id = copy->second;
  }
  View out{id, geometry};
  out.geometry.offset -= base_[id];
  return out;
}

std::uint32_t ProgramBuilder::origin(const std::string& line) {
  if (line.empty()) return 0;
  const auto [at, added] =
      origins_.try_emplace(line, static_cast<std::uint32_t>(program_->origins.size()));
  if (added) program_->origins.push_back(line);
  return at->second;
}

std::uint32_t ProgramBuilder::parameter(const program::Value& value, const Geometry& geometry,
                                        std::int64_t base, std::int64_t elements) {
  const ValueId id = id_of(value);
  base_[id] = base;
  program_->values[id].elements = elements;
  program_->body.parameters.push_back(view(value, geometry, value.dtype));
  program_->parameter_names.emplace_back();
  return static_cast<std::uint32_t>(program_->body.parameters.size() - 1);
}

ValueId ProgramBuilder::rebound(std::uint32_t p, const program::Value& value) {
  static const ops::OpRef copy("copy");
  const ValueId old = program_->body.parameters[p].value;
  const program::ValueType type = program_->values[old];
  const ValueId id = id_of(value);
  if (program_->values[id].dtype == type.dtype) return id;
  const ValueId contents = copied_as(id, type.dtype);
  const Geometry whole(core::Dims{type.elements});
  program::Step step;
  step.op = copy;
  for (const ValueId each : {old, contents}) {
    step.operands.push_back({Operand::Kind::kTensor, {each, whole}, {}});
  }
  const ValueId out = add(type.dtype, type.device, type.elements, base_[old]);
  step.results.push_back({{out, whole}, 0});
  program_->body.steps.push_back(std::move(step));
  return out;
}

void ProgramBuilder::literal(const program::Value& value, const std::string& bytes) {
  program_->literals.push_back({id_of(value), bytes});
}

core::Status ProgramBuilder::step(const Instruction& instruction,
                                  const std::map<std::uint32_t, std::uint32_t>& numbers,
                                  std::uint32_t origin) {
  program::Step step;
  step.op = instruction.op;
  step.counts = instruction.counts;
  step.attributes = *instruction.attributes;
  step.origin = origin;
  for (const Operand& operand : instruction.operands) {
    program::StepOperand& out = step.operands.emplace_back();
    out.kind = operand.kind;
    if (operand.kind == Operand::Kind::kTensor) {
      out.view = view(*operand.value, *operand.geometry, operand.dtype);
    }
    if (operand.kind == Operand::Kind::kNumber) {
      out.number = operand.number;
      const auto found = numbers.find(operand.number.argument);
      out.number.argument = found == numbers.end() ? 0 : found->second + 1;
    }
  }
  for (const program::ResultSlot& slot : instruction.results) {
    const ValueId id = id_of(*slot.value);
    if (slot.overwrites >= 0) {
      const auto o = static_cast<std::size_t>(slot.overwrites);
      View& old = step.operands[o].view;
      const ValueId whole = id_of(*instruction.operands[o].value);
      if (program_->values[whole].dtype != slot.value->dtype) {
        old.value = copied_as(whole, slot.value->dtype);
        if (bytes_of(program_->values[old.value]) != bytes_of(program_->values[whole])) {
          return core::invalid("a captured function cannot write a tensor from outside as " +
                               std::string(core::name_of(slot.value->dtype)) +
                               " whose memory does not begin and end with whole elements of that");
        }
        old.geometry.offset = instruction.operands[o].geometry->offset - base_[old.value];
      }
      base_[id] = base_[old.value];
      program_->values[id].elements = program_->values[old.value].elements;
    }
    program::StepResult& out = step.results.emplace_back();
    out.view = view(*slot.value, *slot.geometry, slot.value->dtype);
    out.overwrites = slot.overwrites;
  }
  program_->body.steps.push_back(std::move(step));
  return {};
}

void ProgramBuilder::call(const program::Invocation& call, std::uint64_t begun,
                          const ops::Catalog& catalog) {
  const Program& called = *call.program;
  // For each value of the called program: the value here, and its displacement.
  std::vector<View> at(called.values.size());
  const auto moved = [&](View& v) {
    const View& to = at[v.value];
    v.value = to.value;
    v.geometry.offset += to.geometry.offset;
  };
  for (std::size_t i = 0; i < called.body.parameters.size(); ++i) {
    const View& parameter = called.body.parameters[i];
    View& to = at[parameter.value];
    to = view(*call.inputs[i].value, *call.inputs[i].geometry, call.inputs[i].dtype);
    to.geometry = Geometry();
    to.geometry.offset =
        call.inputs[i].geometry->offset - base_[to.value] - parameter.geometry.offset;
  }
  std::vector<bool> given(called.values.size(), false);
  for (const View& parameter : called.body.parameters) given[parameter.value] = true;
  for (ValueId v = 0; v < called.values.size(); ++v) {
    if (given[v]) continue;
    const program::ValueType& type = called.values[v];
    at[v].value = add(type.dtype, type.device, type.elements, 0);
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
        // The result uses the storage of the operand that it overwrites.
        if (result.overwrites >= 0) {
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
