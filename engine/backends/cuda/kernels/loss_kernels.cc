// Device kernels for losses. Their sums have the same leaves as on the CPU. If invalid data is
// refused (a target that is no class), an earlier launch checks it.
#include <algorithm>

#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/plans/index_plan.h"
#include "engine/backends/cuda/text/base/calls.h"
#include "engine/ops/scalar/losses.h"

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using core::Geometry;
using core::Status;
using ops::scalar::Loss;

constexpr std::int64_t kLeaf = 2048;
// Number of leaves in one part of the CPU's sums.
constexpr std::int64_t kPart = (std::int64_t{1} << 19) / kLeaf;
constexpr std::int64_t kSplitAbove = std::int64_t{1} << 20;  // number of elements

// Adds the launches that turn the sums of the leaves into the loss's result. With `parts`, the
// leaves of each part are summed first, as on the CPU, and then the parts.
Status add_total(Work& work, calls::LossCall p, std::int64_t leaves, bool parts, DType result,
                 DType compute) {
  p.count = leaves;
  p.part = 1;
  if (parts) {
    p.part = kPart;
    p.n = (leaves + kPart - 1) / kPart;
    TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kPartSums, {result, compute}}, p));
  }
  p.n = 1;
  return add_recipe(work, {Recipe::kLossTotal, {result, compute}}, p);
}

// Expands an operand to the input's shape.
const void* expanded(KernelCall& call, RowMajorCall& memory, std::size_t i, DType compute) {
  if (call.in.size() <= i || call.in[i].kind != TensorArg::Kind::kTensor) return nullptr;
  const Geometry view = *call.in[i].geometry->expand(call.in[0].geometry->shape);
  TensorArg arg = call.in[i];
  arg.geometry = &view;
  return memory.read(arg, compute);
}

template <Loss kLoss>
Status pointwise(KernelCall& call, Work& work) {
  const TensorArg& out = call.out[0];
  const std::string_view reduction = call.attributes.text(0);
  const std::int64_t count = call.in[0].geometry->numel();
  const DType compute = float_of(out.dtype);
  calls::LossCall p = {};
  p.count = count;
  if (kLoss == Loss::kSmoothL1 || kLoss == Loss::kHuber) p.settings.width = call.attributes.real(1);
  if (kLoss == Loss::kKlDiv) p.settings.log_target = call.attributes.boolean(1);
  if (count == 0 && reduction != "none") return not_on_device("an empty tensor");
  RowMajorCall memory(call, work);
  p.x = memory.read(call.in[0], compute);
  p.target = memory.read(call.in[1], compute);
  if (kLoss != Loss::kMse) p.weight = expanded(call, memory, 2, compute);
  if (kLoss != Loss::kMse) p.positive = expanded(call, memory, 3, compute);
  p.y = memory.write(out);
  TT_RETURN_IF_ERROR(memory.status());
  if (kLoss == Loss::kBce) {
    TT_RETURN_IF_ERROR(need_flag(call, work));
    work.checks = true;
    p.flag = p.refuse = static_cast<int*>(work.flag);
    p.n = count;
    TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kCheckUnit, {compute}}, p));
  }
  if (reduction == "none") {
    p.n = count;
    TT_RETURN_IF_ERROR(
        add_recipe(work, {Recipe::kLosses, {out.dtype, compute}, static_cast<int>(kLoss)}, p));
    return memory.store();
  }
  p.n = (count + kLeaf - 1) / kLeaf;
  const std::int64_t leaves = p.n;
  p.leaves = memory.room(leaves, core::size_of(compute));
  TT_RETURN_IF_ERROR(memory.status());
  TT_RETURN_IF_ERROR(
      add_recipe(work, {Recipe::kLossLeaves, {compute, compute}, static_cast<int>(kLoss)}, p));
  p.mean = reduction == "mean";
  p.divisor = static_cast<double>(count);
  TT_RETURN_IF_ERROR(add_total(work, p, leaves, count > kSplitAbove, out.dtype, compute));
  return memory.store();
}

Status mse_backward(KernelCall& call, Work& work) {
  const TensorArg& out = call.out[0];
  const DType compute = float_of(out.dtype);
  calls::LossCall p = {};
  p.n = p.count = call.in[1].geometry->numel();
  p.none = call.attributes.text(0) == "none";
  p.mean = call.attributes.text(0) == "mean";
  RowMajorCall memory(call, work);
  p.gradient = memory.read(call.in[0], compute);
  p.x = memory.read(call.in[1], compute);
  p.target = memory.read(call.in[2], compute);
  p.y = memory.write(out);
  return memory.finish({Recipe::kMseGradient, {out.dtype, compute}}, p);
}

// ---------------------------------------------------------------- classes

struct Setting {
  const TensorArg *target, *weight;
  const core::Dims& shape;  // the shape of the input
  std::int64_t ignore;
  std::string_view reduction;
  double smoothing;
};

