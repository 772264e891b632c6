// Copies: the same elements with another layout, dtype or device.

#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/pointwise/elementwise.h"

namespace teletensor::ops {
namespace {

using core::Status;

Status infer_clone(InferContext& c) {
  c.add_result(c.dtype(0), preserved_layout(c.geometry(0)));
  return {};
}

Status infer_contiguous(InferContext& c) {
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

Status infer_cast(InferContext& c) {
  c.add_result(c.attributes.dtype(0), preserved_layout(c.geometry(0)));
  return {};
}

Status infer_copy(InferContext& c) {
  TT_RETURN_IF_ERROR(check_number(c, 1, c.dtype(0)));
  const OperandInfo& src = c.operands[1];
  if (src.tensor()) {
    const auto fits = src.layout->geometry.expand(c.shape(0));
    if (!fits.ok()) {
      return c.fail("a source of shape " + core::to_string(src.layout->geometry.shape) +
                    " does not broadcast to " + core::to_string(c.shape(0)));
    }
  }
  return infer_clone(c);
}

Status infer_fill(InferContext& c) {
  TT_RETURN_IF_ERROR(check_number(c, 1, c.dtype(0)));
  const OperandInfo& value = c.operands[1];
  if (value.tensor() && value.layout->geometry.rank() > 0) {
    return c.fail("value must be a number or a 0-d tensor, it has shape " +
                  core::to_string(value.layout->geometry.shape));
  }
  return infer_clone(c);
}

// RULE (as in PyTorch's view(dtype)): the last dimension absorbs the difference of the element
// sizes.
Status infer_bitcast(InferContext& c) {
  const core::DType to = c.attributes.dtype(0);
  const auto from_size = static_cast<std::int64_t>(core::size_of(c.dtype(0)));
  const auto to_size = static_cast<std::int64_t>(core::size_of(to));
  core::Dims shape = c.shape(0);
  if (from_size != to_size) {
    const std::string both =
        std::string(core::name_of(c.dtype(0))) + " to " + std::string(core::name_of(to));
    if (shape.empty()) {
      return c.fail("a 0-d tensor cannot be viewed as another element size: " + both);
    }
    std::int64_t& last = shape[shape.size() - 1];
    std::int64_t bytes;
    if (__builtin_mul_overflow(last, from_size, &bytes)) return c.fail("size is too large");
    if (bytes % to_size != 0) {
      return c.fail("the last dimension of " + core::to_string(c.shape(0)) +
                    " does not divide from " + both);
    }
    last = bytes / to_size;
  }
  c.add_result(to, shape);
  return {};
}

// RULE: a bool never shares its memory with another dtype, because bytes other than 0 and 1 are no
// bools.
Status view_bitcast(InferContext& c, std::vector<core::Geometry>& views) {
  TT_RETURN_IF_ERROR(infer_bitcast(c));
  const core::DType from = c.dtype(0), to = c.results[0].dtype;
  if (from != to && (from == core::DType::kBool || to == core::DType::kBool)) {
    c.results.clear();
    return Status(core::Code::kFailedPrecondition, "bitcast: needs a copy");
  }
  core::Geometry g = c.geometry(0);
  const auto from_size = static_cast<std::int64_t>(core::size_of(from));
  const auto to_size = static_cast<std::int64_t>(core::size_of(to));
  if (from_size != to_size) {
    const auto scaled = [&](std::int64_t& n) {
      std::int64_t bytes;
      if (__builtin_mul_overflow(n, from_size, &bytes) || bytes % to_size != 0) return false;
      n = bytes / to_size;
      return true;
    };
    const int last = g.rank() - 1;
    if (g.strides[last] != 1) {
      return c.fail("stride(-1) must be 1 to view " + std::string(core::name_of(from)) + " as " +
                    std::string(core::name_of(to)) + " (different element sizes), it is " +
                    std::to_string(g.strides[last]));
    }
    for (int d = 0; d < last; ++d) {
      if (scaled(g.strides[d])) continue;
      return c.fail("stride(" + std::to_string(d) + ") of " + core::to_string(g.strides) +
                    " is not a whole number of elements of " + std::string(core::name_of(to)));
    }
    if (!scaled(g.offset)) {
      return c.fail("the storage offset " + std::to_string(g.offset) +
                    " is not a whole number of elements of " + std::string(core::name_of(to)));
    }
    g.shape[last] = c.results[0].geometry.shape[last];
  }
  views.push_back(g);
  return {};
}

Status infer_require(InferContext& c) {
  if (c.dtype(1) != core::DType::kBool) return c.fail("the condition must be bool");
  return infer_clone(c);
}

void give_gradient(VjpContext& c) { c.give(0, c.gradient()); }

// RULE: nothing of operand 0 remains.
void overwrite_vjp(VjpContext& c) {
  if (c.needs(0)) c.give(0, zeros(c.builder(), c.operand_layout(0)));
  if (c.needs(1)) c.give(1, c.gradient());
}

void to_device_vjp(VjpContext& c) {
  static const OpRef op("to_device");
  c.give(0, apply(op, {c.gradient()}, {core::Attribute::of(c.operand_layout(0).device)}));
}

}  // namespace

std::vector<OpDef> copy_ops() {
  return {
      {.signature = "clone(Tensor x) -> Tensor",
       .doc = "A copy of x with the same order of strides.",
       .infer = infer_clone,
       .vjp = give_gradient,
       .inplace = Inplace::kElementwise},
      {.signature = "contiguous(Tensor x) -> Tensor",
       .doc = "A row-major copy of x.",
       .infer = infer_contiguous,
       .vjp = give_gradient,
       .inplace = Inplace::kElementwise},
      {.signature = "cast(Tensor x, dtype dtype) -> Tensor",
       .doc = "x converted to dtype: f16 and bf16 round to nearest even, floats become integers by "
              "truncation (saturated, NaN as 0), a bool is 'not zero'.",
       .infer = infer_cast,
       .vjp = give_gradient,
       .inplace = Inplace::kElementwise},
      {.signature = "copy(Tensor x, Operand src) -> Tensor",
       .doc = "src, broadcast to the shape and converted to the dtype of x; x.copy_(src) in place.",
       .infer = infer_copy,
       .vjp = overwrite_vjp,
       .inplace = Inplace::kElementwise},
      {.signature = "fill(Tensor x, Operand value) -> Tensor",
       .doc = "value everywhere, in the layout of x; x.fill_(value) in place.",
       .infer = infer_fill,
       .vjp = overwrite_vjp,
       .inplace = Inplace::kElementwise},
      {.signature = "bitcast(Tensor x, dtype dtype) -> Tensor",
       .doc = "The view of x's bytes as another dtype; the last dimension, of stride 1, grows or "
              "shrinks with the element size. To or from bool a copy: every byte but 0 is True.",
       .infer = infer_bitcast,
       .view = view_bitcast,
       .not_differentiable = "it reads bytes, not numbers"},
      {.signature = "to_device(Tensor x, device device) -> Tensor",
       .doc = "x on another device.",
       .infer = infer_clone,
       .vjp = to_device_vjp},
      {.signature = "require(Tensor x, Tensor condition, str message) -> Tensor",
       .doc = "A copy of x; where condition is not True everywhere, an error with this message.",
       .infer = infer_require,
       .vjp = give_gradient,
       .internal = true},
  };
}

}  // namespace teletensor::ops
