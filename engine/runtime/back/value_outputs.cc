#include "engine/runtime/back/value_outputs.h"

#include <string>
#include <utility>

#include "engine/core/with_memory.h"

namespace teletensor::runtime {

using core::Status;
using program::Instruction;
using program::Operand;

bool ValueOutputs::publish(Entry& entry) {
  Instruction& instruction = entry.instruction;
  Publications::Facts& facts = *entry.publish;
  const bool withdraw = instruction.operands.empty();
  Status status;
  if (!withdraw) {
    if (const FailureRef failure = instruction.operands[0].value->failure) {
      executor_.fail(instruction, failure);
      return true;
    }
    status = executor_.separate(instruction);
    if (executor_.stopped()) return false;
  }
  if (status.ok()) status = failures_.refusal(entry);
  if (status.ok() && facts.user.empty()) {
    status = Status(core::Code::kPermissionDenied,
                    "publish: needs an authenticated user: connect through the daemon's Unix "
                    "socket or with a token");
  }
  if (status.ok() && withdraw) {
    status = publications_->withdraw(owner_, facts.name);
  } else if (status.ok()) {
    auto& storage = static_cast<memory::Storage&>(*instruction.results[0].value->contents);
    facts.owner = owner_;
    facts.bytes = storage.bytes();
    status = publications_->add(std::move(facts), storage);
  }
  if (!status.ok()) failures_.record(instruction.seq, std::move(status));
  return true;
}

bool ValueOutputs::fetch(Entry& entry) {
  const Operand& operand = entry.instruction.operands[0];
  FetchResult result;
  result.seq = entry.instruction.seq;
  result.bulk = entry.bulk;
  result.dtype = operand.dtype;
  result.shape = operand.geometry->shape;
  result.device = operand.value->device;
  FailureRef failure = operand.value->failure;
  if (!failure && executor_.interrupts().has(result.seq)) {
    result.status = Status(core::Code::kCancelled, "interrupted before it was read");
    result.root = result.seq;
  } else if (failure) {
    result.status = failure->status;
    result.root = failure->seq;
  } else if (!entry.bulk && bytes_of(operand.geometry->numel(), operand.dtype) > kMaxFetched) {
    result.status = core::invalid("fetch: a tensor of shape " + core::to_string(result.shape) +
                                  " is too large for a fetch and must be read by a download");
    result.root = result.seq;
  } else {
    result.status = core::with_memory(
        "a fetch", [&] { return executor_.row_major(operand, result.seq, &result.contents); });
    if (executor_.stopped()) return false;
    if (!result.status.ok()) result.root = result.seq;
    if (result.status.ok()) result.device = result.contents.storage->device();
  }
  events_.on_fetched(std::move(result));
  return true;
}

}  // namespace teletensor::runtime
