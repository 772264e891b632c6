#include "engine/runtime/execute/executor.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/core/memory/reserve.h"
#include "engine/runtime/execute/value_storage.h"

namespace teletensor::runtime {

using core::Status;
using program::Instruction;
using program::Operand;
using program::ResultSlot;

Executor::Executor(const ops::Catalog& catalog, Devices& devices, Lanes& lanes,
                   memory::OwnerId owner, std::uint64_t quota, LockWait& lock_wait,
                   const SessionGroups& groups)
    : owner_(owner),
      context_(catalog, devices, lanes, owner, quota, lock_wait),
      collectives_(context_, transfers_, groups) {}

Executor::~Executor() {
  memory().drop_grant();
  for (std::size_t i = 0; i < devices().size(); ++i) {
    if (auto* const accelerator = devices().at(i).accelerator()) accelerator->end(owner_);
  }
}

std::uint64_t Executor::cost(std::uint64_t host_ns) {
  std::uint64_t device_ns = 0, waited_ns = 0;
  for (std::size_t i = 0; i < devices().size(); ++i) {
    auto* const accelerator = devices().at(i).accelerator();
    if (accelerator == nullptr) continue;
    const auto time = accelerator->take_time(owner_);
    device_ns += time.device_ns;
    waited_ns += time.waited_ns;
  }
  return std::max(host_ns - std::min(host_ns, waited_ns), device_ns);
}

void Executor::gather(bool on) {
  if (!context_.has_accelerator) return;
  for (std::size_t i = 0; i < devices().size(); ++i) {
    if (auto* const accelerator = devices().at(i).accelerator()) accelerator->gather(owner_, on);
  }
}

FailureRef Executor::run(Instruction& instruction, bool* root) {
  *root = false;
  for (const Operand& operand : instruction.operands) {
    if (operand.value && operand.value->failure) {
      const FailureRef failure = operand.value->failure;
      collectives_.decline(instruction, failure->status);
      fail(instruction, failure);
      return failure;
    }
  }
  Profile::Timer timer(context_.profile, instruction.seq, instruction.op, 1);
  const Attempt attempt(context_);
  const ops::OpDef& op = context_.catalog.at(instruction.op);
  Status status;
  try {
    const core::UsesReserve forbidden(false);
    status = execute(instruction, op);
  } catch (const std::bad_alloc&) {
    status =
        Status(core::Code::kResourceExhausted, op.name + ": the daemon process is out of memory");
  } catch (...) {
    status = core::internal(op.name + ": the kernel threw an exception");
  }
  if (status.ok()) {
    preparation_.commit(instruction);
    preparation_.clear();
    return nullptr;
  }
  preparation_.clear();
  if (collectives_.opened()) return nullptr;
  if (collectives_.waits_for_ranks() || context_.lock_wait.blocked()) {
    timer.forget();
    return nullptr;
  }
  if (memory().has_starved(status)) {
    timer.forget();
    memory().need(instruction);
    return nullptr;
  }
  // A lost device also refuses memory.
  if (status.code() == core::Code::kResourceExhausted) {
    if (Status lost = device().backend().health(); !lost.ok()) status = std::move(lost);
  }
  if (origin_ != nullptr) status = located(status, *origin_);
  *root = true;
  auto failure = failures_.make(instruction.seq, std::move(status));
  fail(instruction, failure);
  return failure;
}

Status Executor::execute(Instruction& instruction, const ops::OpDef& op) {
  if (instruction.results.empty()) return {};
  const core::Device on = instruction.results[0].value->device;
  if (!(device().id() == on)) {
    const int found = devices().find(on);
    if (found < 0) return devices().missing(op.name, on);
    device_ = static_cast<std::size_t>(found);
  }
  TT_RETURN_IF_ERROR(device().backend().before(op));
  preparation_.begin(device_, instruction.results.size());
  if (instruction.op == context_.to_device) {
    return transfers_.to_device(instruction, device_, &preparation_.storage(0));
  }
  if (op.collective) {
    StorageRef* const sender = instruction.results.size() > 1 ? &preparation_.storage(1) : nullptr;
    return collectives_.start(instruction, op, device_, &preparation_.storage(0), sender);
  }
  if (instruction.op == context_.copy && instruction.operands[1].value &&
      instruction.operands[1].value->received && collectives_.may_share(instruction)) [[unlikely]] {
    const program::Value& received = *instruction.operands[1].value;
    preparation_.storage(0) = StorageRef(storage_of(received));
    return memory().require(received, op.name);
  }
  return call_kernel(instruction, op);
}

Status Executor::call_kernel(Instruction& instruction, const ops::OpDef& op) {
  const backends::Kernel kernel = device().kernel(instruction.op);
  if (kernel == nullptr) {
    return Status(core::Code::kUnimplemented,
                  op.name + ": not available on " + core::to_string(device().id()));
  }
  TT_RETURN_IF_ERROR(preparation_.gather_operands(instruction, op));
  SharedLocks locks(devices(), context_.lock_wait.request());
  if (preparation_.shared()) [[unlikely]] {
    locks.add(instruction);
    TT_RETURN_IF_ERROR(context_.lock_wait.acquire(locks, instruction.seq));
  }
  TT_RETURN_IF_ERROR(preparation_.prepare_results(instruction, op));
  PartsOnLanes parallel(context_.lanes, preparation_.overwrites() ? nullptr : &context_.interrupts,
                        instruction.seq);
  ScratchMemory scratch(memory(), device_, instruction.seq);
  TT_RETURN_IF_ERROR(preparation_.copy_before(instruction, op, parallel, scratch));
  backends::KernelCall call{op,
                            preparation_.in(),
                            preparation_.out(),
                            {instruction.counts.data(), instruction.counts.size()},
                            *instruction.attributes,
                            parallel,
                            scratch,
                            nullptr,
                            &device().backend()};
  TT_RETURN_IF_ERROR(kernel(call));
  if (parallel.was_cancelled()) return Status(core::Code::kCancelled, op.name + ": interrupted");
  return preparation_.copy_after(instruction, parallel, scratch);
}

Status Executor::located(const Status& status, const std::string& origin) {
  return Status(status.code(), status.message() + "\n(in the program: " + origin + ")");
}

void Executor::fail(Instruction& instruction, const FailureRef& failure) {
  context_.lock_wait.give_up();
  for (ResultSlot& result : instruction.results) {
    result.value->failure = failure;
    if (result.overwrites < 0) continue;
    const program::ValueRef& old =
        instruction.operands[static_cast<std::size_t>(result.overwrites)].value;
    result.value->good = old->failure ? old->good : old;
  }
}

FailureRef Executor::bind(program::Value& value, std::string_view bytes, StorageRef storage,
                          std::uint64_t seq) {
  const Profile::Timer timer(context_.profile, seq, 0, 0);
  const Attempt attempt(context_);
  Status status = transfers_.fill(value, bytes, std::move(storage), seq);
  if (status.ok() || memory().has_starved(status)) return nullptr;
  value.failure = failures_.make(seq, std::move(status));
  return value.failure;
}

Status Executor::separate(Instruction& instruction) {
  const Attempt attempt(context_);
  return transfers_.separate(instruction);
}

Status Executor::row_major(const Operand& operand, std::uint64_t seq, RowMajor* result) {
  const Profile::Timer timer(context_.profile, seq, 0, 0);
  const Attempt attempt(context_);
  return transfers_.pack(operand, "fetch", seq, result);
}

}  // namespace teletensor::runtime
