#include "engine/runtime/program_run.h"

#include <algorithm>
#include <utility>

namespace teletensor::runtime {

using core::Geometry;
using core::Status;
using program::Block;
using program::Instruction;
using program::Invocation;
using program::Operand;
using program::Step;
using program::StepOperand;
using program::StepResult;
using program::ValueId;
using program::ValueRef;

// ---------------------------------------------------------------- what dies where

namespace {

class Scan {
 public:
  Scan(const program::Program& program, std::unordered_map<const Block*, Prepared::Facts>& facts)
      : program_(program),
        facts_(facts),
        made_in_(program.values.size(), nullptr),
        last_(program.values.size(), 0) {}

  void run() {
    for (const program::Literal& literal : program_.literals) {
      made_in_[literal.value] = &program_.body;
    }
    block(program_.body);
  }

 private:
  void block(const Block& b) {
    Prepared::Facts& facts = facts_[&b];
    facts.dying.resize(b.steps.size());
    std::vector<ValueId> own;
    const auto make = [&](ValueId v, std::size_t at) {
      if (made_in_[v] == nullptr) {
        made_in_[v] = &b;
        own.push_back(v);
      }
      last_[v] = at;
    };
    for (const program::View& p : b.parameters) make(p.value, 0);
    if (&b == &program_.body) {
      for (const program::Literal& literal : program_.literals) own.push_back(literal.value);
    }
    for (std::size_t i = 0; i < b.steps.size(); ++i) {
      reads(b, b.steps[i], i);
      for (const StepResult& result : b.steps[i].results) make(result.view.value, i);
    }
    const std::size_t end = b.steps.size();
    for (const program::View& r : b.results) {
      if (made_in_[r.value] == &b && last_[r.value] != end) facts.results.push_back(r.value);
      last_[r.value] = end;
    }
    if (&b == &program_.body) {
      for (const program::Rebind& rebind : program_.rebinds) last_[rebind.value] = end;
    }
    for (const ValueId v : own) {
      if (last_[v] < end) facts.dying[last_[v]].push_back(v);
    }
  }
  // What step i of `b` reads of b's own, in inner blocks too.
  void reads(const Block& b, const Step& step, std::size_t i) {
    for (const StepOperand& operand : step.operands) {
      if (operand.kind == Operand::Kind::kTensor) read(b, operand.view.value, i);
    }
    for (const Block& inner : step.blocks) {
      if (!facts_.contains(&inner)) block(inner);
      for (const Step& each : inner.steps) reads(b, each, i);
      for (const program::View& r : inner.results) read(b, r.value, i);
    }
  }
  void read(const Block& b, ValueId v, std::size_t i) {
    if (made_in_[v] == &b) last_[v] = i;
  }

  const program::Program& program_;
  std::unordered_map<const Block*, Prepared::Facts>& facts_;
  std::vector<const Block*> made_in_;
  std::vector<std::size_t> last_;
};

}  // namespace

Prepared::Prepared(std::shared_ptr<const program::Program> program) : program_(std::move(program)) {
  Scan(*program_, facts_).run();
}

// ---------------------------------------------------------------- rounds

ProgramRun::ProgramRun(std::shared_ptr<const Prepared> prepared, Invocation invocation,
                       std::uint64_t seq)
    : prepared_(std::move(prepared)),
      program_(prepared_->program()),
      call_(std::move(invocation)),
      seq_(seq),
      rounds_(std::max<std::uint32_t>(call_.times, 1)) {}

bool ProgramRun::cancel(const FailureRef& failure) {
  if (cancelled_) return false;
  cancelled_ = failure;
  rounds_ = round_ + 1;
  return true;
}

bool ProgramRun::run(Executor& executor, const std::function<bool()>& stop, const Failed& failed) {
  if (!begun_) begin(executor, failed);
  while (true) {
    while (!frames_.empty()) {
      if (stop()) return false;
      step(executor, failed);
    }
    end_round(executor, failed);
    if (++round_ >= rounds_) break;
    begin_round();
  }
  finish();
  return true;
}

void ProgramRun::begin(Executor& executor, const Failed& failed) {
  begun_ = true;
  registers_.resize(program_.values.size());
  displacement_.resize(program_.values.size());
  outcome_of_.assign(program_.values.size(), -1);
  for (std::size_t i = 0; i < call_.outcomes.size(); ++i) {
    const Invocation::Outcome& outcome = call_.outcomes[i];
    if (outcome.result == Invocation::kWhole) {
      outcome_of_[outcome.value] = static_cast<std::int32_t>(i);
    }
  }
  stacked_.resize(call_.outcomes.size());
  carried_.resize(program_.rebinds.size());
  for (const program::Literal& literal : program_.literals) {
    const ValueRef& value = literals_.emplace_back(new_value(literal.value, -1));
    std::string bytes = literal.bytes;
    if (value->dtype == core::DType::kBool) {
      for (char& byte : bytes) byte = byte != 0;
    }
    if (const FailureRef failure = executor.bind(*value, bytes, nullptr, seq_)) {
      Instruction none;
      none.seq = seq_;
      failed(none, failure, true);
    }
  }
  begin_round();
}

void ProgramRun::begin_round() {
  const auto& parameters = program_.body.parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Operand& input = call_.inputs[i];
    std::int64_t offset = input.geometry->offset;
    if (std::binary_search(call_.sliced.begin(), call_.sliced.end(),
                           static_cast<std::uint32_t>(i))) {
      offset += round_ % input.geometry->shape[0] * input.geometry->strides[0];
    }
    const ValueId v = parameters[i].value;
    displacement_[v] = offset - parameters[i].geometry.offset;
    if (input.value) registers_[v] = input.value;
    // In the last round nobody needs it any more: what overwrites it may do so in place.
    if (round_ + 1 >= rounds_) input.value = nullptr;
  }
  for (std::size_t i = 0; i < program_.rebinds.size(); ++i) {
    const ValueId v = parameters[program_.rebinds[i].parameter].value;
    if (carried_[i]) registers_[v] = std::exchange(carried_[i], nullptr);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      if (parameters[p].value == v) call_.inputs[p].value = nullptr;
    }
  }
  for (std::size_t i = 0; i < program_.literals.size(); ++i) {
    registers_[program_.literals[i].value] = literals_[i];
  }
  enter(program_.body, nullptr, false);
}

