// Ops that compose complex numbers or extract their parts. The derivatives follow PyTorch's
// convention: the gradient of a real L by z = x + iy is dL/dx + i dL/dy, so the vjp of a
// holomorphic op is g * conj(f'(z)).

#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/pointwise/elementwise.h"

namespace teletensor::ops {
namespace {

using core::DType;
using core::Number;
using core::Status;

const Number kI = Number::of_complex(0, 1);

Status complex_only(const InferContext& c) {
  if (core::is_complex(c.dtype(0))) return {};
  return c.unimplemented("is defined for complex tensors, not for " +
                         std::string(core::name_of(c.dtype(0))));
}

Status infer_part(InferContext& c) {
  TT_RETURN_IF_ERROR(complex_only(c));
  return infer_elementwise(c, core::real_of(c.dtype(0)), c.dtype(0));
}

Status infer_angle(InferContext& c) {
  const DType dtype = real_type(c);
  return infer_elementwise(c, core::real_of(dtype), dtype);
}

// Checks two tensors of the same real floating dtype.
Status infer_from_parts(InferContext& c) {
  const DType dtype = c.dtype(0);
  if (!core::is_floating(dtype) || c.dtype(1) != dtype) {
    return c.unimplemented("takes two tensors of one floating dtype, got " +
                           std::string(core::name_of(dtype)) + " and " +
                           std::string(core::name_of(c.dtype(1))));
  }
  return infer_elementwise(c, core::complex_of(dtype), dtype);
}

Status infer_as_real(InferContext& c) {
  TT_RETURN_IF_ERROR(complex_only(c));
  if (c.rank(0) == core::kMaxRank) return c.fail("rank above the limit of 12");
  core::Dims shape = c.shape(0);
  shape.push_back(2);
  c.add_result(core::real_of(c.dtype(0)), shape);
  return {};
}

Status infer_as_complex(InferContext& c) {
  const DType dtype = c.dtype(0);
  if (dtype != DType::kF32 && dtype != DType::kF64) {
    return c.unimplemented("is defined for float32 and float64, not for " +
                           std::string(core::name_of(dtype)));
  }
  if (c.rank(0) == 0 || c.shape(0).back() != 2) {
    return c.fail("the last dimension must have size 2, the shape is " +
                  core::to_string(c.shape(0)));
  }
  core::Dims shape = c.shape(0);
  shape.erase(shape.size() - 1);
  c.add_result(core::complex_of(dtype), shape);
  return {};
}

// RULE: for a view of another dtype, infer's result stays in the context and gives the dtype.
Status view_as_real(InferContext& c, std::vector<core::Geometry>& views) {
  TT_RETURN_IF_ERROR(infer_as_real(c));
  views.push_back(parts_of(c.geometry(0)));
  return {};
}

Status view_as_complex(InferContext& c, std::vector<core::Geometry>& views) {
  TT_RETURN_IF_ERROR(infer_as_complex(c));
  core::Geometry g = c.geometry(0);
  if (g.strides.back() != 1) return c.fail("the last dimension must have stride 1");
  g.shape.erase(g.rank() - 1);
  g.strides.erase(g.rank());
  for (std::int64_t& stride : g.strides) {
    if (stride % 2 != 0) return c.fail("the strides of all but the last dimension must be even");
    stride /= 2;
  }
  if (g.offset % 2 != 0) return c.fail("the storage offset must be even");
  g.offset /= 2;
  views.push_back(g);
  return {};
}

// Converts a gradient in real parts to complex numbers, whatever its layout.
Var as_complex(const Var& parts) {
  if (!parts.is_tensor()) return parts;
  const core::Geometry& g = parts.layout().geometry;
  return unary("view_as_complex",
               g.contiguous() && g.offset % 2 == 0 ? parts : unary("contiguous", parts));
}

Var unless_zero(const Var& what, const Var& value) {
  return where(binary("eq", what, Var(0)), Var(0), value);
}

// x / |x| changes only if x moves perpendicular to its own direction.
void sgn_vjp(VjpContext& c) {
  if (!core::is_complex(c.operand_layout(0).dtype)) {
    return c.give(0, zeros(c.builder(), c.operand_layout(0)));
  }
  const Var g = c.gradient(), s = c.result(), size = unary("abs", c.operand(0));
  const Var along = s * real(g * conj(s));
  c.give(0, unless_zero(size, (g - along) / size));
}

void angle_vjp(VjpContext& c) {
  if (!core::is_complex(c.operand_layout(0).dtype)) {
    return c.give(0, zeros(c.builder(), c.operand_layout(0)));
  }
  const Var x = c.operand(0), size = unary("abs", x);
  c.give(0, unless_zero(size, x * Var(kI) * (c.gradient() / (size * size))));
}

void complex_vjp(VjpContext& c) {
  const Var g = c.gradient();
  if (c.needs(0)) c.give(0, real(g));
  if (c.needs(1)) c.give(1, unary("imag", g));
}

void polar_vjp(VjpContext& c) {
  const Var g = c.gradient(), z = c.result();
  if (c.needs(0)) c.give(0, real(g * conj(unary("sgn", z))));
  if (c.needs(1)) c.give(1, real(g * conj(z * Var(kI))));
}

OpDef row(std::string_view signature, std::string_view doc, Infer infer, Vjp vjp, Tangent tangent,
          std::vector<Save> saves = {}) {
  OpDef def = row(signature, doc, infer, vjp, std::move(saves));
  def.tangent = tangent;
  return def;
}

}  // namespace

std::vector<OpDef> complex_ops() {
  return {
      row(
          "conj(Tensor x) -> Tensor", "The complex conjugate, computed; a copy of a real tensor.",
          infer_number, [](VjpContext& c) { c.give(0, conj(c.gradient())); }, Tangent::kLinear),
      row(
          "real(Tensor x) -> Tensor",
          "The real part of complex x, computed; tt.real(x) is the view of it.", infer_part,
          [](VjpContext& c) { c.give(0, c.gradient()); }, Tangent::kLinear),
      row(
          "imag(Tensor x) -> Tensor",
          "The imaginary part of complex x, computed; tt.imag(x) is the view of it.", infer_part,
          [](VjpContext& c) { c.give(0, c.gradient() * Var(kI)); }, Tangent::kLinear),
      row("sgn(Tensor x) -> Tensor", "x / |x|, 0 for 0: the sign of a real number.", infer_number,
          sgn_vjp, Tangent::kTransposed, {{0}, {kResult}}),
      row("angle(Tensor x) -> Tensor",
          "The angle in radians in (-pi, pi]; of a real number 0, or pi below 0.", infer_angle,
          angle_vjp, Tangent::kTransposed, {{0}}),
      row("complex(Tensor real, Tensor imag) -> Tensor",
          "real + i * imag of two tensors of one floating dtype.", infer_from_parts, complex_vjp,
          Tangent::kLinear),
      row("polar(Tensor abs, Tensor angle) -> Tensor",
          "abs * (cos(angle) + i * sin(angle)) of two tensors of one floating dtype.",
          infer_from_parts, polar_vjp, Tangent::kTransposed, {{kResult}}),
      {.signature = "view_as_real(Tensor x) -> Tensor",
       .doc = "The view of complex numbers as their parts, in a new last dimension of size 2.",
       .infer = infer_as_real,
       .view = view_as_real,
       .vjp = [](VjpContext& c) { c.give(0, as_complex(c.gradient())); },
       .tangent = Tangent::kLinear,
       .batching = Batching::kFront},
      {.signature = "view_as_complex(Tensor x) -> Tensor",
       .doc = "The view of the last dimension, which has size 2 and stride 1, as complex numbers.",
       .infer = infer_as_complex,
       .view = view_as_complex,
       .vjp = [](VjpContext& c) { c.give(0, unary("view_as_real", c.gradient())); },
       .tangent = Tangent::kLinear,
       .batching = Batching::kFront},
  };
}

}  // namespace teletensor::ops
