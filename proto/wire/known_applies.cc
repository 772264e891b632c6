#include "proto/wire/known_applies.h"

#include <algorithm>
#include <cstring>

#include "proto/wire/fields.h"
#include "proto/wire/varint.h"

namespace teletensor::wire {

namespace {

std::uint64_t word_at(const char* bytes, std::size_t size) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, size);
  return word;
}

std::uint64_t hash_of(std::string_view bytes) {
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15ull;
  std::uint64_t hash = bytes.size();
  const auto add = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * kFactor;
    hash ^= hash >> 32;
  };
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) add(word_at(bytes.data() + at, 8));
  add(word_at(bytes.data() + at, bytes.size() - at));
  return hash * kFactor;
}

// Returns the length of the fields in front of the list of arguments, or npos if there is no list
// after fields that are usual for an instruction.
std::size_t fields_before_arguments(std::string_view body) {
  constexpr auto kOp = static_cast<char>(tag_of(field::kOp, WireType::kVarint));
  constexpr auto kArguments = static_cast<char>(tag_of(field::kArguments, WireType::kBytes));
  if (body.empty() || body[0] != kOp) return std::string_view::npos;
  for (std::size_t at = 0; at + 1 < body.size();) {
    if (body[at] == kArguments) return at;
    if ((body[at] & 7) != static_cast<char>(WireType::kVarint)) break;
    do {
      if (++at == body.size()) return std::string_view::npos;
    } while ((body[at] & 0x80) != 0);
    ++at;
  }
  return std::string_view::npos;
}

// The kind of an argument in a key, by its code. A handle is sent as a distance, which differs
// between the rounds of a loop; `id` is set to the handle. Returns a negative number if the code is
// not valid.
int kind_of(std::uint64_t code, program::HandleId next, program::HandleId& id) {
  const bool handle = code != 0 && (code & 1) == 0;
  if (handle ? code >> 1 >= next : code > field::kUnsigned) return -1;
  id = handle ? next - (code >> 1) : 0;
  return handle ? 2 : static_cast<int>(code);
}

}  // namespace

bool KnownApplies::matches(const Key& key, std::string_view body, program::HandleId next,
                           program::Repeated& repeated) {
  constexpr auto kArguments = static_cast<char>(tag_of(field::kArguments, WireType::kBytes));
  const std::size_t begin = key.before + 2u;
  if (body.size() < begin || body[key.before] != kArguments ||
      !std::equal(key.bytes, key.bytes + key.before, body.data())) {
    return false;
  }
  const auto length = static_cast<std::uint8_t>(body[key.before + 1u]);
  if (length >= 0x80 || begin + length > body.size()) return false;
  Cursor codes(body.substr(begin, length));
  const char* at = key.bytes + key.before;
  for (std::size_t i = 0; i < key.arguments; ++i) {
    std::uint64_t code = 0;
    if (codes.done() || !codes.varint(code) || kind_of(code, next, repeated.handles[i]) != *at++) {
      return false;
    }
  }
  ++at;  // the number of arguments
  const std::string_view after = body.substr(begin + length);
  return codes.done() && after == std::string_view(at, key.bytes + key.size);
}

bool KnownApplies::make_key(std::string_view body, program::HandleId next,
                            program::Repeated& repeated) {
  key_.size = 0;
  const std::size_t before = fields_before_arguments(body);
  if (before == std::string_view::npos) return false;
  const auto length = static_cast<std::uint8_t>(body[before + 1]);
  const std::size_t begin = before + 2;
  if (length >= 0x80 || begin + length > body.size()) return false;
  const std::string_view after = body.substr(begin + length);
  if (begin + kMaxArguments + after.size() > kMaxBytes) return false;
  std::memcpy(key_.bytes, body.data(), before);
  char* at = key_.bytes + before;
  std::size_t arguments = 0;
  for (Cursor codes(body.substr(begin, length)); !codes.done(); ++arguments) {
    std::uint64_t code = 0;
    if (arguments == kMaxArguments || !codes.varint(code)) return false;
    const int kind = kind_of(code, next, repeated.handles[arguments]);
    if (kind < 0) return false;
    *at++ = static_cast<char>(kind);
  }
  key_.before = static_cast<std::uint8_t>(before);
  key_.arguments = static_cast<std::uint8_t>(arguments);
  *at++ = static_cast<char>(arguments);
  std::memcpy(at, after.data(), after.size());
  key_.size =
      static_cast<std::uint8_t>(at - key_.bytes + static_cast<std::ptrdiff_t>(after.size()));
  return true;
}

bool KnownApplies::find(std::string_view body, program::HandleId next, program::Repeated& repeated,
                        std::size_t& items) {
  Slot* found = find_follower(body, next, repeated);
  if (found == nullptr) found = find_by_key(body, next, repeated);
  if (found == nullptr) return false;
  if (last_ != nullptr) last_->follower = static_cast<std::uint8_t>(found - slots_.get());
  last_ = found;
  found->lives = kLives;
  repeated.known = found->apply;
  items = found->items;
  return true;
}

// In a loop an instruction is followed by the same one in every round.
KnownApplies::Slot* KnownApplies::find_follower(std::string_view body, program::HandleId next,
                                                program::Repeated& repeated) {
  if (last_ == nullptr) return nullptr;
  Slot& slot = slots_[last_->follower];
  if (slot.apply != nullptr && matches(slot.key, body, next, repeated)) return &slot;
  repeated.handles = {};
  return nullptr;
}

KnownApplies::Slot* KnownApplies::find_by_key(std::string_view body, program::HandleId next,
                                              program::Repeated& repeated) {
  if (!make_key(body, next, repeated)) return nullptr;
  if (slots_ == nullptr) slots_ = std::make_unique<Slot[]>(kSlots);
  hash_ = hash_of({key_.bytes, key_.size});
  Slot& slot = this->slot();
  const bool found = slot.hash == hash_ && slot.apply != nullptr && slot.key.size == key_.size &&
                     slot.key.before == key_.before &&
                     std::memcmp(slot.key.bytes, key_.bytes, key_.size) == 0;
  return found ? &slot : nullptr;
}

void KnownApplies::decoded(const program::Apply& apply, std::size_t items) {
  if (key_.size == 0) return;
  Slot& slot = this->slot();
  if (slot.hash != hash_ || slot.apply != nullptr) {
    if (slot.lives > 0) {
      --slot.lives;
    } else {
      slot.hash = hash_;
      slot.apply = nullptr;
      slot.lives = kLivesSeenOnce;
    }
    return;
  }
  program::Apply without_handles = apply;
  for (program::Argument& argument : without_handles.arguments) argument.handle = 0;
  slot.apply = core::make_ref<const program::KnownApply>(std::move(without_handles));
  slot.items = static_cast<std::uint32_t>(items);
  slot.lives = kLives;
  slot.key = key_;
}

}  // namespace teletensor::wire
