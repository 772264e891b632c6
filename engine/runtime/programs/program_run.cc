#include "engine/runtime/programs/program_run.h"

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

// ---------------------------------------------------------------- rounds

ProgramRun::ProgramRun(std::shared_ptr<const Prepared> prepared, Invocation invocation,
                       std::uint64_t seq)
    : prepared_(std::move(prepared)),
      program_(prepared_->program()),
      call_(std::move(invocation)),
      seq_(seq) {
  rounds_.count = std::max<std::uint32_t>(call_.times, 1);
}

bool ProgramRun::cancel(const FailureRef& failure) {
  if (cancelled_) return false;
  cancelled_ = failure;
  if (!unit_.filled) {  // drop the instructions of a unit that was not completely filled
    for (Instruction& instruction : unit_.instructions) clear(instruction);
    unit_.placed.clear();
  }
  if (ended_) return true;
  leaves_out_ = rounds_.now + 1 < rounds_.count;
  rounds_.count = rounds_.now + 1;
  return true;
}

bool ProgramRun::run(Executor& executor, PlanStats& stats, Caller& caller) {
  stats_ = &stats;
  waits_ = false;
  executor.gather(true);
  const bool over = go_on(executor, caller);
  // If only the time slice is over, the run continues soon, so the work stays gathered.
  if (over || halted(executor)) executor.gather(false);
  return over;
}

bool ProgramRun::go_on(Executor& executor, Caller& caller) {
  if (!begun_ && !begin(executor, caller)) return false;
  while (!ended_) {
    while (!frames_.empty()) {
      if (caller.stop()) return false;
      step(executor, caller);
      if (halted(executor)) [[unlikely]]
        return false;
    }
    if (!end_round(executor, caller)) return false;
    ended_ = ++rounds_.now >= rounds_.count;
    if (!ended_) begin_round();
  }
  return finish(caller);
}

void ProgramRun::lay_out() {
  if (laid_out_) return;
  registers_.resize(program_.values.size());
  displacement_.resize(program_.values.size());
  outcome_of_.assign(program_.values.size(), -1);
  rebound_.resize(program_.values.size());
  for (std::size_t i = 0; i < call_.outcomes.size(); ++i) {
    const Invocation::Outcome& outcome = call_.outcomes[i];
    if (outcome.result == Invocation::kWhole) {
      outcome_of_[outcome.value] = static_cast<std::int32_t>(i);
    }
  }
  rounds_.stacked.resize(call_.outcomes.size());
  rounds_.carried.resize(program_.rebinds.size());
  laid_out_ = true;  // A call that ran out of memory above is laid out again.
}

bool ProgramRun::begin(Executor& executor, Caller& caller) {
  lay_out();
  while (literals_.size() < program_.literals.size()) {
    const program::Literal& literal = program_.literals[literals_.size()];
    const ValueRef value = new_value(literal.value, -1);
    std::string bytes = literal.bytes;
    if (value->dtype == core::DType::kBool) {
      for (char& byte : bytes) byte = byte != 0;
    }
    const FailureRef failure = executor.bind(*value, bytes, nullptr, seq_);
    if (halted(executor)) return false;
    literals_.push_back(value);
    if (failure) {
      Instruction none;
      none.seq = seq_;
      caller.failed(none, failure, true);
    }
  }
  begin_round();
  begun_ = true;
  return true;
}

void ProgramRun::begin_round() {
  const auto& parameters = program_.body.parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Operand& input = call_.inputs[i];
    std::int64_t offset = input.geometry->offset;
    if (std::binary_search(call_.sliced.begin(), call_.sliced.end(),
                           static_cast<std::uint32_t>(i))) {
      offset += rounds_.now % input.geometry->shape[0] * input.geometry->strides[0];
    }
    const ValueId v = parameters[i].value;
    displacement_[v] = offset - parameters[i].geometry.offset;
    if (input.value) registers_[v] = input.value;
    // The last round no longer needs the input, so that it may be overwritten in place.
    if (rounds_.now + 1 >= rounds_.count) input.value = nullptr;
  }
  for (std::size_t i = 0; i < program_.rebinds.size(); ++i) {
    const ValueId v = parameters[program_.rebinds[i].parameter].value;
    rebound_[v] = true;
    if (rounds_.carried[i]) registers_[v] = std::exchange(rounds_.carried[i], nullptr);
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (rebound_[parameters[p].value]) call_.inputs[p].value = nullptr;
  }
  for (std::size_t i = 0; i < program_.literals.size(); ++i) {
    registers_[program_.literals[i].value] = literals_[i];
  }
  enter(program_.body, nullptr, false);
}

