#include "engine/ops/pointwise/elementwise.h"

#include <limits>

namespace teletensor::ops {

using core::DType;
using core::Status;

core::Geometry preserved_layout(const core::Geometry& x) {
  if (x.dense()) return core::Geometry(x.shape, x.strides);
  const core::Geometry* inputs[] = {&x};
  return core::elementwise_layout(x.shape, inputs);
}

namespace {

// The common case: all tensors have the same shape and are row-major (including sizes of 1). Then
// the result is row-major as well, whatever the dtypes and the numbers are.
const core::Geometry* plain(const InferContext& c) {
  const core::Geometry* first = nullptr;
  for (const OperandInfo& operand : c.operands) {
    if (!operand.tensor()) continue;
    const core::Geometry& g = operand.layout->geometry;
    if (first != nullptr && g.rank() != first->rank()) return nullptr;
    std::int64_t step = 1;
    for (int d = g.rank() - 1; d >= 0; --d) {
      if (g.strides[d] != step || g.shape[d] == 0) return nullptr;
      if (first != nullptr && g.shape[d] != first->shape[d]) return nullptr;
      if (__builtin_mul_overflow(step, g.shape[d], &step)) return nullptr;
    }
    if (first == nullptr) first = &g;
  }
  return first;
}

}  // namespace

Status infer_elementwise(InferContext& c, DType dtype, DType common, bool condition) {
  if (const core::Geometry* same = plain(c)) {
    c.add_result(dtype, core::Geometry(same->shape, same->strides));
    return {};
  }
  core::InlineVector<const core::Geometry*, 4> inputs;
  // RULE: the order of strides is that of the operands after they were converted, which packs them.
  core::Geometry packed[4];  // elementwise ops have at most 4 operands
  std::size_t packs = 0;
  for (const OperandInfo& operand : c.operands) {
    if (!operand.tensor()) continue;
    const core::Geometry& geometry = operand.layout->geometry;
    const bool kept = condition && &operand == &c.operands[0];
    if (kept || operand.layout->dtype == common || geometry.dense()) {
      inputs.push_back(&geometry);
    } else {
      packed[packs] = preserved_layout(geometry);
      inputs.push_back(&packed[packs++]);
    }
  }
  if (inputs.empty()) return c.fail("needs at least one tensor");
  // RULE: a number counts like a 0-d tensor (except as an exponent). That affects only the strides
  // of dimensions of size 1.
  static const core::Geometry kNumber{core::Dims()};
  const core::Geometry& first = *inputs[0];
  if (inputs.size() == 1 && c.operands.size() == 2 && !first.shape.empty() && first.contiguous() &&
      c.op != "pow" && first.strides != core::contiguous_strides(first.shape)) {
    inputs.push_back(&kNumber);
  }
  const core::Dims* shape = &inputs[0]->shape;
  core::Dims broadcast;
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    if (inputs[i]->shape == *shape) continue;
    auto both = core::broadcast_shapes(*shape, inputs[i]->shape, c.op);
    if (!both.ok()) return both.status();
    broadcast = *both;
    shape = &broadcast;
  }
  // The layout rule may iterate over sizes that would not fit into memory.
  const auto count = core::checked_numel(shape->span());
  if (!count.ok()) return c.fail(count.status().message());
  c.add_result(dtype, core::elementwise_layout(*shape, {inputs.data(), inputs.size()}));
  return {};
}

namespace {

// Returns true if a real number exceeds the range of `dtype`. Negative integers wrap in unsigned
// dtypes; a bool accepts all numbers, and a floating dtype accepts infinities and NaN.
bool beyond(const core::Number& number, DType dtype) {
  const double value = number.as_double(), magnitude = value < 0 ? -value : value;
  if (dtype == DType::kBool || core::is_complex(dtype)) return false;
  if (core::is_integral(dtype)) {
    const core::IntegerRange range = core::range_of(dtype);
    const auto most = static_cast<double>(range.most);
    if (core::is_unsigned(dtype)) {
      return !(magnitude <= most) || (number.kind == core::Number::Kind::kFloat && value < 0);
    }
    if (number.kind == core::Number::Kind::kUInt) return true;
    return !(value >= static_cast<double>(range.least) && value <= most);
  }
  const double most = core::largest_of(dtype);
  return magnitude > most && magnitude <= std::numeric_limits<double>::max();
}

}  // namespace

Status check_number(const InferContext& c, std::size_t i, DType dtype) {
  const core::Number* number = c.operands[i].number;
  if (number == nullptr) return {};
  if (number->is_complex()) {
    if (core::is_complex(dtype)) return {};
    return c.fail("the number " + core::to_string(*number) + " cannot be converted to " +
                  std::string(core::name_of(dtype)));
  }
  if (!beyond(*number, dtype)) return {};
  return c.fail("value " + core::to_string(*number) + " cannot be converted to type " +
                std::string(core::name_of(dtype)) + " without overflow");
}

Status infer_number(InferContext& c) { return infer_elementwise(c, result_type(c)); }

Status infer_same(InferContext& c) {
  const DType dtype = result_type(c);
  if (core::is_complex(dtype)) return c.not_defined_for(dtype);
  return infer_elementwise(c, dtype);
}

Status infer_number_no_bool(InferContext& c) {
  const DType dtype = result_type(c);
  if (dtype == DType::kBool) return c.not_defined_for(dtype);
  return infer_elementwise(c, dtype);
}

Status infer_no_bool(InferContext& c) {
  const DType dtype = result_type(c);
  if (core::is_complex(dtype)) return c.not_defined_for(dtype);
  return infer_number_no_bool(c);
}

Status infer_inexact(InferContext& c) { return infer_elementwise(c, real_type(c)); }

Status infer_real(InferContext& c) {
  const DType dtype = real_type(c);
  if (core::is_complex(dtype)) return c.not_defined_for(dtype);
  return infer_elementwise(c, dtype);
}

Status infer_floating(InferContext& c) {
  const DType dtype = result_type(c);
  if (!core::is_floating(dtype)) {
    return c.unimplemented("is defined for floating dtypes, not for " +
                           std::string(core::name_of(dtype)));
  }
  return infer_elementwise(c, dtype);
}

Status infer_inexact_only(InferContext& c) {
  return core::is_complex(result_type(c)) ? infer_number(c) : infer_floating(c);
}

Status infer_test(InferContext& c) { return infer_elementwise(c, DType::kBool, result_type(c)); }

Status infer_ordered_test(InferContext& c) {
  const DType dtype = result_type(c);
  if (core::is_complex(dtype)) return c.not_defined_for(dtype);
  return infer_test(c);
}

}  // namespace teletensor::ops
