// Ops as C++ functions over Vars, for vjps. Add here what more than one family needs.
//
// A function whose tensor arguments are absent (after a failed call) returns an absent Var.
#pragma once

#include "engine/ops/op.h"

namespace teletensor::ops {

// Result 0 of an op.
Var apply(OpId op, std::initializer_list<Var> arguments, core::Attributes attributes = {});
// All results.
Vars apply_all(OpId op, std::span<const Var> arguments, core::Attributes attributes = {},
               std::span<const std::uint32_t> counts = {});

Var operator+(const Var& a, const Var& b);
Var operator-(const Var& a, const Var& b);
Var operator*(const Var& a, const Var& b);
Var operator/(const Var& a, const Var& b);
Var operator-(const Var& a);

Var unary(std::string_view op, const Var& x);                 // any op of one tensor, by name
Var binary(std::string_view op, const Var& a, const Var& b);  // any op of two operands, by name
Var where(const Var& condition, const Var& a, const Var& b);
Var cast(const Var& x, core::DType dtype);
// The complex conjugate, also of a number; a real x itself.
Var conj(const Var& x);
// The real part of a tensor; a real x itself.
Var real(const Var& x);
// Is the flag at this place there and on?
bool flag(const core::Attributes& attributes, std::size_t at);
Var matmul(const Var& a, const Var& b, bool tf32 = false);
Var sum(const Var& x, const core::Dims& dims, bool keepdim);
// Sums x over broadcast dimensions so that it has `shape`; x itself where it has already.
Var sum_to(const Var& x, const core::Dims& shape);
Var expand(const Var& x, const core::Dims& shape);
Var reshape(const Var& x, const core::Dims& shape);
Var transpose(const Var& x, int a, int b);
Var permute(const Var& x, const core::Dims& order);
Var unsqueeze(const Var& x, int dim);
Var squeeze(const Var& x, int dim);
Var full(Builder& builder, const core::Dims& shape, const core::Number& value, core::DType dtype,
         core::Device device);
Var zeros(Builder& builder, const core::Layout& like);

// The shape of a number becomes that of one element.
inline core::Dims at_least_1d(const core::Dims& shape) {
  return shape.empty() ? core::Dims{1} : shape;
}

// The parts of complex elements at g, as a last dimension of their own, in elements of their dtype.
// Precondition: rank below core::kMaxRank.
core::Geometry parts_of(const core::Geometry& g);
// What a view on a base's memory shows of `all`, which has the base's shape; and `all` with that
// replaced. One of the two may be of the complex dtype whose parts the other has.
Var region_of(const Var& all, const core::Layout& base, const core::Layout& view);
Var with_region(const Var& all, const Var& part, const core::Layout& base,
                const core::Layout& view);
// The attributes of the region ops.
core::Attributes region_attributes(const core::Geometry& base, const core::Geometry& view);

}  // namespace teletensor::ops
