// Builds the gradients of linked programs. The backward of a segment is that of its trace. The
// backward of a branch executes the branch that was taken again, and then its backward. A loop has
// recorded the values at the beginning of its rounds: its backward is a loop from the last round to
// the first, which computes each round again first.
#include <algorithm>
#include <functional>

#include "capture/linker.h"
#include "engine/passes/passes.h"

namespace teletensor::client {

using program::Block;
using program::Operand;
using program::Program;
using program::Step;
using program::StepOperand;
using program::ValueId;
using program::View;

namespace {

StepOperand number(std::int64_t n) { return {Operand::Kind::kNumber, {}, core::Number::of_int(n)}; }

void defined(const Pieces& pieces, std::set<const Handle*>& out) {
  const auto all = [&](const Piece::Handles& handles) {
    out.insert(handles.begin(), handles.end());
  };
  for (const Piece& piece : pieces) {
    for (std::size_t i = 0; i < piece.made.size(); ++i) {
      if (!piece.outputs[i].is_input) out.insert(piece.made[i]);
    }
    for (const Pieces& inner : piece.blocks) defined(inner, out);
    for (const Piece::Handles& parameters : piece.parameters) all(parameters);
    all(piece.results);
  }
}

// Returns the tensors in `wanted` that the pieces do not define themselves.
Piece::Handles from_outside(const Pieces& pieces, const std::set<const Handle*>& wanted,
                            Piece::Handles known) {
  std::set<const Handle*> own(known.begin(), known.end());
  defined(pieces, own);
  Piece::Handles out;
  for (const Handle* h : wanted) {
    if (!own.contains(h)) out.push_back(h);
  }
  return out;
}

void live_segment(Piece& piece, std::set<const Handle*>& wanted) {
  std::set<program::HandleId> roots;
  for (std::size_t i = 0; i < piece.made.size(); ++i) {
    if (!piece.outputs[i].is_input && wanted.contains(piece.made[i])) {
      roots.insert(piece.made[i]->id);
    }
  }
  if (roots.empty()) return;
  piece.gradients = retraced(piece.trace, roots);
  piece.program = piece.gradients.program;
  piece.outputs = piece.gradients.outputs;
  piece.fixed.clear();
  for (const autograd::Traced::Input& input : piece.gradients.inputs) {
    piece.fixed.push_back(input.handle.get());
  }
  for (const std::uint32_t w : piece.gradients.wanted) wanted.insert(piece.fixed[w]);
}

void live_branch(Piece& piece, std::set<const Handle*>& wanted) {
  std::set<const Handle*> outside;
  piece.carried.clear();
  for (std::size_t i = 0; i < piece.results.size(); ++i) {
    if (wanted.contains(piece.results[i])) piece.carried.push_back(i);
  }
  for (const int side : {0, 1}) {
    std::set<const Handle*> inner;
    for (const std::size_t i : piece.carried) inner.insert(piece.given[side][i]);
    live(piece.blocks[side], inner);
    const Piece::Handles found = from_outside(piece.blocks[side], inner, {});
    outside.insert(found.begin(), found.end());
  }
  piece.outside.assign(outside.begin(), outside.end());
  wanted.insert(outside.begin(), outside.end());
}

// A gradient that one round receives must be passed on by the round before it.
void live_loop(Piece& piece, std::set<const Handle*>& wanted) {
  std::set<std::size_t> carried;
  for (std::size_t i = 0; i < piece.results.size(); ++i) {
    if (wanted.contains(piece.results[i])) carried.insert(i);
  }
  std::set<const Handle*> inner;
  for (std::size_t before = carried.size() + 1; before != carried.size();) {
    before = carried.size();
    inner.clear();
    for (const std::size_t i : carried) inner.insert(piece.given[1][i]);
    live(piece.blocks[1], inner);
    for (std::size_t i = 0; i < piece.results.size(); ++i) {
      if (inner.contains(piece.parameters[1][i])) carried.insert(i);
    }
  }
  piece.carried.assign(carried.begin(), carried.end());
  piece.outside = from_outside(piece.blocks[1], inner, piece.parameters[1]);
  for (const std::size_t i : carried) wanted.insert(piece.operands[i]);
  wanted.insert(piece.outside.begin(), piece.outside.end());
}

}  // namespace

void live(Pieces& pieces, std::set<const Handle*>& wanted) {
  for (std::size_t i = pieces.size(); i-- > 0;) {
    switch (pieces[i].kind) {
      case Piece::Kind::kSegment:
        live_segment(pieces[i], wanted);
        break;
      case Piece::Kind::kIf:
        live_branch(pieces[i], wanted);
        break;
      case Piece::Kind::kWhile:
        live_loop(pieces[i], wanted);
        break;
    }
  }
}

// ---------------------------------------------------------------- values

View Linker::seed(const Handle& h) {
  const core::Geometry geometry(h.shape());
  seeds_.push_back(make(h.layout.dtype, h.layout.device, geometry.numel(), geometry));
  return seeds_.back();
}

View Linker::import(const View& of_forward) {
  const ValueId v = of_forward.value;
  const Program& forward = forward_->program_;
  const auto [at, added] = imported_.try_emplace(v);
  if (added) {
    const program::ValueType& type = forward.values[v];
    at->second =
        make(type.dtype, type.device, type.elements, core::Geometry(core::Dims{type.elements}));
    const auto literal =
        std::find_if(forward.literals.begin(), forward.literals.end(),
                     [&](const program::Literal& each) { return each.value == v; });
    if (literal != forward.literals.end()) {
      program_.literals.push_back({at->second.value, literal->bytes});
    } else {
      for (const View& parameter : forward.body.parameters) {
        if (parameter.value == v) at->second.geometry = parameter.geometry;
      }
      saved_.emplace_back(v, at->second);
    }
  }
  return {at->second.value, of_forward.geometry};
}

std::vector<ValueId> Linker::saved() {
  std::vector<std::uint32_t> uses(program_.values.size(), 0);
  const std::function<void(const Block&)> count = [&](const Block& block) {
    for (const Step& step : block.steps) {
      for (const StepOperand& operand : step.operands) {
        if (operand.kind == Operand::Kind::kTensor) ++uses[operand.view.value];
      }
      for (const Block& inner : step.blocks) count(inner);
    }
    for (const View& result : block.results) ++uses[result.value];
  };
  program_ = passes::dce(std::move(program_));
  count(program_.body);
  std::vector<ValueId> out;
  for (const auto& [value, view] : saved_) {
    if (uses[view.value] == 0) continue;
    out.push_back(value);
    program_.body.parameters.push_back(view);
  }
  program_.body.parameters.insert(program_.body.parameters.end(), seeds_.begin(), seeds_.end());
  program_.parameter_names.resize(program_.body.parameters.size());
  return out;
}

View Linker::emit(Block& out, std::string_view name, std::vector<StepOperand> operands,
                  const core::Attributes& attributes) {
  const ops::OpDef& op = *ops::catalog().find(name);
  Step& step = out.steps.emplace_back();
  step.op = ops::catalog().id(op);
  step.attributes = attributes;
  for (std::size_t p = static_cast<std::size_t>(op.operand_parameters) + attributes.size();
       p < op.parameters.size(); ++p) {
    step.attributes.push_back(op.parameters[p].fallback);
  }
  std::vector<core::Layout> layouts(operands.size());
  std::vector<ops::OperandInfo> infos(operands.size());
  core::Device device;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].kind == Operand::Kind::kTensor) {
      const program::ValueType& type = program_.values[operands[i].view.value];
      device = type.device;
      layouts[i] = {type.dtype, type.device, operands[i].view.geometry};
      infos[i].layout = &layouts[i];
    } else {
      infos[i].number = &operands[i].number;
    }
    step.operands.push_back(operands[i]);
  }
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    if (attributes.at(i).kind == core::Attribute::Kind::kDevice) device = attributes.device(i);
  }
  ops::InferContext context{.op = op.name,
                            .operands = infos,
                            .counts = {},
                            .attributes = step.attributes,
                            .device = device,
                            .results = {}};
  raise_if(op.infer(context));
  const core::Layout& layout = context.results[0];
  const View view =
      make(layout.dtype, layout.device, layout.geometry.storage_end(), layout.geometry);
  step.results.push_back({view, -1});
  return view;
}

