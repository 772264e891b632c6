// Elementwise kernels. Operands of any layout and dtype, or Python numbers, are converted block by
// block into contiguous memory of the compute type; an inner function computes each block; and the
// block is stored into the result, which may be any region and have another dtype (in-place forms).
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/backends/backend.h"

namespace teletensor::backends::cpu {

inline constexpr int kMaxOperands = 4;
inline constexpr std::int64_t kBlock = 1024;  // number of elements
inline constexpr std::size_t kMaxFunctorBytes = 64;

// Computes n contiguous elements. in[i] is an A*, or bytes (0 or not 0) if operand i is a
// condition. `out` is an A*, or bytes if the op's result is a bool; it may be one of the inputs.
using Inner = void (*)(const void* const* in, void* out, std::int64_t n, const void* functor);

// The inner functions of one functor; null for compute types that it does not support.
struct Loops {
  // `integer` computes in int64 and `natural` in uint64.
  Inner real32 = nullptr, real64 = nullptr, integer = nullptr, natural = nullptr;
  Inner complex64 = nullptr, complex128 = nullptr;
  Inner narrow = nullptr;  // for int32; set if it computes the low half of the result of `integer`
  Inner bytes = nullptr;   // for bools as they are in memory; set for the logical functors
  bool bool_result = false;
  int cost = 1;              // relative to an addition
  std::string_view functor;  // C++ name of its type
  bool stateless = true;     // it has no data members
  bool libm = false;         // it calls a function whose last bits depend on the math library
};

// Describes how one call is computed: the functor, the compute type and the handling of operands.
struct Plan {
  const Loops* loops = nullptr;
  const void* functor = nullptr;
  std::size_t functor_bytes = 0;  // size, for copying it
  // Operands are converted to this dtype, and the result has it.
  core::DType dtype = core::DType::kF32;
  bool condition = false;  // operand 0 is a condition
  // Number operands are used unrounded, not as the nearest value of `dtype`: for arithmetic with
  // 16-bit floats (0-d tensors are treated alike), and for limits that an integer dtype cannot
  // represent.
  bool exact_scalars = false;

  // Returns true if the operand, which is no condition, is first rounded to `dtype`. `compute` is
  // the dtype of the compute type.
  bool rounds(const TensorArg& arg, core::DType compute) const {
    if (dtype == compute) return false;
    if (arg.kind != TensorArg::Kind::kTensor) return !exact_scalars;
    const bool exact = exact_scalars && core::is_floating(dtype) && arg.geometry->rank() == 0;
    return arg.dtype != dtype && !exact;
  }
};

// Returns true if computing the call in int32 (Machine<std::int32_t>) gives the same result.
bool fits_narrow(std::span<const TensorArg> in, const Plan& plan);

// Computes result 0 from `in`; or, while a loop is built, describes the computation (loop.h).
core::Status run_elementwise(KernelCall& call, std::span<const TensorArg> in, const Plan& plan);

// If `arg` is a large operand whose elements have another order in memory than the result's,
// replaces it by a copy in the result's order, provided that the budget allows one. `geometry`
// receives the layout of the copy.
void pack_transposed(TensorArg& arg, const TensorArg& out, core::Geometry& geometry,
                     Scratch& scratch, Parallel& parallel);

// The dtype that the operands promote to. With `real`, for results that are never integers, an
// integer dtype is replaced by the result's dtype (or f32).
core::DType common_dtype(std::span<const TensorArg> in, const TensorArg& out, bool real = false);

// Returns true if a divisor is an integer zero. Must be called before the first store.
bool any_zero(const TensorArg& divisor, Parallel& parallel);

}  // namespace teletensor::backends::cpu
