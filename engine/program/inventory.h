// Inventory: what a session keeps for its next client, without data: the named tensors, and of the
// handles behind them what a mirror is made of. Tensors come back without their history.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/geometry.h"
#include "engine/program/command.h"

namespace teletensor::program {

struct Inventory {
  struct Item {
    HandleId id = 0;
    HandleId base = 0;  // of a view
    HandleId grad = 0;
    core::Layout layout;
    // Two handles with the same number share the cell, or the clock; cells are clocks as well.
    std::uint64_t cell = 0, clock = 0;
    std::int64_t elements = 0;  // of the cell
    std::uint8_t made = 0;      // autograd::Handle::Made
    bool flag = false;          // requires_grad, its own
    bool read_only = false;     // somebody else's publication
  };
  std::vector<Item> items;  // a base before its views, a tensor before its gradient
  std::vector<std::pair<std::string, HandleId>> names;  // ascending
};

}  // namespace teletensor::program
