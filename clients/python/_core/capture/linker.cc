#include "capture/linker.h"

#include "engine/ops/op.h"
#include "engine/program/text.h"

namespace teletensor::client {

using program::Block;
using program::Operand;
using program::Program;
using program::Step;
using program::StepOperand;
using program::StepResult;
using program::ValueId;
using program::View;

namespace {

const Handle* handle_at(nb::handle object) {
  PyTensor* t = tensor_of(object.ptr());
  if (t == nullptr) throw nb::type_error("script: a Tensor is expected");
  return t->handle.get();
}

Piece::Handles handles_at(nb::handle sequence) {
  Piece::Handles out;
  for (nb::handle each : sequence) out.push_back(handle_at(each));
  return out;
}

Piece piece_of(const nb::tuple& node) {
  Piece piece;
  const std::string kind = nb::cast<std::string>(node[0]);
  if (kind == "segment") {
    piece.program = std::make_shared<const Program>(program_of(node[1]));
    piece.fixed = handles_at(node[2]);
    for (nb::handle each : nb::cast<nb::list>(node[3])) {
      const auto output = nb::cast<nb::tuple>(each);
      piece.outputs.push_back(
          {nb::cast<bool>(output[0]), nb::cast<std::uint32_t>(output[1]), false});
    }
    piece.made = handles_at(node[4]);
    piece.line = nb::cast<std::string>(node[5]);
    piece.trace = node[6];
  } else if (kind == "if") {
    piece.kind = Piece::Kind::kIf;
    piece.test = handle_at(node[1]);
    for (const int side : {0, 1}) {
      piece.blocks[side] = pieces_of(nb::cast<nb::list>(node[2 + 2 * side]));
      piece.given[side] = handles_at(node[3 + 2 * side]);
    }
    piece.results = handles_at(node[6]);
  } else {
    piece.kind = Piece::Kind::kWhile;
    piece.operands = handles_at(node[1]);
    piece.parameters[0] = handles_at(node[2]);
    piece.blocks[0] = pieces_of(nb::cast<nb::list>(node[3]));
    piece.test = handle_at(node[4]);
    piece.parameters[1] = handles_at(node[5]);
    piece.blocks[1] = pieces_of(nb::cast<nb::list>(node[6]));
    piece.given[1] = handles_at(node[7]);
    piece.results = handles_at(node[8]);
  }
  return piece;
}

}  // namespace

Pieces pieces_of(nb::list nodes) {
  Pieces out;
  for (nb::handle each : nodes) out.push_back(piece_of(nb::cast<nb::tuple>(each)));
  return out;
}

Linker::Linker(std::string name, const Linker* forward) : forward_(forward) {
  program_.name = program::one_line(name);
}

void Linker::input(const Handle& h) {
  const View view = make(h.layout.dtype, h.layout.device, h.geometry().storage_end(), h.geometry());
  names_[&h] = view;
  program_.body.parameters.push_back(view);
  program_.parameter_names.emplace_back();
}

View Linker::make(core::DType dtype, core::Device device, std::int64_t elements,
                  const core::Geometry& geometry) {
  program_.values.push_back({dtype, device, elements});
  return {static_cast<ValueId>(program_.values.size() - 1), geometry};
}

View Linker::like(const View& view) {
  const program::ValueType type = program_.values[view.value];
  return make(type.dtype, type.device, type.elements, view.geometry);
}

View Linker::of(const Handle& h) {
  const auto found = names_.find(&h);
  if (found != names_.end()) return found->second;
  const auto before = forward_ == nullptr ? names_.end() : forward_->names_.find(&h);
  if (forward_ == nullptr || before == forward_->names_.end()) {
    throw nb::value_error("script: a tensor of another branch or of a loop's inside is used");
  }
  return import(before->second);
}

void Linker::block(const Pieces& pieces, Block& out, Tape* tape) {
  for (const Piece& piece : pieces) {
    switch (piece.kind) {
      case Piece::Kind::kSegment:
        segment(piece, out, tape);
        break;
      case Piece::Kind::kIf:
        branch(piece, out, tape);
        break;
      case Piece::Kind::kWhile:
        loop(piece, out, tape);
        break;
    }
  }
}

std::vector<View> Linker::inlined(const Program& piece, const std::vector<View>& parameters,
                                  const std::string& line, Block& out,
                                  std::vector<ValueId>* rebound) {
  std::vector<ValueId> value(piece.values.size(), program::kNoValue);
  std::vector<std::int64_t> moved(piece.values.size(), 0);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const View& parameter = piece.body.parameters[i];
    value[parameter.value] = parameters[i].value;
    moved[parameter.value] = parameters[i].geometry.offset - parameter.geometry.offset;
  }
  const auto renamed = [&](const View& view) {
    View result{value[view.value], view.geometry};
    result.geometry.offset += moved[view.value];
    return result;
  };
  for (const program::Literal& literal : piece.literals) {
    const program::ValueType& type = piece.values[literal.value];
    value[literal.value] = make(type.dtype, type.device, type.elements, {}).value;
    program_.literals.push_back({value[literal.value], literal.bytes});
  }
  std::uint32_t origin = 0;
  if (!line.empty()) {
    origin = static_cast<std::uint32_t>(program_.origins.size());
    program_.origins.push_back(program::one_line(line));
  }
  for (const Step& step : piece.body.steps) {
    Step& copy = out.steps.emplace_back(step);
    copy.origin = origin;
    for (StepOperand& operand : copy.operands) {
      if (operand.kind == Operand::Kind::kTensor) operand.view = renamed(operand.view);
    }
    for (StepResult& result : copy.results) {
      const ValueId id = result.view.value;
      program::ValueType type = piece.values[id];
      if (result.overwrites >= 0) {
        const auto o = static_cast<std::size_t>(result.overwrites);
        type = program_.values[copy.operands[o].view.value];
        moved[id] = moved[step.operands[o].view.value];
      }
      value[id] = make(type.dtype, type.device, type.elements, {}).value;
      result.view = renamed(result.view);
    }
    if (ops::catalog().at(copy.op).random) {
      core::Attributes attributes;
      const std::size_t last = copy.attributes.size() - 1;
      for (std::size_t i = 0; i < last; ++i) attributes.push_back(copy.attributes.at(i));
      attributes.push_back(core::Attribute::of(copy.attributes.integer(last) +
                                               static_cast<std::int64_t>(program_.random_steps)));
      copy.attributes = std::move(attributes);
    }
  }
  program_.random_steps += piece.random_steps;
  std::vector<View> results;
  for (const View& view : piece.body.results) results.push_back(renamed(view));
  if (rebound != nullptr) {
    for (const program::Rebind& r : piece.rebinds) rebound->push_back(value[r.value]);
  }
  return results;
}