View Linker::zeros(Block& out, const Handle& like) {
  return emit(out, "full", {number(0)},
              {core::Attribute::of(like.shape()), core::Attribute::of(like.layout.dtype),
               core::Attribute::of(like.layout.device)});
}

View Linker::own(Block& out, const View& view) {
  const core::Geometry& g = view.geometry;
  if (g.contiguous() && g.offset == 0 && g.numel() == program_.values[view.value].elements) {
    return view;
  }
  return emit(out, "relayout", {operand_of(view)},
              {core::Attribute::of(core::Geometry(g.shape).strides)});
}

void Linker::add(Block& out, Gradients& gradients, const Handle& h, const View& view) {
  const auto [at, added] = gradients.try_emplace(&h, view);
  if (!added) at->second = emit(out, "add", {operand_of(at->second), operand_of(view)});
}

// ---------------------------------------------------------------- backward passes

void Linker::reverse(const Tape& tape, Gradients& gradients, Block& out) {
  for (std::size_t i = tape.size(); i-- > 0;) {
    const Done& done = tape[i];
    switch (done.piece->kind) {
      case Piece::Kind::kSegment:
        reverse_segment(done, gradients, out);
        break;
      case Piece::Kind::kIf:
        reverse_branch(done, gradients, out);
        break;
      case Piece::Kind::kWhile:
        reverse_loop(done, gradients, out);
        break;
    }
  }
}

