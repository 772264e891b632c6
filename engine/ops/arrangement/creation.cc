// Ops that create tensors (full, arange, eye, ...) and related ops (tril, one_hot).

#include <cmath>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/pointwise/elementwise.h"
#include "engine/ops/sizes.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Number;
using core::Status;

constexpr std::string_view kConstant = "it is made of constants";

DType dtype_or(const InferContext& c, std::size_t i, DType fallback) {
  return c.attributes.has(i) ? c.attributes.dtype(i) : fallback;
}

Status infer_full(InferContext& c) {
  Dims shape;
  TT_RETURN_IF_ERROR(read_shape(c, 0, shape));
  if (c.operands[0].tensor() && c.geometry(0).numel() != 1) {
    return c.fail("the value must be a number or a tensor of one element, it has shape " +
                  core::to_string(c.shape(0)));
  }
  const DType dtype = dtype_or(c, 1, result_type(c.operands, c.default_dtype));
  TT_RETURN_IF_ERROR(check_number(c, 0, dtype));
  c.add_result(dtype, shape);
  return {};
}

Status infer_empty(InferContext& c) {
  Dims shape;
  TT_RETURN_IF_ERROR(read_shape(c, 0, shape));
  c.add_result(dtype_or(c, 1, c.default_dtype), shape);
  return {};
}

// Reads start, end and step as numbers; sets `whole` if all of them are integers.
Status read_numbers(InferContext& c, std::size_t count, bool& whole) {
  whole = true;
  for (std::size_t i = 0; i < count; ++i) {
    if (!c.operands[i].number) return c.fail("the arguments must be numbers, got a tensor");
    const Number& n = *c.operands[i].number;
    if (n.is_complex() || n.kind == Number::Kind::kUInt) {
      return c.fail("takes real numbers of at most 63 bits, got " + core::to_string(n));
    }
    if (n.kind == Number::Kind::kFloat) {
      whole = false;
      if (!std::isfinite(n.real)) return c.fail("takes finite numbers, got " + core::to_string(n));
    }
  }
  return {};
}

Status infer_arange(InferContext& c) {
  bool whole;
  TT_RETURN_IF_ERROR(read_numbers(c, 3, whole));
  const Number &start = *c.operands[0].number, &end = *c.operands[1].number,
               &step = *c.operands[2].number;
  const auto refuse = [&](const char* why) {
    return c.fail(std::string(why) + ": start " + core::to_string(start) + ", end " +
                  core::to_string(end) + ", step " + core::to_string(step));
  };
  const DType dtype = dtype_or(c, 0, whole ? DType::kI64 : c.default_dtype);
  if (dtype == DType::kBool || core::is_complex(dtype)) return c.not_defined_for(dtype);
  if (step.as_double() == 0) return refuse("step must not be zero");
  const double span = end.as_double() - start.as_double();
  if ((span > 0 && step.as_double() < 0) || (span < 0 && step.as_double() > 0)) {
    return refuse("the sign of the step leads away from the end");
  }
  std::int64_t size;
  if (whole) {
    __int128 distance = static_cast<__int128>(end.integer) - start.integer;
    __int128 stride = step.integer;
    if (stride < 0) distance = -distance, stride = -stride;
    const __int128 exact = (distance + stride - 1) / stride;
    if (exact > INT64_MAX) return refuse("too many elements");
    size = static_cast<std::int64_t>(exact);
  } else {
    const double exact = std::ceil(span / step.as_double());
    if (!(exact < 0x1p62)) return refuse("too many elements");
    size = static_cast<std::int64_t>(exact);
  }
  c.add_result(dtype, Dims{size});
  return {};
}

Status infer_linspace(InferContext& c) {
  bool whole;
  TT_RETURN_IF_ERROR(read_numbers(c, 2, whole));
  const std::int64_t steps = c.attributes.integer(0);
  if (steps < 0)
    return c.fail("number of steps must not be negative, got " + std::to_string(steps));
  const DType dtype = dtype_or(c, 1, c.default_dtype);
  if (dtype == DType::kBool || core::is_complex(dtype)) return c.not_defined_for(dtype);
  c.add_result(dtype, Dims{steps});
  return {};
}

Status infer_eye(InferContext& c) {
  const std::int64_t n = c.attributes.integer(0);
  const std::int64_t m = c.attributes.has(1) ? c.attributes.integer(1) : n;
  if (n < 0 || m < 0) {
    return c.fail("negative size: " + std::to_string(n) + " x " + std::to_string(m));
  }
  c.add_result(dtype_or(c, 2, c.default_dtype), Dims{n, m});
  return {};
}

