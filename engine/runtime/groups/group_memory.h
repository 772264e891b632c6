// GroupMemory: the operands, results and staging memory of a group's open operations in this
// daemon. Guarded by the lock of the group's epoch (EpochState).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "engine/collective/participant.h"
#include "engine/runtime/groups/groups.h"

namespace teletensor::runtime {

class GroupMemory {
 public:
  using Part = Groups::Part;

  // `adder` must outlive this object.
  explicit GroupMemory(Groups::Adder& adder) : adder_(adder) {}

  // References to the memory of slices. They outlive the collective, which may end while a job or a
  // message still needs the memory.
  struct Held {
    std::vector<std::shared_ptr<const void>> parts;
    std::vector<core::Ref<memory::Storage>> staging;
    std::map<collective::Buffer, char*> addresses;
    char* at(const collective::Slice& slice) const {
      return addresses.at(slice.buffer) + slice.offset;
    }
  };
  // Adds the memory of a slice, or of everything that a job uses, to `held`.
  void hold(const collective::Slice& slice, Held& held) const;
  void hold(const collective::Job& job, Held& held) const;

  // Keeps the part of a rank in a collective.
  void add(collective::Number number, collective::Rank rank, Part part);
  // Frees the parts of the collectives up to `number`, or those of one collective.
  void finished(collective::Number number);
  void drop(collective::Number number) { parts_.erase(number); }

  // Keeps the part of a rank in a transfer and returns its token. `part` is null if the rank has
  // declined the transfer.
  std::uint64_t add_transfer(collective::Rank rank, std::shared_ptr<Part> part);
  // Frees the part of a transfer and returns its rank. None if there is no such transfer.
  std::optional<collective::Rank> end_transfer(std::uint64_t token);
  bool has_transfers() const { return !transfers_.empty(); }

  // Allocates and frees staging memory.
  void reserve(const collective::Buffer& buffer, std::size_t bytes);
  void free(const collective::Buffer& buffer) { staging_.erase(buffer); }
  // Returns true from a reserve() that has found no memory until clear_lack().
  bool lacks() const { return lacks_; }
  void clear_lack() { lacks_ = false; }

  // Frees everything.
  void clear();

 private:
  using Parts = std::map<collective::Rank, Part>;
  struct Transfer {
    collective::Rank rank;
    std::shared_ptr<Part> part;  // null: it was declined
  };

  Groups::Adder& adder_;
  std::map<collective::Number, std::shared_ptr<Parts>> parts_;
  std::map<std::uint64_t, Transfer> transfers_;  // transfers by their token
  std::uint64_t tokens_ = 0;
  std::map<collective::Buffer, core::Ref<memory::Storage>> staging_;
  bool lacks_ = false;
};

}  // namespace teletensor::runtime