void ProgramRun::end_round(Executor& executor, const Failed& failed) {
  for (std::size_t i = 0; i < call_.outcomes.size(); ++i) {
    if (call_.outcomes[i].result != Invocation::kWhole) stack(executor, failed, i);
  }
  if (round_ + 1 >= rounds_) return;
  for (std::size_t i = 0; i < program_.rebinds.size(); ++i) {
    carried_[i] = registers_[program_.rebinds[i].value];
  }
  std::fill(registers_.begin(), registers_.end(), nullptr);
}

// This round's result becomes its part of what holds those of all rounds.
void ProgramRun::stack(Executor& executor, const Failed& failed, std::size_t index) {
  const Invocation::Outcome& outcome = call_.outcomes[index];
  const program::View& view = program_.body.results[outcome.result];
  const program::ValueType& type = program_.values[view.value];
  const std::int64_t each = view.geometry.numel();
  static const ops::OpRef full("full"), copy("copy");
  if (round_ == 0) {
    instruction_ = {};
    instruction_.seq = seq_;
    instruction_.op = full;
    Operand& zero = instruction_.operands.emplace_back();
    zero.kind = Operand::Kind::kNumber;
    core::Dims shape{call_.times};
    for (const std::int64_t size : view.geometry.shape) shape.push_back(size);
    attributes_ = {core::Attribute::of(shape), core::Attribute::of(type.dtype),
                   core::Attribute::of(type.device)};
    instruction_.attributes = &attributes_;
    stacked_[index] =
        core::make_ref<program::Value>(type.dtype, type.device, outcome.becomes->elements);
    program::ResultSlot& slot = instruction_.results.emplace_back();
    slot.value = stacked_[index];
    slot.geometry = &placed_.emplace_back(shape);
    execute(executor, failed);
  }
  instruction_ = {};
  instruction_.seq = seq_;
  instruction_.op = copy;
  attributes_ = {};
  instruction_.attributes = &attributes_;
  Operand& whole = instruction_.operands.emplace_back();
  whole.kind = Operand::Kind::kTensor;
  whole.value = std::move(stacked_[index]);
  whole.dtype = type.dtype;
  Geometry& part = placed_.emplace_back(view.geometry.shape);
  part.offset = each * round_;
  whole.geometry = &part;
  instruction_.operands.push_back(operand_of(view));
  program::ResultSlot& slot = instruction_.results.emplace_back();
  slot.value = round_ + 1 >= rounds_ ? outcome.becomes
                                     : core::make_ref<program::Value>(type.dtype, type.device,
                                                                      outcome.becomes->elements);
  slot.geometry = instruction_.operands[0].geometry;
  slot.overwrites = 0;
  const ValueRef made = slot.value;
  execute(executor, failed);
  stacked_[index] = made;
}

