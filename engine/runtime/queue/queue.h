// Entry and Chunk: the elements of a session's queue. A chunk of entries is filled by the frame
// consumer, passed on as a whole, emptied by the session task, and reused. So the queue takes one
// lock per chunk, allocates nothing in the steady state, and stays in the cache while it is short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "engine/memory/storage.h"
#include "engine/program/instruction.h"
#include "engine/program/template.h"
#include "engine/runtime/groups/groups.h"
#include "engine/runtime/programs/program_run.h"
#include "engine/runtime/publications.h"

namespace teletensor::runtime {

// One command of the queue, or the repetition of several. The frame consumer fills it in; after it
// was published, only the session task uses it. Fields of other kinds keep their defaults.
struct Entry {
  enum class Kind : std::uint8_t {
    kRun,       // runs the instruction
    kConstant,  // result 0 gets `bytes`
    kUploaded,  // result 0 gets `storage`
    kFetch,     // fetches the contents of operand 0
    kCall,      // runs `call`
    kPublish,   // publishes as `publish` describes
    kGroup,     // joins or leaves `group`
    kTemplate,  // runs `repetition`
  };
  Kind kind = Kind::kRun;
  bool bulk = false;  // set for kFetch
  bool done = false;  // it has run earlier than entries in front of it
  program::Instruction instruction;
  std::unique_ptr<const std::string> bytes;  // set for kConstant
  core::Ref<memory::Storage> storage;
  std::shared_ptr<const program::Failure> refused;  // the entry must not run and fails with this
  std::unique_ptr<ProgramRun> call;
  std::unique_ptr<Publications::Facts> publish;
  struct Group {
    std::uint64_t number = 0;
    std::optional<Groups::Join> join;  // none: the session leaves the group
  };
  std::unique_ptr<Group> group;
  // The sequence number of the entry is that of its first instruction.
  std::unique_ptr<program::TemplateCall> repetition;

  // The number of instructions.
  std::size_t size() const { return repetition ? repetition->size() : 1; }
};

// Used by one thread at a time: the frame consumer until the chunk is published, and then the
// session task. Entries that are left are destroyed with the chunk.
class Chunk {
 public:
  static constexpr std::size_t kEntries = 32;

  Chunk() = default;
  ~Chunk() { clear(); }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  bool full() const { return filled_ == kEntries; }
  bool empty() const { return taken_ == filled_; }
  std::size_t size() const { return filled_ - taken_; }
  // Precondition: not full.
  Entry& add() { return *new (at(filled_++)) Entry; }  // no (): that would clear the entry first
  // Precondition of front(), last(), drop_last() and pop(): the chunk is not empty.
  Entry& front() { return *at(taken_); }
  Entry& last() { return *at(filled_ - 1); }
  void drop_last() { at(--filled_)->~Entry(); }
  void pop() { at(taken_++)->~Entry(); }
  // The chunk contains the entries taken() ... filled() - 1.
  std::size_t taken() const { return taken_; }
  std::size_t filled() const { return filled_; }
  Entry& entry(std::size_t i) { return *at(i); }
  // Drops the remaining entries, iteratively; the chunk is then like new.
  void clear() {
    while (!empty()) pop();
    filled_ = taken_ = 0;
  }

  Chunk* next = nullptr;  // next chunk in a list

 private:
  Entry* at(std::size_t i) {
    return std::launder(reinterpret_cast<Entry*>(memory_ + i * sizeof(Entry)));
  }

  std::size_t filled_ = 0, taken_ = 0;
  alignas(Entry) std::byte memory_[kEntries * sizeof(Entry)];
};

}  // namespace teletensor::runtime
