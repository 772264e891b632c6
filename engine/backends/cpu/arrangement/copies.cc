// Kernels of the copies.
#include <algorithm>

#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/arrangement/index_places.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/pointwise/loop.h"

namespace teletensor::backends::cpu {
namespace {

using core::Status;

// clone, contiguous, cast: dtype and layout of the result determine the copy.
Status copy_first(KernelCall& call) {
  if (call.loop != nullptr) return call.loop->add_copy(call.in[0]);
  strided_copy(call.in[0], call.out[0], call.parallel);
  return {};
}

// copy, fill: operand 0 only determines the layout.
Status copy_second(KernelCall& call) {
  if (call.loop != nullptr) return call.loop->add_copy(call.in[1]);
  strided_copy(call.in[1], call.out[0], call.parallel);
  return {};
}

// A row-major copy with another shape.
Status reshape(KernelCall& call) {
  const core::Geometry geometry(call.in[0].geometry->shape);
  TensorArg out = call.out[0];
  out.data = out.first();
  out.geometry = &geometry;
  strided_copy(call.in[0], out, call.parallel);
  return {};
}

Status require(KernelCall& call) {
  const TensorArg& condition = call.in[1];
  const std::int64_t count = condition.geometry->numel();
  const DenseCopy holds =
      dense_copy(call, condition, condition.geometry->shape, core::DType::kBool);
  if (holds.data == nullptr) return out_of_scratch(call.op.name, holds.bytes);
  const auto* const bits = static_cast<const std::uint8_t*>(holds.data);
  if (std::find(bits, bits + count, std::uint8_t{0}) != bits + count) {
    return core::invalid(std::string(call.attributes.text(0)));
  }
  strided_copy(call.in[0], call.out[0], call.parallel);
  return {};
}

// Copies the row-major bytes of x. A bool must be 0 or 1.
Status bitcast(KernelCall& call) {
  TensorArg out = call.out[0];
  const core::Geometry geometry(call.in[0].geometry->shape);
  out.data = out.first();
  out.geometry = &geometry;
  out.dtype = call.in[0].dtype;
  strided_copy(call.in[0], out, call.parallel);
  if (call.out[0].dtype == core::DType::kBool) {
    auto* bytes = call.out[0].first<std::uint8_t>();
    const std::int64_t count = call.out[0].geometry->numel();
    for (std::int64_t i = 0; i < count; ++i) bytes[i] = bytes[i] != 0;
  }
  return {};
}

}  // namespace

void add_copy_kernels(KernelTable& table) {
  table.add("clone", copy_first, LoopRole::kElement);
  table.add("contiguous", copy_first, LoopRole::kElement);
  table.add("cast", copy_first, LoopRole::kElement);
  table.add("copy", copy_second, LoopRole::kElement);
  table.add("fill", copy_second, LoopRole::kElement);
  table.add("reshape", reshape);
  table.add("bitcast", bitcast);
  table.add("require", require);
}

}  // namespace teletensor::backends::cpu
