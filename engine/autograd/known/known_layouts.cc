#include "engine/autograd/known/known_layouts.h"

#include "engine/autograd/graph.h"

namespace teletensor::autograd {

using core::Layout;
using ops::Var;
using program::Interner;

bool KnownLayouts::Operand::fits(const Var& argument) const {
  if (geometry == nullptr) return argument.is_number() && argument.number() == number;
  if (!argument.is_tensor()) return false;
  const Handle& h = handle_of(argument);
  return h.interned.geometry == geometry && h.layout.dtype == dtype && h.layout.device == device;
}

// Numbers do not count for the place, so that a loop over numbers occupies one place.
std::size_t KnownLayouts::place_of(const Call& call, Interner& interner) {
  if (call.arguments.size() > kOperands) return kEntries;
  std::uint64_t hash = call.op;
  for (const Var& argument : call.arguments) {
    if (argument.is_tensor()) {
      const auto address =
          reinterpret_cast<std::uintptr_t>(handle_of(argument).geometry_in(interner));
      hash = hash * 31 + address / sizeof(core::Geometry);
    } else if (argument.absent()) {
      return kEntries;
    }
  }
  return (hash ^ hash >> 6) % kEntries;
}

Interner& KnownLayouts::interner(Interner* queue) {
  if (queue != nullptr) return *queue;
  if (own_ == nullptr) own_ = std::make_unique<Interner>();
  return *own_;
}

const KnownLayout* KnownLayouts::find(const Call& call, Interner* queue) {
  Interner& interner = this->interner(queue);
  const std::size_t place = place_of(call, interner);
  const Entry* entry = place == kEntries ? nullptr : entries_[place].get();
  if (entry == nullptr || entry->op != call.op || entry->result.interner != interner.number() ||
      entry->default_dtype != call.default_dtype || entry->operands != call.arguments.size()) {
    return nullptr;
  }
  for (std::size_t i = 0; i < entry->operands; ++i) {
    if (!entry->operand[i].fits(call.arguments[i])) return nullptr;
  }
  return entry->attributes == *call.attributes ? &entry->result : nullptr;
}

void KnownLayouts::add(const Call& call, const Layout& result, Interner* queue) {
  if (own_ != nullptr && own_->size() > kMaxInterned) own_ = nullptr;
  Interner& interner = this->interner(queue);
  const std::size_t place = place_of(call, interner);
  if (place == kEntries) return;
  std::unique_ptr<Entry>& entry = entries_[place];
  if (entry == nullptr) entry = std::make_unique<Entry>();
  entry->op = call.op;
  entry->default_dtype = call.default_dtype;
  entry->operands = call.arguments.size();
  for (std::size_t i = 0; i < entry->operands; ++i) {
    const Var& argument = call.arguments[i];
    Operand& operand = entry->operand[i] = {};
    if (argument.is_tensor()) {
      const Handle& h = handle_of(argument);
      operand.geometry = h.interned.geometry;
      operand.dtype = h.layout.dtype;
      operand.device = h.layout.device;
    } else {
      operand.number = argument.number();
    }
  }
  entry->attributes = *call.attributes;
  entry->result = {result, interner.geometry(result.geometry), interner.number(),
                   result.geometry.storage_end()};
}

}  // namespace teletensor::autograd
