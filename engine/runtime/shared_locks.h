// SharedLocks: locks on published storages for the duration of an instruction.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/program/instruction.h"
#include "engine/program/value.h"
#include "engine/runtime/device.h"

namespace teletensor::runtime {

// Locks all published storages of an instruction, so that an instruction that writes to one is
// atomic for all sessions. Does not block the thread, so that no lane waits for another session.
class SharedLocks {
 public:
  // `request` holds the locks or waits for them.
  SharedLocks(Devices& devices, memory::LockRequest& request)
      : devices_(devices), request_(request) {}
  ~SharedLocks() {
    if (!held_) return;
    (void)order(&backends::Accelerator::end_shared);
    request_.unlock();
  }
  SharedLocks(const SharedLocks&) = delete;
  SharedLocks& operator=(const SharedLocks&) = delete;

  // The add() functions collect the storages; they lock nothing. Storages that are not published
  // are ignored. Must not be called after acquire().
  void add(const program::Instruction& instruction) {
    for (const program::Operand& operand : instruction.operands) {
      if (operand.value && operand.value->contents) add(*operand.value, false);
    }
    for (const program::ResultSlot& result : instruction.results) {
      if (result.overwrites < 0 || !result.value->through) continue;
      add(*instruction.operands[static_cast<std::size_t>(result.overwrites)].value, true);
    }
  }
  void add(const program::Value& value, bool write) {
    add(*static_cast<memory::Storage*>(value.contents.get()), write);
  }
  void add(memory::Storage& storage, bool write) {
    if (storage.sharing() == nullptr) return;
    uses_.push_back({core::Ref<core::Shared>(&storage), storage.sharing(), write});
    on_device_ |= storage.device().kind != core::DeviceKind::kCpu;
  }
  // Takes all locks, in one order for all sessions, so that no two sessions wait for each other. If
  // *waits is set, the locks are not held: the instruction must be tried again later
  // (memory::LockRequest::try_lock). Returns the error of a device that cannot order its accesses.
  core::Status acquire(bool* waits) {
    *waits = false;
    if (uses_.empty()) return {};
    std::sort(uses_.begin(), uses_.end(), [](const Use& a, const Use& b) {
      return a.sharing->order != b.sharing->order ? a.sharing->order < b.sharing->order
                                                  : a.write > b.write;
    });
    const auto same = [](const Use& a, const Use& b) { return a.sharing == b.sharing; };
    uses_.erase(std::unique(uses_.begin(), uses_.end(), same), uses_.end());
    held_ = request_.try_lock(std::move(uses_));
    *waits = !held_;
    return held_ ? order(&backends::Accelerator::begin_shared) : core::Status();
  }

 private:
  using Use = memory::LockRequest::Use;

  // Devices run asynchronously and may run later than the locks are held, so they must order the
  // accesses themselves.
  core::Status order(core::Status (backends::Accelerator::*how)()) {
    for (std::size_t i = 0; on_device_ && i < devices_.size(); ++i) {
      backends::Accelerator* const each = devices_.at(i).accelerator();
      if (each != nullptr) TT_RETURN_IF_ERROR((each->*how)());
    }
    return {};
  }

  Devices& devices_;
  memory::LockRequest& request_;
  bool on_device_ = false, held_ = false;
  std::vector<Use> uses_;
};

}  // namespace teletensor::runtime
