#include "engine/runtime/execute/executor.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/runtime/execute/executor_parts.h"

namespace teletensor::runtime {
namespace {

using core::Geometry;
using core::Status;
using program::Instruction;
using program::Operand;
using program::ResultSlot;
using program::Value;

bool apart(const Geometry& a, core::DType a_type, const Geometry& b, core::DType b_type) {
  const auto a_size = static_cast<std::int64_t>(core::size_of(a_type));
  const auto b_size = static_cast<std::int64_t>(core::size_of(b_type));
  return a.storage_end() * a_size <= b.offset * b_size ||
         b.storage_end() * b_size <= a.offset * a_size;
}

int id_of(const ops::Catalog& catalog, std::string_view name) {
  const ops::OpDef* const op = catalog.find(name);
  return op == nullptr ? -1 : static_cast<int>(catalog.id(*op));
}

}  // namespace

// ---------------------------------------------------------------- one instruction

Executor::Executor(const ops::Catalog& catalog, Devices& devices, Lanes& lanes,
                   memory::OwnerId owner, std::uint64_t quota, LockWait& lock_wait,
                   const SessionGroups& groups)
    : catalog_(catalog),
      devices_(devices),
      lanes_(lanes),
      lock_wait_(lock_wait),
      owner_(owner),
      groups_(groups),
      copies_(catalog),
      copy_ops_{id_of(catalog, "to_device"), id_of(catalog, "copy")},
      taken_(devices.size()) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    pools_.emplace_back(memory::Pool::create(devices.at(i).pool(), owner, quota));
    has_accelerator_ = has_accelerator_ || devices.at(i).accelerator() != nullptr;
    for (std::size_t op = 0; op < catalog.size(); ++op) {
      has_loops_ = has_loops_ || devices.at(i).backend().role(static_cast<ops::OpId>(op)) !=
                                     backends::LoopRole::kNone;
    }
  }
}

Executor::~Executor() {
  drop_grant();
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (auto* const accelerator = devices_.at(i).accelerator()) accelerator->end(owner_);
  }
}

std::uint64_t Executor::cost(std::uint64_t host_ns) {
  std::uint64_t device_ns = 0, waited_ns = 0;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    auto* const accelerator = devices_.at(i).accelerator();
    if (accelerator == nullptr) continue;
    const auto time = accelerator->take_time(owner_);
    device_ns += time.device_ns;
    waited_ns += time.waited_ns;
  }
  return std::max(host_ns - std::min(host_ns, waited_ns), device_ns);
}

void Executor::gather(bool on) {
  if (!has_accelerator_) return;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (auto* const accelerator = devices_.at(i).accelerator()) accelerator->gather(owner_, on);
  }
}

