// Handles that outlive their client: taken down by the daemon, put up again in a new mirror.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/autograd/graph.h"
#include "engine/program/inventory.h"

namespace teletensor::autograd {

using KeptNames = std::map<std::string, HandleRef>;

// The named handles with their bases and gradients, each once, a base before its views. They lose
// their history: what was computed becomes a leaf.
std::vector<HandleRef> strip(const KeptNames& kept);

// What strip() gave, after all have their ids.
program::Inventory take_inventory(const KeptNames& kept, const std::vector<HandleRef>& handles);

// The same handles in a mirror, in order of the items. INVALID_ARGUMENT where it makes no sense.
core::Result<std::vector<HandleRef>> restore(Graph& graph, const program::Inventory& inventory);

}  // namespace teletensor::autograd
