// ProgramRun's values that outlive a round: the results of all rounds of a call, and the values
// that loops record for their gradients.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/memory/storage.h"
#include "engine/ops/op.h"
#include "engine/runtime/programs/program_run.h"

namespace teletensor::runtime {

using core::DType;
using core::Geometry;
using program::Instruction;
using program::Invocation;
using program::Operand;
using program::Step;
using program::Value;
using program::ValueRef;

namespace {

constexpr std::int64_t kFirstBytes = 4096;  // initial size of a record, if its rows are small

std::int64_t elements_of(const program::View& view) {
  return std::max<std::int64_t>(view.geometry.numel(), 1);
}

}  // namespace

bool ProgramRun::zero(Executor& executor, Caller& caller, const ValueRef& value,
                      const core::Dims& shape) {
  static const ops::OpRef full("full");
  Instruction& instruction = one_instruction();
  instruction.op = full;
  instruction.operands.emplace_back().kind = Operand::Kind::kNumber;
  unit_.attributes = {core::Attribute::of(shape), core::Attribute::of(value->dtype),
                      core::Attribute::of(value->device)};
  instruction.attributes = &unit_.attributes;
  program::ResultSlot& slot = instruction.results.emplace_back();
  slot.value = value;
  slot.geometry = &unit_.placed.emplace_back(shape);
  const bool ran = execute(executor, caller, instruction);
  clear(instruction);
  unit_.placed.clear();
  return ran;
}

bool ProgramRun::copy_into(Executor& executor, Caller& caller, ValueRef& whole, ValueRef becomes,
                           const Geometry& part, Operand from) {
  static const ops::OpRef copy("copy");
  Instruction& instruction = one_instruction();
  instruction.op = copy;
  unit_.attributes = {};
  instruction.attributes = &unit_.attributes;
  const Geometry& there = unit_.placed.emplace_back(part);
  Operand& to = instruction.operands.emplace_back();
  to.kind = Operand::Kind::kTensor;
  to.dtype = whole->dtype;
  to.geometry = &there;
  instruction.operands.push_back(std::move(from));
  program::ResultSlot& slot = instruction.results.emplace_back();
  slot.value = becomes;
  slot.geometry = &there;
  slot.overwrites = 0;
  // The value is moved last, because the statements above may throw.
  instruction.operands[0].value = std::move(whole);
  const bool ran = execute(executor, caller, instruction);
  whole = ran ? std::move(becomes) : std::move(instruction.operands[0].value);
  clear(instruction);
  unit_.placed.clear();
  return ran;
}

// Copies this round's result into its part of the value that holds the results of all rounds.
bool ProgramRun::stack(Executor& executor, Caller& caller, std::size_t index) {
  const Invocation::Outcome& outcome = call_.outcomes[index];
  const program::View& view = program_.body.results[outcome.result];
  const program::ValueType& type = program_.values[view.value];
  const std::int64_t elements = outcome.becomes->elements;
  if (rounds_.now == 0 && !rounds_.stacked[index]) {
    core::Dims shape{call_.times};
    for (const std::int64_t size : view.geometry.shape) shape.push_back(size);
    const auto whole = core::make_ref<Value>(type.dtype, type.device, elements);
    if (!zero(executor, caller, whole, shape)) return false;
    rounds_.stacked[index] = whole;
  }
  Geometry part(view.geometry.shape);
  part.offset = view.geometry.numel() * rounds_.now;
  return copy_into(executor, caller, rounds_.stacked[index],
                   rounds_.now + 1 >= rounds_.count
                       ? outcome.becomes
                       : core::make_ref<Value>(type.dtype, type.device, elements),
                   part, operand_of(view));
}

// ---------------------------------------------------------------- records

bool ProgramRun::begin_records(Executor& executor, Caller& caller, const Step& loop) {
  if (loop.counts.empty()) return true;
  Records& all = records_[&loop];
  all.records.resize(loop.counts.size());
  for (; all.upto < all.records.size(); ++all.upto) {
    Record& record = all.records[all.upto];
    const program::View& view = loop.operands[loop.counts[all.upto]].view;
    const program::ValueType& type = program_.values[view.value];
    const std::int64_t each = elements_of(view);
    record.room = std::max<std::int64_t>(
        kFirstBytes / (each * static_cast<std::int64_t>(core::size_of(type.dtype))), 1);
    const auto rows = core::make_ref<Value>(type.dtype, type.device, record.room * each);
    if (!zero(executor, caller, rows, core::Dims{rows->elements})) return false;
    record.rows = rows;
  }
  all.upto = 0;
  return true;
}

FailureRef ProgramRun::record(Executor& executor, Caller& caller, const Step& loop) {
  if (loop.counts.empty()) return nullptr;
  Records& all = records_[&loop];
  for (; all.upto < all.records.size(); ++all.upto) {
    Record& record = all.records[all.upto];
    const program::View& view = loop.blocks[1].parameters[loop.counts[all.upto]];
    const std::int64_t each = elements_of(view);
    const auto like = [&](std::int64_t rows) {
      return core::make_ref<Value>(record.rows->dtype, record.rows->device, rows * each);
    };
    if (record.spoilt) continue;
    if (record.rows->failure) return record.rows->failure;
    // The loop carries a failed value on, so its record fails with it.
    if (const FailureRef& failed_before = registers_[view.value]->failure) {
      record.rows = like(record.room);
      record.rows->failure = failed_before;
      record.spoilt = true;
      continue;
    }
    if (all.rounds == record.room) {
      const std::int64_t room = record.room + std::max<std::int64_t>(record.room / 2, 1);
      if (!record.wider) {
        const ValueRef wider = like(room);
        if (!zero(executor, caller, wider, core::Dims{wider->elements})) return nullptr;
        record.wider = wider;
      }
      const Geometry before(core::Dims{record.rows->elements});
      Operand rows;
      rows.kind = Operand::Kind::kTensor;
      rows.value = record.rows;
      rows.dtype = record.rows->dtype;
      rows.geometry = &before;
      if (!copy_into(executor, caller, record.wider, like(room), before, std::move(rows))) {
        return nullptr;
      }
      record.rows = std::move(record.wider);
      record.wider = nullptr;
      record.room = room;
      if (record.rows->failure) return record.rows->failure;
    }
    Geometry row(view.geometry.shape);
    row.offset = each * all.rounds;
    if (!copy_into(executor, caller, record.rows, like(record.room), row, operand_of(view))) {
      return nullptr;
    }
    if (record.rows->failure) return record.rows->failure;
  }
  all.upto = 0;
  ++all.rounds;
  return nullptr;
}

bool ProgramRun::end_records(Executor& executor, Caller& caller, const Step& loop) {
  if (loop.counts.empty()) return true;
  Records& all = records_[&loop];
  const std::size_t first = loop.operands.size();
  const program::ValueId count = loop.results[first + all.records.size()].view.value;
  const ValueRef rounds = new_value(count, -1);
  std::string bytes(sizeof all.rounds, '\0');
  std::memcpy(bytes.data(), &all.rounds, sizeof all.rounds);
  const FailureRef failure = executor.bind(*rounds, bytes, nullptr, seq_);
  if (halted(executor)) return false;
  if (failure) {
    Instruction none;
    none.seq = seq_;
    caller.failed(none, failure, true);
  }
  registers_[count] = rounds;
  displacement_[count] = 0;
  for (std::size_t i = 0; i < all.records.size(); ++i) {
    const program::ValueId v = loop.results[first + i].view.value;
    const Value& rows = *all.records[i].rows;
    const ValueRef record = new_value(v, -1);
    record->contents = rows.contents;
    record->failure = rows.failure;
    registers_[v] = record;
    displacement_[v] = 0;
  }
  records_.erase(&loop);
  return true;
}

// Reads a row of a record. The record's contents are not trusted to match its type: fields past its
// end read as zero, and any nonzero bool reads as 1.
void ProgramRun::past(Executor& executor, Caller& caller, const Step& step) {
  static const ops::OpRef clone("clone"), cast("cast");
  const program::View& view = step.results[0].view;
  const program::ValueType& type = program_.values[view.value];
  std::int64_t round = 0;
  FailureRef failure = scalar(executor, step.operands[1].view, &round, sizeof round, caller);
  if (halted(executor)) return;
  const Value& record = *registers_[step.operands[0].view.value];
  if (!failure) failure = record.failure;
  if (failure) {
    poison(step, failure);
    return end_unit();
  }
  const bool is_bool = type.dtype == DType::kBool;
  const std::int64_t each = type.elements;
  const auto* const storage = static_cast<const memory::Storage*>(record.contents.get());
  const auto held = static_cast<std::int64_t>(
      storage == nullptr ? 0 : storage->bytes() / core::size_of(type.dtype));
  const ValueRef made = new_value(view.value, -1);
  if (each == 0 || round < 0 || round >= held / each) {
    if (!zero(executor, caller, made, view.geometry.shape)) return;
  } else {
    const auto rows = core::make_ref<Value>(is_bool ? DType::kU8 : type.dtype, type.device, held);
    rows->contents = record.contents;
    Instruction& instruction = one_instruction();
    instruction.op = is_bool ? cast : clone;
    unit_.attributes = {};
    if (is_bool) unit_.attributes.push_back(core::Attribute::of(DType::kBool));
    instruction.attributes = &unit_.attributes;
    Operand& from = instruction.operands.emplace_back();
    from.kind = Operand::Kind::kTensor;
    from.dtype = rows->dtype;
    from.value = rows;
    Geometry& row = unit_.placed.emplace_back(view.geometry.shape);
    row.offset = each * round;
    from.geometry = &row;
    program::ResultSlot& slot = instruction.results.emplace_back();
    slot.value = made;
    slot.geometry = &view.geometry;
    const bool ran = execute(executor, caller, instruction);
    clear(instruction);
    unit_.placed.clear();
    if (!ran) return;
  }
  registers_[view.value] = made;
  displacement_[view.value] = 0;
  end_unit();
}

}  // namespace teletensor::runtime
