// Device kernels for reductions; each is described in the same terms as its CPU kernel in
// cpu/reductions.cc.
#include <cmath>
#include <limits>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/plans/fold_plan.h"
#include "engine/backends/scratch_bytes.h"
#include "engine/ops/reduction/reduce_dims.h"

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using core::Status;
using cpu::ReducePlan;

DType compute_of(DType dtype) {
  DType compute = dtype;
  cpu::with_any_compute_type(dtype, [&](auto a) { compute = cpu::kDTypeOf<decltype(a)>; });
  return compute;
}

std::uint32_t mask_of(const KernelCall& call, std::size_t attribute) {
  return *ops::dims_mask(call.attributes, attribute, call.in[0].geometry->rank(), call.op.name);
}

std::uint32_t everything(const KernelCall& call) { return (1u << call.in[0].geometry->rank()) - 1; }

Status one_pass(KernelCall& call, Work& work, std::uint32_t mask, FoldPass pass) {
  const ReducePlan plan(*call.in[0].geometry, mask);
  if (pass.finish == FoldFinish::kDivide) pass.number = static_cast<double>(plan.count);
  return describe_fold(call.in[0], call.out[0], plan, pass, call.scratch, work);
}

template <FoldOp kOp, FoldFinish kFinish = FoldFinish::kNone, FoldMap kMap = FoldMap::kNone>
Status plain(KernelCall& call, Work& work) {
  constexpr bool kSelects = kOp == FoldOp::kMax || kOp == FoldOp::kMin;
  FoldPass pass{.op = kOp, .map = kMap, .finish = kFinish};
  pass.compute = compute_of(kSelects ? call.in[0].dtype : call.out[0].dtype);
  return one_pass(call, work, mask_of(call, 0), pass);
}

template <FoldOp kOp>
Status whole(KernelCall& call, Work& work) {
  const FoldPass pass{.op = kOp, .compute = compute_of(call.in[0].dtype)};
  return one_pass(call, work, everything(call), pass);
}

template <FoldOp kOp>
Status truth(KernelCall& call, Work& work) {
  const FoldPass pass{.op = kOp, .map = FoldMap::kTruth, .compute = DType::kI64};
  return one_pass(call, work, mask_of(call, 0), pass);
}

// Allocates one value of the compute type for each result, in the plan's order.
void* centers(KernelCall& call, const ReducePlan& plan, DType compute) {
  return call.scratch.allocate(scratch_bytes(plan.outputs, core::size_of(compute)));
}

template <bool kRoot>
Status spread(KernelCall& call, Work& work) {
  if (core::is_complex(call.in[0].dtype)) return not_on_device("complex");
  const ReducePlan plan(*call.in[0].geometry, mask_of(call, 0));
  if (plan.outputs == 0) return {};
  FoldPass pass;
  pass.compute = compute_of(call.out[0].dtype);
  pass.finish = FoldFinish::kDivide;
  pass.number = static_cast<double>(plan.count);
  pass.to = centers(call, plan, pass.compute);
  if (pass.to == nullptr) return out_of_scratch(call.op.name, 8);
  TT_RETURN_IF_ERROR(describe_fold(call.in[0], call.out[0], plan, pass, call.scratch, work));
  pass.center = pass.to;
  pass.to = nullptr;
  pass.map = FoldMap::kSquaredDifference;
  pass.finish = kRoot ? FoldFinish::kDivideRoot : FoldFinish::kDivide;
  pass.number = std::max(0.0, static_cast<double>(plan.count) - call.attributes.real(1));
  return describe_fold(call.in[0], call.out[0], plan, pass, call.scratch, work);
}

