// Executor's data transfers: copies between devices, uploads into storages, and row-major contents
// for downloads and collectives.
#include <cstring>
#include <utility>

#include "engine/runtime/execute/executor_parts.h"

namespace teletensor::runtime {

using core::Geometry;
using core::Status;
using program::Instruction;
using program::Operand;
using program::ResultSlot;
using program::Value;

Status Executor::transfer(Instruction& instruction) {
  const Operand& operand = instruction.operands[0];
  const ResultSlot& result = instruction.results[0];
  if (instruction.results.size() != 1 || operand.kind != Operand::Kind::kTensor ||
      result.overwrites >= 0 || operand.dtype != result.value->dtype) {
    return core::internal("to_device: expects one operand and one new result of its dtype");
  }
  if (devices_.find(operand.value->device) < 0 || !operand.value->contents) {
    return core::internal("to_device: no contents");
  }
  const std::size_t to = device_;
  StorageRef held;
  Status status = find(*operand.value, "to_device", instruction.seq, &held);
  const std::size_t from = std::exchange(device_, to);
  TT_RETURN_IF_ERROR(std::move(status));
  SharedLocks locks(devices_, lock_wait_.request());
  locks.add(instruction);
  TT_RETURN_IF_ERROR(lock_wait_.acquire(locks, instruction.seq));
  const std::size_t bytes = bytes_of(result.value->elements, operand.dtype);
  StorageRef target;
  TT_RETURN_IF_ERROR(allocate("to_device", bytes, instruction.seq, &target));
  View source{held->data(), operand.dtype, operand.geometry};

  // If the elements have another order, they are first copied into the result's order on their own
  // device.
  StorageRef ordered;
  const bool same_order =
      operand.geometry->strides == result.geometry->strides && result.geometry->dense();
  if (!same_order) {
    device_ = from;
    status = allocate("to_device", bytes, instruction.seq, &ordered);
    if (status.ok()) {
      PartsOnLanes parallel(lanes_, this, instruction.seq);
      ScratchMemory scratch(*this, instruction.seq);
      const View copy{ordered->data(), operand.dtype, result.geometry};
      status = copies_.copy(device(), source, copy, parallel, scratch);
      source = copy;
    }
    device_ = to;
    TT_RETURN_IF_ERROR(std::move(status));
  }
  const View there{target->data(), operand.dtype, result.geometry};
  TT_RETURN_IF_ERROR(copy_between(devices_.at(from), source.first(), device(), there.first(),
                                  bytes_of(result.geometry->numel(), operand.dtype)));
  // Bounds are not copied from pages that other processes may write to, nor for parts or another
  // dtype.
  if (has_accelerator_ && held->sharing() == nullptr && held->descriptor() < 0 &&
      held->bounds().dtype == operand.dtype && covers(*result.geometry, result.value->elements)) {
    target->bounds() = held->bounds();
  }
  slots_[0].storage = std::move(target);
  return {};
}

FailureRef Executor::bind(Value& value, std::string_view bytes, StorageRef storage,
                          std::uint64_t seq) {
  const Profile::Timer timer(profile_, seq, 0, 0);
  const Try chance(*this);
  Status status = fill(value, bytes, std::move(storage), seq);
  if (status.ok() || has_starved(status)) return nullptr;
  value.failure = failures_.make(seq, std::move(status));
  return value.failure;
}

Status Executor::fill(Value& value, std::string_view bytes, StorageRef storage, std::uint64_t seq) {
  const int found = devices_.find(value.device);
  if (found < 0) return devices_.missing("constant", value.device);
  device_ = static_cast<std::size_t>(found);
  const bool uploaded = storage && storage->sharing() == nullptr;
  if (!storage) {
    TT_RETURN_IF_ERROR(allocate("constant", bytes.size(), seq, &storage));
    TT_RETURN_IF_ERROR(device().backend().copy_in(storage->data(), bytes.data(), bytes.size()));
    if (has_accelerator_) storage->bounds() = core::bounds_of(value.dtype, bytes);
  } else if (value.dtype == core::DType::kBool && storage->sharing() == nullptr) {
    // Kernels rely on 0 and 1, but a client may send other bytes.
    char buffer[4096];
    for (std::size_t at = 0; at < storage->bytes(); at += sizeof buffer) {
      const std::size_t n = std::min(sizeof buffer, storage->bytes() - at);
      char* there = static_cast<char*>(storage->data()) + at;
      TT_RETURN_IF_ERROR(device().backend().copy_out(buffer, there, n));
      for (std::size_t i = 0; i < n; ++i) buffer[i] = buffer[i] != 0;
      TT_RETURN_IF_ERROR(device().backend().copy_in(there, buffer, n));
    }
  }
  if (uploaded) storage->unpin();
  value.contents = std::move(storage);
  return {};
}

Status Executor::separate(Instruction& instruction) {
  const Try chance(*this);
  const Value& old = *instruction.operands[0].value;
  Value& value = *instruction.results[0].value;
  const int found = devices_.find(old.device);
  value.contents = old.contents;
  if (found < 0 || !old.contents) return core::internal("publish: no contents");
  StorageRef storage(storage_of(old));
  if (storage->sharing() != nullptr) return {};
  if (Status status = require(old, "publish"); !status.ok()) {
    if (starved_) value.contents = nullptr;
    return status;
  }
  device_ = static_cast<std::size_t>(found);
  value.contents = nullptr;
  storage = nullptr;
  if (free_to_take(instruction, old)) {
    value.contents = std::move(instruction.operands[0].value->contents);
    return {};
  }
  value.contents = old.contents;
  if (Status status = allocate("publish", storage_of(old)->bytes(), instruction.seq, &storage);
      !status.ok()) {
    if (starved_) value.contents = nullptr;
    if (starved_) need_operands(instruction);
    return status;
  }
  TT_RETURN_IF_ERROR(
      device().backend().copy(storage->data(), storage_of(old)->data(), storage->bytes()));
  storage->described().set(storage_of(old)->described());
  value.contents = std::move(storage);
  return {};
}

Status Executor::row_major(const Operand& operand, std::uint64_t seq, RowMajor* result) {
  const Profile::Timer timer(profile_, seq, 0, 0);
  const Try chance(*this);
  return pack(operand, "fetch", seq, result);
}

Status Executor::pack(const Operand& operand, std::string_view what, std::uint64_t seq,
                      RowMajor* result) {
  const Value& value = *operand.value;
  if (devices_.find(value.device) < 0 || !value.contents) {
    return core::internal(std::string(what) + ": no contents");
  }
  StorageRef held;
  TT_RETURN_IF_ERROR(find(value, what, seq, &held));
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
  SharedLocks locks(devices_, lock_wait_.request());
  if (published) {
    locks.add(value, false);
    TT_RETURN_IF_ERROR(lock_wait_.acquire(locks, seq));
  }
  StorageRef packed;
  if (Status status = allocate(what, result->bytes, seq, &packed); !status.ok()) {
    if (starved_) need_.operands.emplace_back(storage_of(value));
    return status;
  }
  const Geometry geometry(operand.geometry->shape);
  PartsOnLanes parallel(lanes_, this, seq);
  ScratchMemory scratch(*this, seq);
  if (Status status = copies_.copy(device(), {held->data(), operand.dtype, operand.geometry},
                                   {packed->data(), operand.dtype, &geometry}, parallel, scratch);
      !status.ok()) {
    if (has_starved(status)) need_.operands.emplace_back(storage_of(value));
    return status;
  }
  result->storage = memory::Pinned(std::move(packed));
  result->offset = 0;
  return {};
}

}  // namespace teletensor::runtime
