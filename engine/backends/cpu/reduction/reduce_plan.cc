#include "engine/backends/cpu/reduction/reduce_plan.h"

#include <cstdlib>
#include <limits>
#include <utility>

namespace teletensor::backends::cpu {
namespace {

// Sorts from the largest to the smallest |in|; the order of equal ones is kept.
void sort_axes(Axis* axes, int n) {
  for (int i = 1; i < n; ++i) {
    for (int j = i; j > 0 && std::abs(axes[j - 1].in) < std::abs(axes[j].in); --j) {
      std::swap(axes[j - 1], axes[j]);
    }
  }
}

int merge_axes(Axis* axes, int n) {
  if (n == 0) return 0;
  int last = 0;
  for (int i = 1; i < n; ++i) {
    const Axis inner = axes[i];
    Axis& outer = axes[last];
    if (outer.in == inner.in * inner.size && outer.out == inner.out * inner.size) {
      outer = {outer.size * inner.size, inner.in, inner.out};
    } else {
      axes[++last] = inner;
    }
  }
  return last + 1;
}

}  // namespace

ReducePlan::ReducePlan(const core::Geometry& operand, std::uint32_t mask, bool logical_order) {
  for (int i = operand.rank() - 1; i >= 0; --i) {
    const std::int64_t size = operand.shape[i];
    std::int64_t& total = mask >> i & 1u ? count : outputs;
    if (size > 1) {
      Axis& axis = mask >> i & 1u ? reduced[reduced_count++] : kept[kept_count++];
      axis = {size, operand.strides[i], total};
    }
    // The product of the other sizes of an empty tensor can be arbitrarily large.
    if (__builtin_mul_overflow(total, size, &total)) {
      total = std::numeric_limits<std::int64_t>::max();
    }
  }
  for (int i = 0; i < operand.rank(); ++i) {
    if (operand.shape[i] == 0) (mask >> i & 1u ? count : outputs) = 0;
  }
  // The lists were filled with the fastest axis first.
  for (int i = 0; i < kept_count / 2; ++i) std::swap(kept[i], kept[kept_count - 1 - i]);
  for (int i = 0; i < reduced_count / 2; ++i) std::swap(reduced[i], reduced[reduced_count - 1 - i]);
  if (outputs == 0 || count == 0) return;
  sort_axes(kept, kept_count);
  if (!logical_order) {
    sort_axes(reduced, reduced_count);
    // The order of these axes is free, so only their strides in memory decide which can be merged.
    for (int i = 0; i < reduced_count; ++i) reduced[i].out = reduced[i].in;
  }
  kept_count = merge_axes(kept, kept_count);
  reduced_count = merge_axes(reduced, reduced_count);
}

Axis ReducePlan::at(const Axis* axes, int n, std::int64_t index) {
  Axis position{1, 0, 0};
  for (int i = n - 1; i >= 0; --i) {
    const std::int64_t digit = index % axes[i].size;
    index /= axes[i].size;
    position.in += digit * axes[i].in;
    position.out += digit * axes[i].out;
  }
  return position;
}

}  // namespace teletensor::backends::cpu
