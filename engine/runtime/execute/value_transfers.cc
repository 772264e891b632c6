#include "engine/runtime/execute/value_transfers.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/runtime/execute/value_storage.h"

namespace teletensor::runtime {

using core::Geometry;
using core::Status;
using program::Instruction;
using program::Operand;
using program::ResultSlot;
using program::Value;

namespace {

// Kernels rely on 0 and 1, but a client may send other bytes.
Status normalize_bools(backends::Backend& backend, memory::Storage& storage) {
  char buffer[4096];
  for (std::size_t at = 0; at < storage.bytes(); at += sizeof buffer) {
    const std::size_t n = std::min(sizeof buffer, storage.bytes() - at);
    char* there = static_cast<char*>(storage.data()) + at;
    TT_RETURN_IF_ERROR(backend.copy_out(buffer, there, n));
    for (std::size_t i = 0; i < n; ++i) buffer[i] = buffer[i] != 0;
    TT_RETURN_IF_ERROR(backend.copy_in(there, buffer, n));
  }
  return {};
}

}  // namespace

Status ValueTransfers::copy(std::size_t on, const View& from, const View& to, std::uint64_t seq) {
  PartsOnLanes parallel(context_.lanes, &context_.interrupts, seq);
  ScratchMemory scratch(memory_, on, seq);
  return context_.copies.copy(device(on), from, to, parallel, scratch);
}

Status ValueTransfers::to_device(const Instruction& instruction, std::size_t to,
                                 StorageRef* result) {
  const Operand& operand = instruction.operands[0];
  const ResultSlot& slot = instruction.results[0];
  if (instruction.results.size() != 1 || operand.kind != Operand::Kind::kTensor ||
      slot.overwrites >= 0 || operand.dtype != slot.value->dtype) {
    return core::internal("to_device: expects one operand and one new result of its dtype");
  }
  if (context_.devices.find(operand.value->device) < 0 || !operand.value->contents) {
    return core::internal("to_device: no contents");
  }
  StorageRef held;
  std::size_t from = 0;
  TT_RETURN_IF_ERROR(memory_.find(*operand.value, "to_device", instruction.seq, &held, &from));
  SharedLocks locks(context_.devices, context_.lock_wait.request());
  locks.add(instruction);
  TT_RETURN_IF_ERROR(context_.lock_wait.acquire(locks, instruction.seq));
  const std::size_t bytes = bytes_of(slot.value->elements, operand.dtype);
  StorageRef target;
  TT_RETURN_IF_ERROR(memory_.allocate(to, "to_device", bytes, instruction.seq, &target));
  View source{held->data(), operand.dtype, operand.geometry};

  // If the elements have another order, they are first copied into the result's order on their own
  // device.
  StorageRef ordered;
  const bool same_order =
      operand.geometry->strides == slot.geometry->strides && slot.geometry->dense();
  if (!same_order) {
    TT_RETURN_IF_ERROR(memory_.allocate(from, "to_device", bytes, instruction.seq, &ordered));
    const View there{ordered->data(), operand.dtype, slot.geometry};
    TT_RETURN_IF_ERROR(copy(from, source, there, instruction.seq));
    source = there;
  }
  const View there{target->data(), operand.dtype, slot.geometry};
  TT_RETURN_IF_ERROR(copy_between(device(from), source.first(), device(to), there.first(),
                                  bytes_of(slot.geometry->numel(), operand.dtype)));
  // Bounds are not copied from pages that other processes may write to, nor for parts or another
  // dtype.
  if (context_.has_accelerator && held->sharing() == nullptr && held->descriptor() < 0 &&
      held->bounds().dtype == operand.dtype && covers(*slot.geometry, slot.value->elements)) {
    target->bounds() = held->bounds();
  }
  *result = std::move(target);
  return {};
}

Status ValueTransfers::fill(Value& value, std::string_view bytes, StorageRef storage,
                            std::uint64_t seq) {
  const int found = context_.devices.find(value.device);
  if (found < 0) return context_.devices.missing("constant", value.device);
  const auto on = static_cast<std::size_t>(found);
  backends::Backend& backend = device(on).backend();
  const bool uploaded = storage && storage->sharing() == nullptr;
  if (!storage) {
    TT_RETURN_IF_ERROR(memory_.allocate(on, "constant", bytes.size(), seq, &storage));
    TT_RETURN_IF_ERROR(backend.copy_in(storage->data(), bytes.data(), bytes.size()));
    if (context_.has_accelerator) storage->bounds() = core::bounds_of(value.dtype, bytes);
  } else if (value.dtype == core::DType::kBool && storage->sharing() == nullptr) {
    TT_RETURN_IF_ERROR(normalize_bools(backend, *storage));
  }
  if (uploaded) storage->unpin();
  value.contents = std::move(storage);
  return {};
}

Status ValueTransfers::separate(Instruction& instruction) {
  const Value& old = *instruction.operands[0].value;
  Value& value = *instruction.results[0].value;
  const int found = context_.devices.find(old.device);
  value.contents = old.contents;
  if (found < 0 || !old.contents) return core::internal("publish: no contents");
  const auto on = static_cast<std::size_t>(found);
  StorageRef storage(storage_of(old));
  if (storage->sharing() != nullptr) return {};
  if (Status status = memory_.require(old, "publish"); !status.ok()) {
    if (memory_.starved()) value.contents = nullptr;
    return status;
  }
  value.contents = nullptr;
  storage = nullptr;
  if (free_to_take(instruction, old)) {
    value.contents = std::move(instruction.operands[0].value->contents);
    return {};
  }
  value.contents = old.contents;
  if (Status status =
          memory_.allocate(on, "publish", storage_of(old)->bytes(), instruction.seq, &storage);
      !status.ok()) {
    if (memory_.starved()) {
      value.contents = nullptr;
      memory_.need(instruction);
    }
    return status;
  }
  TT_RETURN_IF_ERROR(
      device(on).backend().copy(storage->data(), storage_of(old)->data(), storage->bytes()));
  storage->described().set(storage_of(old)->described());
  value.contents = std::move(storage);
  return {};
}

Status ValueTransfers::pack(const Operand& operand, std::string_view what, std::uint64_t seq,
                            RowMajor* result) {
  const Value& value = *operand.value;
  if (context_.devices.find(value.device) < 0 || !value.contents) {
    return core::internal(std::string(what) + ": no contents");
  }
  StorageRef held;
  std::size_t on = 0;
  TT_RETURN_IF_ERROR(memory_.find(value, what, seq, &held, &on));
  result->bytes = bytes_of(operand.geometry->numel(), operand.dtype);
  // Contents that other sessions may write to are copied, so that the result is one state of the
  // tensor.
  const bool published = held->sharing() != nullptr;
  if (operand.geometry->contiguous() && !published) {
    result->storage = memory::Pinned(std::move(held));
    result->offset =
        static_cast<std::size_t>(operand.geometry->offset) * core::size_of(operand.dtype);
    return {};
  }
  SharedLocks locks(context_.devices, context_.lock_wait.request());
  if (published) {
    locks.add(value, false);
    TT_RETURN_IF_ERROR(context_.lock_wait.acquire(locks, seq));
  }
  StorageRef packed;
  if (Status status = memory_.allocate(on, what, result->bytes, seq, &packed); !status.ok()) {
    if (memory_.starved()) memory_.need(value);
    return status;
  }
  const Geometry geometry(operand.geometry->shape);
  if (Status status = copy(on, {held->data(), operand.dtype, operand.geometry},
                           {packed->data(), operand.dtype, &geometry}, seq);
      !status.ok()) {
    if (memory_.has_starved(status)) memory_.need(value);
    return status;
  }
  result->storage = memory::Pinned(std::move(packed));
  result->offset = 0;
  return {};
}

}  // namespace teletensor::runtime
