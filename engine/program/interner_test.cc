#include "engine/program/interner.h"

#include <gtest/gtest.h>

namespace teletensor::program {
namespace {

using core::Attribute;
using core::Attributes;
using core::Geometry;

TEST(Interner, EqualOnesAreOneAndStayWhereTheyAre) {
  Interner interner;
  const Geometry* a = interner.geometry(Geometry({2, 3}));
  const Attributes* x = interner.attributes({Attribute::of(1.0), Attribute::of("mean")});
  for (std::int64_t i = 0; i < 1000; ++i) {
    interner.geometry(Geometry({i, 3}, {3, 1}, 1));
    interner.attributes({Attribute::of(i)});
  }
  EXPECT_EQ(interner.geometry(Geometry({2, 3})), a);
  EXPECT_EQ(*a, Geometry({2, 3}));
  EXPECT_EQ(interner.attributes({Attribute::of(1.0), Attribute::of("mean")}), x);
  EXPECT_EQ(interner.attributes({}), interner.attributes(Attributes()));
  EXPECT_EQ(interner.size(), 2002u);
}

TEST(Interner, WhatComputesOtherBitsIsDifferent) {
  Interner interner;
  EXPECT_NE(interner.geometry(Geometry({2, 3})), interner.geometry(Geometry({2, 3}, {3, 1}, 1)));
  EXPECT_NE(interner.geometry(Geometry({2, 3})), interner.geometry(Geometry({2, 3}, {1, 2})));
  EXPECT_NE(interner.attributes({Attribute::of(0.0)}), interner.attributes({Attribute::of(-0.0)}));
  EXPECT_NE(interner.attributes({Attribute::of(1)}), interner.attributes({Attribute::of(true)}));
  EXPECT_NE(interner.attributes({Attribute::of("a")}), interner.attributes({Attribute::of("b")}));
}

// All of these items have the same hash under the known constants of an earlier version. Each
// search then passed all of them, and half a million items took hours.
TEST(Interner, NobodyChoosesPlaces) {
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15ull, kWanted = 0x123456789abcdef0ull;
  std::uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - kFactor * inverse;
  const auto step = [](std::uint64_t state, std::uint64_t x) {
    state = (state ^ x) * kFactor;
    return state ^ state >> 32;
  };
  Interner interner;
  std::size_t made = 0;
  for (std::uint64_t offset = 0; made < std::size_t{1} << 19; ++offset) {
    const std::uint64_t before = step(step(0x243f6a8885a308d3ull, offset), 1);
    const std::uint64_t stride = before ^ (kWanted ^ kWanted >> 32) * inverse;
    ASSERT_EQ(step(before, stride), kWanted);
    if (stride >> 63 != 0) continue;  // no view has a negative stride
    interner.geometry(
        Geometry({1}, {static_cast<std::int64_t>(stride)}, static_cast<std::int64_t>(offset)));
    ++made;
  }
  EXPECT_EQ(interner.size(), made);
}

}  // namespace
}  // namespace teletensor::program
