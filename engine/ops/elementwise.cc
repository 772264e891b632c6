#include "engine/ops/elementwise.h"

namespace teletensor::ops {

using core::DType;
using core::Status;

Status infer_elementwise(InferContext& c, DType dtype) {
  core::InlineVector<const core::Geometry*, 4> inputs;
  for (const OperandInfo& operand : c.operands) {
    if (operand.tensor()) inputs.push_back(&operand.layout->geometry);
  }
  if (inputs.empty()) return c.fail("needs at least one tensor");
  const core::Dims* shape = &inputs[0]->shape;
  core::Dims broadcast;
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    if (inputs[i]->shape == *shape) continue;
    auto both = core::broadcast_shapes(*shape, inputs[i]->shape, c.op);
    if (!both.ok()) return both.status();
    broadcast = *both;
    shape = &broadcast;
  }
  // The layout rule may walk sizes that no memory could hold.
  const auto count = core::checked_numel(shape->span());
  if (!count.ok()) return c.fail(count.status().message());
  c.add_result(dtype, core::elementwise_layout(*shape, {inputs.data(), inputs.size()}));
  return {};
}

Status infer_same(InferContext& c) { return infer_elementwise(c, result_type(c)); }

Status infer_no_bool(InferContext& c) {
  const DType dtype = result_type(c);
  if (dtype == DType::kBool) return c.fail("is not defined for bool");
  return infer_elementwise(c, dtype);
}

Status infer_real(InferContext& c) { return infer_elementwise(c, real_type(c)); }

Status infer_floating(InferContext& c) {
  const DType dtype = result_type(c);
  if (!core::is_floating(dtype)) {
    return c.fail("is defined for floating dtypes, not for " + std::string(core::name_of(dtype)));
  }
  return infer_elementwise(c, dtype);
}

Status infer_test(InferContext& c) { return infer_elementwise(c, DType::kBool); }

}  // namespace teletensor::ops
