#include "engine/runtime/execute/instruction_memory.h"

#include <algorithm>
#include <string>

#include "engine/runtime/execute/value_storage.h"

namespace teletensor::runtime {

using core::Status;
using program::Value;

namespace {

// The number of attempts to allocate memory that is available according to the accounts.
constexpr int kTries = 4;

}  // namespace

InstructionMemory::InstructionMemory(Devices& devices, memory::OwnerId owner, std::uint64_t quota)
    : devices_(devices), taken_(devices.size()) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    pools_.emplace_back(memory::Pool::create(devices.at(i).pool(), owner, quota));
  }
}

void InstructionMemory::begin_attempt() {
  std::fill(taken_.begin(), taken_.end(), 0);
  lacked_ = {};
  drop_grant();
}

Status InstructionMemory::allocate(std::size_t device, std::string_view what, std::size_t bytes,
                                   std::uint64_t seq, StorageRef* storage) {
  TT_RETURN_IF_ERROR(devices_.at(device).backend().admit(bytes));
  bool lacks = false;
  *storage = take(device, bytes, seq, true, &lacks);
  if (*storage) {
    taken_[device] += memory::charged_bytes(bytes);
    return {};
  }
  if (lacks && may_wait(device, bytes)) return starve(device, bytes);
  return pools_[device]->refusal(what, bytes);
}

InstructionMemory::StorageRef InstructionMemory::allocate_scratch(std::size_t device,
                                                                  std::size_t bytes,
                                                                  std::uint64_t seq) {
  bool lacks = false;
  // Does not use the session task's allocator, because a kernel may call this inside a part on
  // another lane.
  StorageRef storage = take(device, bytes, seq, false, &lacks);
  if (storage) {
    taken_[device] += memory::charged_bytes(bytes);
  } else if (lacks) {
    lacked_ = {bytes, device};
  }
  return storage;
}

InstructionMemory::StorageRef InstructionMemory::take(std::size_t device, std::size_t bytes,
                                                      std::uint64_t seq, bool session_task,
                                                      bool* lacks) {
  memory::Pool& pool = *pools_[device];
  // The accounts may have got room in the meantime. If they have room and the allocation fails
  // repeatedly, the device itself has no memory.
  for (int tries = 0; tries < kTries && !*lacks; ++tries) {
    StorageRef storage =
        session_task ? pool.allocate(bytes, seq) : pool.allocate_shared(bytes, seq);
    if (storage) return storage;
    *lacks = pool.room_for(bytes) != memory::Pool::Short::kNothing;
  }
  return nullptr;
}

bool InstructionMemory::moves(std::size_t device) const {
  return patient_ && (device != kHostIndex || pools_[kHostIndex]->moved_storages().disk_share());
}

bool InstructionMemory::may_wait(std::size_t device, std::size_t bytes) {
  const bool may_move = moves(device) && !last_chance_;
  if ((!may_move && !open_) ||
      taken_[device] + memory::charged_bytes(std::min<std::size_t>(bytes, SIZE_MAX / 4)) >
          pools_[device]->account().quota()) {
    return false;
  }
  full_ = !may_move;
  return true;
}

Status InstructionMemory::starve(std::size_t device, std::size_t bytes) {
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

void InstructionMemory::drop_grant() {
  for (std::size_t i = 0; i < granted_.size(); ++i) pools_[i]->release(granted_[i]);
  granted_.clear();
}

// A kernel that could not get temporary memory has stored nothing and may be tried again.
bool InstructionMemory::has_starved(const Status& status) {
  const Lacked lacked = std::exchange(lacked_, {});
  if (!starved_ && lacked.bytes > 0 && status.code() == core::Code::kResourceExhausted &&
      may_wait(lacked.device, lacked.bytes)) {
    (void)starve(lacked.device, lacked.bytes);
  }
  return starved_;
}

Status InstructionMemory::require(const Value& value, std::string_view what) {
  memory::Storage& storage = *storage_of(value);
  storage.touch(now_);
  if (storage.data() != nullptr) return {};
  if (Status lost = memory::MovedStorages::lost(storage); !lost.ok()) {
    return Status(lost.code(), std::string(what) + ": " + lost.message());
  }
  const auto device = static_cast<std::size_t>(devices_.find(value.device));
  TT_RETURN_IF_ERROR(devices_.at(device).backend().health());
  if (patient_ && !last_chance_) {
    need(value);
    return starve(device, 0);
  }
  return pools_[device]->refusal(std::string(what) + ": an operand that was moved out of memory",
                                 storage.bytes());
}

Status InstructionMemory::find(const Value& value, std::string_view what, std::uint64_t seq,
                               StorageRef* storage, std::size_t* device) {
  *device = static_cast<std::size_t>(devices_.find(value.device));
  memory::Storage& own = *storage_of(value);
  if (own.away() && !devices_.at(*device).backend().health().ok()) {
    *device = kHostIndex;
    TT_RETURN_IF_ERROR(allocate(kHostIndex, what, own.bytes(), seq, storage));
    return own.read(0, (*storage)->data(), own.bytes());
  }
  *storage = StorageRef(&own);
  return require(value, what);
}

void InstructionMemory::need(const Value& value) { need_.operands.emplace_back(storage_of(value)); }

void InstructionMemory::need(const program::Instruction& instruction) {
  for (const program::Operand& operand : instruction.operands) {
    if (operand.value && operand.value->contents) need(*operand.value);
  }
}

Tiers::Need InstructionMemory::take_need() {
  starved_ = full_ = false;
  return std::exchange(need_, {});
}

void InstructionMemory::set_now(std::uint32_t now) {
  now_ = now;
  for (const memory::PoolHandle& pool : pools_) pool->set_now(now);
}

}  // namespace teletensor::runtime
