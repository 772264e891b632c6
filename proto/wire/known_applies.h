// KnownApplies: the instructions that a session has sent before, without their handles, so that the
// rounds of a loop are not decoded again.
//
// Not thread-safe; belongs to the reader of one session's frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/core/ref.h"
#include "engine/program/command.h"

namespace teletensor::wire {

class KnownApplies {
 public:
  // Instructions with more bytes or more arguments are decoded each time.
  static constexpr std::size_t kMaxBytes = 64;
  static constexpr std::size_t kMaxArguments = program::KnownApply::kMaxArguments;
  // Maximum number of instructions that are kept.
  static constexpr int kSlotBits = 8;
  static constexpr std::size_t kSlots = std::size_t{1} << kSlotBits;

  // Looks for an instruction that is in canonical form and takes the id `next`. On success
  // `repeated` is the instruction, and `items` is what it adds to its frame (FrameLimits).
  bool find(std::string_view body, program::HandleId next, program::Repeated& repeated,
            std::size_t& items);
  // Tells that the instruction that the last find() did not find was decoded to `apply`. It is kept
  // when it is seen for the second time.
  void decoded(const program::Apply& apply, std::size_t items);

 private:
  // The bytes of an instruction with the kinds of its arguments instead of their codes.
  struct Key {
    std::uint8_t size = 0;       // 0: there is none
    std::uint8_t before = 0;     // number of bytes in front of the kinds
    std::uint8_t arguments = 0;  // number of kinds, which follows them
    char bytes[kMaxBytes];
  };
  // An instruction has one slot. What is in a slot gets lives when it is seen, and each other
  // instruction for the slot takes one. So a loop of more instructions than there are slots still
  // finds those that are kept.
  static constexpr std::uint8_t kLives = 15, kLivesSeenOnce = 3;
  struct Slot {
    std::uint64_t hash = 0;  // of the instruction that is kept, or else of the last one
    std::uint32_t items = 0;
    std::uint8_t lives = 0;
    std::uint8_t follower = 0;  // the slot of the instruction that was found after this one
    Key key;
    core::Ref<const program::KnownApply> apply;
  };

  Slot& slot() { return slots_[hash_ >> (64 - kSlotBits)]; }
  // Returns true if the instruction has this key, and sets its handles.
  static bool matches(const Key& key, std::string_view body, program::HandleId next,
                      program::Repeated& repeated);
  // Return null if it is not the instruction that followed the last one before, or is not known.
  // They set the handles of `repeated`.
  Slot* find_follower(std::string_view body, program::HandleId next, program::Repeated& repeated);
  Slot* find_by_key(std::string_view body, program::HandleId next, program::Repeated& repeated);
  bool make_key(std::string_view body, program::HandleId next, program::Repeated& repeated);

  std::unique_ptr<Slot[]> slots_;  // allocated with the first instruction
  Key key_;                        // of the last find()
  std::uint64_t hash_ = 0;
  Slot* last_ = nullptr;  // that was found last
};

}  // namespace teletensor::wire
