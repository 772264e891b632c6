#include "engine/autograd/snapshot/inventory.h"

#include <algorithm>
#include <set>
#include <unordered_map>

namespace teletensor::autograd {

using program::HandleId;
using program::Inventory;

std::vector<HandleRef> strip(const KeptNames& kept) {
  std::vector<HandleRef> handles;
  std::set<const Handle*> seen;
  std::vector<HandleRef> waiting;
  for (const auto& [name, h] : kept) waiting.push_back(h);
  std::reverse(waiting.begin(), waiting.end());
  while (!waiting.empty()) {
    HandleRef h = std::move(waiting.back());
    waiting.pop_back();
    if (seen.contains(h.get())) continue;
    if (h->base && !seen.contains(h->base.get())) {
      HandleRef base = h->base;
      waiting.push_back(std::move(h));
      waiting.push_back(std::move(base));
      continue;
    }
    seen.insert(h.get());
    if (h->grad) waiting.push_back(h->grad);
    handles.push_back(std::move(h));
  }
  for (const HandleRef& h : handles) {
    if (h->retains && h->node) {
      std::erase_if(h->node->retained, [&](const auto& entry) { return entry.second == h.get(); });
    }
    if (h->node && h->node->remade_for == h.get()) h->node->remade_for = nullptr;
    h->retains = false;
    h->node = nullptr;
    h->leaf = nullptr;
    h->output = 0;
    h->seen = h->clock->now();
  }
  return handles;
}

Inventory take_inventory(const KeptNames& kept, const std::vector<HandleRef>& handles) {
  Inventory inventory;
  std::unordered_map<const Clock*, std::uint64_t> numbers;
  const auto number = [&](const Clock* clock) {
    return numbers.try_emplace(clock, numbers.size() + 1).first->second;
  };
  for (const HandleRef& h : handles) {
    Inventory::Item& item = inventory.items.emplace_back();
    item.id = h->id;
    item.base = h->base ? h->base->id : 0;
    item.grad = h->grad ? h->grad->id : 0;
    item.layout = h->layout;
    item.cell = number(h->cell.get());
    item.clock = number(h->clock.get());
    item.elements = h->stored();
    item.made = static_cast<std::uint8_t>(h->made);
    item.flag = h->flag;
    item.read_only = h->cell->read_only;
  }
  for (const auto& [name, h] : kept) inventory.names.emplace_back(name, h->id);
  return inventory;
}

core::Result<std::vector<HandleRef>> restore(Graph& graph, const Inventory& inventory) {
  const auto broken = [] {
    return core::invalid("the daemon's inventory of kept tensors is inconsistent");
  };
  std::unordered_map<std::uint64_t, core::Ref<Cell>> cells;
  std::unordered_map<std::uint64_t, core::Ref<Clock>> clocks;
  std::unordered_map<HandleId, Handle*> by_id;
  // Maximum over the handles of a cell, because one handle may not cover the whole cell.
  std::unordered_map<std::uint64_t, std::int64_t> bytes;
  for (const Inventory::Item& item : inventory.items) {
    std::int64_t own;
    if (__builtin_mul_overflow(item.elements,
                               static_cast<std::int64_t>(core::size_of(item.layout.dtype)), &own)) {
      return broken();
    }
    bytes[item.cell] = std::max(bytes[item.cell], own);
  }
  for (const Inventory::Item& item : inventory.items) {
    if (cells.contains(item.cell)) continue;
    auto cell = core::make_ref<Cell>(bytes.at(item.cell), nullptr);
    cell->read_only = item.read_only;
    clocks.emplace(item.cell, core::Ref<Clock>(cell.get()));
    cells.emplace(item.cell, std::move(cell));
  }
  std::vector<HandleRef> handles;
  for (const Inventory::Item& item : inventory.items) {
    auto& clock = clocks[item.clock];
    if (!clock) clock = core::make_ref<Clock>();
    HandleRef h = graph.objects().new_handle(cells.at(item.cell), item.layout, clock);
    if (item.id == 0 || item.made > 2 || !by_id.emplace(item.id, h.get()).second) return broken();
    if (item.base != 0) {
      const auto base = by_id.find(item.base);
      if (base == by_id.end()) return broken();
      h->base = HandleRef(base->second);
      ++base->second->views;
    }
    h->made = static_cast<Handle::Made>(item.made);
    h->flag = item.flag;
    handles.push_back(std::move(h));
  }
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const Inventory::Item& item = inventory.items[i];
    if (item.grad == 0) continue;
    const auto grad = by_id.find(item.grad);
    if (grad == by_id.end()) return broken();
    handles[i]->grad = HandleRef(grad->second);
  }
  for (std::size_t i = 0; i < handles.size(); ++i) handles[i]->id = inventory.items[i].id;
  return handles;
}

}  // namespace teletensor::autograd
