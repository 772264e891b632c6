#include "programs_made.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

namespace teletensor::fuzz {

using core::Attribute;
using core::DType;
using core::Geometry;
using ops::Parameter;
using program::Block;
using program::Operand;
using program::Program;
using program::Step;
using program::StepOperand;
using program::StepResult;
using program::ValueId;
using program::View;

namespace {

constexpr std::size_t kTail = 9;  // the tag of the checksum and its bytes

StepOperand tensor(const View& view) {
  StepOperand operand;
  operand.kind = Operand::Kind::kTensor;
  operand.view = view;
  return operand;
}
StepOperand number(const core::Number& n) {
  StepOperand operand;
  operand.kind = Operand::Kind::kNumber;
  operand.number = n;
  return operand;
}

void each_block(Block& block, const std::function<void(Block&)>& visit) {
  visit(block);
  for (Step& step : block.steps) {
    for (Block& inner : step.blocks) each_block(inner, visit);
  }
}

}  // namespace

std::string contents(Hostile& random, DType dtype, std::int64_t elements) {
  const std::size_t unit = core::size_of(dtype);
  std::string bytes;
  for (std::int64_t e = 0; e < elements; ++e) {
    if (dtype == DType::kF32 || dtype == DType::kF64) {
      const double real = static_cast<double>(random.below(17)) / 4 - 2;
      const float narrow = static_cast<float>(real);
      bytes.append(dtype == DType::kF32 ? reinterpret_cast<const char*>(&narrow)
                                        : reinterpret_cast<const char*>(&real),
                   unit);
      continue;
    }
    bytes += static_cast<char>(random.below(dtype == DType::kBool ? 2 : 4));
    bytes.append(unit - 1, '\0');
  }
  return bytes;
}

View ProgramBuilder::value(DType dtype, const Geometry& geometry, std::int64_t elements) {
  program_.values.push_back({dtype, {}, elements});
  return {static_cast<ValueId>(program_.values.size() - 1), geometry};
}

View ProgramBuilder::literal(DType dtype, std::string bytes, const core::Dims& shape) {
  const Geometry geometry(shape);
  const View view = value(dtype, geometry, geometry.numel());
  program_.literals.push_back({view.value, std::move(bytes)});
  return view;
}

const View& ProgramBuilder::pick(const Scope& scope) {
  // Recent values are used more often, so that long chains occur.
  const std::size_t n = scope.views.size();
  return scope.views[random_.one_in(2) ? random_.below(n)
                                       : n - 1 - random_.below(std::min<std::size_t>(n, 3))];
}

// Returns a view of the value of `view` that shows another part of it, or shows it in another
// order.
View ProgramBuilder::any_view(const View& view) {
  View out = view;
  core::Dims shape = view.geometry.shape, strides = view.geometry.strides;
  const int rank = view.geometry.rank();
  if (rank == 0) return out;
  const int d = static_cast<int>(random_.below(static_cast<std::uint64_t>(rank)));
  switch (random_.below(5)) {
    case 0: {  // transposed
      const int e = static_cast<int>(random_.below(static_cast<std::uint64_t>(rank)));
      std::swap(shape[d], shape[e]);
      std::swap(strides[d], strides[e]);
      break;
    }
    case 1:  // from the second element on
      if (shape[d] < 2) return out;
      out.geometry.offset += strides[d];
      --shape[d];
      break;
    case 2:  // every second element
      shape[d] = (shape[d] + 1) / 2;
      strides[d] *= 2;
      break;
    case 3:  // repeated
      if (shape[d] != 1) return out;
      shape[d] = 3;
      strides[d] = 0;
      break;
    default:
      return out;
  }
  out.geometry.shape = shape;
  out.geometry.strides = strides;
  return out;
}

bool ProgramBuilder::infer(Step& step, std::vector<core::Layout>& results) const {
  const ops::OpDef& op = catalog_.at(step.op);
  std::vector<core::Layout> layouts(step.operands.size());
  std::vector<ops::OperandInfo> infos(step.operands.size());
  for (std::size_t i = 0; i < step.operands.size(); ++i) {
    const StepOperand& operand = step.operands[i];
    if (operand.kind == Operand::Kind::kTensor) {
      layouts[i] = {program_.values[operand.view.value].dtype, {}, operand.view.geometry};
      infos[i].layout = &layouts[i];
    } else if (operand.kind == Operand::Kind::kNumber) {
      infos[i].number = &operand.number;
    }
  }
  ops::InferContext context{.op = op.name,
                            .operands = infos,
                            .counts = {step.counts.data(), step.counts.size()},
                            .attributes = step.attributes,
                            .device = {},
                            .results = {}};
  if (!op.infer(context).ok()) return false;
  results.assign(context.results.begin(), context.results.end());
  return true;
}

bool ProgramBuilder::op_step(Block& block, Scope& scope) {
  for (int tries = 0; tries < 40; ++tries) {
    // The generator of commands chooses the op and attributes; the handles are replaced by views in
    // this scope.
    const program::Apply apply = random_.apply(catalog_, 1);
    const ops::OpDef& op = catalog_.at(apply.op);
    if (op.infer == nullptr || op.view != nullptr || !op.mutates.empty() ||
        op.name == "client_node" || op.name == "empty") {
      continue;
    }
    Step step;
    step.op = apply.op;
    step.attributes = apply.attributes;
    for (const std::uint32_t count : apply.counts) step.counts.push_back(count);
    const View usual = pick(scope);
    for (const program::Argument& argument : apply.arguments) {
      if (argument.kind == program::Argument::Kind::kNumber) {
        core::Number n = argument.number;
        if (random_.one_in(3)) {
          program_.numbers.push_back(n);
          n.argument = static_cast<std::uint32_t>(program_.numbers.size());
        }
        step.operands.push_back(number(n));
      } else if (argument.kind == program::Argument::Kind::kHandle) {
        const View& chosen = random_.one_in(2) ? usual : pick(scope);
        step.operands.push_back(tensor(random_.one_in(3) ? any_view(chosen) : chosen));
      } else {
        step.operands.emplace_back();
      }
    }
    if (op.random) {
      core::Attributes attributes;
      for (std::size_t i = 0; i + 2 < step.attributes.size(); ++i) {
        attributes.push_back(step.attributes.at(i));
      }
      attributes.push_back(Attribute::of(std::int64_t{0}));
      attributes.push_back(Attribute::of(static_cast<std::int64_t>(program_.random_steps)));
      step.attributes = attributes;
    }
    std::vector<core::Layout> results;
    if (!infer(step, results) || results.empty()) continue;
    bool small = true;
    for (const core::Layout& layout : results) {
      small = small && layout.geometry.numel() <= 4096 && layout.geometry.dense() &&
              layout.device == core::Device{};
    }
    if (!small) continue;
    if (op.random) ++program_.random_steps;
    const bool writes = random_.one_in(6) && results.size() == 1 && scope.depth == 0 &&
                        !step.operands.empty() && step.operands[0].kind == Operand::Kind::kTensor;
    if (writes) {
      const View old = step.operands[0].view;
      const program::ValueType type = program_.values[old.value];
      if (!(old.geometry.shape == results[0].geometry.shape) || old.geometry.overlaps_itself() ||
          !core::can_cast(results[0].dtype, type.dtype)) {
        continue;
      }
      const View view = value(type.dtype, old.geometry, type.elements);
      step.results.push_back({view, 0});
      // The previous value does not exist any more: its views now refer to the new one.
      for (View& each : scope.views) {
        if (each.value == old.value) each.value = view.value;
      }
      scope.views.push_back(view);
    } else {
      for (const core::Layout& layout : results) {
        const View view = value(layout.dtype, layout.geometry, layout.geometry.numel());
        step.results.push_back({view, -1});
        scope.views.push_back(view);
      }
    }
    if (random_.one_in(2)) step.origin = 1;
    block.steps.push_back(std::move(step));
    return true;
  }
  return false;
}

void ProgramBuilder::unary(Block& block, Scope& scope, const char* name, const View& x) {
  const ops::OpDef& op = *catalog_.find(name);
  Step step;
  step.op = catalog_.id(op);
  step.operands.push_back(tensor(x));
  if (std::string_view(name) == "add") step.operands.push_back(number(core::Number::of_int(1)));
  for (std::size_t p = static_cast<std::size_t>(op.operand_parameters); p < op.parameters.size();
       ++p) {
    step.attributes.push_back(op.parameters[p].fallback);
  }
  std::vector<core::Layout> results;
  if (!infer(step, results)) return;
  const View view = value(results[0].dtype, results[0].geometry, results[0].geometry.numel());
  step.results.push_back({view, -1});
  scope.views.push_back(view);
  block.steps.push_back(std::move(step));
}

// Makes an if-step with a condition. Both branches return tensors of the same type.
void ProgramBuilder::branch(Block& block, Scope& scope) {
  View condition = literal(DType::kBool, std::string(1, static_cast<char>(random_.below(2))), {});
  if (random_.one_in(2)) {
    unary(block, scope, "any", pick(scope));
    condition = scope.views.back();
  }
  if (program_.values[condition.value].dtype != DType::kBool || condition.geometry.rank() != 0) {
    return;
  }
  const View x = pick(scope);
  static const char* const kSame[] = {"clone", "neg", "abs", "square", "relu"};
  Step step;
  step.kind = Step::Kind::kIf;
  step.operands.push_back(tensor(condition));
  std::vector<View> results;
  for (int side = 0; side < 2; ++side) {
    Block inner;
    Scope inside{scope.views, scope.depth + 1};
    steps(inner, inside, random_.below(4));
    const std::size_t before = inside.views.size();
    unary(inner, inside, kSame[random_.below(std::size(kSame))], x);
    if (inside.views.size() == before) return;
    inner.results.push_back(inside.views.back());
    results.push_back(inside.views.back());
    step.blocks.push_back(std::move(inner));
  }
  const program::ValueType& a = program_.values[results[0].value];
  const program::ValueType b = program_.values[results[1].value];
  if (!(a == b) || !(results[0].geometry == results[1].geometry)) return;
  const View out = value(b.dtype, results[0].geometry, b.elements);
  step.results.push_back({out, -1});
  scope.views.push_back(out);
  block.steps.push_back(std::move(step));
}

// Makes a loop with a counter that runs to a small limit, and one more tensor that changes in each
// iteration.
void ProgramBuilder::loop(Block& block, Scope& scope) {
  View x = pick(scope);
  if (!x.geometry.contiguous() || x.geometry.offset != 0 ||
      x.geometry.numel() != program_.values[x.value].elements) {
    return;
  }
  const View zero = literal(DType::kI64, std::string(8, '\0'), {});
  std::string limit(8, '\0');
  limit[0] = static_cast<char>(random_.below(5));
  const View end = literal(DType::kI64, limit, {});
  const program::ValueType type = program_.values[x.value];
  const auto like = [&](const View& of) {
    const program::ValueType t = program_.values[of.value];
    return value(t.dtype, of.geometry, t.elements);
  };
  Step step;
  step.kind = Step::Kind::kWhile;
  step.operands.push_back(tensor(zero));
  step.operands.push_back(tensor(x));
  Block head, body;
  head.parameters = {like(zero), like(x)};
  Step test;
  const ops::OpDef& lt = *catalog_.find("lt");
  test.op = catalog_.id(lt);
  test.operands.push_back(tensor(head.parameters[0]));
  test.operands.push_back(tensor(end));
  std::vector<core::Layout> results;
  if (!infer(test, results)) return;
  test.results.push_back({value(results[0].dtype, results[0].geometry, 1), -1});
  head.results.push_back(test.results[0].view);
  head.steps.push_back(std::move(test));
  body.parameters = {like(zero), like(x)};
  Scope inside{scope.views, scope.depth + 1};
  inside.views.push_back(body.parameters[1]);
  steps(body, inside, random_.below(4));
  const std::size_t before = inside.views.size();
  unary(body, inside, "add", body.parameters[0]);
  static const char* const kSame[] = {"clone", "neg", "relu"};
  unary(body, inside, kSame[random_.below(std::size(kSame))], body.parameters[1]);
  if (inside.views.size() != before + 2) return;
  body.results = {inside.views[before], inside.views[before + 1]};
  const View& last = body.results[1];
  if (!(program_.values[last.value] == type) || !(last.geometry == x.geometry)) return;
  step.blocks.push_back(std::move(head));
  step.blocks.push_back(std::move(body));
  step.results.push_back({like(zero), -1});
  step.results.push_back({like(x), -1});
  scope.views.push_back(step.results[1].view);
  if (random_.one_in(2)) {
    step.counts.push_back(static_cast<std::uint32_t>(random_.below(2)));
    if (step.counts[0] == 0 && random_.one_in(2)) step.counts.push_back(1);
    for (std::size_t i = 0; i < step.counts.size(); ++i) {
      step.results.push_back({value(DType::kU8, program::record_geometry(), 0), -1});
    }
    step.results.push_back({value(DType::kI64, {}, 1), -1});
    scope.views.push_back(step.results.back().view);
  }
  const std::vector<StepResult> records = {step.results.begin() + 2, step.results.end()};
  const std::vector<std::uint32_t> recorded = {step.counts.begin(), step.counts.end()};
  block.steps.push_back(std::move(step));
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    Step past;
    past.kind = Step::Kind::kPast;
    const View round =
        literal(DType::kI64,
                std::string(1, static_cast<char>(random_.below(5))) + std::string(7, '\0'), {});
    past.operands.push_back(tensor(records[i].view));
    past.operands.push_back(tensor(random_.one_in(4) ? records.back().view : round));
    const program::ValueType of = recorded[i] == 0 ? program_.values[zero.value] : type;
    past.results.push_back(
        {value(of.dtype, Geometry(recorded[i] == 0 ? core::Dims() : x.geometry.shape), of.elements),
         -1});
    scope.views.push_back(past.results[0].view);
    block.steps.push_back(std::move(past));
  }
}

