#include "engine/autograd/known/known_layouts.h"

#include <gtest/gtest.h>

#include "engine/autograd/graph.h"

namespace teletensor::autograd {
namespace {

using core::Attribute;
using core::Attributes;
using core::Dims;
using core::DType;
using core::Geometry;
using core::Layout;
using ops::Var;

class KnownLayoutsTest : public testing::Test {
 protected:
  Var tensor(const Geometry& geometry, DType dtype = DType::kF32, core::Device device = {}) {
    return Var(nullptr, graph_.objects().adopt({dtype, device, geometry}, nullptr));
  }
  Var tensor(const Dims& shape) { return tensor(Geometry(shape)); }

  Call call(std::initializer_list<Var> arguments, ops::OpId op, DType default_dtype) const {
    Call call;
    call.op = op;
    call.default_dtype = default_dtype;
    call.arguments = {arguments.begin(), arguments.size()};
    call.attributes = &attributes_;
    return call;
  }
  const KnownLayout* find(std::initializer_list<Var> arguments, ops::OpId op = 1,
                          DType default_dtype = DType::kF32) {
    return layouts_.find(call(arguments, op, default_dtype), interner_.get());
  }
  void add(std::initializer_list<Var> arguments, const Layout& result) {
    layouts_.add(call(arguments, 1, DType::kF32), result, interner_.get());
  }

  Graph graph_{ops::catalog(), nullptr};
  std::unique_ptr<program::Interner> interner_ = std::make_unique<program::Interner>();
  const Layout result_{DType::kF32, {}, Geometry(Dims{2, 3})};
  Attributes attributes_{Attribute::of(1.0)};
  KnownLayouts layouts_;
};

TEST_F(KnownLayoutsTest, FindsAnEqualCall) {
  add({tensor({2, 3}), tensor({3})}, result_);
  const KnownLayout* found = find({tensor({2, 3}), tensor({3})});
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->layout, result_);
  EXPECT_EQ(found->geometry, interner_->geometry(result_.geometry));
  EXPECT_EQ(found->interner, interner_->number());
  EXPECT_EQ(found->elements, 6);
}

TEST_F(KnownLayoutsTest, EveryPartOfACallCounts) {
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

TEST_F(KnownLayoutsTest, IgnoresCallsThatItCannotRemember) {
  add({tensor({2}), tensor({2}), tensor({2}), tensor({2})}, result_);
  EXPECT_EQ(find({tensor({2}), tensor({2}), tensor({2}), tensor({2})}), nullptr);
  add({tensor({2}), Var()}, result_);
  EXPECT_EQ(find({tensor({2}), Var()}), nullptr);
}

TEST_F(KnownLayoutsTest, AnotherCallAtTheSamePlaceReplacesIt) {
  add({tensor({2}), Var(1.0)}, result_);
  add({tensor({2}), Var(2.0)}, result_);
  EXPECT_EQ(find({tensor({2}), Var(1.0)}), nullptr);
  EXPECT_NE(find({tensor({2}), Var(2.0)}), nullptr);
}

TEST_F(KnownLayoutsTest, FindsNothingOfAnEarlierInterner) {
  const Var x = tensor({2});
  add({x, x}, result_);
  ASSERT_NE(find({x, x}), nullptr);
  interner_ = std::make_unique<program::Interner>();
  EXPECT_EQ(find({x, x}), nullptr);
  add({x, x}, result_);
  EXPECT_NE(find({x, x}), nullptr);
}

TEST_F(KnownLayoutsTest, AMirrorHasAnInternerOfItsOwn) {
  for (std::int64_t size = 1; size < 10'000; ++size) {
    const Var arguments[] = {tensor({size}), tensor({size})};
    Call call;
    call.arguments = arguments;
    layouts_.add(call, result_, nullptr);
    const KnownLayout* found = layouts_.find(call, nullptr);
    ASSERT_NE(found, nullptr) << size;
    EXPECT_NE(found->interner, interner_->number());
  }
}

}  // namespace
}  // namespace teletensor::autograd
