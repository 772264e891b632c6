// Ops as C++ functions over Vars, for derivatives. Functions that more than one family needs belong
// here.
//
// A function whose tensor arguments are absent (after a failed call) returns an absent Var.
#pragma once

#include "engine/ops/op.h"

namespace teletensor::ops {

// Calls an op and returns result 0.
Var apply(OpId op, std::initializer_list<Var> arguments, core::Attributes attributes = {});
// Calls an op and returns all results.
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
// The complex conjugate of a tensor or number; a real x is returned unchanged.
Var conj(const Var& x);
// The real part of a tensor; a real x is returned unchanged.
Var real(const Var& x);
// Returns true if the attribute at this position is given and true.
bool flag(const core::Attributes& attributes, std::size_t at);
Var matmul(const Var& a, const Var& b, bool tf32 = false);
Var sum(const Var& x, const core::Dims& dims, bool keepdim);
// Sums x over broadcast dimensions so that it has `shape`; returns x itself if it already has that
// shape.
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

// Returns the shape, but [1] instead of the shape of a 0-d tensor.
inline core::Dims at_least_1d(const core::Dims& shape) {
  return shape.empty() ? core::Dims{1} : shape;
}

// The geometry of the real and imaginary parts of complex elements at g, with the parts as an
// additional last dimension, in elements of their dtype. Precondition: the rank is below
// core::kMaxRank.
core::Geometry parts_of(const core::Geometry& g);
// `all` has the base's shape. region_of() returns the part of it that a view on the base's memory
// shows; with_region() returns `all` with that part replaced. One of base and view may be complex
// while the other has the matching real dtype.
Var region_of(const Var& all, const core::Layout& base, const core::Layout& view);
Var with_region(const Var& all, const Var& part, const core::Layout& base,
                const core::Layout& view);
// The attributes of the region ops.
core::Attributes region_attributes(const core::Geometry& base, const core::Geometry& view);

}  // namespace teletensor::ops
