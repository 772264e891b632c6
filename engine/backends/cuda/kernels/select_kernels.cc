// Device kernels for elements selected by a mask: nonzero, masked_pack, masked_scatter. The device
// counts them; if the call states a number, a check compares the two.
#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/plans/index_plan.h"
#include "engine/backends/cuda/text/base/calls.h"

namespace teletensor::backends::cuda {
namespace {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Status;

constexpr std::int64_t kBlockElements = 1024;  // same value as in text/select.cuh
enum Check : std::uint8_t { kAny, kExactly, kAtMost };

// An integer type of this size, for elements that are moved unchanged.
DType moved_as(DType dtype) {
  switch (core::size_of(dtype)) {
    case 1:
      return DType::kU8;
    case 2:
      return DType::kI16;
    case 4:
      return DType::kI32;
    case 8:
      return DType::kI64;
    default:
      return DType::kC128;
  }
}

// Adds the launches that count the mask's elements, check the count against `wanted`, and write the
// positions.
Status count(KernelCall& call, Work& work, RowMajorCall& memory, Check check,
             calls::SelectCall& p) {
  p.blocks = (p.size + kBlockElements - 1) / kBlockElements;
  p.starts = static_cast<std::int64_t*>(memory.room(p.blocks, sizeof(std::int64_t)));
  TT_RETURN_IF_ERROR(memory.status());
  if (check != kAny) {
    TT_RETURN_IF_ERROR(need_flag(call, work));
    work.checks = true;
    p.flag = static_cast<int*>(work.flag);
  }
  p.n = p.blocks;
  TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kSelectCounts}, p));
  p.n = 1;
  TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kSelectStarts, {}, check}, p));
  p.n = p.blocks;
  return {};
}

// The mask, expanded to the given shape.
const void* mask_of(RowMajorCall& memory, const TensorArg& mask, const Dims& shape) {
  const auto view = mask.geometry->expand(shape);
  TensorArg arg = mask;
  if (view.ok()) arg.geometry = &*view;
  return memory.read(arg, DType::kBool);
}

Status fill(KernelCall& call, Work& work, const TensorArg& out, std::int64_t value) {
  TensorArg number;
  number.kind = TensorArg::Kind::kNumber;
  number.number = core::Number::of_int(value);
  return describe_copy(call, number, out, work);
}

Status places(KernelCall& call, Work& work, Check check) {
  const TensorArg &x = call.in[0], &out = call.out[0];
  const Dims& shape = x.geometry->shape;
  calls::SelectCall p = {};
  p.size = x.geometry->numel();
  p.wanted = call.attributes.integer(0);
  p.rank = shape.size();
  if (p.rank > static_cast<int>(std::size(p.shape)) || !out.geometry->contiguous()) {
    return not_on_device("too many dimensions, or a result that is not row-major");
  }
  for (int d = 0; d < p.rank; ++d) p.shape[d] = shape[d];
  if (p.size == 0) return {};
  RowMajorCall memory(call, work);
  p.mask = memory.read(x, DType::kBool);
  p.y = out.first();
  TT_RETURN_IF_ERROR(count(call, work, memory, check, p));
  if (p.wanted == 0) return {};
  return add_recipe(work, {Recipe::kSelectPlaces}, p);
}

Status nonzero(KernelCall& call, Work& work) { return places(call, work, kExactly); }

Status nonzero_static(KernelCall& call, Work& work) {
  if (call.out[0].geometry->numel() == 0) return {};
  TT_RETURN_IF_ERROR(fill(call, work, call.out[0], call.attributes.integer(1)));
  return places(call, work, kAny);
}

Status masked_pack(KernelCall& call, Work& work) {
  const TensorArg &x = call.in[0], &out = call.out[0];
  calls::SelectCall p = {};
  p.wanted = out.geometry->numel();
  p.size = x.geometry->numel();
  if (p.wanted == 0) return {};
  if (!out.geometry->contiguous()) return not_on_device("a result that is not row-major");
  TT_RETURN_IF_ERROR(fill(call, work, out, 0));
  if (p.size == 0) return {};
  RowMajorCall memory(call, work);
  p.mask = mask_of(memory, call.in[1], x.geometry->shape);
  p.x = memory.read(x);
  p.y = out.first();
  TT_RETURN_IF_ERROR(count(call, work, memory, kAny, p));
  return add_recipe(work, {Recipe::kSelectPack, {moved_as(x.dtype)}}, p);
}

Status masked_scatter(KernelCall& call, Work& work) {
  const TensorArg &out = call.out[0], &source = call.in[2];
  calls::SelectCall p = {};
  p.size = out.geometry->numel();
  p.wanted = source.geometry->numel();
  if (p.size == 0) return {};
  if (!out.geometry->contiguous()) return not_on_device("a result that is not row-major");
  RowMajorCall memory(call, work);
  p.mask = mask_of(memory, call.in[1], out.geometry->shape);
  p.x = memory.read(source, out.dtype);
  p.y = out.first();
  TT_RETURN_IF_ERROR(count(call, work, memory, kAtMost, p));
  return add_recipe(work, {Recipe::kSelectSpread, {moved_as(out.dtype)}}, p);
}

}  // namespace

void add_select_kernels(DeviceTable& table) {
  constexpr Skeleton kScan = Skeleton::kScan;
  table.add("nonzero", kScan, nonzero);
  table.add("nonzero_static", kScan, nonzero_static);
  table.add("masked_pack", kScan, masked_pack);
  table.add("masked_scatter", kScan, masked_scatter);
}

}  // namespace teletensor::backends::cuda
