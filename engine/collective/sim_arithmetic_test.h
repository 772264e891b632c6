// The simulator's arithmetic: executes a Job on elements, and computes by definition the correct
// result of a sum.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "engine/collective/message.h"
#include "engine/core/half.h"

namespace teletensor::collective::sim {

using Bytes = std::vector<std::uint8_t>;

template <class T>
T load(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
template <class T>
void store(std::uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

template <class T>
T applied(Reduction reduction, T a, T b) {
  switch (reduction) {
    case Reduction::kProduct:
      return static_cast<T>(a * b);
    case Reduction::kMin:
      return b < a ? b : a;
    case Reduction::kMax:
      return a < b ? b : a;
    default:
      return static_cast<T>(a + b);
  }
}

// Reads and writes an element in the accumulating dtype. `Stored` is the operand's dtype.
template <class Stored, class Sum>
struct Element {
  static Sum read(const std::uint8_t* at, bool accumulated) {
    return accumulated ? load<Sum>(at) : static_cast<Sum>(load<Stored>(at));
  }
  static void write(std::uint8_t* at, Sum sum, bool accumulated) {
    if (accumulated) {
      store(at, sum);
    } else {
      store(at, Stored(sum));
    }
  }
};

// Calls f with the Element of a dtype.
template <class F>
auto with_element(core::DType dtype, F f) {
  switch (dtype) {
    case core::DType::kF16:
      return f(Element<core::Half, float>());
    case core::DType::kBF16:
      return f(Element<core::BFloat16, float>());
    case core::DType::kF64:
      return f(Element<double, double>());
    case core::DType::kI32:
      return f(Element<std::int32_t, std::int32_t>());
    default:
      return f(Element<float, float>());
  }
}

// Runs a job. find(slice) returns the address of its bytes.
template <class Find>
void run(const Job& job, Find find) {
  if (job.additions.empty() && job.sources.size() == 1 && job.outputs.size() == 1 &&
      job.sources[0].accumulated == job.outputs[0].accumulated && job.outputs[0].divisor == 1) {
    for (const Slice& to : job.outputs[0].to) {
      if (to.bytes > 0)
        std::memcpy(find(to), find(job.sources[0].at), static_cast<std::size_t>(to.bytes));
    }
    return;
  }
  with_element(job.dtype, [&](auto element) {
    using Sum = decltype(element.read(nullptr, true));
    const std::size_t stored = core::size_of(job.dtype);
    std::vector<Sum> slots(job.sources.size());
    for (std::size_t i = 0; i < static_cast<std::size_t>(job.elements); ++i) {
      for (std::size_t s = 0; s < slots.size(); ++s) {
        const Job::Source& source = job.sources[s];
        const std::size_t width = source.accumulated ? sizeof(Sum) : stored;
        slots[s] = element.read(find(source.at) + i * width, source.accumulated);
      }
      for (const Addition& add : job.additions) {
        slots[add.into] = applied(job.reduction, slots[add.into], slots[add.from]);
      }
      for (const Job::Output& output : job.outputs) {
        Sum value = slots[output.slot];
        if (output.divisor > 1) value = static_cast<Sum>(value / static_cast<Sum>(output.divisor));
        const std::size_t width = output.accumulated ? sizeof(Sum) : stored;
        for (const Slice& to : output.to) {
          element.write(find(to) + i * width, value, output.accumulated);
        }
      }
    }
  });
}

// The definition of a sum, written without the code under test: halves at powers of two, ranks
// without an operand skipped, one rounding, one division.
template <class Sum>
bool tree(Rank begin, Rank end, const std::vector<const Sum*>& operands, Reduction reduction,
          Sum& value) {
  if (end - begin == 1) {
    if (operands[begin] == nullptr) return false;
    value = *operands[begin];
    return true;
  }
  Rank half = 1;
  while (2 * half < end - begin) half *= 2;
  Sum right{};
  const bool left = tree(begin, begin + half, operands, reduction, value);
  if (!tree(begin + half, end, operands, reduction, right)) return left;
  value = left ? applied(reduction, value, right) : right;
  return true;
}

// operands: by rank; nullptr if a rank is skipped.
inline Bytes reference_sum(core::DType dtype, Reduction reduction,
                           const std::vector<const Bytes*>& operands, std::size_t begin,
                           std::size_t end) {
  return with_element(dtype, [&](auto element) {
    using Sum = decltype(element.read(nullptr, true));
    const std::size_t width = core::size_of(dtype);
    Bytes result((end - begin) * width);
    std::vector<Sum> values(operands.size());
    std::vector<const Sum*> present(operands.size(), nullptr);
    int ranks = 0;
    for (const Bytes* operand : operands) ranks += operand != nullptr ? 1 : 0;
    for (std::size_t i = begin; i < end; ++i) {
      for (std::size_t rank = 0; rank < operands.size(); ++rank) {
        if (operands[rank] == nullptr) continue;
        values[rank] = element.read(operands[rank]->data() + i * width, false);
        present[rank] = &values[rank];
      }
      Sum value{};
      tree(0, static_cast<Rank>(operands.size()), present, reduction, value);
      if (reduction == Reduction::kAvg) value = static_cast<Sum>(value / static_cast<Sum>(ranks));
      element.write(result.data() + (i - begin) * width, value, false);
    }
    return result;
  });
}

}  // namespace teletensor::collective::sim
