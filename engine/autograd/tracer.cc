#include "engine/autograd/tracer.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>

#include "engine/ops/verify.h"
#include "engine/program/serialize.h"

namespace teletensor::autograd {

using core::Geometry;
using core::invalid;
using core::Layout;
using core::Status;
using program::HandleId;
using program::Instruction;
using program::kNoValue;
using program::Operand;
using program::Program;
using program::ValueId;
using program::View;

namespace {
constexpr program::OpId kCall = 0xffff;  // in a replay: an instruction that is a call
}

// A name from before the trace, as it was at its first use.
struct Tracer::Known {
  HandleRef handle;
  Layout layout;
  const Cell* cell;
  const Clock* clock;
  bool requires_grad, has_history;
  HandleRef grad;
  int argument = -1;
};

Tracer::Tracer(Graph& graph, std::uint64_t seed, std::uint64_t ordinal)
    : graph_(graph), thread_(std::this_thread::get_id()), seed_(seed), ordinal_(ordinal) {}
Tracer::~Tracer() = default;

bool Tracer::made_here(HandleId id) const {
  auto at = std::upper_bound(ranges_.begin(), ranges_.end(), id,
                             [](HandleId i, const auto& range) { return i < range.first; });
  return at != ranges_.begin() && id - (--at)->first < at->second;
}

void Tracer::know(Handle& h) {
  if (h.id == 0 || by_id_.contains(h.id) || made_here(h.id)) return;
  const bool requires_grad = graph_.requires_grad(h);
  bool has_history = false;
  if (requires_grad) {
    const auto leaf = graph_.is_leaf(h);
    has_history = !leaf.ok() || !*leaf;
  }
  by_id_[h.id] = known_.size();
  known_.push_back(
      {HandleRef(&h), h.layout, h.cell.get(), h.clock.get(), requires_grad, has_history, h.grad});
  if (h.grad) {
    const HandleRef grad = h.grad;
    owner_of_grad_.try_emplace(grad->id, h.id);
    know(*grad);
  }
}

void Tracer::know(std::span<const ops::Var> arguments) {
  for (const ops::Var& argument : arguments) {
    if (argument.is_tensor()) know(handle_of(argument));
  }
}

void Tracer::asked_grad(Handle& owner) {
  know(owner);
  grads_matter_ = true;
}

void Tracer::argument(Handle& h, int place) {
  know(h);
  const auto found = by_id_.find(h.id);
  if (found != by_id_.end() && known_[found->second].argument < 0) {
    known_[found->second].argument = place;
  }
}

void Tracer::refuse(Status why) {
  if (refused_.ok()) refused_ = std::move(why);
}

void Tracer::record(program::Command command, std::uint64_t seq, HandleId first,
                    std::uint32_t made) {
  if (made > 0) {
    if (!ranges_.empty() && ranges_.back().first + ranges_.back().second == first) {
      ranges_.back().second += made;
    } else {
      ranges_.emplace_back(first, made);
    }
  }
  if (std::holds_alternative<program::Define>(command) ||
      std::holds_alternative<program::Undefine>(command)) {
    return;  // the session's, not the trace's
  }
  if (const auto* release = std::get_if<program::Release>(&command)) {
    program::Release own;
    for (const HandleId id : release->handles) {
      if (made_here(id)) own.handles.push_back(id);
    }
    if (own.handles.empty()) return;
    command = std::move(own);
  }
  if (const auto* set = std::get_if<program::SetData>(&command)) {
    if (!made_here(set->handle)) {
      refuse(invalid("a captured function cannot assign .data of a tensor from outside"));
    }
  }
  if (const auto* flag = std::get_if<program::SetFlag>(&command)) {
    const auto found = by_id_.find(flag->handle);
    if (found != by_id_.end()) {
      if (flag->what != program::SetFlag::What::kRequiresGrad ||
          flag->on != known_[found->second].requires_grad) {
        refuse(invalid(
            "a captured function cannot change requires_grad or retain_grad of a tensor from "
            "outside"));
      }
      return;
    }
  }
  const auto* backward = std::get_if<program::Backward>(&command);
  if (std::holds_alternative<program::SetGrad>(command) || (backward && !backward->has_inputs)) {
    grads_matter_ = true;
  }
  commands_.push_back({std::move(command), seq, first});
}

// ---------------------------------------------------------------- the second run

// One execution of the recorded commands, with some value for each of the numbers.
class Tracer::Replay final : public Sink {
 public:
  // With other values for the numbers of these tags.
  Replay(const Tracer& tracer, std::set<std::uint32_t> varied)
      : tracer_(tracer), varied_(std::move(varied)), front_(tracer.graph_.catalog(), this) {}
  ~Replay() override { strangers_.clear(); }