// Outcomes that no step has made: of literals, of control flow, of several names for one value.
void ProgramRun::finish() {
  for (Invocation::Outcome& outcome : call_.outcomes) {
    program::Value& becomes = *outcome.becomes;
    if (outcome.result != Invocation::kWhole || becomes.contents || becomes.failure) continue;
    const ValueRef& value = registers_[outcome.value];
    becomes.contents = value->contents;
    becomes.failure = value->failure;
    becomes.good = value->good;
  }
  registers_.clear();
}

// ---------------------------------------------------------------- steps

ValueRef ProgramRun::new_value(ValueId id, std::int64_t elements) const {
  const program::ValueType& type = program_.values[id];
  return core::make_ref<program::Value>(type.dtype, type.device,
                                        elements < 0 ? type.elements : elements);
}

const Geometry* ProgramRun::placed(const Geometry& geometry, ValueId value) {
  if (displacement_[value] == 0) return &geometry;
  Geometry& out = placed_.emplace_back(geometry);
  out.offset += displacement_[value];
  return &out;
}

Operand ProgramRun::operand_of(const program::View& view) {
  Operand operand;
  operand.kind = Operand::Kind::kTensor;
  operand.value = registers_[view.value];
  operand.dtype = program_.values[view.value].dtype;
  operand.geometry = placed(view.geometry, view.value);
  return operand;
}

void ProgramRun::enter(const Block& block, const Step* owner, bool condition) {
  if (owner != nullptr && owner->kind == Step::Kind::kWhile && condition) {
    // The values of this round of the loop stand in the condition's parameters; the body has its
    // own numbers for them.
    const Block& body = owner->blocks[1];
    for (std::size_t i = 0; i < block.parameters.size(); ++i) {
      const ValueId from = block.parameters[i].value, to = body.parameters[i].value;
      registers_[to] = registers_[from];
      displacement_[to] = displacement_[from];
    }
  }
  frames_.push_back({&block, owner, condition, &prepared_->facts(block)});
}

void ProgramRun::end_step() {
  Frame& frame = frames_.back();
  for (const ValueId v : frame.facts->dying[frame.next]) registers_[v] = nullptr;
  ++frame.next;
}

void ProgramRun::step(Executor& executor, const Failed& failed) {
  Frame& frame = frames_.back();
  if (frame.next == frame.block->steps.size()) return leave(executor, failed);
  const Step& step = frame.block->steps[frame.next];
  switch (step.kind) {
    case Step::Kind::kOp:
      return run_op(executor, failed, step);
    case Step::Kind::kIf: {
      bool yes = false;
      if (const FailureRef failure = condition(executor, step.operands[0].view, &yes, failed)) {
        poison(step, failure);
        return end_step();
      }
      return enter(step.blocks[yes ? 0 : 1], &step, false);
    }
    case Step::Kind::kWhile: {
      const Block& head = step.blocks[0];
      for (std::size_t i = 0; i < head.parameters.size(); ++i) {
        const ValueId from = step.operands[i].view.value, to = head.parameters[i].value;
        registers_[to] = registers_[from];
        displacement_[to] = displacement_[from];
      }
      return enter(head, &step, true);
    }
  }
}

// A block has come to its end.
void ProgramRun::leave(Executor& executor, const Failed& failed) {
  const Frame frame = frames_.back();
  if (frame.owner == nullptr) {
    frames_.pop_back();
    return;
  }
  const Step& owner = *frame.owner;
  const bool loops = owner.kind == Step::Kind::kWhile;
  if (frame.condition) {
    bool yes = false;
    const FailureRef failure = condition(executor, frame.block->results[0], &yes, failed);
    for (const ValueId v : frame.facts->results) registers_[v] = nullptr;
    frames_.pop_back();
    if (yes && !failure) return enter(owner.blocks[1], &owner, false);
    const Block& body = owner.blocks[1];
    for (std::size_t i = 0; i < owner.results.size(); ++i) {
      const ValueId from = body.parameters[i].value, to = owner.results[i].view.value;
      registers_[to] = std::exchange(registers_[from], nullptr);
      displacement_[to] = displacement_[from];
    }
    for (const program::View& p : frame.block->parameters) registers_[p.value] = nullptr;
    if (failure) poison(owner, failure);
    return end_step();
  }
  std::vector<std::pair<ValueRef, std::int64_t>> results;
  for (const program::View& r : frame.block->results) {
    results.emplace_back(registers_[r.value], displacement_[r.value]);
  }
  for (const ValueId v : frame.facts->results) registers_[v] = nullptr;
  for (const program::View& p : frame.block->parameters) registers_[p.value] = nullptr;
  frames_.pop_back();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const ValueId to = loops ? owner.blocks[0].parameters[i].value : owner.results[i].view.value;
    registers_[to] = std::move(results[i].first);
    displacement_[to] = results[i].second;
  }
  if (loops) return enter(owner.blocks[0], &owner, true);
  end_step();
}