Status infer_triangle(InferContext& c) {
  if (c.rank(0) < 2) {
    return c.fail("needs at least 2 dimensions, got shape " + core::to_string(c.shape(0)));
  }
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

Status infer_one_hot(InferContext& c) {
  const std::int64_t classes = c.attributes.integer(0);
  if (!core::is_integral(c.dtype(0))) {
    return c.fail("takes integers, got " + std::string(core::name_of(c.dtype(0))));
  }
  if (classes < 1) return c.fail("num_classes must be positive, got " + std::to_string(classes));
  if (c.rank(0) == core::kMaxRank) return c.fail("rank above the limit of 12");
  Dims shape = c.shape(0);
  shape.push_back(classes);
  c.add_result(DType::kI64, shape);
  return {};
}

// A vector gives a matrix with that vector on a diagonal; a matrix gives the vector on its
// diagonal.
Status infer_diag(InferContext& c) {
  const std::int64_t k = c.attributes.integer(0);
  const Dims& shape = c.shape(0);
  if (shape.size() == 1) {
    std::int64_t side;
    if (k == INT64_MIN || __builtin_add_overflow(shape[0], k < 0 ? -k : k, &side)) {
      return c.fail("diagonal " + std::to_string(k) + " is too far out");
    }
    c.add_result(c.dtype(0), Dims{side, side});
    return {};
  }
  if (shape.size() != 2) return c.fail("takes a vector or a matrix, got " + core::to_string(shape));
  std::int64_t length = 0;
  if (k >= 0 && k < shape[1]) length = std::min(shape[0], shape[1] - k);
  if (k < 0 && k > -shape[0]) length = std::min(shape[0] + k, shape[1]);
  c.add_result(c.dtype(0), Dims{length});
  return {};
}

// The gradient of a matrix's diagonal is scattered into the diagonal of a matrix of zeros.
void diag_vjp(VjpContext& c) {
  static const OpRef diag("diag"), scatter("scatter_region");
  const Var g = c.gradient();
  const Dims& shape = c.operand_layout(0).geometry.shape;
  if (shape.size() == 1) return c.give(0, apply(diag, {g}, c.attributes()));
  const std::int64_t k = c.attributes().integer(0);
  const std::int64_t offset = g.shape()[0] == 0 ? 0 : k >= 0 ? k : -k * shape[1];
  c.give(0, apply(scatter, {g},
                  {Attribute::of(shape), Attribute::of(core::contiguous_strides(shape)),
                   Attribute::of(g.shape()), Attribute::of(Dims{shape[1] + 1}),
                   Attribute::of(offset)}));
}

template <const char* kName>
void triangle_vjp(VjpContext& c) {
  static const OpRef op(kName);
  c.give(0, apply(op, {c.gradient()}, c.attributes()));
}
constexpr char kTril[] = "tril", kTriu[] = "triu";

}  // namespace

std::vector<OpDef> creation_ops() {
  return {
      {.signature = "full(Operand value, int[] size, dtype? dtype=None, device? device=None) -> "
                    "Tensor",
       .doc = "A tensor filled with one value; without dtype, the value's own.",
       .infer = infer_full,
       .vjp = [](VjpContext& c) { c.give(0, c.gradient()); }},
      {.signature = "empty(int[] size, dtype? dtype=None, device? device=None) -> Tensor",
       .doc = "A tensor whose contents are not specified (but never another user's data).",
       .infer = infer_empty,
       .not_differentiable = kConstant},
      {.signature = "arange(Operand start, Operand end, Operand step=1, dtype? dtype=None, device? "
                    "device=None) -> Tensor",
       .doc = "The numbers start, start + step, ... before end. int64 when all three are integers.",
       .infer = infer_arange,
       .not_differentiable = kConstant},
      {.signature = "linspace(Operand start, Operand end, int steps, dtype? dtype=None, device? "
                    "device=None) -> Tensor",
       .doc = "`steps` evenly spaced numbers from start to end, both included.",
       .infer = infer_linspace,
       .not_differentiable = kConstant},
      {.signature = "eye(int n, int? m=None, dtype? dtype=None, device? device=None) -> Tensor",
       .doc = "An n x m matrix (m defaults to n) with ones on the main diagonal.",
       .infer = infer_eye,
       .not_differentiable = kConstant},
      {.signature = "tril(Tensor x, int diagonal=0) -> Tensor",
       .doc = "The lower triangle of the last two dimensions, up to and with the given diagonal; "
              "zeros above.",
       .infer = infer_triangle,
       .vjp = triangle_vjp<kTril>},
      {.signature = "triu(Tensor x, int diagonal=0) -> Tensor",
       .doc = "The upper triangle of the last two dimensions, from the given diagonal on; zeros "
              "below.",
       .infer = infer_triangle,
       .vjp = triangle_vjp<kTriu>},
      {.signature = "diag(Tensor x, int diagonal=0) -> Tensor",
       .doc = "A matrix with the vector x on a diagonal, or the diagonal of the matrix x.",
       .infer = infer_diag,
       .vjp = diag_vjp},
      {.signature = "one_hot(Tensor x, int num_classes) -> Tensor",
       .doc = "int64 rows of zeros with a one at each index of x, in a new last dimension.",
       .infer = infer_one_hot,
       .not_differentiable = "its operand is an integer"},
  };
}

}  // namespace teletensor::ops