bool ProgramRun::end_round(Executor& executor, Caller& caller) {
  for (; rounds_.stacked_upto < call_.outcomes.size(); ++rounds_.stacked_upto) {
    if (call_.outcomes[rounds_.stacked_upto].result == Invocation::kWhole) continue;
    if (!stack(executor, caller, rounds_.stacked_upto)) return false;
  }
  rounds_.stacked_upto = 0;
  if (rounds_.now + 1 >= rounds_.count) return true;
  for (std::size_t i = 0; i < program_.rebinds.size(); ++i) {
    rounds_.carried[i] = registers_[program_.rebinds[i].value];
  }
  std::fill(registers_.begin(), registers_.end(), nullptr);
  return true;
}

// Sets the outcomes that no step has made: of literals, of control flow, and of several names for
// one value.
bool ProgramRun::finish(Caller& caller) {
  for (Invocation::Outcome& outcome : call_.outcomes) {
    program::Value& becomes = *outcome.becomes;
    if (outcome.result != Invocation::kWhole || becomes.contents || becomes.failure) continue;
    Operand source;
    source.kind = Operand::Kind::kTensor;
    source.value = registers_[outcome.value];
    const program::Value& value = *source.value;
    if (&value == &becomes) continue;  // made by an open collective
    if (!value.contents && !value.failure && !ready(caller, {&source, 1})) return false;
    becomes.contents = value.contents;
    becomes.failure = value.failure;
    becomes.good = value.good;
  }
  registers_.clear();
  return true;
}

std::unique_ptr<ProgramRun::Left> ProgramRun::left() const {
  auto left = std::make_unique<Left>();
  left->run.reset(new ProgramRun(*this));
  return left->run->take_left(*left) ? std::move(left) : nullptr;
}

// Fills the instructions of all units that have not run, without running them.
bool ProgramRun::take_left(Left& left) {
  if (cancelled_ || ended_ || rounds_.now + 1 < rounds_.count) return false;
  if (!begun_) {
    if (!program_.literals.empty()) return false;
    lay_out();
    begin_round();
  }
  if (frames_.size() != 1 || frames_.front().owner != nullptr) return false;
  Frame& frame = frames_.front();
  const auto& units = frame.facts->units;
  if (unit_.filled) {
    for (std::size_t i = unit_.ran; i < units[frame.next].steps.size(); ++i) {
      left.instructions.push_back(std::make_unique<Instruction>(unit_.instructions[i]));
    }
    ++frame.next;
  }
  for (; frame.next < units.size(); ++frame.next) {
    for (const std::uint32_t at : units[frame.next].steps) {
      const Step& step = frame.block->steps[at];
      if (step.kind != Step::Kind::kOp) return false;
      Instruction& made = *left.instructions.emplace_back(std::make_unique<Instruction>());
      fill(made, step, frame.facts->steps[at]);
      made.attributes = &left.attributes.emplace_back(*made.attributes);
    }
  }
  for (const Invocation::Outcome& outcome : call_.outcomes) {
    if (outcome.result != Invocation::kWhole) return false;
    const ValueRef& value = registers_[outcome.value];
    if (value == outcome.becomes || outcome.becomes->contents || outcome.becomes->failure) continue;
    if (!value || !value->contents || value->failure) return false;
    left.same.emplace_back(outcome.becomes, value);
  }
  return true;
}

// ---------------------------------------------------------------- steps

