// SharedLocks: locks on published storages for the duration of an instruction.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "engine/program/instruction.h"
#include "engine/program/value.h"
#include "engine/runtime/device.h"
#include "engine/runtime/lanes.h"

namespace teletensor::runtime {

// Locks all published storages of an instruction, so that an instruction that writes to one is
// atomic for all sessions.
class SharedLocks {
 public:
  explicit SharedLocks(Devices& devices) : devices_(devices) {}
  ~SharedLocks() {
    if (held_ > 0) (void)order(&backends::Accelerator::end_shared);
    for (std::size_t i = held_; i-- > 0;) list_[i].first->unlock(list_[i].second);
  }
  SharedLocks(const SharedLocks&) = delete;
  SharedLocks& operator=(const SharedLocks&) = delete;

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
  void add(const memory::Storage& storage, bool write) {
    if (storage.sharing() == nullptr) return;
    list_.emplace_back(storage.sharing(), write);
    on_device_ |= storage.device().kind != core::DeviceKind::kCpu;
  }
  core::Status acquire() {
    std::sort(list_.begin(), list_.end(), [](const auto& a, const auto& b) {
      return a.first->order != b.first->order ? a.first->order < b.first->order
                                              : a.second > b.second;
    });
    list_.erase(std::unique(list_.begin(), list_.end(),
                            [](const auto& a, const auto& b) { return a.first == b.first; }),
                list_.end());
    for (; held_ < list_.size(); ++held_) list_[held_].first->lock(list_[held_].second);
    quiet_.emplace();
    return held_ > 0 ? order(&backends::Accelerator::begin_shared) : core::Status();
  }

 private:
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
  bool on_device_ = false;
  std::vector<std::pair<memory::Sharing*, bool>> list_;  // the flag: lock for writing
  std::size_t held_ = 0;
  std::optional<Lanes::Quiet> quiet_;
};

}  // namespace teletensor::runtime