// ---------------------------------------------------------------- writes in place

void Linker::rebind(ValueId old, ValueId now) {
  for (auto& [handle, view] : names_) {
    if (view.value == old) view.value = now;
  }
  for (auto& [first, last] : rebound_) {
    if (last == old) last = now;
  }
  rebound_.emplace(old, now);
}

ValueId Linker::present(ValueId old) const {
  const auto found = rebound_.find(old);
  return found == rebound_.end() ? old : found->second;
}

void Linker::overwrite(Block& out, ValueId old, const View& with) {
  static const ops::OpRef op("copy");
  const View view = whole(old);
  Step step;
  step.op = op;
  step.operands = {operand_of(view), operand_of(with)};
  const View result = like(view);
  step.results.push_back({result, 0});
  out.steps.push_back(std::move(step));
  rebind(old, result.value);
}

void Linker::written_by(const Pieces& pieces, std::set<ValueId>& written) const {
  for (const Piece& piece : pieces) {
    if (piece.kind == Piece::Kind::kSegment) {
      for (const program::Rebind& r : piece.program->rebinds) {
        const auto found = names_.find(piece.fixed[r.parameter]);
        if (found != names_.end()) written.insert(found->second.value);
      }
    }
    for (const Pieces& inner : piece.blocks) written_by(inner, written);
  }
}

void Linker::rebinds() {
  const auto& parameters = program_.body.parameters;
  for (std::uint32_t i = 0; i < parameters.size(); ++i) {
    const ValueId now = present(parameters[i].value);
    if (now != parameters[i].value) program_.rebinds.push_back({i, now});
  }
}

void Linker::segment(const Piece& piece, Block& out, Tape* tape) {
  std::vector<View> parameters;
  for (const Handle* h : piece.fixed) parameters.push_back(of(*h));
  std::vector<ValueId> rebound;
  const std::vector<View> results = inlined(*piece.program, parameters, piece.line, out, &rebound);
  for (std::size_t i = 0; i < rebound.size(); ++i) {
    const ValueId old = parameters[piece.program->rebinds[i].parameter].value;
    rebind(old, rebound[i]);
    for (View& view : parameters) {
      if (view.value == old) view.value = rebound[i];
    }
  }
  for (std::size_t i = 0; i < piece.made.size(); ++i) {
    const autograd::TracedOutput& output = piece.outputs[i];
    names_[piece.made[i]] = output.is_input ? parameters[output.index] : results[output.index];
  }
  if (tape == nullptr || !piece.gradients.backward) return;
  Done& done = tape->emplace_back();
  done.piece = &piece;
  for (const autograd::Traced::Saved& saved : piece.gradients.saved) {
    done.saved.push_back(saved.is_input ? parameters[saved.index] : results[saved.index]);
  }
}