void ProgramBuilder::steps(Block& block, Scope& scope, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    if (scope.depth < 3 && random_.one_in(7)) {
      branch(block, scope);
    } else if (scope.depth < 2 && random_.one_in(9)) {
      loop(block, scope);
    } else {
      op_step(block, scope);
    }
  }
}

Program ProgramBuilder::make() {
  program_ = Program();
  program_.name = "f";
  program_.origins.push_back("fuzz.py:1: f");
  (void)random_.constants(0);  // so that apply() chooses among handles
  Scope scope;
  static constexpr DType kUsual[] = {DType::kF32, DType::kF32,  DType::kF64,
                                     DType::kI64, DType::kBF16, DType::kBool};
  static const core::Dims kShapes[] = {{},     {3},       {2, 3},    {3, 2},
                                       {1, 3}, {2, 2, 2}, {2, 1, 3}, {300}};
  for (std::uint64_t p = 1 + random_.below(3); p > 0; --p) {
    const DType dtype = kUsual[random_.below(std::size(kUsual))];
    View view = value(dtype, Geometry(kShapes[random_.below(std::size(kShapes))]), 0);
    program_.values.back().elements = view.geometry.numel();
    if (random_.one_in(3)) view = any_view(view);
    program_.body.parameters.push_back(view);
    program_.parameter_names.push_back(random_.one_in(2) ? "x" : "");
    scope.views.push_back(view);
  }
  if (random_.one_in(2)) {
    const core::Dims shape{static_cast<std::int64_t>(1 + random_.below(3))};
    scope.views.push_back(literal(DType::kF32, contents(random_, DType::kF32, shape[0]), shape));
  }
  steps(program_.body, scope, 1 + random_.below(12));
  for (std::uint64_t r = random_.below(4); r > 0 && !scope.views.empty(); --r) {
    program_.body.results.push_back(pick(scope));
  }
  program_.body.results.push_back(scope.views.back());
  // Adds a rebind for each parameter that a step overwrites: the parameter then becomes the last
  // value that was written to its storage.
  for (std::uint32_t p = 0; p < program_.body.parameters.size(); ++p) {
    ValueId latest = program_.body.parameters[p].value;
    for (const Step& step : program_.body.steps) {
      for (const StepResult& result : step.results) {
        if (result.overwrites < 0) continue;
        const auto o = static_cast<std::size_t>(result.overwrites);
        if (step.operands[o].view.value == latest) latest = result.view.value;
      }
    }
    if (latest != program_.body.parameters[p].value) program_.rebinds.push_back({p, latest});
  }
  return std::move(program_);
}

