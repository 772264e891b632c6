// Fourier transforms along dimensions: complex to complex, real to half complex, half complex to
// real. Kernel: backends/cpu/fft.cc.
#include "engine/ops/families.h"
#include "engine/ops/functions.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

// Checks the dimensions in attribute 0: in range, all different, with at least one element each.
// `dims` receives them normalised.
Status check_dims(InferContext& c, Dims& dims) {
  const auto given = c.attributes.ints(0);
  if (given.empty()) return c.fail("at least one dim must be transformed");
  std::uint32_t seen = 0;
  for (std::int64_t d : given) {
    if (c.rank(0) == 0) return c.fail("a 0-d tensor has no dim to transform");
    const auto dim = core::normalize_dim(d, c.rank(0), c.op);
    if (!dim.ok()) return dim.status();
    if (seen & bit(*dim)) return c.fail("FFT dims must be unique");
    seen |= bit(*dim);
    if (c.shape(0)[*dim] < 1) {
      return c.fail("Invalid number of data points (" + std::to_string(c.shape(0)[*dim]) +
                    ") specified");
    }
    dims.push_back(*dim);
  }
  const std::int64_t norm = c.attributes.integer(1);
  if (norm < 0 || norm > 2) return c.fail("unknown normalization " + std::to_string(norm));
  return {};
}

Status c2c_infer(InferContext& c) {
  Dims dims;
  TT_RETURN_IF_ERROR(check_dims(c, dims));
  if (!core::is_complex(c.dtype(0))) return c.fail("takes complex tensors");
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

Status r2c_infer(InferContext& c) {
  Dims dims;
  TT_RETURN_IF_ERROR(check_dims(c, dims));
  if (c.dtype(0) != DType::kF32 && c.dtype(0) != DType::kF64) {
    return c.fail("takes float32 and float64 tensors, got " +
                  std::string(core::name_of(c.dtype(0))));
  }
  Dims shape = c.shape(0);
  shape[static_cast<int>(dims.back())] = shape[static_cast<int>(dims.back())] / 2 + 1;
  c.add_result(core::complex_of(c.dtype(0)), shape);
  return {};
}

Status c2r_infer(InferContext& c) {
  Dims dims;
  TT_RETURN_IF_ERROR(check_dims(c, dims));
  if (!core::is_complex(c.dtype(0))) return c.fail("takes complex tensors");
  const std::int64_t n = c.attributes.integer(2);
  const int last = static_cast<int>(dims.back());
  if (n < 1) return c.fail("Invalid number of data points (" + std::to_string(n) + ") specified");
  Dims shape = c.shape(0);
  if (shape[last] != n / 2 + 1) {
    return c.fail("the last dim has " + std::to_string(shape[last]) + " elements, a signal of " +
                  std::to_string(n) + " has " + std::to_string(n / 2 + 1));
  }
  shape[last] = n;
  c.add_result(core::real_of(c.dtype(0)), shape);
  return {};
}

// ---------------------------------------------------------------- derivatives

void c2c_vjp(VjpContext& c) {
  static const OpRef op("fft_c2c");
  c.give(0, apply(op, {c.gradient()},
                  {c.attributes().at(0), c.attributes().at(1),
                   Attribute::of(!c.attributes().boolean(2))}));
}

int last_dim(const core::Attributes& attributes, int rank) {
  const std::int64_t last = attributes.ints(0).back();
  return static_cast<int>(last < 0 ? last + rank : last);
}

// Multiplies those elements of a half spectrum that stand for two elements of the full spectrum by
// `factor`.
Var scaled_pairs(VjpContext& c, const Var& x, int dim, std::int64_t n, double factor) {
  static const OpRef cat("cat");
  if (!x.is_tensor()) return x;
  const std::int64_t half = n / 2 + 1, pairs = (n - 1) / 2;
  const DType real = core::real_of(x.dtype());
  const auto part = [&](std::int64_t size, double value) {
    return full(c.builder(), Dims{size}, core::Number::of_float(value), real, x.layout().device);
  };
  const Var parts[] = {part(1, 1), part(pairs, factor), part(half - 1 - pairs, 1)};
  const std::uint32_t counts[] = {3};
  const Vars weights = apply_all(cat, parts, {Attribute::of(0)}, counts);
  Dims shape(x.rank(), 1);
  shape[dim] = half;
  return x * reshape(weights[0], shape);
}

// The result has half of the spectrum of x; each element of the other half is the conjugate of one
// in this half.
void r2c_vjp(VjpContext& c) {
  static const OpRef op("fft_c2r");
  const core::Layout& x = c.operand_layout(0);
  const int dim = last_dim(c.attributes(), x.geometry.rank());
  const std::int64_t n = x.geometry.shape[dim];
  c.give(0, apply(op, {scaled_pairs(c, c.gradient(), dim, n, 0.5)},
                  {c.attributes().at(0), c.attributes().at(1), Attribute::of(n)}));
}

void c2r_vjp(VjpContext& c) {
  static const OpRef op("fft_r2c");
  const int dim = last_dim(c.attributes(), c.operand_layout(0).geometry.rank());
  const Var g = apply(op, {c.gradient()}, {c.attributes().at(0), c.attributes().at(1)});
  c.give(0, scaled_pairs(c, g, dim, c.attributes().integer(2), 2));
}

}  // namespace

std::vector<OpDef> fft_ops() {
  return {
      {.signature = "fft_c2c(Tensor x, int[] dim, int normalization, bool forward) -> Tensor",
       .doc =
           "Discrete Fourier transforms of complex tensors along dims, with exp(-2 pi i j k / n) "
           "(forward) or its conjugate; normalization 0 none, 1 by the root of the number of "
           "elements, 2 by the number.",
       .infer = c2c_infer,
       .vjp = c2c_vjp,
       .internal = true,
       .tangent = Tangent::kLinear,
       .batching = Batching::kFront},
      {.signature = "fft_r2c(Tensor x, int[] dim, int normalization) -> Tensor",
       .doc = "Forward transforms of real tensors; of the last of the dims the first n / 2 + 1 "
              "elements, of which the others are conjugates.",
       .infer = r2c_infer,
       .vjp = r2c_vjp,
       .internal = true,
       .tangent = Tangent::kLinear,
       .batching = Batching::kFront},
      {.signature = "fft_c2r(Tensor x, int[] dim, int normalization, int last_dim_size) -> Tensor",
       .doc = "Backward transforms of the half spectra of real tensors, of which the last of the "
              "dims had last_dim_size elements.",
       .infer = c2r_infer,
       .vjp = c2r_vjp,
       .internal = true,
       .tangent = Tangent::kLinear,
       .batching = Batching::kFront},
  };
}

}  // namespace teletensor::ops