ValueRef ProgramRun::new_value(ValueId id, std::int64_t elements) const {
  const program::ValueType& type = program_.values[id];
  return core::make_ref<program::Value>(type.dtype, type.device,
                                        elements < 0 ? type.elements : elements);
}

const Geometry* ProgramRun::placed(const Geometry* geometry, ValueId value) {
  if (displacement_[value] == 0) return geometry;
  Geometry& out = unit_.placed.emplace_back(*geometry);
  out.offset += displacement_[value];
  return &out;
}

Operand ProgramRun::operand_of(const program::View& view) {
  Operand operand;
  operand.kind = Operand::Kind::kTensor;
  operand.value = registers_[view.value];
  operand.dtype = program_.values[view.value].dtype;
  operand.geometry = placed(&view.geometry, view.value);
  return operand;
}

void ProgramRun::enter(const Block& block, const Step* owner, bool condition) {
  if (owner != nullptr && owner->kind == Step::Kind::kWhile && condition) {
    // The loop's current values are in the parameters of the condition; the body has its own
    // numbers for them.
    const Block& body = owner->blocks[1];
    for (std::size_t i = 0; i < block.parameters.size(); ++i) {
      const ValueId from = block.parameters[i].value, to = body.parameters[i].value;
      registers_[to] = registers_[from];
      displacement_[to] = displacement_[from];
    }
  }
  frames_.push_back({&block, owner, condition, &prepared_->facts(block)});
}

void ProgramRun::end_unit() {
  Frame& frame = frames_.back();
  for (const ValueId v : frame.facts->dying[frame.next]) registers_[v] = nullptr;
  ++frame.next;
}