  Status run() {
    Graph& graph = front_.graph();
    std::map<const Cell*, core::Ref<Cell>> cells;
    std::map<const Clock*, core::Ref<Clock>> clocks;
    for (const Known& known : tracer_.known_) {
      core::Ref<Cell>& cell = cells[known.cell];
      if (!cell) {
        cell = core::make_ref<Cell>(
            known.cell->elements,
            core::make_ref<program::Value>(known.layout.dtype, known.layout.device,
                                           known.cell->elements));
        originals_[known.cell] = cell->value;
      }
      core::Ref<Clock>& clock = clocks[known.clock];
      if (!clock) {
        clock = static_cast<const Clock*>(known.cell) == known.clock ? core::Ref<Clock>(cell)
                                                                     : core::make_ref<Clock>();
      }
      HandleRef h = graph.new_handle(cell, known.layout, clock);
      h->flag = known.requires_grad;
      h->id = known.handle->id;
      front_.introduce(h->id, h);
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

  Front& front() { return front_; }
  const std::vector<HandleRef>& strangers() const { return strangers_; }
  const std::deque<Instruction>& instructions() const { return instructions_; }
  std::deque<Instruction>& instructions() { return instructions_; }
  std::size_t forward() const { return forward_; }
  const std::vector<std::pair<program::ValueRef, std::string>>& literals() const {
    return literals_;
  }
  const program::ValueRef& original(const Cell* cell) const { return originals_.at(cell); }
  void keep(program::ValueRef value) { kept_.push_back(std::move(value)); }
  // What an instruction of kCall stands for.
  const program::Invocation& call_of(const Instruction& instruction) const {
    return calls_.at(&instruction);
  }

  static core::Number varied(core::Number n) {
    if (n.kind == core::Number::Kind::kInt) n.integer = n.integer * 3 + 7;
    n.real = n.real * 1.25 + 0.375;
    n.imaginary = n.imaginary * 1.5 + 0.25;
    return n;
  }

  // ---- Sink
  program::Interner& interner() override { return interner_; }
  Instruction& instruction(std::uint64_t seq) override {
    Instruction& out = instructions_.emplace_back();
    out.seq = seq;
    return out;
  }
  Status constant(std::uint64_t, program::Constant constant, program::ValueRef value) override {
    if (value->dtype == core::DType::kBool) {
      for (char& byte : constant.bytes) byte = byte != 0;
    }
    literals_.emplace_back(std::move(value), std::move(constant.bytes));
    return {};
  }
  // It stands among the instructions, with its inputs as operands and what it makes as results.
  Status call(std::uint64_t seq, program::Invocation invocation) override {
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
  Status uploaded(std::uint64_t, const program::Uploaded&, program::ValueRef) override {
    return core::internal("an upload inside a trace");
  }
  void fetch(std::uint64_t, bool, Operand) override {}
  std::vector<std::uint64_t> failed_rebinds(std::uint64_t) override { return {}; }
  void raised(std::uint64_t, std::uint64_t, const std::vector<std::uint64_t>&) override {}

 private:
  void vary(program::Apply& apply) const {
    for (program::Argument& argument : apply.arguments) {
      if (varied_.contains(argument.number.argument)) argument.number = varied(argument.number);
    }
  }

  const Tracer& tracer_;
  const std::set<std::uint32_t> varied_;
  program::Interner interner_;
  std::deque<Instruction> instructions_;
  std::map<const Instruction*, program::Invocation> calls_;
  std::vector<std::pair<program::ValueRef, std::string>> literals_;
  std::map<const Cell*, program::ValueRef> originals_;
  std::vector<program::ValueRef> kept_;
  Front front_;
  std::vector<HandleRef> strangers_;
  std::size_t forward_ = 0;
};

// ---------------------------------------------------------------- building programs

namespace {

// Numbers the values of a range of instructions as they come.
class Builder {
 public:
  explicit Builder(std::string name) : program_(std::make_shared<Program>()) {
    program_->name = std::move(name);
  }

  Program& program() { return *program_; }
  std::shared_ptr<const Program> take() { return std::move(program_); }

  ValueId id_of(const program::Value& value) {
    const auto [at, added] =
        ids_.try_emplace(&value, static_cast<ValueId>(program_->values.size()));
    if (added) {
      program_->values.push_back({value.dtype, value.device, value.elements});
      base_.push_back(0);
    }
    return at->second;
  }
  bool has(const program::Value& value) const { return ids_.contains(&value); }
  std::int64_t base_of(ValueId id) const { return base_[id]; }

  // A parameter whose storage begins `base` elements into the value's.
  std::uint32_t parameter(const program::Value& value, const Geometry& geometry, std::int64_t base,
                          std::int64_t elements, std::string name) {
    const ValueId id = id_of(value);
    base_[id] = base;
    program_->values[id].elements = elements;
    program_->body.parameters.push_back(view(value, geometry));
    program_->parameter_names.push_back(std::move(name));
    return static_cast<std::uint32_t>(program_->body.parameters.size() - 1);
  }
  View view(const program::Value& value, const Geometry& geometry) {
    const ValueId id = id_of(value);
    View out{id, geometry};
    out.geometry.offset -= base_[id];
    return out;
  }
  void literal(const program::Value& value, const std::string& bytes) {
    program_->literals.push_back({id_of(value), bytes});
  }

  // `numbers`: a tag's place. Tags that are not there are constants.
  void step(const Instruction& instruction, const std::map<std::uint32_t, std::uint32_t>& numbers,
            std::uint32_t origin) {
    program::Step& step = program_->body.steps.emplace_back();
    step.op = instruction.op;
    step.counts = instruction.counts;
    step.attributes = *instruction.attributes;
    step.origin = origin;
    for (const Operand& operand : instruction.operands) {
      program::StepOperand& out = step.operands.emplace_back();
      out.kind = operand.kind;
      if (operand.kind == Operand::Kind::kTensor)
        out.view = view(*operand.value, *operand.geometry);
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

  // A called program's steps. `begun`: the ordinal that the trace's first random step has.
  void call(const program::Invocation& call, std::uint64_t begun, const ops::Catalog& catalog) {
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

 private:
  std::shared_ptr<Program> program_;
  std::map<const program::Value*, ValueId> ids_;
  std::vector<std::int64_t> base_;
};

// Equal but for the numbers that calls give.
bool same_operand(const Operand& a, const Operand& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == Operand::Kind::kTensor) return *a.geometry == *b.geometry;
  if (a.kind != Operand::Kind::kNumber || a.number == b.number) return true;
  return a.number.argument != 0 && a.number.argument == b.number.argument;
}

Geometry flat(std::int64_t elements) { return Geometry(core::Dims{elements}); }

}  // namespace

core::Result<Traced> Tracer::finish(const std::vector<Handle*>& outputs, std::uint64_t drawn,
                                    const std::function<std::string(std::uint64_t)>& site,
                                    const std::set<HandleId>* only) {
  TT_RETURN_IF_ERROR(refused_);
  Replay replay(*this, {});
  if (Status status = replay.run(); !status.ok()) {
    return Status(status.code(),
                  "this cannot be captured: " + status.message() +
                      " (does backward() reach tensors computed before the captured call?)");
  }
  const ops::Catalog& catalog = graph_.catalog();
  Front& front = replay.front();

  // The values of numbers must not have become anything else than numbers.
  std::map<std::uint32_t, core::Number> values;  // by tag
  for (const Recorded& each : commands_) {
    const auto* apply = std::get_if<program::Apply>(&each.command);
    for (std::size_t i = 0; apply != nullptr && i < apply->arguments.size(); ++i) {
      const program::Argument& argument = apply->arguments[i];
      if (argument.kind == program::Argument::Kind::kNumber && argument.number.argument != 0) {
        values.emplace(argument.number.argument, argument.number);
      }
    }
  }

  Traced out;
  out.grads_matter = grads_matter_;
  // ---- gradients of what comes out
  std::vector<HandleRef> results, roots, seeds, wanted, gradients;
  for (Handle* each : outputs) {
    HandleRef h = front.find(each->id);
    if (!h) return core::internal("trace: an output is unknown");
    results.push_back(h);
  }
  const auto expand = [&](Replay& run, std::vector<HandleRef>& roots_out) -> Status {
    std::vector<HandleRef> from;
    roots_out.clear();
    seeds.clear();
    wanted.clear();
    gradients.clear();
    Front& f = run.front();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      HandleRef h = f.find(outputs[i]->id);
      bool first = true;
      for (std::size_t j = 0; j < i; ++j) first = first && outputs[j] != outputs[i];
      const bool stranger = by_id_.contains(outputs[i]->id);
      if (only != nullptr && !only->contains(outputs[i]->id)) continue;
      if (!first || stranger || !f.graph().requires_grad(*h)) continue;
      roots_out.push_back(h);
      const Layout layout{h->layout.dtype, h->layout.device, Geometry(h->shape())};
      seeds.push_back(f.graph().adopt(
          layout,
          core::make_ref<program::Value>(layout.dtype, layout.device, layout.geometry.numel())));
    }
    for (std::size_t k = 0; k < known_.size(); ++k) {
      if (known_[k].requires_grad) wanted.push_back(run.strangers()[k]);
    }
    if (roots_out.empty() || wanted.empty()) return {};
    // One whose history a backward() inside has used up comes out without.
    for (std::size_t i = roots_out.size(); i-- > 0;) {
      if (f.differentiable(roots_out[i], seeds[i], wanted)) continue;
      roots_out.erase(roots_out.begin() + static_cast<std::ptrdiff_t>(i));
      seeds.erase(seeds.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (roots_out.empty()) return {};
    return f.gradients(roots_out, seeds, wanted, gradients);
  };
  TT_RETURN_IF_ERROR(expand(replay, roots));

  // A second run with other numbers shows where a number's value has gone elsewhere: into an
  // attribute, another number, or another course.
  const auto only_numbers = [&](const std::set<std::uint32_t>& tags) {
    const std::vector<HandleRef> own_seeds = seeds, own_wanted = wanted, own_gradients = gradients;
    Replay other(*this, tags);
    std::vector<HandleRef> others;
    bool same = other.run().ok() && expand(other, others).ok() &&
                other.instructions().size() == replay.instructions().size();
    seeds = own_seeds, wanted = own_wanted, gradients = own_gradients;
    for (std::size_t i = 0; same && i < replay.instructions().size(); ++i) {
      const Instruction& a = replay.instructions()[i];
      const Instruction& b = other.instructions()[i];
      same = a.op == b.op && a.operands.size() == b.operands.size() &&
             a.results.size() == b.results.size() && *a.attributes == *b.attributes;
      for (std::size_t k = 0; same && k < a.operands.size(); ++k) {
        same = same_operand(a.operands[k], b.operands[k]);
        const core::Number& n = a.operands[k].number;
        if (!same || a.operands[k].kind != Operand::Kind::kNumber || !tags.contains(n.argument)) {
          continue;
        }
        // A tag on a number that is not that tag's value is a constant made from it.
        same = n == values.at(n.argument);
      }
    }
    return same;
  };
  std::set<std::uint32_t> tags;
  for (const auto& [tag, number] : values) tags.insert(tag);
  if (!tags.empty() && !only_numbers(tags)) {
    for (const std::uint32_t tag : std::set<std::uint32_t>(tags)) {
      if (only_numbers({tag})) continue;
      out.fixed_tags.push_back(tag);
      values.erase(tag);
    }
  }
  std::map<std::uint32_t, std::uint32_t> numbers;  // tag -> place
  std::vector<core::Number> examples;
  for (const auto& [tag, number] : values) {
    numbers.emplace(tag, static_cast<std::uint32_t>(examples.size()));
    examples.push_back(number);
    examples.back().argument = 0;
    out.tags.push_back(tag);
  }

  // Random instructions: counted from the program's first.
  for (Instruction& instruction : replay.instructions()) {
    if (instruction.op == kCall) {
      const program::Invocation& call = replay.call_of(instruction);
      if (call.program->random_steps > 0 && static_cast<std::uint64_t>(call.seed) != seed_) {
        return invalid("a captured function cannot seed the default generator");
      }
      continue;
    }
    if (!catalog.at(instruction.op).random) continue;
    const core::Attributes& had = *instruction.attributes;
    const std::size_t last = had.size() - 1;
    const std::uint64_t ordinal = static_cast<std::uint64_t>(had.integer(last)) - ordinal_;
    if (static_cast<std::uint64_t>(had.integer(last - 1)) != seed_ || ordinal >= drawn) {
      return invalid(
          "a captured function draws random numbers from the default generator only, and cannot "
          "seed it");
    }
    core::Attributes attributes;
    for (std::size_t i = 0; i + 1 < last; ++i) attributes.push_back(had.at(i));
    attributes.push_back(core::Attribute::of(std::int64_t{0}));
    attributes.push_back(core::Attribute::of(static_cast<std::int64_t>(ordinal)));
    instruction.attributes = replay.interner().attributes(attributes);
  }

  // ---- which strangers are parameters: arguments, and those that something reads or writes
  std::map<const program::Value*, bool> used;
  for (const Instruction& instruction : replay.instructions()) {
    for (const Operand& operand : instruction.operands) {
      if (operand.value) used[operand.value.get()] = true;
    }
  }
  for (const HandleRef& h : results) used[h->cell->value.get()] = true;
  for (const HandleRef& h : gradients) {
    if (h) used[h->cell->value.get()] = true;
  }
  // A leaf whose .grad the program sets.
  const auto new_grad = [&](std::size_t k) -> HandleRef {
    const HandleRef& h = replay.strangers()[k];
    const HandleRef before = known_[k].grad ? front.find(known_[k].grad->id) : HandleRef();
    return h->grad == before ? HandleRef() : h->grad;
  };
  std::vector<std::size_t> order;
  for (std::size_t k = 0; k < known_.size(); ++k) {
    if (known_[k].argument >= 0) order.push_back(k);
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return known_[a].argument < known_[b].argument; });
  for (std::size_t k = 0; k < known_.size(); ++k) {
    const HandleRef& h = replay.strangers()[k];
    const bool read = used.contains(replay.original(known_[k].cell).get());
    const bool written = h->cell->value != replay.original(known_[k].cell);
    if (known_[k].argument < 0 && (read || written || new_grad(k))) order.push_back(k);
  }

  Builder forward("");
  std::map<const Cell*, std::pair<std::int64_t, std::int64_t>> extent;  // of a cell's parameters
  for (const std::size_t k : order) {
    const Geometry& g = known_[k].layout.geometry;
    const auto [at, added] = extent.try_emplace(known_[k].cell, g.offset, g.storage_end());
    at->second.first = std::min(at->second.first, g.offset);
    at->second.second = std::max(at->second.second, g.storage_end());
  }
  std::map<std::size_t, std::uint32_t> input_of;  // known -> parameter
  for (const std::size_t k : order) {
    const Known& known = known_[k];
    const auto [begin, end] = extent.at(known.cell);
    Traced::Input input;
    input.handle = known.handle;
    input.argument = known.argument;
    input.has_grad = known.grad != nullptr;
    input.requires_grad = known.requires_grad;
    input_of[k] = forward.parameter(*replay.original(known.cell), known.layout.geometry, begin,
                                    end - begin, "");
    out.inputs.push_back(std::move(input));
  }
  for (const std::size_t k : order) {
    const auto owner = owner_of_grad_.find(known_[k].handle->id);
    if (known_[k].argument >= 0 || owner == owner_of_grad_.end()) continue;
    const auto leaf = input_of.find(by_id_.at(owner->second));
    if (leaf != input_of.end()) {
      out.inputs[input_of[k]].gradient_of = static_cast<int>(leaf->second);
    }
  }
  for (const auto& [value, bytes] : replay.literals()) forward.literal(*value, bytes);

  Program& program = forward.program();
  std::map<std::string, std::uint32_t> origins;
  const auto origin_of = [&](Program& p, std::uint64_t seq) -> std::uint32_t {
    const std::string text = site(seq);
    if (text.empty()) return 0;
    const auto [at, added] =
        origins.try_emplace(text, static_cast<std::uint32_t>(p.origins.size()));
    if (added) p.origins.push_back(text);
    return at->second;
  };
  for (std::size_t i = 0; i < replay.forward(); ++i) {
    const Instruction& instruction = replay.instructions()[i];
    if (instruction.op == kCall) {
      forward.call(replay.call_of(instruction), ordinal_, catalog);
    } else {
      forward.step(instruction, numbers, origin_of(program, instruction.seq));
    }
  }
  program.numbers = examples;
  program.random_steps = drawn;

  // ---- rebinds
  std::map<const Cell*, std::uint32_t> parameter_of_cell;
  for (const std::size_t k : order) {
    parameter_of_cell.try_emplace(replay.strangers()[k]->cell.get(), input_of[k]);
  }
  std::map<const Cell*, bool> rebound;
  for (const std::size_t k : order) {
    const HandleRef& h = replay.strangers()[k];
    if (h->node != nullptr) {
      return invalid(
          "a captured function cannot write a tensor from outside in place while gradients are "
          "recorded; do it under no_grad(), or return a new tensor");
    }
    if (h->cell->value == replay.original(known_[k].cell) || rebound[h->cell.get()]) continue;
    rebound[h->cell.get()] = true;
    if (known_[k].layout.geometry.overlaps_itself()) {
      return invalid("a captured function cannot write an expanded tensor from outside");
    }
    program.rebinds.push_back(
        {parameter_of_cell.at(h->cell.get()), forward.id_of(*h->cell->value)});
  }

  // ---- results
  std::map<const Handle*, std::uint32_t> result_of;
  std::map<const Cell*, std::uint32_t> result_of_cell;
  const auto add_result = [&](const HandleRef& h) -> std::uint32_t {
    const auto found = result_of.find(h.get());
    if (found != result_of.end()) return found->second;
    const auto index = static_cast<std::uint32_t>(program.body.results.size());
    result_of[h.get()] = index;
    program.body.results.push_back(forward.view(*h->cell->value, h->geometry()));
    const auto shared = parameter_of_cell.find(h->cell.get());
    if (shared != parameter_of_cell.end()) {
      program.aliases.push_back({index, true, shared->second});
    } else {
      const auto [at, added] = result_of_cell.try_emplace(h->cell.get(), index);
      if (!added) program.aliases.push_back({index, false, at->second});
    }
    return index;
  };
  for (std::size_t i = 0; i < results.size(); ++i) {
    TracedOutput& output = out.outputs.emplace_back();
    const auto stranger = by_id_.find(outputs[i]->id);
    output.requires_grad = std::find(roots.begin(), roots.end(), results[i]) != roots.end();
    if (stranger != by_id_.end()) {
      output.is_input = true;
      if (!input_of.contains(stranger->second)) {
        return core::internal("trace: an output from outside is no parameter");
      }
      output.index = input_of.at(stranger->second);
    } else {
      output.index = add_result(results[i]);
    }
  }
  for (const std::size_t k : order) {
    const HandleRef grad = new_grad(k);
    // Gone afterwards and there before: the next call finds none, and is another program.
    if (!grad) continue;
    if (known_[k].has_history) {
      return invalid(
          "backward() in a captured function reaches a tensor that was computed before it; call "
          "backward() outside, or capture that computation as well");
    }
    if (by_id_.contains(grad->id)) {
      return invalid("a captured function cannot make a tensor from outside another one's .grad");
    }
    program.gradients.push_back({input_of[k], add_result(grad)});
  }

  // ---- the backward of the outputs
  if (!roots.empty() && !wanted.empty()) {
    Builder backward("");
    Program& p = backward.program();
    origins.clear();
    std::map<const program::Value*, bool> made;
    std::vector<const Instruction*> steps;
    for (std::size_t i = replay.forward(); i < replay.instructions().size(); ++i) {
      steps.push_back(&replay.instructions()[i]);
    }
    std::map<const program::Value*, bool> seed_values;
    for (const HandleRef& seed : seeds) seed_values[seed->cell->value.get()] = true;
    const auto read = [&](const program::Value* value) {
      if (value == nullptr || made.contains(value) || seed_values.contains(value) ||
          backward.has(*value)) {
        return;
      }
      // From the forward: an input that nobody has written, or one more result.
      Traced::Saved saved;
      for (const std::size_t k : order) {
        if (replay.original(known_[k].cell).get() == value &&
            !rebound[replay.strangers()[k]->cell.get()]) {
          saved = {true, input_of[k]};
          const auto [begin, end] = extent.at(known_[k].cell);
          backward.parameter(*value, known_[k].layout.geometry, begin, end - begin, "");
          out.saved.push_back(saved);
          return;
        }
      }
      const ValueId id = forward.id_of(*value);
      const std::int64_t elements = program.values[id].elements;
      const std::int64_t base = forward.base_of(id);
      saved = {false, static_cast<std::uint32_t>(program.body.results.size())};
      program.body.results.push_back({id, flat(elements)});
      backward.parameter(*value, Geometry(core::Dims{elements}, core::Dims{1}, base), base,
                         elements, "");
      out.saved.push_back(saved);
    };
    for (const Instruction* step : steps) {
      for (const Operand& operand : step->operands) read(operand.value.get());
      for (const program::ResultSlot& slot : step->results) made[slot.value.get()] = true;
    }
    for (const HandleRef& h : gradients) {
      if (h) read(h->cell->value.get());
    }
    for (std::size_t i = 0; i < roots.size(); ++i) {
      backward.parameter(*seeds[i]->cell->value, seeds[i]->geometry(), 0,
                         seeds[i]->geometry().numel(), "");
      for (std::size_t o = 0; o < results.size(); ++o) {
        if (results[o] == roots[i]) {
          out.differentiated.push_back(static_cast<std::uint32_t>(o));
          break;
        }
      }
    }
    for (const Instruction* step : steps) {
      if (step->op == kCall) return core::internal("trace: a call of a backward");
      backward.step(*step, numbers, origin_of(p, step->seq));
    }
    std::size_t w = 0;
    for (std::size_t k = 0; k < known_.size(); ++k) {
      if (!known_[k].requires_grad) continue;
      const HandleRef& gradient = gradients[w++];
      if (!gradient) continue;
      out.wanted.push_back(input_of.at(k));
      p.body.results.push_back(backward.view(*gradient->cell->value, gradient->geometry()));
    }
    p.numbers = examples;
    TT_RETURN_IF_ERROR(ops::verify(p, catalog));
    out.backward = backward.take();
  }
  TT_RETURN_IF_ERROR(ops::verify(program, catalog));
  out.program = forward.take();
  return out;
}

}  // namespace teletensor::autograd
