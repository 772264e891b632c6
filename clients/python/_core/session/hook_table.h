// HookTable: the Python functions behind the hooks of tensors and nodes. The tape knows a hook by
// its number only.
#pragma once

#include <nanobind/nanobind.h>

#include <span>
#include <unordered_map>
#include <utility>

#include "engine/autograd/objects.h"

namespace teletensor::client {

namespace nb = nanobind;

// Runs under the GIL.
class HookTable {
 public:
  // Returns the number of the new hook; numbers are never used again.
  autograd::HookId add(nb::object callable) {
    hooks_[next_] = std::move(callable);
    return next_++;
  }
  void drop(autograd::HookId hook) { hooks_.erase(hook); }
  // Returns the function of a hook, which stays alive while the caller has it: it may remove its
  // own hook. An invalid object if the hook was removed.
  nb::object find(autograd::HookId hook) const {
    const auto found = hooks_.find(hook);
    return found == hooks_.end() ? nb::object() : found->second;
  }
  // The functions of these hooks, without the hooks that were removed.
  nb::list list(std::span<const autograd::HookId> ids) const {
    nb::list out;
    for (const autograd::HookId id : ids) {
      const auto found = hooks_.find(id);
      if (found != hooks_.end()) out.append(found->second);
    }
    return out;
  }

 private:
  std::unordered_map<autograd::HookId, nb::object> hooks_;
  autograd::HookId next_ = 1;
};

}  // namespace teletensor::client
