// The dimensions that a reduction reduces, and the shape that remains. Used by infer, vjps and
// kernels.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "engine/core/attributes.h"
#include "engine/core/geometry.h"

namespace teletensor::ops {

// One bit per dimension; an empty list means all dimensions. Refuses a dimension that is out of
// range or named twice.
inline core::Result<std::uint32_t> dims_mask(std::span<const std::int64_t> dims, int rank,
                                             std::string_view op) {
  const std::uint32_t all = (1u << rank) - 1;
  if (dims.empty()) return all;
  std::uint32_t mask = 0;
  for (const std::int64_t dim : dims) {
    const core::Result<int> at = core::normalize_dim(dim, rank, op);
    if (!at.ok()) return at.status();
    if (rank == 0) continue;
    if (mask >> *at & 1u) {
      return core::invalid(std::string(op) + ": dim " + std::to_string(*at) + " appears twice");
    }
    mask |= 1u << *at;
  }
  return mask;
}

// Returns the mask of the dimensions in an attribute, which may be None, an int or a list of ints.
inline core::Result<std::uint32_t> dims_mask(const core::Attributes& attributes, std::size_t i,
                                             int rank, std::string_view op) {
  if (!attributes.has(i)) return dims_mask(std::span<const std::int64_t>(), rank, op);
  if (attributes.at(i).kind == core::Attribute::Kind::kInt) {
    const std::int64_t dim = attributes.integer(i);
    return dims_mask(std::span(&dim, 1), rank, op);
  }
  return dims_mask(attributes.ints(i), rank, op);
}

// The shape of the result: the dimensions of `mask` are left out, or have size 1 with `keepdim`.
inline core::Dims reduced_shape(const core::Dims& shape, std::uint32_t mask, bool keepdim) {
  core::Dims out;
  for (int i = 0; i < shape.size(); ++i) {
    if (!(mask >> i & 1u)) {
      out.push_back(shape[i]);
    } else if (keepdim) {
      out.push_back(1);
    }
  }
  return out;
}

// The dimensions of a mask, ascending.
inline core::Dims dims_of(std::uint32_t mask) {
  core::Dims out;
  for (int i = 0; i < core::kMaxRank; ++i) {
    if (mask >> i & 1u) out.push_back(i);
  }
  return out;
}

// The number of elements that are reduced into one result. It is saturated, because an empty tensor
// may have arbitrarily large dimensions.
inline std::int64_t reduced_count(const core::Dims& shape, std::uint32_t mask) {
  std::int64_t count = 1;
  for (int i = 0; i < shape.size(); ++i) {
    if ((mask >> i & 1u) && shape[i] == 0) return 0;
    if ((mask >> i & 1u) && __builtin_mul_overflow(count, shape[i], &count)) {
      count = std::numeric_limits<std::int64_t>::max();
    }
  }
  return count;
}

}  // namespace teletensor::ops