void Linker::reverse_segment(const Done& done, Gradients& gradients, Block& out) {
  const Piece& piece = *done.piece;
  const autograd::Traced& traced = piece.gradients;
  std::vector<View> parameters;
  for (const View& view : done.saved) parameters.push_back(inside_ > 0 ? view : import(view));
  for (const std::uint32_t d : traced.differentiated) {
    const Handle& h = *piece.made[d];
    const auto found = gradients.find(&h);
    parameters.push_back(found == gradients.end() ? zeros(out, h) : own(out, found->second));
    if (found != gradients.end()) gradients.erase(found);
  }
  const std::vector<View> results = inlined(*traced.backward, parameters, piece.line, out);
  for (std::size_t i = 0; i < results.size(); ++i) {
    add(out, gradients, *piece.fixed[traced.wanted[i]], results[i]);
  }
}

void Linker::reverse_branch(const Done& done, Gradients& gradients, Block& out) {
  const Piece& piece = *done.piece;
  Step step;
  step.kind = Step::Kind::kIf;
  step.operands.push_back(operand_of(of(*piece.test)));
  ++inside_;
  for (const int side : {0, 1}) {
    Block inner;
    Tape tape;
    block(piece.blocks[side], inner, &tape);
    Gradients own_gradients;
    for (const std::size_t i : piece.carried) {
      const auto found = gradients.find(piece.results[i]);
      if (found != gradients.end()) {
        add(inner, own_gradients, *piece.given[side][i], found->second);
      }
    }
    reverse(tape, own_gradients, inner);
    for (const Handle* h : piece.outside) {
      const auto found = own_gradients.find(h);
      inner.results.push_back(
          own(inner, found == own_gradients.end() ? zeros(inner, *h) : found->second));
    }
    step.blocks.push_back(std::move(inner));
  }
  --inside_;
  for (const std::size_t i : piece.carried) gradients.erase(piece.results[i]);
  std::vector<View> results;
  for (std::size_t i = 0; i < piece.outside.size(); ++i) {
    results.push_back(like(step.blocks[0].results[i]));
    step.results.push_back({results.back(), -1});
  }
  out.steps.push_back(std::move(step));
  for (std::size_t i = 0; i < results.size(); ++i) {
    add(out, gradients, *piece.outside[i], results[i]);
  }
}

void Linker::reverse_loop(const Done& done, Gradients& gradients, Block& out) {
  const Piece& piece = *done.piece;
  const auto here = [&](const View& view) { return inside_ > 0 ? view : import(view); };
  // The carried values: the number of the round, the gradients of the values at its beginning, and
  // those of the values that all rounds read from outside.
  std::vector<View> begin{emit(out, "sub", {operand_of(here(done.records.back())), number(1)})};
  for (const std::size_t i : piece.carried) {
    const auto found = gradients.find(piece.results[i]);
    begin.push_back(found == gradients.end() ? zeros(out, *piece.results[i])
                                             : own(out, found->second));
    if (found != gradients.end()) gradients.erase(found);
  }
  for (const Handle* h : piece.outside) begin.push_back(zeros(out, *h));
  Step step;
  step.kind = Step::Kind::kWhile;
  Block head, body;
  for (const View& view : begin) {
    step.operands.push_back(operand_of(view));
    head.parameters.push_back(like(view));
    body.parameters.push_back(like(view));
  }
  head.results.push_back(emit(head, "ge", {operand_of(head.parameters[0]), number(0)}));
  for (std::size_t i = 0; i < piece.operands.size(); ++i) {
    const Handle& h = *piece.parameters[1][i];
    const core::Geometry geometry(h.shape());
    Step& past = body.steps.emplace_back();
    past.kind = Step::Kind::kPast;
    past.operands.push_back(operand_of(here(done.records[i])));
    past.operands.push_back(operand_of(body.parameters[0]));
    const View view = make(h.layout.dtype, h.layout.device, geometry.numel(), geometry);
    past.results.push_back({view, -1});
    names_[&h] = view;
  }
  ++inside_;
  Tape tape;
  block(piece.blocks[1], body, &tape);
  Gradients own_gradients;
  std::size_t at = 1;
  for (const std::size_t i : piece.carried) {
    add(body, own_gradients, *piece.given[1][i], body.parameters[at++]);
  }
  reverse(tape, own_gradients, body);
  body.results.push_back(emit(body, "sub", {operand_of(body.parameters[0]), number(1)}));
  for (const std::size_t i : piece.carried) {
    const Handle& h = *piece.parameters[1][i];
    const auto found = own_gradients.find(&h);
    body.results.push_back(
        own(body, found == own_gradients.end() ? zeros(body, h) : found->second));
  }
  for (const Handle* h : piece.outside) {
    const auto found = own_gradients.find(h);
    const View& before = body.parameters[at++];
    body.results.push_back(
        found == own_gradients.end()
            ? before
            : own(body, emit(body, "add", {operand_of(before), operand_of(found->second)})));
  }
  --inside_;
  step.blocks.push_back(std::move(head));
  step.blocks.push_back(std::move(body));
  std::vector<View> results;
  for (const View& view : begin) {
    results.push_back(like(view));
    step.results.push_back({results.back(), -1});
  }
  out.steps.push_back(std::move(step));
  at = 1;
  for (const std::size_t i : piece.carried) {
    add(out, gradients, *piece.operands[i], results[at++]);
  }
  for (const Handle* h : piece.outside) add(out, gradients, *h, results[at++]);
}

}  // namespace teletensor::client
