#include "engine/ops/inferred.h"

#include <gtest/gtest.h>

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Attributes;
using core::Dims;
using core::DType;
using core::Geometry;
using core::Layout;

class InferredLayoutsTest : public testing::Test {
 protected:
  static Var tensor(const Geometry& geometry, DType dtype = DType::kF32, core::Device device = {}) {
    core::Ref<Named> named = core::make_ref<Named>();
    named->layout = {dtype, device, geometry};
    return Var(nullptr, std::move(named));
  }
  static Var tensor(const Dims& shape) { return tensor(Geometry(shape)); }

  const Layout* find(std::initializer_list<Var> arguments, OpId op = 1,
                     DType default_dtype = DType::kF32) {
    return layouts_.find({op, default_dtype, {arguments.begin(), arguments.size()}, attributes_});
  }
  void add(std::initializer_list<Var> arguments, const Layout& result) {
    layouts_.add({1, DType::kF32, {arguments.begin(), arguments.size()}, attributes_}, result);
  }

  const Layout result_{DType::kF32, {}, Geometry(Dims{2, 3})};
  Attributes attributes_{Attribute::of(1.0)};
  InferredLayouts layouts_;
};

TEST_F(InferredLayoutsTest, FindsAnEqualCall) {
  add({tensor({2, 3}), tensor({3})}, result_);
  const Layout* found = find({tensor({2, 3}), tensor({3})});
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(*found, result_);
}

TEST_F(InferredLayoutsTest, EveryPartOfACallCounts) {
  const Geometry square(Dims{3, 3});
  add({tensor(square), Var(2.0)}, result_);
  EXPECT_NE(find({tensor(square), Var(2.0)}), nullptr);
  EXPECT_EQ(find({tensor(square), Var(2.0)}, 2), nullptr);
  EXPECT_EQ(find({tensor(square), Var(2.0)}, 1, DType::kF64), nullptr);
  EXPECT_EQ(find({tensor(square), Var(3.0)}), nullptr);
  EXPECT_EQ(find({tensor(square), Var(2)}), nullptr);
  EXPECT_EQ(find({tensor(square)}), nullptr);
  EXPECT_EQ(find({tensor(square), tensor(square)}), nullptr);
  EXPECT_EQ(find({tensor(square), Var()}), nullptr);
  EXPECT_EQ(find({Var(2.0), tensor(square)}), nullptr);
  EXPECT_EQ(find({tensor(square.transpose(0, 1)), Var(2.0)}), nullptr);
  EXPECT_EQ(find({tensor(Geometry(square.shape, square.strides, 1)), Var(2.0)}), nullptr);
  EXPECT_EQ(find({tensor(square, DType::kF64), Var(2.0)}), nullptr);
  EXPECT_EQ(find({tensor(square, DType::kF32, {core::DeviceKind::kCuda, 0}), Var(2.0)}), nullptr);
  attributes_ = {Attribute::of(2.0)};
  EXPECT_EQ(find({tensor(square), Var(2.0)}), nullptr);
}

TEST_F(InferredLayoutsTest, IgnoresCallsThatItCannotRemember) {
  add({tensor({2}), tensor({2}), tensor({2})}, result_);
  EXPECT_EQ(find({tensor({2}), tensor({2}), tensor({2})}), nullptr);
  add({tensor({2}), Var()}, result_);
  EXPECT_EQ(find({tensor({2}), Var()}), nullptr);
}

TEST_F(InferredLayoutsTest, AnotherCallAtTheSamePlaceReplacesIt) {
  add({tensor({2}), Var(1.0)}, result_);
  add({tensor({2}), Var(2.0)}, result_);
  EXPECT_EQ(find({tensor({2}), Var(1.0)}), nullptr);
  EXPECT_NE(find({tensor({2}), Var(2.0)}), nullptr);
}

}  // namespace
}  // namespace teletensor::ops
