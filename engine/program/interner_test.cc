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

}  // namespace
}  // namespace teletensor::program
