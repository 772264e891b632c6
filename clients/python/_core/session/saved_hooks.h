// SavedHooks has the saved_tensors_hooks that are in effect. Runs under the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "clients/session/session.h"

namespace teletensor::client {

namespace nb = nanobind;

class SavedHooks {
 public:
  // `pack` receives the values that nodes save, and `unpack` returns them.
  struct Hooks {
    nb::object pack, unpack;
    // If it is not empty, the hooks apply only to values in these storages and dtypes, and pack()
    // receives the storage's number, shape, strides and offset instead of a tensor.
    std::vector<std::pair<core::Ref<autograd::Cell>, core::DType>> storages;
    std::thread::id thread = std::this_thread::get_id();  // The thread whose values they receive.
  };
  // What happens to one saved value.
  struct Packing {
    nb::object pack, unpack;  // Both are empty if the value is kept unchanged.
    // Number of the value's storage among those that the hooks apply to. -1 means that they apply
    // to all.
    int storage = -1;
  };

  std::size_t size() const { return hooks_.size(); }
  void push(Hooks hooks) { hooks_.push_back(std::move(hooks)); }
  // Removes the innermost hooks until `left` remain.
  void pop(std::size_t left) {
    if (hooks_.size() <= left) return;
    hooks_.erase(hooks_.begin() + static_cast<std::ptrdiff_t>(left), hooks_.end());
  }
  // The innermost hooks of the calling thread that apply to the value.
  Packing of(const autograd::Node::SavedSlot& slot) const {
    for (auto hooks = hooks_.rbegin(); hooks != hooks_.rend(); ++hooks) {
      if (hooks->thread != std::this_thread::get_id()) continue;
      if (hooks->storages.empty()) return {hooks->pack, hooks->unpack};
      for (std::size_t i = 0; i < hooks->storages.size(); ++i) {
        const auto& [cell, dtype] = hooks->storages[i];
        if (cell.get() != slot.cell || dtype != slot.layout.dtype) continue;
        return {hooks->pack, hooks->unpack, static_cast<int>(i)};
      }
    }
    return {};
  }

 private:
  std::vector<Hooks> hooks_;  // Innermost last.
};

}  // namespace teletensor::client
