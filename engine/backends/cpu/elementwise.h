// The block machine behind all elementwise kernels: operands of any layout and dtype, or Python
// numbers, are brought block by block into contiguous memory of the compute type; one inner
// function computes; the block is stored into the result, which may be any region of another dtype
// (in-place forms).
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/backends/backend.h"

namespace teletensor::backends::cpu {

inline constexpr int kMaxOperands = 4;
inline constexpr std::int64_t kBlock = 1024;  // elements
inline constexpr std::size_t kMaxFunctorBytes = 64;

// n contiguous elements: in[i] is A*, or bytes (0 or not) where operand i is a condition; out is
// A*, or bytes where the op's result is a bool. out may be one of in.
using Inner = void (*)(const void* const* in, void* out, std::int64_t n, const void* functor);

// The inner functions of one functor; null for the compute types that it does not have.
struct Loops {
  Inner real32 = nullptr, real64 = nullptr, integer = nullptr, natural = nullptr;  // uint64
  Inner complex64 = nullptr, complex128 = nullptr;
  Inner narrow = nullptr;  // int32, where it gives the low half of what `integer` does
  Inner bytes = nullptr;   // of bools as they lie in memory; for the logical functors
  bool bool_result = false;
  int cost = 1;              // in additions
  std::string_view functor;  // its type's name in C++
  bool stateless = true;     // it has no members
  bool libm = false;         // it calls a function whose last bits depend on the library
};

// How one call is computed.
struct Plan {
  const Loops* loops = nullptr;
  const void* functor = nullptr;
  std::size_t functor_bytes = 0;          // to copy it
  core::DType dtype = core::DType::kF32;  // operands are converted to it, and the result has it
  bool condition = false;                 // operand 0 is a condition
  // Numbers take part unrounded, not as the nearest value of `dtype`: arithmetic with 16-bit
  // floats (where 0-d tensors do so as well), limits that an integer dtype does not have.
  bool exact_scalars = false;

  // Is the operand, which is no condition, first rounded to `dtype`? `compute`: that of the type
  // which it is computed in.
  bool rounds(const TensorArg& arg, core::DType compute) const {
    if (dtype == compute) return false;
    if (arg.kind != TensorArg::Kind::kTensor) return !exact_scalars;
    const bool exact = exact_scalars && core::is_floating(dtype) && arg.geometry->rank() == 0;
    return arg.dtype != dtype && !exact;
  }
};

// May the call be computed in int32, with the same result? Then by Machine<std::int32_t>.
bool fits_narrow(std::span<const TensorArg> in, const Plan& plan);

// Computes result 0 from `in`; within a loop, describes that (loop.h).
core::Status run_elementwise(KernelCall& call, std::span<const TensorArg> in, const Plan& plan);

// A large operand whose elements lie in another order than the result's becomes a copy in the
// result's order (layout: `geometry`), where the budget allows one.
void pack_transposed(TensorArg& arg, const TensorArg& out, core::Geometry& geometry,
                     Scratch& scratch, Parallel& parallel);

// The dtype that the operands promote to; for results that are never integers, `real` replaces an
// integer type by the result's (or f32).
core::DType common_dtype(std::span<const TensorArg> in, const TensorArg& out, bool real = false);

// True if a divisor is an integer zero: the pass before the first store.
bool any_zero(const TensorArg& divisor, Parallel& parallel);

}  // namespace teletensor::backends::cpu
