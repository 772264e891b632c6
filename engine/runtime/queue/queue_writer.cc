#include "engine/runtime/queue/queue_writer.h"

#include <utility>

#include "engine/ops/verify.h"
#include "engine/runtime/groups/session_groups.h"

namespace teletensor::runtime {

using core::Status;
using program::Operand;
using program::ResultSlot;

Entry& QueueWriter::append(std::uint64_t seq) {
  if (interner_->size() > kMaxInterned) renew_interner();
  return add_entry(seq, 1);
}

Entry& QueueWriter::add_entry(std::uint64_t seq, std::size_t size) {
  if (open_ != nullptr && open_->full()) session_.publish_full(std::exchange(open_, nullptr));
  if (open_ == nullptr) open_ = chunks_.take();
  Entry& entry = open_->add();
  appended_ = seq;
  entry.instruction.seq = seq;
  if (refusing()) [[unlikely]] {
    if (!refusal_) refusal_ = failures_.make(seq, refuse_);
    entry.refused = refusal_;
  }
  load_.add(size);
  return entry;
}

// Entries in the queue refer to the old interner until they have run.
void QueueWriter::renew_interner() {
  if (old_interner_ != nullptr) {
    if (session_.completed_upto() < old_interner_until_) return;
    // The session task reads this counter with its next chunk and then drops its plans, which
    // contain pointers into the old interner.
    interner_ends_.fetch_add(1, std::memory_order_relaxed);
  }
  old_interner_ = std::exchange(interner_, std::make_unique<program::Interner>());
  old_interner_until_ = appended_;
}

void QueueWriter::constant(std::uint64_t seq, const core::Dims& shape, std::string bytes,
                           program::ValueRef value) {
  if (value->dtype == core::DType::kBool) {
    for (char& byte : bytes) byte = byte != 0;
  }
  load_.add_bytes(bytes.size());
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kConstant;
  entry.bytes = std::make_unique<const std::string>(std::move(bytes));
  entry.instruction.results.push_back(
      {std::move(value), interner_->geometry(core::Geometry(shape))});
}

void QueueWriter::uploaded(std::uint64_t seq, core::Ref<memory::Storage> storage,
                           program::ValueRef value) {
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kUploaded;
  entry.storage = std::move(storage);
  entry.instruction.results.emplace_back().value = std::move(value);
}

void QueueWriter::fetch(std::uint64_t seq, bool bulk, Operand operand) {
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kFetch;
  entry.bulk = bulk;
  entry.instruction.operands.push_back(std::move(operand));
}

void QueueWriter::publish_tensor(std::uint64_t seq, Publications::Facts facts, Operand operand,
                                 program::ValueRef value) {
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kPublish;
  entry.publish = std::make_unique<Publications::Facts>(std::move(facts));
  if (!value) return;
  entry.instruction.operands.push_back(std::move(operand));
  program::ResultSlot& result = entry.instruction.results.emplace_back();
  result.value = std::move(value);
  result.overwrites = 0;
}

Entry& QueueWriter::append_failed(std::uint64_t seq, Status status) {
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kUploaded;
  if (!entry.refused) {
    entry.refused = failures_.make(seq, std::move(status));
  }
  return entry;
}

FailureRef QueueWriter::failed(std::uint64_t seq, Status status, program::ValueRef value) {
  Entry& entry = append_failed(seq, std::move(status));
  entry.instruction.results.emplace_back().value = std::move(value);
  return entry.refused;
}

void QueueWriter::change_group(std::uint64_t seq, std::uint64_t number,
                               std::optional<Groups::Join> join) {
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kGroup;
  entry.group = std::make_unique<Entry::Group>(Entry::Group{number, std::move(join)});
}

void QueueWriter::refuse(Status status) {
  refuse_ = std::move(status);
  refusal_ = nullptr;
}

void QueueWriter::call(std::uint64_t seq, program::Invocation invocation) {
  std::uint64_t ns = 0;
  auto prepared = planned_.plan(invocation.program, catalog_, devices_, &ns);
  if (ns > 0) session_.charge_ns(ns);
  Entry& entry = append(seq);
  entry.kind = Entry::Kind::kCall;
  entry.call = std::make_unique<ProgramRun>(std::move(prepared), std::move(invocation), seq);
}

void QueueWriter::repeat(std::unique_ptr<program::TemplateCall> call, std::uint64_t last_seq) {
  Entry& entry = add_entry(call->first_seq, call->size());
  entry.kind = Entry::Kind::kTemplate;
  entry.instruction.op = call->repeated->steps[call->first].op;
  entry.repetition = std::move(call);
  appended_ = last_seq;
}

void QueueWriter::failed_call(std::uint64_t seq, Status status, program::Invocation invocation) {
  Entry& entry = append_failed(seq, std::move(status));
  const program::Program& program = *invocation.program;
  for (program::Invocation::Outcome& outcome : invocation.outcomes) {
    ResultSlot& result = entry.instruction.results.emplace_back();
    result.value = std::move(outcome.becomes);
    for (const auto& rebind : program.rebinds) {
      if (rebind.value == outcome.value && outcome.result == program::Invocation::kWhole) {
        result.overwrites = static_cast<int>(rebind.parameter);
      }
    }
  }
  for (Operand& input : invocation.inputs) {
    entry.instruction.operands.push_back(std::move(input));
  }
  // This rank will never reach the collectives of the call. It is not known which groups they
  // belong to, because the program need not have been checked.
  if (ops::has_collectives(program, catalog_)) {
    change_group(seq, SessionGroups::kAllGroups, std::nullopt);
  }
}

void QueueWriter::forget(std::uint64_t root) {
  if (refusal_ && refusal_->seq == root) refusal_ = nullptr;
}

void QueueWriter::take_back(std::uint64_t seq) {
  while (open_ != nullptr && !open_->empty() && open_->last().instruction.seq > seq) {
    load_.drop(open_->last().size());
    open_->drop_last();
  }
}

Chunk* QueueWriter::take_open() {
  return open_ != nullptr && !open_->empty() ? std::exchange(open_, nullptr) : nullptr;
}

void QueueWriter::clear() { delete std::exchange(open_, nullptr); }

}  // namespace teletensor::runtime