FailureRef Executor::run(Instruction& instruction, bool* root) {
  *root = false;
  for (const Operand& operand : instruction.operands) {
    if (operand.value && operand.value->failure) {
      const FailureRef failure = operand.value->failure;
      decline(instruction, failure->status);
      fail(instruction, failure);
      return failure;
    }
  }
  Profile::Timer timer(profile_, instruction.seq, instruction.op, 1);
  const Try chance(*this);
  Status status;
  try {
    status = execute(instruction, catalog_.at(instruction.op));
  } catch (const std::bad_alloc&) {
    status = Status(core::Code::kResourceExhausted,
                    catalog_.at(instruction.op).name + ": the daemon process is out of memory");
  } catch (...) {
    status = core::internal(catalog_.at(instruction.op).name + ": the kernel threw an exception");
  }
  if (status.ok()) {
    commit(instruction);
    clear();
    return nullptr;
  }
  clear();
  if (opened()) return nullptr;
  if (forming_.member || lock_wait_.blocked()) {
    timer.forget();
    return nullptr;
  }
  if (has_starved(status)) {
    timer.forget();
    need_operands(instruction);
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

Status Executor::located(const Status& status, const std::string& origin) {
  return Status(status.code(), status.message() + "\n(in the program: " + origin + ")");
}

void Executor::fail(Instruction& instruction, const FailureRef& failure) {
  lock_wait_.give_up();
  for (ResultSlot& result : instruction.results) {
    result.value->failure = failure;
    if (result.overwrites < 0) continue;
    const program::ValueRef& old =
        instruction.operands[static_cast<std::size_t>(result.overwrites)].value;
    result.value->good = old->failure ? old->good : old;
  }
}

void Executor::commit(Instruction& instruction) {
  for (std::size_t r = 0; r < instruction.results.size(); ++r) {
    Slot& slot = slots_[r];
    if (slot.stolen_from != nullptr) slot.stolen_from->contents = nullptr;
    if (slot.before) {
      const auto old = static_cast<std::size_t>(instruction.results[r].overwrites);
      instruction.operands[old].value->contents = std::move(slot.before);
    }
    instruction.results[r].value->contents = std::move(slot.storage);
  }
  describe(instruction);
}

void Executor::describe(const Instruction& instruction) {
  for (const ResultSlot& result : instruction.results) {
    if (result.geometry == nullptr || !result.value->contents) continue;
    memory::Described& described = storage_of(*result.value)->described();
    if (result.overwrites < 0) {
      described.set(result.value->dtype, result.geometry->shape);
    } else if (!described.known()) {
      const Value& old = *instruction.operands[static_cast<std::size_t>(result.overwrites)].value;
      if (old.contents) described.set(storage_of(old)->described());
    }
  }
}

void Executor::clear() {
  slots_.clear();
  if (!separated_.empty()) separated_.clear();
}

Status Executor::allocate(std::string_view what, std::size_t bytes, std::uint64_t seq,
                          StorageRef* storage) {
  TT_RETURN_IF_ERROR(device().backend().admit(bytes));
  bool lacks = false;
  *storage = take(device_, bytes, seq, true, &lacks);
  if (*storage) {
    taken_[device_] += memory::charged_bytes(bytes);
    return {};
  }
  if (lacks && may_wait(device_, bytes)) return starve(device_, bytes);
  return pools_[device_]->refusal(what, bytes);
}

Executor::StorageRef Executor::take(std::size_t device, std::size_t bytes, std::uint64_t seq,
                                    bool strand, bool* lacks) {
  memory::Pool& pool = *pools_[device];
  // The accounts may have got room in the meantime. If they have room and the allocation fails
  // repeatedly, the device itself has no memory.
  for (int tries = 0; tries < kTries && !*lacks; ++tries) {
    StorageRef storage = strand ? pool.allocate(bytes, seq) : pool.allocate_shared(bytes, seq);
    if (storage) return storage;
    *lacks = pool.room_for(bytes) != memory::Pool::Short::kNothing;
  }
  return nullptr;
}

// ---------------------------------------------------------------- memory that is not available

bool Executor::moves(std::size_t device) const {
  return patient_ && (device != kHostIndex || pools_[kHostIndex]->disk_share());
}

bool Executor::may_wait(std::size_t device, std::size_t bytes) {
  const bool may_move = moves(device) && !last_chance_;
  if ((!may_move && !open_) ||
      taken_[device] + memory::charged_bytes(std::min<std::size_t>(bytes, SIZE_MAX / 4)) >
          pools_[device]->account().quota()) {
    return false;
  }
  full_ = !may_move;
  return true;
}

Status Executor::starve(std::size_t device, std::size_t bytes) {
  starved_ = true;
  // Request everything at once: what this attempt has taken is returned until then.
  if (bytes > 0) {
    need_.bytes.resize(taken_.size());
    for (std::size_t i = 0; i < taken_.size(); ++i) {
      need_.bytes[i] = std::max(need_.bytes[i], taken_[i] + (i == device ? bytes : 0));
    }
  }
  return Status(core::Code::kResourceExhausted, "there is not enough memory yet");
}

void Executor::drop_grant() {
  for (std::size_t i = 0; i < granted_.size(); ++i) pools_[i]->release(granted_[i]);
  granted_.clear();
}

// A kernel that could not get temporary memory has stored nothing and may be tried again.
bool Executor::has_starved(const Status& status) {
  const Lacked lacked = std::exchange(lacked_, {});
  if (!starved_ && lacked.bytes > 0 && status.code() == core::Code::kResourceExhausted &&
      may_wait(lacked.device, lacked.bytes)) {
    (void)starve(lacked.device, lacked.bytes);
  }
  return starved_;
}

// Requires the contents to be in memory, and marks them as used.
Status Executor::require(const Value& value, std::string_view what) {
  memory::Storage& storage = *storage_of(value);
  storage.touch(now_);
  if (storage.data() != nullptr) return {};
  if (Status lost = memory::Pool::lost(storage); !lost.ok()) {
    return Status(lost.code(), std::string(what) + ": " + lost.message());
  }
  const auto device = static_cast<std::size_t>(devices_.find(value.device));
  TT_RETURN_IF_ERROR(devices_.at(device).backend().health());
  if (patient_ && !last_chance_) {
    need_.operands.emplace_back(&storage);
    return starve(device, 0);
  }
  return pools_[device]->refusal(std::string(what) + ": an operand that was moved out of memory",
                                 storage.bytes());
}

// Returns the storage to read a value from, and sets device_ to its device. If the device is lost
// but the storage was moved away earlier, the contents are read from the host.
Status Executor::find(const Value& value, std::string_view what, std::uint64_t seq,
                      StorageRef* storage) {
  device_ = static_cast<std::size_t>(devices_.find(value.device));
  memory::Storage& own = *storage_of(value);
  if (own.away() && !device().backend().health().ok()) {
    device_ = kHostIndex;
    TT_RETURN_IF_ERROR(allocate(what, own.bytes(), seq, storage));
    return own.read(0, (*storage)->data(), own.bytes());
  }
  *storage = StorageRef(&own);
  return require(value, what);
}

void Executor::need_operands(const Instruction& instruction) {
  for (const Operand& operand : instruction.operands) {
    if (operand.value && operand.value->contents) {
      need_.operands.emplace_back(storage_of(*operand.value));
    }
  }
}

Tiers::Need Executor::take_need() {
  starved_ = full_ = false;
  return std::exchange(need_, {});
}

void Executor::set_now(std::uint32_t now) {
  now_ = now;
  for (const memory::PoolHandle& pool : pools_) pool->set_now(now);
}

Status Executor::gather_operands(Instruction& instruction, const ops::OpDef& op) {
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
        storage_of(value)->touch(now_);
        if (arg.data == nullptr) [[unlikely]]
          TT_RETURN_IF_ERROR(require(value, op.name));
        shared_ |= storage_of(value)->sharing() != nullptr;
        arg.dtype = operand.dtype;
        arg.geometry = operand.geometry;
        arg.bounds = nullptr;
        // Other sessions may write to a published storage.
        if (has_accelerator_ && core::is_integral(operand.dtype) &&
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

Status Executor::execute(Instruction& instruction, const ops::OpDef& op) {
  if (instruction.results.empty()) return {};
  const core::Device on = instruction.results[0].value->device;
  if (!(device().id() == on)) {
    const int found = devices_.find(on);
    if (found < 0) return devices_.missing(op.name, on);
    device_ = static_cast<std::size_t>(found);
  }
  TT_RETURN_IF_ERROR(device().backend().before(op));
  slots_.resize(instruction.results.size());
  if (instruction.op == copy_ops_.to_device) return transfer(instruction);
  if (op.collective) return meet(instruction, op);
  if (instruction.op == copy_ops_.copy && instruction.operands[1].value &&
      instruction.operands[1].value->received && may_share(instruction)) [[unlikely]] {
    slots_[0].storage = StorageRef(storage_of(*instruction.operands[1].value));
    return require(*instruction.operands[1].value, op.name);
  }
  const backends::Kernel kernel = device().kernel(instruction.op);
  if (kernel == nullptr) {
    return Status(core::Code::kUnimplemented,
                  op.name + ": not available on " + core::to_string(on));
  }
  TT_RETURN_IF_ERROR(gather_operands(instruction, op));
  SharedLocks locks(devices_, lock_wait_.request());
  if (shared_) [[unlikely]] {
    locks.add(instruction);
    TT_RETURN_IF_ERROR(lock_wait_.acquire(locks, instruction.seq));
  }

  out_.resize(instruction.results.size());
  bool stealing = false, prefill = false, temporary = false;
  for (std::size_t r = 0; r < instruction.results.size(); ++r) {
    const ResultSlot& result = instruction.results[r];
    TT_RETURN_IF_ERROR(result.overwrites < 0 ? prepare_new(instruction, op, r)
                                             : prepare_overwrite(instruction, op, r));
    const Slot& slot = slots_[r];
    stealing |= slot.stolen_from != nullptr || slot.through;
    prefill |= slot.copy_old || slot.clone_first || slot.before;
    if (has_accelerator_) forget_bounds(*slot.storage);
    backends::TensorArg& out = out_[r];
    out.kind = backends::TensorArg::Kind::kTensor;
    if (slot.temporary) {
      temporary = true;
      out.data = slot.temporary->data();
      out.dtype = slot.temporary_layout.dtype;
      out.geometry = &slot.temporary_layout.geometry;
    } else {
      out.data = slot.storage->data();
      out.dtype = result.value->dtype;
      out.geometry = result.geometry;
    }
  }

  PartsOnLanes parallel(lanes_, stealing ? nullptr : this, instruction.seq);
  ScratchMemory scratch(*this, instruction.seq);
  if (stealing) {
    for (std::size_t r = 0; r < slots_.size(); ++r) {
      const bool taken = slots_[r].stolen_from != nullptr || slots_[r].through;
      if (taken && instruction.results[r].overwrites >= 0) {
        TT_RETURN_IF_ERROR(separate_operands(instruction, op, instruction.results[r].overwrites));
      }
    }
  }
  if (prefill) TT_RETURN_IF_ERROR(fill_before(instruction, parallel, scratch));
  backends::KernelCall call{op,
                            in_,
                            out_,
                            {instruction.counts.data(), instruction.counts.size()},
                            *instruction.attributes,
                            parallel,
                            scratch,
                            nullptr,
                            &device().backend()};
  TT_RETURN_IF_ERROR(kernel(call));
  if (parallel.was_cancelled()) return Status(core::Code::kCancelled, op.name + ": interrupted");
  if (!temporary) return {};
  for (std::size_t r = 0; r < slots_.size(); ++r) {
    const Slot& slot = slots_[r];
    if (!slot.temporary) continue;
    const ResultSlot& result = instruction.results[r];
    TT_RETURN_IF_ERROR(copies_.copy(device(), {out_[r].data, out_[r].dtype, out_[r].geometry},
                                    {slot.storage->data(), result.value->dtype, result.geometry},
                                    parallel, scratch));
  }
  return {};
}

// Called before the storage is written: bounds of an operand in it that a kernel derived would
// describe the old contents.
void Executor::forget_bounds(memory::Storage& storage) {
  // Bounds are never recorded for a shared storage, because tasks of other sessions write to it.
  if (storage.sharing() != nullptr) return;
  storage.bounds() = {};
  for (backends::TensorArg& arg : in_) {
    if (arg.bounds == &storage.bounds()) arg.bounds = nullptr;
  }
}

Status Executor::prepare_new(Instruction& i, const ops::OpDef& op, std::size_t r) {
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
  TT_RETURN_IF_ERROR(allocate(op.name, bytes, i.seq, &slot.storage));
  slot.clone_first = region;
  return {};
}

Status Executor::prepare_overwrite(Instruction& i, const ops::OpDef& op, std::size_t r) {
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
  return allocate(op.name, bytes_of(result.value->elements, result.value->dtype), i.seq,
                  &slot.storage);
}

// A published storage is written in place, regardless of other references. If this session still
// reads the old value (for its tape), the old contents are copied first.
Status Executor::prepare_through(Instruction& i, const ops::OpDef& op, std::size_t r) {
  Slot& slot = slots_[r];
  const Value& old = *i.operands[static_cast<std::size_t>(i.results[r].overwrites)].value;
  slot.storage = StorageRef(storage_of(old));
  slot.through = true;
  if (!held_only_here(i, old)) {
    TT_RETURN_IF_ERROR(allocate(op.name, slot.storage->bytes(), i.seq, &slot.before));
  }
  return op.inplace == ops::Inplace::kTemporary ? prepare_temporary(i, op, r) : Status();
}

// The kernel needs exactly the layout that infer promises, and memory of its own. If the result has
// that layout anyway, slot.storage is set, otherwise slot.temporary.
Status Executor::prepare_temporary(Instruction& i, const ops::OpDef& op, std::size_t r) {
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
  return allocate(op.name, bytes_of(geometry.storage_end(), slot.temporary_layout.dtype), i.seq,
                  direct ? &slot.storage : &slot.temporary);
}

// Copies the other operands that overlap the region to be overwritten, unless the kernel supports
// the overlap.
Status Executor::separate_operands(Instruction& i, const ops::OpDef& op, int overwritten) {
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
    TT_RETURN_IF_ERROR(allocate(op.name, bytes, i.seq, &copy.storage));
    PartsOnLanes parallel(lanes_, nullptr, i.seq);
    ScratchMemory scratch(*this, i.seq);
    TT_RETURN_IF_ERROR(copies_.copy(device(), {in_[k].data, operand.dtype, &source},
                                    {copy.storage->data(), operand.dtype, &copy.packed}, parallel,
                                    scratch));
    copied_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    in_[k].data = copy.storage->data();
    in_[k].geometry = &copy.geometry;
  }
  return {};
}

Status Executor::fill_before(Instruction& i, backends::Parallel& parallel,
                             backends::Scratch& scratch) {
  for (std::size_t r = 0; r < slots_.size(); ++r) {
    const Slot& slot = slots_[r];
    const ResultSlot& result = i.results[r];
    if (slot.before) {
      TT_RETURN_IF_ERROR(
          device().backend().copy(slot.before->data(), slot.storage->data(), slot.before->bytes()));
      copied_bytes_.fetch_add(slot.before->bytes(), std::memory_order_relaxed);
    }
    if (slot.copy_old) {
      const Value& old = *i.operands[static_cast<std::size_t>(result.overwrites)].value;
      const std::size_t bytes = bytes_of(result.value->elements, result.value->dtype);
      TT_RETURN_IF_ERROR(
          device().backend().copy(slot.storage->data(), storage_of(old)->data(), bytes));
      copied_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    } else if (slot.clone_first) {
      TT_RETURN_IF_ERROR(copies_.copy(device(), {in_[0].data, in_[0].dtype, in_[0].geometry},
                                      {slot.storage->data(), result.value->dtype, result.geometry},
                                      parallel, scratch));
      copied_bytes_.fetch_add(bytes_of(result.geometry->numel(), result.value->dtype),
                              std::memory_order_relaxed);
    }
  }
  return {};
}

}  // namespace teletensor::runtime
