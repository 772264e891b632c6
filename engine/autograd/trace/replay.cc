#include "engine/autograd/trace/replay.h"

#include "engine/ops/verify.h"
#include "engine/program/serialize.h"

namespace teletensor::autograd {

using core::Geometry;
using core::Status;
using program::Instruction;
using program::Operand;

namespace {

core::Number another(core::Number n) {
  if (n.kind == core::Number::Kind::kInt) n.integer = n.integer * 3 + 7;
  n.real = n.real * 1.25 + 0.375;
  n.imaginary = n.imaginary * 1.5 + 0.25;
  return n;
}

}  // namespace

Status Tracer::Replay::run() {
  Graph& graph = front_.graph();
  std::map<const Cell*, core::Ref<Cell>> cells;
  std::map<const Clock*, core::Ref<Clock>> clocks;
  for (const Known& known : tracer_.known_) {
    core::Ref<Cell>& cell = cells[known.cell];
    if (!cell) {
      const auto size = static_cast<std::int64_t>(core::size_of(known.layout.dtype));
      cell = core::make_ref<Cell>(
          known.cell->bytes, core::make_ref<program::Value>(known.layout.dtype, known.layout.device,
                                                            known.cell->bytes / size));
      originals_[known.cell] = cell->value;
    }
    core::Ref<Clock>& clock = clocks[known.clock];
    if (!clock) {
      clock = static_cast<const Clock*>(known.cell) == known.clock ? core::Ref<Clock>(cell)
                                                                   : core::make_ref<Clock>();
    }
    HandleRef h = graph.objects().new_handle(cell, known.layout, clock);
    h->flag = known.requires_grad;
    h->id = known.handle->id;
    front_.add_outer_handle(h->id, h);
    strangers_.push_back(std::move(h));
  }
  for (std::size_t i = 0; i < strangers_.size(); ++i) {
    if (!tracer_.known_[i].grad) continue;
    strangers_[i]->grad = front_.find(tracer_.known_[i].grad->id);
  }
  for (const auto& [number, called] : tracer_.programs_) {
    program::Define define{number, program::serialize(*called, ops::op_names(graph.catalog()))};
    TT_RETURN_IF_ERROR(front_.execute(0, std::move(define)));
  }
  for (const Recorded& each : tracer_.commands_) {
    program::Command command = each.command;
    if (auto* apply = std::get_if<program::Apply>(&command)) vary(*apply);
    front_.skip_to(each.first);
    TT_RETURN_IF_ERROR(front_.execute(each.seq, std::move(command)));
    while (front_.busy()) TT_RETURN_IF_ERROR(front_.resume(INT32_MAX));
  }
  forward_ = instructions_.size();
  return {};
}

void Tracer::Replay::vary(program::Apply& apply) const {
  for (program::Argument& argument : apply.arguments) {
    if (varied_.contains(argument.number.argument)) argument.number = another(argument.number);
  }
}

Status Tracer::Replay::constant(std::uint64_t, program::Constant constant,
                                program::ValueRef value) {
  if (value->dtype == core::DType::kBool) {
    for (char& byte : constant.bytes) byte = byte != 0;
  }
  literals_.emplace_back(std::move(value), std::move(constant.bytes));
  return {};
}

Status Tracer::Replay::call(std::uint64_t seq, program::Invocation invocation) {
  Instruction& out = instruction(seq);
  out.op = kCall;
  out.attributes = interner_.attributes({});
  for (const Operand& input : invocation.inputs) out.operands.push_back(input);
  for (const program::Invocation::Outcome& outcome : invocation.outcomes) {
    const Geometry whole(core::Dims{outcome.becomes->elements});
    out.results.push_back({outcome.becomes, interner_.geometry(whole), -1});
  }
  calls_.emplace(&out, std::move(invocation));
  return {};
}

Status Tracer::Replay::client_backward(std::uint64_t seq) {
  stopped_at_ = seq;
  return core::invalid("only the client can run this backward");
}

}  // namespace teletensor::autograd
