#include "engine/runtime/execute/preparation.h"

#include <string>

#include "engine/runtime/execute/value_storage.h"

namespace teletensor::runtime {

using core::Geometry;
using core::Status;
using program::Instruction;
using program::Operand;
using program::ResultSlot;
using program::Value;

namespace {

bool apart(const Geometry& a, core::DType a_type, const Geometry& b, core::DType b_type) {
  const auto a_size = static_cast<std::int64_t>(core::size_of(a_type));
  const auto b_size = static_cast<std::int64_t>(core::size_of(b_type));
  return a.storage_end() * a_size <= b.offset * b_size ||
         b.storage_end() * b_size <= a.offset * a_size;
}

}  // namespace

void forget_bounds(memory::Storage& storage, std::span<backends::TensorArg> operands) {
  // Bounds are never recorded for a shared storage, because tasks of other sessions write to it.
  if (storage.sharing() != nullptr) return;
  storage.bounds() = {};
  for (backends::TensorArg& arg : operands) {
    if (arg.bounds == &storage.bounds()) arg.bounds = nullptr;
  }
}

Status Preparation::gather_operands(const Instruction& instruction, const ops::OpDef& op) {
  in_.resize(instruction.operands.size());
  shared_ = false;
  for (std::size_t i = 0; i < in_.size(); ++i) {
    const Operand& operand = instruction.operands[i];
    backends::TensorArg& arg = in_[i];
    switch (operand.kind) {
      case Operand::Kind::kAbsent:
        arg = {};
        break;
      case Operand::Kind::kNumber:
        arg = {backends::TensorArg::Kind::kNumber, nullptr, operand.dtype, nullptr, operand.number};
        break;
      case Operand::Kind::kTensor: {
        const Value& value = *operand.value;
        if (!(value.device == device().id())) {
          return core::internal(op.name + ": operand " + std::to_string(i) + " is on " +
                                core::to_string(value.device) + ", the result on " +
                                core::to_string(device().id()));
        }
        if (!value.contents) {
          return core::internal(op.name + ": operand " + std::to_string(i) + " has no contents");
        }
        arg.kind = backends::TensorArg::Kind::kTensor;
        arg.data = storage_of(value)->data();
        memory_.touch(*storage_of(value));
        if (arg.data == nullptr) [[unlikely]]
          TT_RETURN_IF_ERROR(memory_.require(value, op.name));
        shared_ |= storage_of(value)->sharing() != nullptr;
        arg.dtype = operand.dtype;
        arg.geometry = operand.geometry;
        arg.bounds = nullptr;
        // Other sessions may write to a published storage.
        if (context_.has_accelerator && core::is_integral(operand.dtype) &&
            storage_of(value)->sharing() == nullptr) {
          arg.bounds = &storage_of(value)->bounds();
          arg.whole =
              bytes_of(operand.geometry->numel(), operand.dtype) == storage_of(value)->bytes() &&
              covers(*operand.geometry, operand.geometry->numel());
        }
        break;
      }
    }
  }
  return {};
}

Status Preparation::prepare_results(const Instruction& instruction, const ops::OpDef& op) {
  out_.resize(instruction.results.size());
  overwrites_ = prefills_ = temporary_ = false;
  for (std::size_t r = 0; r < instruction.results.size(); ++r) {
    const ResultSlot& result = instruction.results[r];
    TT_RETURN_IF_ERROR(result.overwrites < 0 ? prepare_new(instruction, op, r)
                                             : prepare_overwrite(instruction, op, r));
    const Slot& slot = slots_[r];
    overwrites_ |= slot.stolen_from != nullptr || slot.through;
    prefills_ |= slot.copy_old || slot.clone_first || slot.before;
    if (context_.has_accelerator) forget_bounds(*slot.storage, in_);
    backends::TensorArg& out = out_[r];
    out.kind = backends::TensorArg::Kind::kTensor;
    if (slot.temporary) {
      temporary_ = true;
      out.data = slot.temporary->data();
      out.dtype = slot.temporary_layout.dtype;
      out.geometry = &slot.temporary_layout.geometry;
    } else {
      out.data = slot.storage->data();
      out.dtype = result.value->dtype;
      out.geometry = result.geometry;
    }
  }
  return {};
}

Status Preparation::allocate(const ops::OpDef& op, std::size_t bytes, std::uint64_t seq,
                             StorageRef* storage) {
  return memory_.allocate(device_, op.name, bytes, seq, storage);
}

Status Preparation::prepare_new(const Instruction& i, const ops::OpDef& op, std::size_t r) {
  const ResultSlot& result = i.results[r];
  Slot& slot = slots_[r];
  const std::size_t bytes = bytes_of(result.value->elements, result.value->dtype);
  const bool region = op.inplace == ops::Inplace::kRegion;
  // If this is the last reference to an operand, the result takes over its memory.
  if (region || (op.inplace == ops::Inplace::kElementwise && bytes >= kWorthReusing && r == 0)) {
    for (const Operand& operand : i.operands) {
      if (operand.kind == Operand::Kind::kTensor && operand.dtype == result.value->dtype &&
          operand.value->dtype == operand.dtype &&
          operand.value->elements == result.value->elements && operand.value->references() == 1 &&
          operand.geometry == result.geometry && covers(*result.geometry, result.value->elements) &&
          operand.value->contents->references() == 1 &&
          storage_of(*operand.value)->sharing() == nullptr) {
        slot.storage = StorageRef(storage_of(*operand.value));
        slot.stolen_from = operand.value.get();
        return {};
      }
      if (region) break;  // operand 0 only
    }
  }
  TT_RETURN_IF_ERROR(allocate(op, bytes, i.seq, &slot.storage));
  slot.clone_first = region;
  return {};
}

Status Preparation::prepare_overwrite(const Instruction& i, const ops::OpDef& op, std::size_t r) {
  const ResultSlot& result = i.results[r];
  Slot& slot = slots_[r];
  Value& old = *i.operands[static_cast<std::size_t>(result.overwrites)].value;
  if (result.value->through && storage_of(old)->sharing() != nullptr) {
    return prepare_through(i, op, r);
  }
  const bool all =
      covers(*result.geometry, result.value->elements) && op.inplace != ops::Inplace::kRegion;
  if (op.inplace == ops::Inplace::kTemporary) {
    TT_RETURN_IF_ERROR(prepare_temporary(i, op, r));
    if (slot.storage) return {};
  }
  bool taken = false;  // two results never take over the same value
  for (std::size_t other = 0; other < r && old.references() > 1; ++other) {
    taken |= slots_[other].stolen_from == &old;
  }
  if (!taken && free_to_take(i, old)) {
    slot.storage = StorageRef(storage_of(old));
    slot.stolen_from = &old;
    return {};
  }
  slot.copy_old = !all;
  return allocate(op, bytes_of(result.value->elements, result.value->dtype), i.seq, &slot.storage);
}

// A published storage is written in place, regardless of other references. If this session still
// reads the old value (for its tape), the old contents are copied first.
Status Preparation::prepare_through(const Instruction& i, const ops::OpDef& op, std::size_t r) {
  Slot& slot = slots_[r];
  const Value& old = *i.operands[static_cast<std::size_t>(i.results[r].overwrites)].value;
  slot.storage = StorageRef(storage_of(old));
  slot.through = true;
  if (!held_only_here(i, old)) {
    TT_RETURN_IF_ERROR(allocate(op, slot.storage->bytes(), i.seq, &slot.before));
  }
  return op.inplace == ops::Inplace::kTemporary ? prepare_temporary(i, op, r) : Status();
}

// The kernel needs exactly the layout that infer promises, and memory of its own. If the result has
// that layout anyway, slot.storage is set, otherwise slot.temporary.
Status Preparation::prepare_temporary(const Instruction& i, const ops::OpDef& op, std::size_t r) {
  std::vector<core::Layout> layouts(i.operands.size());
  std::vector<ops::OperandInfo> infos(i.operands.size());
  for (std::size_t k = 0; k < i.operands.size(); ++k) {
    const Operand& operand = i.operands[k];
    if (operand.kind == Operand::Kind::kTensor) {
      layouts[k] = {operand.dtype, operand.value->device, *operand.geometry};
      infos[k].layout = &layouts[k];
    } else if (operand.kind == Operand::Kind::kNumber) {
      infos[k].number = &operand.number;
    }
  }
  ops::InferContext context{.op = op.name,
                            .operands = infos,
                            .counts = {i.counts.data(), i.counts.size()},
                            .attributes = *i.attributes,
                            .device = device().id(),
                            .results = {}};
  TT_RETURN_IF_ERROR(op.infer(context));
  const ResultSlot& result = i.results[r];
  if (r >= context.results.size() ||
      !(context.results[r].geometry.shape == result.geometry->shape)) {
    return core::internal(
        op.name + ": the shape of the result differs from that of the tensor that it overwrites");
  }
  Slot& slot = slots_[r];
  slot.temporary_layout = context.results[r];
  const Geometry& geometry = slot.temporary_layout.geometry;
  const bool direct = !slot.storage && slot.temporary_layout.dtype == result.value->dtype &&
                      geometry == *result.geometry && covers(geometry, result.value->elements);
  return allocate(op, bytes_of(geometry.storage_end(), slot.temporary_layout.dtype), i.seq,
                  direct ? &slot.storage : &slot.temporary);
}

// Copies the other operands that overlap the region to be overwritten, unless the kernel supports
// the overlap.
Status Preparation::separate_operands(const Instruction& i, const ops::OpDef& op, int overwritten) {
  if (op.inplace == ops::Inplace::kTemporary) return {};
  const std::size_t target = static_cast<std::size_t>(overwritten);
  const Value* old = i.operands[target].value.get();
  const memory::Storage* storage = storage_of(*old);
  const bool published = storage->sharing() != nullptr;  // other values may then use it as well
  if (old->references() == 1 && !published) return {};
  const Geometry* region = nullptr;
  const core::DType dtype = i.operands[target].dtype;
  for (const ResultSlot& result : i.results) {
    if (result.overwrites == overwritten) region = result.geometry;
  }
  for (std::size_t k = 0; k < i.operands.size(); ++k) {
    const Operand& operand = i.operands[k];
    const bool same = operand.value.get() == old ||
                      (published && operand.value && storage_of(*operand.value) == storage);
    if (k == target || !same || in_[k].geometry != operand.geometry) continue;
    if (apart(*operand.geometry, operand.dtype, *region, dtype)) continue;
    if (op.inplace == ops::Inplace::kElementwise && operand.dtype == dtype &&
        *operand.geometry == *region) {
      continue;
    }
    Separated& copy = separated_.emplace_back();
    // Repeated elements (stride 0) are copied only once.
    Geometry source = *operand.geometry;
    for (int d = 0; d < source.rank(); ++d) {
      if (source.strides[d] == 0 && source.shape[d] > 1) source.shape[d] = 1;
    }
    copy.packed = Geometry(source.shape);
    copy.geometry = Geometry(operand.geometry->shape, copy.packed.strides);
    for (int d = 0; d < source.rank(); ++d) {
      if (source.shape[d] != operand.geometry->shape[d]) copy.geometry.strides[d] = 0;
    }
    const std::size_t bytes = bytes_of(copy.packed.numel(), operand.dtype);
    TT_RETURN_IF_ERROR(allocate(op, bytes, i.seq, &copy.storage));
    PartsOnLanes parallel(context_.lanes, nullptr, i.seq);
    ScratchMemory scratch(memory_, device_, i.seq);
    TT_RETURN_IF_ERROR(context_.copies.copy(device(), {in_[k].data, operand.dtype, &source},
                                            {copy.storage->data(), operand.dtype, &copy.packed},
                                            parallel, scratch));
    count_copied(bytes);
    in_[k].data = copy.storage->data();
    in_[k].geometry = &copy.geometry;
  }
  return {};
}

Status Preparation::copy_before(const Instruction& i, const ops::OpDef& op,
                                backends::Parallel& parallel, backends::Scratch& scratch) {
  for (std::size_t r = 0; overwrites_ && r < slots_.size(); ++r) {
    const bool taken = slots_[r].stolen_from != nullptr || slots_[r].through;
    if (taken && i.results[r].overwrites >= 0) {
      TT_RETURN_IF_ERROR(separate_operands(i, op, i.results[r].overwrites));
    }
  }
  if (!prefills_) return {};
  for (std::size_t r = 0; r < slots_.size(); ++r) {
    const Slot& slot = slots_[r];
    const ResultSlot& result = i.results[r];
    if (slot.before) {
      TT_RETURN_IF_ERROR(
          device().backend().copy(slot.before->data(), slot.storage->data(), slot.before->bytes()));
      count_copied(slot.before->bytes());
    }
    if (slot.copy_old) {
      const Value& old = *i.operands[static_cast<std::size_t>(result.overwrites)].value;
      const std::size_t bytes = bytes_of(result.value->elements, result.value->dtype);
      TT_RETURN_IF_ERROR(
          device().backend().copy(slot.storage->data(), storage_of(old)->data(), bytes));
      count_copied(bytes);
    } else if (slot.clone_first) {
      TT_RETURN_IF_ERROR(context_.copies.copy(
          device(), {in_[0].data, in_[0].dtype, in_[0].geometry},
          {slot.storage->data(), result.value->dtype, result.geometry}, parallel, scratch));
      count_copied(bytes_of(result.geometry->numel(), result.value->dtype));
    }
  }
  return {};
}

Status Preparation::copy_after(const Instruction& instruction, backends::Parallel& parallel,
                               backends::Scratch& scratch) {
  if (!temporary_) return {};
  for (std::size_t r = 0; r < slots_.size(); ++r) {
    const Slot& slot = slots_[r];
    if (!slot.temporary) continue;
    const ResultSlot& result = instruction.results[r];
    TT_RETURN_IF_ERROR(context_.copies.copy(
        device(), {out_[r].data, out_[r].dtype, out_[r].geometry},
        {slot.storage->data(), result.value->dtype, result.geometry}, parallel, scratch));
  }
  return {};
}

void Preparation::commit(const Instruction& instruction) {
  for (std::size_t r = 0; r < instruction.results.size(); ++r) {
    Slot& slot = slots_[r];
    if (slot.stolen_from != nullptr) slot.stolen_from->contents = nullptr;
    if (slot.before) {
      const auto old = static_cast<std::size_t>(instruction.results[r].overwrites);
      instruction.operands[old].value->contents = std::move(slot.before);
    }
    instruction.results[r].value->contents = std::move(slot.storage);
  }
  describe_results(instruction);
}

void Preparation::clear() {
  slots_.clear();
  if (!separated_.empty()) separated_.clear();
}

}  // namespace teletensor::runtime