void ProgramRun::step(Executor& executor, Caller& caller) {
  Frame& frame = frames_.back();
  if (frame.next == frame.facts->units.size()) return leave(executor, caller);
  const passes::Unit& unit = frame.facts->units[frame.next];
  const Step& step = frame.block->steps[unit.steps[0]];
  switch (step.kind) {
    case Step::Kind::kOp:
      return run_unit(executor, caller, unit);
    case Step::Kind::kIf: {
      bool yes = false;
      const FailureRef failure = condition(executor, step.operands[0].view, &yes, caller);
      if (halted(executor)) return;
      if (failure) {
        poison(step, failure);
        return end_unit();
      }
      return enter(step.blocks[yes ? 0 : 1], &step, false);
    }
    case Step::Kind::kPast:
      return past(executor, caller, step);
    case Step::Kind::kWhile: {
      if (!begin_records(executor, caller, step)) return;
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

// Ends a block.
void ProgramRun::leave(Executor& executor, Caller& caller) {
  const Frame frame = frames_.back();
  if (frame.owner == nullptr) {
    frames_.pop_back();
    return;
  }
  const Step& owner = *frame.owner;
  const bool loops = owner.kind == Step::Kind::kWhile;
  if (frame.condition) {
    bool yes = false;
    FailureRef failure = condition(executor, frame.block->results[0], &yes, caller);
    if (halted(executor)) return;
    if (yes && !failure) failure = record(executor, caller, owner);
    if (halted(executor)) return;
    const bool over = !yes || failure;
    if (over && !end_records(executor, caller, owner)) return;
    for (const ValueId v : frame.facts->results) registers_[v] = nullptr;
    frames_.pop_back();
    if (!over) return enter(owner.blocks[1], &owner, false);
    const Block& body = owner.blocks[1];
    for (std::size_t i = 0; i < owner.operands.size(); ++i) {
      const ValueId from = body.parameters[i].value, to = owner.results[i].view.value;
      registers_[to] = std::exchange(registers_[from], nullptr);
      displacement_[to] = displacement_[from];
    }
    for (const program::View& p : frame.block->parameters) registers_[p.value] = nullptr;
    if (failure) poison(owner, failure);
    return end_unit();
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
  end_unit();
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
                                 Caller& caller) {
  char byte = 0;
  FailureRef failure = scalar(executor, view, &byte, sizeof byte, caller);
  *value = byte != 0;
  return failure;
}

FailureRef ProgramRun::scalar(Executor& executor, const program::View& view, void* to,
                              std::size_t bytes, Caller& caller) {
  if (cancelled_) return cancelled_;
  const Operand operand = operand_of(view);
  if (executor.memory().has_open() && !ready(caller, {&operand, 1})) return nullptr;
  if (operand.value->failure) return operand.value->failure;
  RowMajor contents;
  Status status = executor.row_major(operand, seq_, &contents);
  if (status.ok()) {
    Devices& devices = executor.devices();
    status = devices.at(static_cast<std::size_t>(devices.find(contents.storage->device())))
                 .backend()
                 .copy_out(to, static_cast<const char*>(contents.storage->data()) + contents.offset,
                           bytes);
  }
  if (status.ok() || halted(executor)) return nullptr;
  auto failure = executor.failures().make(seq_, std::move(status));
  Instruction none;
  none.seq = seq_;
  caller.failed(none, failure, true);
  return failure;
}

// From here on, the registers of the results refer to their new values.
void ProgramRun::fill(Instruction& out, const Step& step, const Prepared::StepFacts& facts) {
  out.op = step.op;
  out.seq = seq_;
  for (const std::uint32_t count : step.counts) out.counts.push_back(count);
  out.attributes = &step.attributes;
  if (facts.random) {
    const std::size_t last = step.attributes.size() - 1;
    unit_.attributes = {};
    for (std::size_t i = 0; i + 1 < last; ++i) unit_.attributes.push_back(step.attributes.at(i));
    const auto drawn = static_cast<std::uint64_t>(call_.ordinal) +
                       program_.random_steps * static_cast<std::uint64_t>(rounds_.now) +
                       static_cast<std::uint64_t>(step.attributes.integer(last));
    unit_.attributes.push_back(core::Attribute::of(call_.seed));
    unit_.attributes.push_back(core::Attribute::of(static_cast<std::int64_t>(drawn)));
    out.attributes = &unit_.attributes;
  }
  out.operands.resize(step.operands.size());
  for (std::size_t i = 0; i < step.operands.size(); ++i) {
    const StepOperand& given = step.operands[i];
    Operand& operand = out.operands[i];
    operand.kind = given.kind;
    if (given.kind == Operand::Kind::kTensor) {
      const ValueId v = given.view.value;
      operand.value = registers_[v];
      operand.dtype = program_.values[v].dtype;
      operand.geometry = placed(facts.operands[i], v);
    } else if (given.kind == Operand::Kind::kNumber) {
      operand.number =
          given.number.argument == 0
              ? given.number
              : call_.numbers[rounds_.now * program_.numbers.size() + given.number.argument - 1];
    }
  }
  out.results.resize(step.results.size());
  for (std::size_t r = 0; r < step.results.size(); ++r) {
    const StepResult& result = step.results[r];
    const ValueId v = result.view.value;
    std::int64_t elements = -1;
    displacement_[v] = 0;
    if (result.overwrites >= 0) {
      const auto o = static_cast<std::size_t>(result.overwrites);
      const program::Value& old = *out.operands[o].value;  // may be written as another dtype
      elements = old.elements * static_cast<std::int64_t>(core::size_of(old.dtype)) /
                 static_cast<std::int64_t>(core::size_of(program_.values[v].dtype));
      displacement_[v] = displacement_[step.operands[o].view.value];
    }
    program::ResultSlot& slot = out.results[r];
    const std::int32_t outcome = outcome_of_[v];
    slot.value = outcome >= 0 && rounds_.now + 1 >= rounds_.count
                     ? call_.outcomes[static_cast<std::size_t>(outcome)].becomes
                     : new_value(v, elements);
    slot.geometry = placed(facts.results[r], v);
    slot.overwrites = result.overwrites;
    registers_[v] = slot.value;
  }
}

// A value that was planned as a whole tensor may be a part of a tensor in this call.
bool ProgramRun::may_loop(const Step& step, const Instruction& instruction) const {
  const program::ResultSlot& slot = instruction.results[0];
  const program::View& result = step.results[0].view;
  if (slot.value->elements != program_.values[result.value].elements ||
      displacement_[result.value] != 0) {
    return false;
  }
  const ValueId first = step.operands[0].view.value;  // a reduction reads it from its beginning
  return instruction.results[0].geometry->numel() == program_.values[result.value].elements &&
         (step.operands[0].kind != Operand::Kind::kTensor || displacement_[first] == 0);
}

void ProgramRun::run_unit(Executor& executor, Caller& caller, const passes::Unit& unit) {
  Frame& frame = frames_.back();
  const std::size_t count = unit.steps.size();
  if (!unit_.filled) {
    if (unit_.instructions.size() < count) unit_.instructions.resize(count);
    unit_.together = unit.loop() && !frame.facts->never[frame.next];
    unit_.loop.clear();
    for (std::size_t i = 0; i < count; ++i) {
      const Step& step = frame.block->steps[unit.steps[i]];
      fill(unit_.instructions[i], step, frame.facts->steps[unit.steps[i]]);
      unit_.together = unit_.together && may_loop(step, unit_.instructions[i]);
      unit_.loop.push_back(&unit_.instructions[i]);
    }
    // Values that are not needed later may be overwritten in place, and values that only the loop
    // reads are not stored.
    for (const ValueId v : frame.facts->dying[frame.next]) registers_[v] = nullptr;
    unit_.filled = true;
    unit_.ran = 0;
  }
  bool never = false;
  const bool together = unit_.together && unit_.ran == 0 && !cancelled_;
  if (together && !loop_is_ready(executor, caller)) return;
  if (together && executor.loops().run(unit_.loop, &never)) {
    PlanStats::add(stats_->loops);
    PlanStats::add(stats_->loop_steps, count);
    for (Instruction* each : unit_.loop) clear(*each);
  } else {
    if (halted(executor)) return;
    if (never) frame.facts->never[frame.next] = true;
    unit_.together = false;
    for (; unit_.ran < count; ++unit_.ran) {
      const Step& step = frame.block->steps[unit.steps[unit_.ran]];
      executor.set_origin(step.origin == 0 ? nullptr : &program_.origins[step.origin]);
      const bool ran = execute(executor, caller, unit_.instructions[unit_.ran]);
      if (ran) clear(unit_.instructions[unit_.ran]);
      executor.set_origin(nullptr);
      if (!ran) return;
    }
  }
  unit_.filled = false;
  unit_.placed.clear();
  ++frame.next;
}

bool ProgramRun::ready(Caller& caller, std::span<const Operand> operands) {
  waits_ = !caller.ready(operands);
  return !waits_;
}

bool ProgramRun::loop_is_ready(Executor& executor, Caller& caller) {
  if (!executor.memory().has_open()) return true;
  return std::all_of(unit_.loop.begin(), unit_.loop.end(), [&](const Instruction* instruction) {
    const auto& operands = instruction->operands;
    return ready(caller, {operands.data(), operands.size()});
  });
}

bool ProgramRun::execute(Executor& executor, Caller& caller, Instruction& instruction) {
  if (executor.memory().has_open()) [[unlikely]] {
    const Next what = caller.next(instruction);
    waits_ = what == Next::kStop;
    if (what != Next::kRun) return !waits_;
  }
  if (cancelled_) {
    executor.collectives().decline(instruction, cancelled_->status);
    executor.fail(instruction, cancelled_);
    caller.failed(instruction, cancelled_, false);
    return true;
  }
  bool root = false;
  const FailureRef failure = executor.run(instruction, &root);
  if (halted(executor)) return false;
  if (executor.collectives().opened()) [[unlikely]] {
    caller.opened(std::move(instruction));
  } else if (failure) {
    caller.failed(instruction, failure, root);
  }
  return true;
}

Instruction& ProgramRun::one_instruction() {
  if (unit_.instructions.empty()) unit_.instructions.resize(1);
  unit_.instructions[0].seq = seq_;
  return unit_.instructions[0];
}

void ProgramRun::clear(Instruction& instruction) {
  instruction.operands.clear();
  instruction.results.clear();
  instruction.counts.clear();
}

}  // namespace teletensor::runtime
