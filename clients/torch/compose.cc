#include "clients/torch/compose.h"

#include <algorithm>

namespace teletensor::torch {

using core::Attribute;
using core::Attributes;
using core::Dims;
using core::Number;

namespace {

ops::OpId id_of(std::string_view op) { return ops::catalog().id(*ops::catalog().find(op)); }

}  // namespace

Var made(std::string_view op, std::initializer_list<Var> operands, Attributes attributes) {
  return ops::apply(id_of(op), operands, std::move(attributes));
}
ops::Vars all_made(std::string_view op, std::initializer_list<Var> operands,
                   Attributes attributes) {
  return ops::apply_all(id_of(op), std::span(operands.begin(), operands.size()),
                        std::move(attributes));
}

std::optional<int> dim_of(Call& c, std::int64_t dim, int rank) {
  const auto found = core::normalize_dim(dim, rank, c.name());
  if (!found.ok()) return c.fail(found.status()), std::nullopt;
  return *found;
}
std::int64_t size_of(const Var& x, int dim) {
  const int at = dim < 0 ? dim + x.rank() : dim;
  return at >= 0 && at < x.rank() ? x.shape()[at] : 0;
}
Var flat(const Var& x) {
  return x.absent() ? x : ops::reshape(x, Dims{x.layout().geometry.numel()});
}
Var slice(const Var& x, std::int64_t dim, std::int64_t start, std::int64_t length) {
  return made("slice", {x}, {Attribute::of(dim), Attribute::of(start), Attribute::of(length)});
}
Var select(const Var& x, std::int64_t dim, std::int64_t index) {
  return made("select", {x}, {Attribute::of(dim), Attribute::of(index)});
}
Var cat(std::initializer_list<Var> parts, std::int64_t dim) {
  static const ops::OpRef op("cat");
  const std::uint32_t counts[] = {static_cast<std::uint32_t>(parts.size())};
  return ops::apply_all(op, std::span(parts.begin(), parts.size()), {Attribute::of(dim)},
                        counts)[0];
}
Var gather(const Var& x, const Var& index, std::int64_t dim) {
  return made("gather", {x, index}, {Attribute::of(dim)});
}
Var rows_at(const Var& x, const Var& places, std::int64_t dim) {
  return made("index_select", {x, places}, {Attribute::of(dim)});
}
Var batch_of(const Var& x, int rank) {
  return !x.absent() && x.rank() == rank - 1 ? ops::unsqueeze(x, 0) : x;
}
Var unbatched(const Var& result, const Var& x, int rank) {
  return !result.absent() && x.rank() == rank - 1 ? ops::squeeze(result, 0) : result;
}

Var constant(Call& c, std::span<const std::int64_t> values) {
  std::string bytes(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  auto found = c.session.constant(DType::kI64, c.device,
                                  Dims{static_cast<std::int64_t>(values.size())}, std::move(bytes));
  if (!found.ok()) return c.fail(found.status()), Var();
  return Var(&c.session, *found);
}
Var range(Call& c, std::int64_t end, DType dtype) {
  static const ops::OpRef op("arange");
  return c.run(op, {Number::of_int(0), Number::of_int(end), Number::of_int(1)},
               {Attribute::of(dtype), Attribute::of(c.device)});
}
Var filled(Call& c, const Dims& shape, const Number& value, DType dtype) {
  return ops::full(c.session, shape, value, dtype, c.device);
}
Var identity(Call& c, std::int64_t rows, std::int64_t columns, DType dtype) {
  static const ops::OpRef op("eye");
  return c.run(
      op, {},
      {Attribute::of(rows), Attribute::of(columns), Attribute::of(dtype), Attribute::of(c.device)});
}
void give_empty(Call& c, DType dtype) {
  static const ops::OpRef op("empty");
  c.give(c.run(op, {}, {Attribute::of(Dims{0}), Attribute::of(dtype), Attribute::of(c.device)}));
}

Var transposed(const Var& x) {
  return x.rank() < 2 ? x : ops::transpose(x, x.rank() - 2, x.rank() - 1);
}
Var adjoint(const Var& x) { return ops::conj(transposed(x)); }

bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

Var equal_to(const Var& a, const Var& b) { return ops::binary("eq", a, b); }
Var both(const Var& a, const Var& b) { return ops::binary("logical_and", a, b); }
Var clamped(const Var& x, const Var& low, const Var& high) { return made("clamp", {x, low, high}); }
std::pair<Var, Var> promoted(Call& c, const Var& a, const Var& b) {
  if (a.absent() || b.absent()) return {};
  if (a.is_number() || b.is_number()) {
    // An op of a tensor and a number has the dtype that torch promotes them to.
    const Var sum = a + b;
    if (sum.absent()) return {};
    const auto as_tensor = [&](const Var& each) {
      return each.is_number() ? filled(c, Dims(), each.number(), sum.dtype())
                              : ops::cast(each, sum.dtype());
    };
    return {as_tensor(a), as_tensor(b)};
  }
  const DType dtype = core::promote(a.dtype(), b.dtype());
  return {ops::cast(a, dtype), ops::cast(b, dtype)};
}

void by_parts(Call& c) {
  const Var x = c.var(c.value("self"));
  if (x.absent() || !core::is_complex(x.dtype())) return c.run_row();
  c.give(made("complex", {c.run_row_on(ops::real(x)), c.run_row_on(ops::unary("imag", x))}));
}
Var per_occurrence(Call& c, const Var& rows, const Var& indices, std::int64_t count) {
  const Var flat_indices = flat(indices);
  if (rows.absent() || flat_indices.absent()) return {};
  const Var none = filled(c, Dims{count}, Number::of_int(0), DType::kI64);
  const Var ones = filled(c, flat_indices.shape(), Number::of_int(1), DType::kI64);
  const Var times = made("index_add", {none, flat_indices, ones}, {Attribute::of(0)});
  Var divisor = rows_at(times, flat_indices);
  if (divisor.absent()) return {};
  Dims shape = indices.shape();
  shape.push_back(1);
  return rows / ops::cast(ops::reshape(divisor, shape), rows.dtype());
}

Var reduced(Call& c, const Var& losses) {
  const std::string_view how = reduction_of(c.integer("reduction"));
  if (losses.absent() || how == "none") return losses;
  return made(how, {losses});
}
Var spread(Call& c, const Var& gradient, const Dims& losses) {
  const Var wide = ops::expand(gradient, losses);
  if (reduction_of(c.integer("reduction")) != "mean") return wide;
  return wide * (1.0 / static_cast<double>(std::max<std::int64_t>(core::numel(losses), 1)));
}

}  // namespace teletensor::torch
