#include "engine/ops/linalg/linalg.h"

#include <algorithm>

namespace teletensor::ops::linalg {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

std::string dotted(std::string_view op) {
  constexpr std::string_view kPrefix = "linalg_";
  std::string name(op);
  if (op.starts_with(kPrefix)) name[kPrefix.size() - 1] = '.';
  if (op.ends_with("_ex")) name.erase(name.size() - 3);
  return name;
}

Status refuse(const InferContext& c, const std::string& text) {
  return core::invalid(dotted(c.op) + ": " + text);
}

Status check_dtype(const InferContext& c, std::size_t operand) {
  const DType dtype = c.dtype(operand);
  const std::string got = " Got " + std::string(core::name_of(dtype));
  if (!core::is_inexact(dtype)) {
    return core::unimplemented(dotted(c.op) +
                               ": Expected a floating point or complex tensor as input." + got);
  }
  if (core::size_of(dtype) < 4) {
    return core::unimplemented(dotted(c.op) + ": Low precision dtypes not supported." + got);
  }
  return {};
}

Status check_same_dtype(const InferContext& c, std::size_t a, std::size_t b) {
  if (c.dtype(a) == c.dtype(b)) return {};
  return refuse(c, "Expected the same dtype, got " + std::string(core::name_of(c.dtype(a))) +
                       " and " + std::string(core::name_of(c.dtype(b))));
}

Status check_matrix(const InferContext& c, std::size_t operand) {
  if (c.rank(operand) < 2) {
    return refuse(c, "The input tensor must have at least 2 dimensions, got shape " +
                         core::to_string(c.shape(operand)));
  }
  return check_dtype(c, operand);
}

Status check_square(const InferContext& c, std::size_t operand) {
  TT_RETURN_IF_ERROR(check_matrix(c, operand));
  const Dims& shape = c.shape(operand);
  const std::int64_t m = shape[shape.size() - 2], n = shape.back();
  if (m == n) return {};
  return refuse(c, "A must be batches of square matrices, but they are " + std::to_string(m) +
                       " by " + std::to_string(n) + " matrices");
}

core::Result<Dims> broadcast_batch(const InferContext& c, std::size_t a, int rank_a, std::size_t b,
                                   int rank_b) {
  auto batch = core::broadcast_shapes(batch_of(c.shape(a), rank_a), batch_of(c.shape(b), rank_b),
                                      dotted(c.op));
  if (!batch.ok()) {
    return refuse(c, "The batch dimensions do not broadcast: " + core::to_string(c.shape(a)) +
                         " and " + core::to_string(c.shape(b)));
  }
  return batch;
}

Dims batch_of(const Dims& shape, int rank) {
  Dims batch = shape;
  for (int i = 0; i < rank; ++i) batch.erase(batch.size() - 1);
  return batch;
}

Dims with(Dims batch, std::int64_t n) {
  batch.push_back(n);
  return batch;
}

Dims with(Dims batch, std::int64_t m, std::int64_t n) {
  batch.push_back(m);
  batch.push_back(n);
  return batch;
}

Status add_columns(InferContext& c, DType dtype, const Dims& batch, std::int64_t m,
                   std::int64_t n) {
  if (batch.size() + 2 > core::kMaxRank) return refuse(c, "rank above the limit of 12");
  const Dims turned = with(batch, n, m);
  const auto count = core::checked_numel(turned.span());
  if (!count.ok()) return c.fail(count.status().message());
  c.add_result(dtype, core::Geometry(turned).transpose(batch.size(), batch.size() + 1));
  return {};
}

std::int64_t rows(const core::Layout& layout) {
  const Dims& shape = layout.geometry.shape;
  return shape[shape.size() - 2];
}
std::int64_t columns(const core::Layout& layout) { return layout.geometry.shape.back(); }

Var transposed(const Var& x) { return transpose(x, -2, -1); }
Var adjoint(const Var& x) { return conj(transposed(x)); }

Var tril(const Var& x, int diagonal) {
  static const OpRef op("tril");
  return apply(op, {x}, {Attribute::of(diagonal)});
}

Var triu(const Var& x, int diagonal) {
  static const OpRef op("triu");
  return apply(op, {x}, {Attribute::of(diagonal)});
}

Var narrow(const Var& x, int dim, std::int64_t start, std::int64_t length) {
  static const OpRef op("slice");
  return apply(op, {x}, {Attribute::of(dim), Attribute::of(start), Attribute::of(length)});
}

Var diagonal(const Var& x) {
  static const OpRef op("diagonal");
  return apply(op, {x}, {Attribute::of(0), Attribute::of(-2), Attribute::of(-1)});
}

Var identity_like(const Var& x) {
  static const OpRef op("eye");
  if (!x.is_tensor()) return x;
  const Attribute n = Attribute::of(x.shape().back());
  Vars made = x.builder()->call(
      op, {}, {n, n, Attribute::of(x.dtype()), Attribute::of(x.layout().device)}, {});
  return made.empty() ? Var() : made[0];
}

Var diag_embed(const Var& x) {
  return where(cast(identity_like(x), DType::kBool), unsqueeze(x, -2), Var(0));
}

Var join(const Var& a, const Var& b, int dim) {
  static const OpRef op("cat");
  const Var parts[] = {a, b};
  const std::uint32_t counts[] = {2};
  Vars joined = apply_all(op, parts, {Attribute::of(dim)}, counts);
  return joined.empty() ? Var() : joined[0];
}

Var solve(const Var& a, const Var& b) {
  static const OpRef op("linalg_solve_ex");
  return apply(op, {a, b});
}

Var solve_triangular(const Var& a, const Var& b, bool upper, bool left, bool unit) {
  static const OpRef op("linalg_solve_triangular");
  return apply(op, {a, b}, {Attribute::of(upper), Attribute::of(left), Attribute::of(unit)});
}

}  // namespace teletensor::ops::linalg