void ProgramRun::poison(const Step& step, const FailureRef& failure) {
  for (const StepResult& result : step.results) {
    ValueRef value = new_value(result.view.value, -1);
    value->failure = failure;
    registers_[result.view.value] = std::move(value);
    displacement_[result.view.value] = 0;
  }
}

FailureRef ProgramRun::condition(Executor& executor, const program::View& view, bool* value,
                                 const Failed& failed) {
  if (cancelled_) return cancelled_;
  const Operand operand = operand_of(view);
  if (operand.value->failure) return operand.value->failure;
  Executor::RowMajor contents;
  Status status = executor.row_major(operand, seq_, &contents);
  if (status.ok()) {
    char byte = 0;
    Devices& devices = executor.devices();
    status = devices.at(static_cast<std::size_t>(devices.find(operand.value->device)))
                 .backend()
                 .copy_out(&byte,
                           static_cast<const char*>(contents.storage->data()) + contents.offset, 1);
    *value = byte != 0;
  }
  if (status.ok()) return nullptr;
  auto failure =
      std::make_shared<const program::Failure>(program::Failure{seq_, std::move(status)});
  Instruction none;
  none.seq = seq_;
  failed(none, failure, true);
  return failure;
}

void ProgramRun::run_op(Executor& executor, const Failed& failed, const Step& step) {
  const ops::OpDef& def = executor.catalog().at(step.op);
  instruction_ = {};
  instruction_.op = step.op;
  instruction_.seq = seq_;
  instruction_.counts = step.counts;
  instruction_.attributes = &step.attributes;
  if (def.random) {
    const std::size_t last = step.attributes.size() - 1;
    attributes_ = {};
    for (std::size_t i = 0; i + 1 < last; ++i) attributes_.push_back(step.attributes.at(i));
    const auto drawn = static_cast<std::uint64_t>(call_.ordinal) +
                       program_.random_steps * static_cast<std::uint64_t>(round_) +
                       static_cast<std::uint64_t>(step.attributes.integer(last));
    attributes_.push_back(core::Attribute::of(call_.seed));
    attributes_.push_back(core::Attribute::of(static_cast<std::int64_t>(drawn)));
    instruction_.attributes = &attributes_;
  }
  for (const StepOperand& operand : step.operands) {
    if (operand.kind == Operand::Kind::kTensor) {
      instruction_.operands.push_back(operand_of(operand.view));
      continue;
    }
    Operand& other = instruction_.operands.emplace_back();
    other.kind = operand.kind;
    other.number = operand.number;
    if (operand.kind == Operand::Kind::kNumber && operand.number.argument != 0) {
      other.number = call_.numbers[round_ * program_.numbers.size() + operand.number.argument - 1];
    }
  }
  for (const StepResult& result : step.results) {
    const ValueId v = result.view.value;
    std::int64_t elements = -1;
    displacement_[v] = 0;
    if (result.overwrites >= 0) {
      const auto o = static_cast<std::size_t>(result.overwrites);
      elements = instruction_.operands[o].value->elements;
      displacement_[v] = displacement_[step.operands[o].view.value];
    }
    program::ResultSlot& slot = instruction_.results.emplace_back();
    const std::int32_t outcome = outcome_of_[v];
    slot.value = outcome >= 0 && round_ + 1 >= rounds_
                     ? call_.outcomes[static_cast<std::size_t>(outcome)].becomes
                     : new_value(v, elements);
    slot.geometry = placed(result.view.geometry, v);
    slot.overwrites = result.overwrites;
  }
  // Made values are kept; what dies here may be overwritten in place.
  std::vector<ValueRef> made;
  for (const program::ResultSlot& slot : instruction_.results) made.push_back(slot.value);
  Frame& frame = frames_.back();
  for (const ValueId v : frame.facts->dying[frame.next]) registers_[v] = nullptr;
  executor.set_origin(step.origin == 0 ? nullptr : &program_.origins[step.origin]);
  execute(executor, failed);
  executor.set_origin(nullptr);
  for (std::size_t i = 0; i < made.size(); ++i) {
    registers_[step.results[i].view.value] = std::move(made[i]);
  }
  end_step();  // also what this step makes for nobody
}

void ProgramRun::execute(Executor& executor, const Failed& failed) {
  if (cancelled_) {
    executor.fail(instruction_, cancelled_);
    failed(instruction_, cancelled_, false);
  } else {
    bool root = false;
    if (const FailureRef failure = executor.run(instruction_, &root)) {
      failed(instruction_, failure, root);
    }
  }
  instruction_ = {};
  placed_.clear();
}

}  // namespace teletensor::runtime
