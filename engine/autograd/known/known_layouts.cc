#include "engine/autograd/known/known_layouts.h"

#include "engine/autograd/graph.h"

namespace teletensor::autograd {

using core::Layout;
using ops::Var;
using program::Interner;

// Numbers do not count for the place, so that a loop over numbers occupies one place.
std::size_t KnownLayouts::place_of(const Call& call, Interner& interner,
                                   std::array<Operand, kOperands>& operands) {
  if (call.arguments.size() > kOperands) return kEntries;
  std::uint64_t hash = call.op;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const Var& argument = call.arguments[i];
    Operand& operand = operands[i];
    if (argument.is_tensor()) {
      Handle& h = handle_of(argument);
      operand.geometry = h.geometry_in(interner);
      operand.dtype = h.layout.dtype;
      operand.device = h.layout.device;
      const auto address = reinterpret_cast<std::uintptr_t>(operand.geometry);
      hash = hash * 31 + address / sizeof(core::Geometry);
    } else if (argument.is_number()) {
      operand.number = argument.number();
    } else {
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
  std::array<Operand, kOperands> operands;
  const std::size_t place = place_of(call, interner, operands);
  const Entry* entry = place == kEntries ? nullptr : entries_[place].get();
  if (entry == nullptr || entry->op != call.op || entry->result.interner != interner.number() ||
      entry->default_dtype != call.default_dtype || entry->operands != call.arguments.size()) {
    return nullptr;
  }
  for (std::size_t i = 0; i < entry->operands; ++i) {
    if (!(entry->operand[i] == operands[i])) return nullptr;
  }
  return entry->attributes == *call.attributes ? &entry->result : nullptr;
}

void KnownLayouts::add(const Call& call, const Layout& result, Interner* queue) {
  if (own_ != nullptr && own_->size() > kMaxInterned) own_ = nullptr;
  Interner& interner = this->interner(queue);
  std::array<Operand, kOperands> operands;
  const std::size_t place = place_of(call, interner, operands);
  if (place == kEntries) return;
  std::unique_ptr<Entry>& entry = entries_[place];
  if (entry == nullptr) entry = std::make_unique<Entry>();
  entry->op = call.op;
  entry->default_dtype = call.default_dtype;
  entry->operands = call.arguments.size();
  entry->operand = operands;
  entry->attributes = *call.attributes;
  entry->result = {result, interner.geometry(result.geometry), interner.number(),
                   result.geometry.storage_end()};
}

}  // namespace teletensor::autograd
