// Tensors that outlive their client: the daemon lists the kept handles in an inventory, and the
// mirror of the next client restores them from it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/autograd/graph.h"
#include "engine/program/inventory.h"

namespace teletensor::autograd {

using KeptNames = std::map<std::string, HandleRef>;

// Returns the kept handles with their bases and gradients. Each occurs once, and a base comes
// before its views. Removes their history, so computed tensors become leaves.
std::vector<HandleRef> strip(const KeptNames& kept);

// Describes the handles that strip() returned. Precondition: each of them has an id.
program::Inventory take_inventory(const KeptNames& kept, const std::vector<HandleRef>& handles);

// Makes the same handles in a mirror, in the order of the items. Returns INVALID_ARGUMENT if the
// inventory is inconsistent.
core::Result<std::vector<HandleRef>> restore(Graph& graph, const program::Inventory& inventory);

}  // namespace teletensor::autograd
