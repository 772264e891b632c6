// Inventory: the description, without data, of the tensors that a session keeps for its next
// client: their names, and what the client's mirror needs to recreate their handles. The tensors
// have no history.
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
    HandleId base = 0;  // set for a view
    HandleId grad = 0;
    core::Layout layout;
    // Handles with the same number share the cell or the clock. A cell is also a clock, so both use
    // one numbering.
    std::uint64_t cell = 0, clock = 0;
    std::int64_t elements = 0;  // size of the cell
    std::uint8_t made = 0;      // autograd::Handle::Made
    bool flag = false;          // the handle's own requires_grad
    bool read_only = false;     // published by another session
  };
  std::vector<Item> items;  // a base comes before its views, a tensor before its gradient
  std::vector<std::pair<std::string, HandleId>> names;  // ascending by name
};

}  // namespace teletensor::program
