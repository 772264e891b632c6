// KnownLayouts remembers the layouts that inference found for recent calls, because programs call
// the same ops with operands of the same layouts again and again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/core/attributes.h"
#include "engine/core/geometry.h"
#include "engine/ops/op.h"
#include "engine/program/interner.h"

namespace teletensor::autograd {

struct Call;

// The layout of the only result of a call.
struct KnownLayout {
  core::Layout layout;
  const core::Geometry* geometry = nullptr;  // that of `layout`, in an interner
  std::uint64_t interner = 0;                // the number of that interner
  std::int64_t elements = 0;                 // of the result's storage
};

// Not thread-safe. Its memory is bounded: a call replaces an earlier one that has the same place.
// Geometries are compared by their addresses in an interner. A daemon's graph uses the interner of
// its queue, and a client's mirror has an interner of its own. When the queue begins a new
// interner, the layouts that were remembered with the earlier one are no longer found.
class KnownLayouts {
 public:
  // Returns the layout of the result of an equal call: same op, attributes and default dtype,
  // operands with the same layouts or the same number. Null if there is none. Valid until the next
  // add(). The call must have no list arguments. `queue` is the interner of the queue; null for a
  // mirror.
  const KnownLayout* find(const Call& call, program::Interner* queue);
  // Remembers that inference accepts the call, and the layout of its only result. Calls with
  // more than kOperands operands, or with absent ones, are ignored.
  void add(const Call& call, const core::Layout& result, program::Interner* queue);

 private:
  static constexpr std::size_t kEntries = 64, kOperands = 3;
  static constexpr std::size_t kMaxInterned = 4096;  // in the mirror's interner

  struct Operand {
    const core::Geometry* geometry = nullptr;  // null: a number
    core::DType dtype = core::DType::kF32;
    core::Device device;
    core::Number number;
    // Returns true if the argument has this layout, or is this number. Precondition: place_of() was
    // called.
    bool fits(const ops::Var& argument) const;
  };
  struct Entry {
    ops::OpId op = 0;
    core::DType default_dtype = core::DType::kF32;
    std::size_t operands = 0;
    std::array<Operand, kOperands> operand;
    core::Attributes attributes;
    KnownLayout result;
  };

  // Returns the place of a call, and interns the geometries of its operands. Returns kEntries if
  // the call is not remembered because it has too many operands, or absent ones.
  static std::size_t place_of(const Call& call, program::Interner& interner);

  program::Interner& interner(program::Interner* queue);

  std::unique_ptr<program::Interner> own_;
  std::array<std::unique_ptr<Entry>, kEntries> entries_;
};

}  // namespace teletensor::autograd