template <class Values>
void Linker::end_block(const Piece::Handles& given, const Values& written, Block& out) {
  for (const Handle* h : given) out.results.push_back(of(*h));
  for (const ValueId v : written) {
    const View last = whole(present(v));
    out.results.push_back(last.value == v ? own(out, last) : last);
  }
}

void Linker::branch(const Piece& piece, Block& out, Tape* tape) {
  Step step;
  step.kind = Step::Kind::kIf;
  step.operands.push_back(operand_of(of(*piece.test)));
  std::set<ValueId> written;
  for (const int side : {0, 1}) written_by(piece.blocks[side], written);
  for (const int side : {0, 1}) {
    Block inner;
    const auto names = names_;
    const auto outer = std::exchange(rebound_, {});
    block(piece.blocks[side], inner, nullptr);
    end_block(piece.given[side], written, inner);
    step.blocks.push_back(std::move(inner));
    names_ = names;
    rebound_ = outer;
  }
  for (std::size_t i = 0; i < piece.results.size(); ++i) {
    const View view = like(step.blocks[0].results[i]);
    names_[piece.results[i]] = view;
    step.results.push_back({view, -1});
  }
  std::vector<View> last;
  for (const ValueId v : written) {
    last.push_back(like(whole(v)));
    step.results.push_back({last.back(), -1});
  }
  out.steps.push_back(std::move(step));
  std::size_t at = 0;
  for (const ValueId v : written) overwrite(out, v, last[at++]);
  if (tape != nullptr && !piece.carried.empty()) tape->push_back({&piece, {}, {}});
}

void Linker::loop(const Piece& piece, Block& out, Tape* tape) {
  Step step;
  step.kind = Step::Kind::kWhile;
  std::vector<View> operands;
  for (const Handle* h : piece.operands) {
    operands.push_back(of(*h));
    step.operands.push_back(operand_of(operands.back()));
  }
  // Storages that a round of the loop writes to are carried from round to round as a whole.
  std::set<ValueId> written;
  for (const Pieces& inner : piece.blocks) written_by(inner, written);
  for (const ValueId v : written) step.operands.push_back(operand_of(whole(v)));
  for (const int b : {0, 1}) {
    Block inner;
    const auto names = names_;
    const auto outer = std::exchange(rebound_, {});
    for (std::size_t i = 0; i < operands.size(); ++i) {
      inner.parameters.push_back(like(operands[i]));
      names_[piece.parameters[b][i]] = inner.parameters.back();
    }
    std::vector<ValueId> begun;
    for (const ValueId v : written) {
      inner.parameters.push_back(like(whole(v)));
      begun.push_back(inner.parameters.back().value);
      rebind(v, begun.back());
    }
    rebound_.clear();
    block(piece.blocks[b], inner, nullptr);
    if (b == 0) {
      inner.results.push_back(of(*piece.test));
    } else {
      end_block(piece.given[1], begun, inner);
    }
    step.blocks.push_back(std::move(inner));
    names_ = names;
    rebound_ = outer;
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const View view = like(operands[i]);
    names_[piece.results[i]] = view;
    step.results.push_back({view, -1});
  }
  std::vector<View> last;
  for (const ValueId v : written) {
    last.push_back(like(whole(v)));
    step.results.push_back({last.back(), -1});
  }
  if (tape != nullptr && !piece.carried.empty()) {
    Done& done = tape->emplace_back();
    done.piece = &piece;
    for (std::uint32_t i = 0; i < operands.size(); ++i) {
      const auto type = program::record_type(program_.values[operands[i].value].device);
      step.counts.push_back(i);
      done.records.push_back(make(type.dtype, type.device, 0, program::record_geometry()));
    }
    done.records.push_back(make(core::DType::kI64, {}, 1, {}));
    for (const View& record : done.records) step.results.push_back({record, -1});
  }
  out.steps.push_back(std::move(step));
  std::size_t at = 0;
  for (const ValueId v : written) overwrite(out, v, last[at++]);
}

}  // namespace teletensor::client
