// Rows and inference rules that the elementwise families share.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/ops/op.h"

namespace teletensor::ops {

// Values that a derivative reads: kX is the operand, kY the result, kBoth are both operands.
inline const Save kX{0};
inline const Save kY{kResult};
inline const std::vector<Save> kBoth = {{0}, {1}};

// row() declares an op with a derivative, plain() an op without one.
inline OpDef row(std::string_view signature, std::string_view doc, Infer infer, Vjp vjp,
                 std::vector<Save> saves = {}) {
  return {.signature = signature,
          .doc = doc,
          .infer = infer,
          .vjp = vjp,
          .saves = std::move(saves),
          .inplace = Inplace::kElementwise};
}
inline OpDef plain(std::string_view signature, std::string_view doc, Infer infer,
                   std::string_view why = "PyTorch defines no derivative") {
  return {.signature = signature,
          .doc = doc,
          .infer = infer,
          .not_differentiable = why,
          .inplace = Inplace::kElementwise};
}

// Adds the result of broadcasting all tensor operands, with the strides that PyTorch gives it.
// Refuses shapes that do not broadcast, and calls without a tensor. `common` is the dtype that the
// operands are converted to, if it differs from the result's; with `condition`, operand 0 is not
// converted.
core::Status infer_elementwise(InferContext& c, core::DType dtype, core::DType common,
                               bool condition = false);
inline core::Status infer_elementwise(InferContext& c, core::DType dtype) {
  return infer_elementwise(c, dtype, dtype);
}
// The dense layout of a copy of x, in the order of its strides (PyTorch's preserve_format).
core::Geometry preserved_layout(const core::Geometry& x);

// The dtype that the operands promote to.
inline core::DType result_type(const InferContext& c) {
  return result_type(c.operands, c.default_dtype);
}
// The dtype that the operands promote to, or the default dtype if that is an integer or bool dtype.
inline core::DType real_type(const InferContext& c) {
  const core::DType dtype = result_type(c);
  return core::is_inexact(dtype) ? dtype : c.default_dtype;
}

// Refuses a number as operand `i` that is out of the range of `dtype`.
core::Status check_number(const InferContext& c, std::size_t i, core::DType dtype);

// Inference rules that refuse complex operands.
core::Status infer_same(InferContext& c);          // dtype is result_type()
core::Status infer_no_bool(InferContext& c);       // dtype is result_type(), never bool
core::Status infer_real(InferContext& c);          // dtype is real_type()
core::Status infer_floating(InferContext& c);      // refuses dtypes that are not floating
core::Status infer_ordered_test(InferContext& c);  // dtype is bool
// Inference rules that accept complex operands.
core::Status infer_number(InferContext& c);          // dtype is result_type()
core::Status infer_number_no_bool(InferContext& c);  // dtype is result_type(), never bool
core::Status infer_inexact(InferContext& c);         // dtype is real_type(), or complex
core::Status infer_inexact_only(InferContext& c);    // refuses integers and bool
core::Status infer_test(InferContext& c);            // dtype is bool

}  // namespace teletensor::ops