// Describes the lines of the input in `p`. Adds the launches that check the targets and compute the
// divisor of the loss.
Status prepare(KernelCall& call, Work& work, RowMajorCall& memory, const Setting& s, DType compute,
               calls::ClassCall& p) {
  if (core::is_floating(s.target->dtype)) return not_on_device("targets that are probabilities");
  const int dim = s.shape.size() == 1 ? 0 : 1;
  p.classes = s.shape[dim];
  p.step = p.lines = 1;
  for (int d = 0; d < s.shape.size(); ++d) {
    if (d != dim) p.lines *= s.shape[d];
    if (d > dim) p.step *= s.shape[d];
  }
  if (p.lines == 0 || p.classes == 0) return not_on_device("an empty tensor");
  p.ignore = s.ignore;
  p.smoothing = s.smoothing;
  p.mean = s.reduction == "mean";
  p.none = s.reduction == "none";
  p.target = static_cast<const std::int64_t*>(memory.read(*s.target, DType::kI64));
  p.weight = memory.read(*s.weight, compute);
  p.divisor = static_cast<double*>(memory.room(2, sizeof(double)));
  TT_RETURN_IF_ERROR(memory.status());
  TT_RETURN_IF_ERROR(need_flag(call, work));
  p.refuse = static_cast<int*>(work.flag);
  p.n = p.lines;
  const core::Bounds* known = s.target->bounds;
  if (known == nullptr || !known->within(s.target->dtype, 0, p.classes - 1)) {
    work.checks = true;
    TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kCheckClasses}, p));
    if (known != nullptr && s.target->whole) {
      work.proofs.push_back({s.target->bounds, s.target->dtype, std::min<std::int64_t>(0, p.ignore),
                             std::max<std::int64_t>(p.classes - 1, p.ignore)});
    }
  }
  p.n = 1;
  return add_recipe(work, {Recipe::kClassDivisor, {compute}}, p);
}

// Number of groups of threads per line: four if each group gets a leaf of the line's sums and the
// elements of a line are adjacent.
std::uint8_t groups_of(const calls::ClassCall& p) {
  return p.step == 1 && p.classes >= 4 * kLeaf ? 4 : 1;
}

template <bool kEntropy>
Status class_loss(KernelCall& call, Work& work) {
  const core::Attributes& a = call.attributes;
  const TensorArg &x = call.in[0], &out = call.out[0];
  const DType compute = float_of(x.dtype);
  calls::ClassCall p = {};
  RowMajorCall memory(call, work);
  TT_RETURN_IF_ERROR(prepare(call, work, memory,
                             {&call.in[1], &call.in[2], x.geometry->shape, a.integer(0), a.text(1),
                              kEntropy ? a.real(2) : 0.0},
                             compute, p));
  p.x = memory.read(x);
  calls::LossCall sum = {};
  if (p.none) {
    p.losses = memory.write(out, compute);
  } else {
    sum.y = memory.write(out);
    p.losses = memory.room(p.lines, core::size_of(compute));
  }
  TT_RETURN_IF_ERROR(memory.status());
  p.n = p.lines;
  const Recipe lines = kEntropy ? Recipe::kCrossEntropyLines : Recipe::kNllLines;
  TT_RETURN_IF_ERROR(add_recipe(work, {lines, {x.dtype, compute}, groups_of(p)}, p));
  if (p.none) return memory.store();
  sum.count = p.lines;
  sum.n = (p.lines + kLeaf - 1) / kLeaf;
  sum.x = p.losses;
  sum.leaves = memory.room(sum.n, core::size_of(compute));
  sum.mean = p.mean;
  sum.divisor_there = p.divisor;
  sum.flag = p.refuse;
  TT_RETURN_IF_ERROR(memory.status());
  TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kArrayLeaves, {compute, compute}}, sum));
  TT_RETURN_IF_ERROR(add_total(work, sum, sum.n, false, out.dtype, compute));
  return memory.store();
}

template <bool kEntropy>
Status class_gradient(KernelCall& call, Work& work) {
  const core::Attributes& a = call.attributes;
  const TensorArg& out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  const DType compute = float_of(out.dtype);
  calls::ClassCall p = {};
  RowMajorCall memory(call, work);
  const Setting s = kEntropy ? Setting{&call.in[2],  &call.in[3], out.geometry->shape,
                                       a.integer(0), a.text(1),   a.real(2)}
                             : Setting{&call.in[1],  &call.in[2], out.geometry->shape,
                                       a.integer(1), a.text(2),   0.0};
  TT_RETURN_IF_ERROR(prepare(call, work, memory, s, compute, p));
  p.gradient = memory.read(call.in[0], compute);
  if (kEntropy) p.x = memory.read(call.in[1], out.dtype);
  p.y = memory.write(out);
  TT_RETURN_IF_ERROR(memory.status());
  p.n = kEntropy ? p.lines : out.geometry->numel();
  const Recipe recipe = kEntropy ? Recipe::kCrossEntropyGradient : Recipe::kNllGradient;
  return memory.finish({recipe, {out.dtype, compute}, groups_of(p)}, p);
}

}  // namespace

void add_loss_kernels(DeviceTable& table) {
  constexpr Skeleton kRows = Skeleton::kRows;
  table.add("mse_loss", kRows, pointwise<Loss::kMse>);
  table.add("mse_loss_backward", Skeleton::kCell, mse_backward);
  table.add("l1_loss", kRows, pointwise<Loss::kL1>);
  table.add("smooth_l1_loss", kRows, pointwise<Loss::kSmoothL1>);
  table.add("huber_loss", kRows, pointwise<Loss::kHuber>);
  table.add("binary_cross_entropy", kRows, pointwise<Loss::kBce>);
  table.add("binary_cross_entropy_with_logits", kRows, pointwise<Loss::kBceLogits>);
  table.add("kl_div", kRows, pointwise<Loss::kKlDiv>);
  table.add("cross_entropy", kRows, class_loss<true>);
  table.add("cross_entropy_backward", kRows, class_gradient<true>);
  table.add("nll_loss", Skeleton::kCell, class_loss<false>);
  table.add("nll_loss_backward", Skeleton::kCell, class_gradient<false>);
}

}  // namespace teletensor::backends::cuda
