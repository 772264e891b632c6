#include "engine/backends/cpu/pointwise/elementwise.h"

#include <algorithm>
#include <cstring>

#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/pointwise/loop.h"
#include "engine/backends/cpu/pointwise/machine.h"
#include "engine/backends/scratch_bytes.h"
#include "engine/ops/op.h"

namespace teletensor::backends::cpu {

using core::DType;
using core::Status;
using Kind = TensorArg::Kind;

namespace {

// Returns true for a large operand whose elements have another order in memory than the result's.
// Gathering it block by block would read each of its cache lines many times.
bool is_transposed(const TensorArg& arg, const TensorArg& out) {
  if (arg.kind != Kind::kTensor || arg.geometry->rank() != out.geometry->rank()) return false;
  if (arg.dtype == DType::kBool || arg.geometry->numel() < 32768) return false;
  const LinearOrder order(*out.geometry);
  const Walk walk(*arg.geometry, order, out.geometry->rank());
  return walk.rank() > 1 && walk.stride(0) >= 16 && order.count == arg.geometry->numel();
}

template <class A>
Status compute(KernelCall& call, std::span<const TensorArg> in, const Plan& plan, Inner inner) {
  if (inner == nullptr) {
    return core::internal(call.op.name + ": no kernel for " +
                          std::string(core::name_of(plan.dtype)));
  }
  TensorArg packed[kMaxOperands];
  core::Geometry geometries[kMaxOperands];
  for (std::size_t i = 0; i < in.size(); ++i) {
    packed[i] = in[i];
    pack_transposed(packed[i], call.out[0], geometries[i], call.scratch, call.parallel);
  }
  const LinearOrder order(*call.out[0].geometry);
  const Machine<A> machine(plan, inner, {packed, in.size()}, call.out[0], order);
  if (machine.count() == 0) return {};
  split(call.parallel, machine.count(), machine.ns_per_element(), kBlock,
        [&](std::int64_t begin, std::int64_t end) { machine.run(begin, end); });
  return {};
}

// Handles calls in which all tensors have the same dtype, shape and row-major strides, without any
// set-up.
bool run_plain(KernelCall& call, std::span<const TensorArg> in, const Plan& plan, Inner inner,
               DType compute) {
  if (plan.dtype != compute || inner == nullptr) return false;
  const TensorArg& out = call.out[0];
  if (out.dtype != (plan.loops->bool_result ? DType::kBool : compute)) return false;
  const core::Geometry& geometry = *out.geometry;
  const std::int64_t n = geometry.numel();
  if (n == 0 || !geometry.contiguous()) return false;
  const void* pointers[kMaxOperands];
  for (std::size_t i = 0; i < in.size(); ++i) {
    const TensorArg& arg = in[i];
    if (arg.kind != Kind::kTensor) return false;
    if (arg.dtype != compute && !(plan.condition && i == 0)) return false;
    if (!(arg.geometry->shape == geometry.shape) || !arg.geometry->contiguous()) return false;
    pointers[i] = arg.first();
  }
  const auto size = static_cast<std::int64_t>(core::size_of(compute));
  const auto out_size = static_cast<std::int64_t>(core::size_of(out.dtype));
  split(call.parallel, n, 0.09 * plan.loops->cost * (size == 8 ? 2 : 1), kBlock,
        [&](std::int64_t begin, std::int64_t end) {
          const void* at[kMaxOperands];
          for (std::size_t i = 0; i < in.size(); ++i) {
            const bool bytes = plan.condition && i == 0;
            at[i] = static_cast<const char*>(pointers[i]) + begin * (bytes ? 1 : size);
          }
          inner(at, out.first<char>() + begin * out_size, end - begin, plan.functor);
        });
  return true;
}

}  // namespace

void pack_transposed(TensorArg& arg, const TensorArg& out, core::Geometry& geometry,
                     Scratch& scratch, Parallel& parallel) {
  if (!is_transposed(arg, out)) return;
  const core::Geometry* orders[] = {out.geometry};
  geometry = core::elementwise_layout(arg.geometry->shape, orders);
  const std::size_t bytes = scratch_bytes(geometry.numel(), core::size_of(arg.dtype));
  TensorArg copy = arg;
  copy.data = scratch.allocate(bytes);
  copy.geometry = &geometry;
  if (copy.data == nullptr) return;
  strided_copy(arg, copy, parallel);
  arg = copy;
}

bool fits_narrow(std::span<const TensorArg> in, const Plan& plan) {
  if (plan.dtype != DType::kI32 || plan.loops->narrow == nullptr || plan.condition) return false;
  for (const TensorArg& arg : in) {
    if (arg.kind != Kind::kNumber) continue;
    const core::Number& number = arg.number;
    const bool whole =
        number.kind == core::Number::Kind::kInt || number.kind == core::Number::Kind::kBool;
    if (!whole || number.integer != static_cast<std::int32_t>(number.integer)) return false;
  }
  return true;
}

Status run_elementwise(KernelCall& call, std::span<const TensorArg> in, const Plan& plan) {
  if (call.loop != nullptr) return call.loop->add(in, plan);
  const Loops& loops = *plan.loops;
  switch (plan.dtype) {
    case DType::kF64:
      if (run_plain(call, in, plan, loops.real64, DType::kF64)) return {};
      return compute<double>(call, in, plan, loops.real64);
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
      if (run_plain(call, in, plan, loops.real32, DType::kF32)) return {};
      return compute<float>(call, in, plan, loops.real32);
    case DType::kU64:
      if (run_plain(call, in, plan, loops.natural, DType::kU64)) return {};
      return compute<std::uint64_t>(call, in, plan, loops.natural);
    case DType::kC64:
      if (run_plain(call, in, plan, loops.complex64, DType::kC64)) return {};
      return compute<core::Complex64>(call, in, plan, loops.complex64);
    case DType::kC128:
      if (run_plain(call, in, plan, loops.complex128, DType::kC128)) return {};
      return compute<core::Complex128>(call, in, plan, loops.complex128);
    default:
      break;
  }
  if (fits_narrow(in, plan)) {
    if (run_plain(call, in, plan, loops.narrow, DType::kI32)) return {};
    return compute<std::int32_t>(call, in, plan, loops.narrow);
  }
  if (run_plain(call, in, plan, loops.integer, DType::kI64)) return {};
  if (run_plain(call, in, plan, loops.bytes, DType::kBool)) return {};
  return compute<std::int64_t>(call, in, plan, loops.integer);
}

DType common_dtype(std::span<const TensorArg> in, const TensorArg& out, bool real) {
  const DType fallback = core::is_inexact(out.dtype) ? core::real_of(out.dtype) : DType::kF32;
  DType dtype;
  bool same = true;
  for (const TensorArg& arg : in) {
    same = same && arg.kind == Kind::kTensor && arg.dtype == in[0].dtype;
  }
  if (same) {
    dtype = in[0].dtype;
  } else {
    core::Layout layouts[kMaxOperands];
    ops::OperandInfo infos[kMaxOperands];
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (in[i].kind == Kind::kTensor) {
        layouts[i].dtype = in[i].dtype;
        if (in[i].geometry->rank() > 0) layouts[i].geometry.shape.push_back(1);
        infos[i].layout = &layouts[i];
      } else if (in[i].kind == Kind::kNumber) {
        infos[i].number = &in[i].number;
      }
    }
    dtype = ops::result_type({infos, in.size()}, fallback);
  }
  return real && !core::is_inexact(dtype) ? fallback : dtype;
}

bool any_zero(const TensorArg& divisor, Parallel&) {
  if (divisor.kind == Kind::kNumber) return divisor.number.integer == 0;
  const LinearOrder order(*divisor.geometry);
  const Walk walk(*divisor.geometry, order, divisor.geometry->rank());
  const LoadBlock<std::int64_t> load = load_block<std::int64_t>(divisor.dtype);
  const auto size = static_cast<std::int64_t>(core::size_of(divisor.dtype));
  std::int64_t zeros = 0;
  walk.runs(0, order.count, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
    std::int64_t block[kBlock];
    for (std::int64_t i = 0; i < length; i += kBlock) {
      const std::int64_t n = std::min(kBlock, length - i);
      load(divisor.first<char>() + (offset + i * stride) * size, stride, n, block);
      zeros += std::count(block, block + n, 0);
    }
  });
  return zeros > 0;
}

}  // namespace teletensor::backends::cpu
