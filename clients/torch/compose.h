// Short forms for rows that compose several ops.
//
// Ops are found by name, and attributes that are left out get the defaults of the op's signature.
// As with ops/functions.h, a function whose operands are absent (after a failure) returns an absent
// Var; the shape of such a Var is empty, so a row checks a Var before it indexes its sizes.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "clients/torch/call.h"

namespace teletensor::torch {

// Result 0, or all results, of an op. At least one operand must be a tensor.
Var made(std::string_view op, std::initializer_list<Var> operands,
         core::Attributes attributes = {});
ops::Vars all_made(std::string_view op, std::initializer_list<Var> operands,
                   core::Attributes attributes = {});

// ---- Shapes

// Returns the dimension that `dim` names; a scalar has dimension 0. Fails the call if a tensor of
// this rank has no such dimension.
std::optional<int> dim_of(Call& c, std::int64_t dim, int rank);
// The size of dimension `dim`, which counts from the end where it is negative. 0 for an absent x.
std::int64_t size_of(const Var& x, int dim);
Var flat(const Var& x);
Var slice(const Var& x, std::int64_t dim, std::int64_t start, std::int64_t length);
Var select(const Var& x, std::int64_t dim, std::int64_t index);
Var cat(std::initializer_list<Var> parts, std::int64_t dim);
Var gather(const Var& x, const Var& index, std::int64_t dim);
Var rows_at(const Var& x, const Var& places, std::int64_t dim = 0);  // index_select
// As a batch of one where x has `rank` - 1 dimensions; unbatched() undoes that.
Var batch_of(const Var& x, int rank);
Var unbatched(const Var& result, const Var& x, int rank);

// ---- New tensors

Var constant(Call& c, std::span<const std::int64_t> values);  // int64, one dimension
Var range(Call& c, std::int64_t end, DType dtype = DType::kI64);
Var filled(Call& c, const core::Dims& shape, const core::Number& value, DType dtype);
Var identity(Call& c, std::int64_t rows, std::int64_t columns, DType dtype);
// A result without elements, [0].
void give_empty(Call& c, DType dtype);

// ---- Matrices

Var transposed(const Var& x);  // the last two dimensions
Var adjoint(const Var& x);     // the conjugate of transposed()

// ---- Elements

bool is_half(DType dtype);  // float16 or bfloat16, whose sums are computed in float32
Var equal_to(const Var& a, const Var& b);
Var both(const Var& a, const Var& b);
Var clamped(const Var& x, const Var& low, const Var& high);
// Two operands in the dtype that they promote to; a number takes part as a tensor of no dimensions.
std::pair<Var, Var> promoted(Call& c, const Var& a, const Var& b);
// Applies the op of the row to the real and to the imaginary part of a complex first argument.
void by_parts(Call& c);
// Rows for indices below `count`, each divided by the number of times that its index occurs.
Var per_occurrence(Call& c, const Var& rows, const Var& indices, std::int64_t count);
// The mean, the sum, or the elements themselves, by torch's number in the argument `reduction`.
Var reduced(Call& c, const Var& losses);
// The adjoint of reduced(): the gradient of each of the losses.
Var spread(Call& c, const Var& gradient, const core::Dims& losses);

}  // namespace teletensor::torch