Status logsumexp(KernelCall& call, Work& work) {
  if (core::is_complex(call.out[0].dtype)) return not_on_device("complex");
  const ReducePlan plan(*call.in[0].geometry, mask_of(call, 0));
  if (plan.outputs == 0) return {};
  FoldPass pass;
  pass.compute = compute_of(call.out[0].dtype);
  pass.op = FoldOp::kMax;
  pass.finish = FoldFinish::kFinite;
  pass.to = centers(call, plan, pass.compute);
  if (pass.to == nullptr) return out_of_scratch(call.op.name, 8);
  TT_RETURN_IF_ERROR(describe_fold(call.in[0], call.out[0], plan, pass, call.scratch, work));
  pass.op = FoldOp::kSum;
  pass.center = pass.to;
  pass.to = nullptr;
  pass.map = FoldMap::kExpDifference;
  pass.finish = FoldFinish::kLogAdd;
  return describe_fold(call.in[0], call.out[0], plan, pass, call.scratch, work);
}

Status norm(KernelCall& call, Work& work) {
  if (core::is_complex(call.in[0].dtype)) return not_on_device("complex");
  const double p = call.attributes.real(0), infinity = std::numeric_limits<double>::infinity();
  FoldPass pass;
  pass.compute = compute_of(call.out[0].dtype);
  if (p == infinity || p == -infinity) {
    pass.op = p > 0 ? FoldOp::kMax : FoldOp::kMin;
    pass.map = FoldMap::kAbs;
  } else if (p == 0) {
    pass.map = FoldMap::kNonZero;
  } else if (p == 1) {
    pass.map = FoldMap::kAbs;
  } else if (p == 2) {
    pass.map = FoldMap::kSquare;
    pass.finish = FoldFinish::kRoot;
  } else {
    pass.map = FoldMap::kAbsPower;
    pass.finish = FoldFinish::kPower;
    pass.power = p;
    pass.number = 1 / p;
  }
  return one_pass(call, work, mask_of(call, 1), pass);
}

template <bool kMax, bool kValues>
Status extremum(KernelCall& call, Work& work) {
  const ReducePlan plan(*call.in[0].geometry, mask_of(call, 0), /*logical_order=*/true);
  if (plan.outputs == 0) return {};
  FoldPass pass;
  pass.op = kMax ? FoldOp::kFirstMax : FoldOp::kFirstMin;
  pass.compute = compute_of(call.in[0].dtype);
  pass.finish = kValues ? FoldFinish::kBoth : FoldFinish::kPlace;
  pass.places = call.out[kValues ? 1 : 0].first();
  return describe_fold(call.in[0], call.out[0], plan, pass, call.scratch, work);
}

}  // namespace

void add_fold_kernels(DeviceTable& table) {
  constexpr Skeleton kFold = Skeleton::kFold;
  table.add("sum", kFold, plain<FoldOp::kSum>);
  table.add("nan_sum", kFold, plain<FoldOp::kSum, FoldFinish::kNone, FoldMap::kNumber>);
  table.add("mean", kFold, plain<FoldOp::kSum, FoldFinish::kDivide>);
  table.add("prod", kFold, plain<FoldOp::kProd>);
  table.add("amax", kFold, plain<FoldOp::kMax>);
  table.add("amin", kFold, plain<FoldOp::kMin>);
  table.add("max", kFold, whole<FoldOp::kMax>);
  table.add("min", kFold, whole<FoldOp::kMin>);
  table.add("any", kFold, truth<FoldOp::kMax>);
  table.add("all", kFold, truth<FoldOp::kMin>);
  table.add("count_nonzero", kFold, truth<FoldOp::kSum>);
  table.add("var", kFold, spread<false>);
  table.add("std", kFold, spread<true>);
  table.add("norm", kFold, norm);
  table.add("logsumexp", kFold, logsumexp);
  table.add("max_dim", kFold, extremum<true, true>);
  table.add("min_dim", kFold, extremum<false, true>);
  table.add("argmax", kFold, extremum<true, false>);
  table.add("argmin", kFold, extremum<false, false>);
}

}  // namespace teletensor::backends::cuda