// ---------------------------------------------------------------- damaging programs

void ProgramBuilder::spoil(Program& p) {
  std::vector<Block*> blocks;
  each_block(p.body, [&](Block& block) { blocks.push_back(&block); });
  std::vector<Step*> all;
  for (Block* block : blocks) {
    for (Step& step : block->steps) all.push_back(&step);
  }
  std::vector<View*> views;
  for (Block* block : blocks) {
    for (View& view : block->parameters) views.push_back(&view);
    for (View& view : block->results) views.push_back(&view);
  }
  for (Step* step : all) {
    for (StepOperand& operand : step->operands) {
      if (operand.kind == Operand::Kind::kTensor) views.push_back(&operand.view);
    }
    for (StepResult& result : step->results) views.push_back(&result.view);
  }
  const auto odd = [&]() -> std::int64_t {
    static constexpr std::int64_t kOdd[] = {-1,
                                            0,
                                            1,
                                            2,
                                            3,
                                            1 << 20,
                                            std::int64_t{1} << 40,
                                            std::numeric_limits<std::int64_t>::max(),
                                            std::numeric_limits<std::int64_t>::min()};
    return kOdd[random_.below(std::size(kOdd))];
  };
  const auto id = [&]() -> std::uint32_t {
    if (random_.one_in(6)) return static_cast<std::uint32_t>(odd());
    return static_cast<std::uint32_t>(random_.below(p.values.size() + 1));
  };
  View* view = views.empty() ? nullptr : views[random_.below(views.size())];
  Block* block = blocks[random_.below(blocks.size())];
  Step* step = all.empty() ? nullptr : all[random_.below(all.size())];
  switch (random_.below(22)) {
    case 0:
    case 1:
      if (view != nullptr) view->value = id();
      break;
    case 2:
      if (view != nullptr && view->geometry.rank() > 0) {
        const auto d =
            static_cast<int>(random_.below(static_cast<std::uint64_t>(view->geometry.rank())));
        (random_.one_in(2) ? view->geometry.shape : view->geometry.strides)[d] = odd();
      }
      break;
    case 3:
      if (view != nullptr) view->geometry.offset = odd();
      break;
    case 4:
      if (view != nullptr) *view = any_view(*view);
      break;
    case 5: {
      program::ValueType& type = p.values[random_.below(p.values.size())];
      type.elements = random_.one_in(2) ? odd() : static_cast<std::int64_t>(random_.below(8));
      break;
    }
    case 6: {
      program::ValueType& type = p.values[random_.below(p.values.size())];
      type.dtype = core::kAllDTypes[random_.below(std::size(core::kAllDTypes))];
      if (random_.one_in(4))
        type.device = {core::DeviceKind::kSim, static_cast<std::uint8_t>(random_.below(256))};
      break;
    }
    case 7:
      if (block->steps.size() > 1) {
        std::swap(block->steps[random_.below(block->steps.size())],
                  block->steps[random_.below(block->steps.size())]);
      }
      break;
    case 8:
      if (!block->steps.empty()) {
        const Step copy = block->steps[random_.below(block->steps.size())];
        block->steps.push_back(copy);
      }
      break;
    case 9:
      if (!block->steps.empty()) {
        block->steps.erase(block->steps.begin() +
                           static_cast<std::ptrdiff_t>(random_.below(block->steps.size())));
      }
      break;
    case 10:
      if (step != nullptr) step->op = static_cast<program::OpId>(random_.below(catalog_.size()));
      break;
    case 11:
      if (step != nullptr && step->attributes.size() != 0) {
        core::Attributes attributes;
        const std::size_t at = random_.below(step->attributes.size());
        for (std::size_t i = 0; i < step->attributes.size(); ++i) {
          attributes.push_back(i == at ? Attribute::of(odd()) : step->attributes.at(i));
        }
        if (random_.one_in(4)) attributes.push_back(Attribute::none());
        step->attributes = attributes;
      }
      break;
    case 12:
      if (step != nullptr) {
        if (step->counts.empty() || random_.one_in(3)) step->counts.push_back(0);
        step->counts[random_.below(step->counts.size())] =
            static_cast<std::uint32_t>(random_.one_in(2) ? random_.below(4) : 1 << 20);
      }
      break;
    case 13:
      if (step != nullptr) step->kind = static_cast<Step::Kind>(random_.below(4));
      break;
    case 14:
      if (step != nullptr && !step->blocks.empty()) {
        if (random_.one_in(2)) {
          std::swap(step->blocks.front(), step->blocks.back());
        } else {
          step->blocks.pop_back();
        }
      }
      break;
    case 15: {  // nested, up to the limit and beyond it
      Block deep = p.body;
      deep.parameters.clear();
      for (std::uint64_t n = 2 + random_.below(8); n > 0; --n) {
        Step wrap;
        wrap.kind = Step::Kind::kIf;
        if (!all.empty() && !all[0]->operands.empty()) wrap.operands.push_back(all[0]->operands[0]);
        wrap.blocks = {deep, Block()};
        deep = Block();
        deep.steps.push_back(std::move(wrap));
      }
      block->steps.push_back(deep.steps[0]);
      break;
    }
    case 16:
      if (step != nullptr && !step->results.empty()) {
        step->results[random_.below(step->results.size())].overwrites =
            static_cast<int>(random_.below(5)) - 1;
      }
      break;
    case 17:
      p.rebinds.push_back({static_cast<std::uint32_t>(random_.below(4)), id()});
      break;
    case 18:
      p.aliases.push_back({static_cast<std::uint32_t>(random_.below(4)), random_.one_in(2),
                           static_cast<std::uint32_t>(random_.below(4))});
      if (random_.one_in(2)) {
        p.gradients.push_back({static_cast<std::uint32_t>(random_.below(4)),
                               static_cast<std::uint32_t>(random_.below(4))});
      }
      break;
    case 19:
      if (step != nullptr && !step->operands.empty()) {
        StepOperand& operand = step->operands[random_.below(step->operands.size())];
        operand.number = core::Number::of_int(odd());
        operand.number.argument = static_cast<std::uint32_t>(random_.below(4));
        operand.kind = static_cast<Operand::Kind>(random_.below(3));
      }
      break;
    case 20:
      if (!p.literals.empty()) {
        program::Literal& literal = p.literals[random_.below(p.literals.size())];
        if (random_.one_in(2)) {
          literal.bytes.resize(random_.below(40));
        } else {
          literal.value = id();
        }
      }
      break;
    default:
      if (random_.one_in(2)) p.random_steps = static_cast<std::uint64_t>(odd());
      if (random_.one_in(2)) p.parameter_names.resize(random_.below(5));
      if (step != nullptr && random_.one_in(2)) step->origin = id();
      if (random_.one_in(3) && !p.body.parameters.empty()) {
        p.body.parameters.push_back(p.body.parameters[0]);
        p.parameter_names.emplace_back();
      }
  }
}

std::string with_checksum(std::string_view body) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const char byte : body) {
    hash = (hash ^ static_cast<std::uint8_t>(byte)) * 1099511628211ull;
  }
  std::string out(body);
  out += static_cast<char>(15 << 3 | 1);  // field 15, fixed64
  out.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  return out;
}

std::string ProgramBuilder::spoil(std::string bytes) {
  std::string body = bytes.substr(0, bytes.size() - kTail);
  for (std::uint64_t n = 1 + random_.below(3); n > 0 && !body.empty(); --n) {
    const std::size_t at = random_.below(body.size());
    switch (random_.below(5)) {
      case 0:
        body.erase(at, 1 + random_.below(4));
        break;
      case 1:
        body.insert(at, 1 + random_.below(3), static_cast<char>(random_.below(256)));
        break;
      case 2:
        body.insert(at, body.substr(random_.below(body.size()), random_.below(40)));
        break;
      default:
        body[at] = static_cast<char>(random_.one_in(2) ? random_.below(256)
                                                       : static_cast<std::uint8_t>(body[at]) ^
                                                             (1u << random_.below(8)));
    }
  }
  if (random_.one_in(20)) return body;
  return with_checksum(body);
}

}  // namespace teletensor::fuzz
