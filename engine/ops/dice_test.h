// Random operands and attributes of ops, of the right kinds but with arbitrary values.
#pragma once

#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "engine/ops/op.h"

namespace teletensor::ops {

class Dice {
 public:
  // If `length` > 0, all lists have this length; otherwise they are short with random lengths.
  explicit Dice(std::uint64_t seed, std::int64_t length = 0) : length_(length), engine_(seed) {}
  std::int64_t length() { return length_ > 0 ? length_ : below(4); }
  bool long_ones() const { return length_ > 0; }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(n));
  }
  bool chance(int percent) { return below(100) < percent; }
  std::int64_t integer() {
    constexpr std::int64_t kEdges[] = {
        INT64_MIN, INT64_MIN + 1, -(1ll << 32), INT64_MAX, INT64_MAX - 1,
        1ll << 62, 1ll << 32,     13,           64};
    return chance(20) ? kEdges[below(std::size(kEdges))] : below(9) - 3;
  }
  double real() {
    constexpr double kEdges[] = {std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity(),
                                 1e300,
                                 -1e300,
                                 1e-300};
    return chance(20) ? kEdges[below(std::size(kEdges))] : static_cast<double>(below(9)) / 4 - 0.5;
  }
  core::DType dtype() { return core::kAllDTypes[below(std::size(core::kAllDTypes))]; }

  // A geometry that a view can have: the product of the sizes and the strides fit into a storage.
  core::Geometry geometry(const core::Dims* like) {
    core::Dims shape;
    if (like != nullptr && chance(60)) {
      shape = *like;
      if (!shape.empty() && chance(40)) shape[static_cast<int>(below(shape.size()))] = below(4);
    } else {
      const std::int64_t rank = chance(10) ? below(core::kMaxRank + 1) : below(5);
      for (std::int64_t d = 0; d < rank; ++d) {
        shape.push_back(chance(5) ? 1ll << (20 + below(30)) : below(5));
      }
    }
    if (!core::checked_numel(shape.span()).ok()) return core::Geometry(core::Dims());
    core::Geometry g(shape);
    for (int d = 0; d < g.rank(); ++d) {
      if (chance(10)) g.strides[d] = 0;
    }
    if (g.rank() > 1 && chance(30)) {
      g = g.transpose(static_cast<int>(below(g.rank())), static_cast<int>(below(g.rank())));
    }
    return g;
  }

  core::Number number() {
    switch (below(8)) {
      case 0:
        return core::Number::of_complex(real(), real());
      case 1:
        return core::Number::of_uint(~std::uint64_t{0} - static_cast<std::uint64_t>(below(9)));
      case 2:
      case 3:
      case 4:
        return core::Number::of_float(real());
      default:
        return core::Number::of_int(integer());
    }
  }

  core::Attribute attribute(const Parameter& p, const core::Dims* like) {
    if (p.optional && chance(30)) return core::Attribute::none();
    if (p.has_default && chance(30)) return p.fallback;
    switch (p.type) {
      case Parameter::Type::kBool:
        return core::Attribute::of(chance(50));
      case Parameter::Type::kInt:
        return core::Attribute::of(integer());
      case Parameter::Type::kFloat:
        return core::Attribute::of(real());
      case Parameter::Type::kDType:
        return core::Attribute::of(dtype());
      case Parameter::Type::kDevice:
        return core::Attribute::of(core::Device{});
      case Parameter::Type::kString:
        return core::Attribute::of(chance(50) ? "mean" : chance(50) ? "none" : "x");
      default:
        break;
    }
    if (length_ > 0) {
      const std::int64_t first = below(3) - 1, step = below(2);
      std::vector<std::int64_t> values;
      for (std::int64_t i = 0; i < length_; ++i) values.push_back(first + i * step);
      return core::Attribute::of(std::span<const std::int64_t>(values));
    }
    if (like != nullptr && chance(40)) return core::Attribute::of(*like);
    std::vector<std::int64_t> values(static_cast<std::size_t>(chance(5) ? 40 : below(5)));
    for (std::int64_t& v : values) v = integer();
    return core::Attribute::of(std::span<const std::int64_t>(values));
  }

 private:
  const std::int64_t length_;
  std::mt19937_64 engine_;
};

}  // namespace teletensor::ops
