#include <gtest/gtest.h>

#include <set>

#include "engine/ops/functions.h"
#include "engine/ops/op.h"
#include "engine/ops/signature.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::DType;

TEST(Signature, ReadsTypesAndDefaults) {
  const auto s = parse_signature(
      "f(Tensor x, Tensor? w=None, Tensor[] list, Operand v=2, int[]? dim=None, bool "
      "keepdim=False, "
      "float eps=1e-05, str mode='mean', int n=-3, int[] k=[1, 2], dtype? dtype=None) -> "
      "(Tensor values, Tensor indices)");
  ASSERT_TRUE(s.ok()) << s.status().message();
  EXPECT_EQ(s->name, "f");
  EXPECT_EQ(s->operand_parameters, 4);
  EXPECT_EQ(s->results, 2);
  ASSERT_EQ(s->parameters.size(), 11u);
  EXPECT_EQ(s->parameters[1].type, Parameter::Type::kOptionalTensor);
  EXPECT_EQ(s->parameters[3].fallback.integer, 2);
  EXPECT_TRUE(s->parameters[4].optional);
  EXPECT_EQ(s->parameters[6].fallback.real, 1e-5);
  EXPECT_EQ(s->parameters[7].fallback.text, "mean");
  EXPECT_EQ(s->parameters[8].fallback.integer, -3);
  EXPECT_EQ(s->parameters[9].fallback.ints.size(), 2u);
  EXPECT_EQ(parse_signature("g(Tensor x) -> Tensor[]")->results, -1);
}

TEST(Signature, RefusesWhatIsNotOne) {
  for (const char* text :
       {"", "f", "f(", "f() -> ", "f(Tensor) -> Tensor", "f(Vector x) -> Tensor",
        "f(int n, Tensor x) -> Tensor", "f(int n=1.5) -> Tensor", "f(bool b=1) -> Tensor",
        "f(Tensor x=None) -> Tensor", "f(str s='a) -> Tensor", "f() -> Tensor x y",
        "f(int[] k=[1, 2.5]) -> Tensor", "f(Tensor x Tensor y) -> Tensor"}) {
    EXPECT_FALSE(parse_signature(text).ok()) << text;
  }
}

TEST(Catalog, EveryOpIsDocumentedAndDifferentiableOrSaysWhyNot) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < catalog().size(); ++i) {
    const OpDef& op = catalog().at(static_cast<OpId>(i));
    EXPECT_TRUE(names.insert(op.name).second) << op.name;
    EXPECT_EQ(catalog().find(op.name), &op);
    EXPECT_FALSE(op.doc.empty()) << op.name;
    EXPECT_TRUE(op.vjp || op.view || op.random || !op.not_differentiable.empty()) << op.name;
    for (const Save& save : op.saves) EXPECT_LT(save.slot, kResult + 16) << op.name;
  }
  EXPECT_EQ(catalog().find("no such op"), nullptr);
}

TEST(Catalog, FingerprintChangesWithASignature) {
  const Infer infer = [](InferContext&) { return core::Status(); };
  const auto of = [&](std::string_view signature) {
    std::vector<OpDef> ops(1);
    ops[0].signature = signature;
    ops[0].infer = infer;
    return Catalog(std::move(ops)).fingerprint();
  };
  EXPECT_EQ(of("f(Tensor x) -> Tensor"), of("f(Tensor x) -> Tensor"));
  EXPECT_NE(of("f(Tensor x) -> Tensor"), of("f(Tensor x, int n=0) -> Tensor"));
}

TEST(Catalog, ChecksCountsAndKinds) {
  const Catalog& c = catalog();
  const OpId sum = OpRef("sum"), cat = OpRef("cat"), cast = OpRef("cast"), add = OpRef("add");
  const core::Attributes good{Attribute::none(), Attribute::of(false), Attribute::none()};
  EXPECT_TRUE(c.check(sum, 1, {}, good).ok());
  EXPECT_FALSE(c.check(sum, 2, {}, good).ok());
  EXPECT_FALSE(c.check(sum, 1, {}, {}).ok());
  EXPECT_FALSE(
      c.check(sum, 1, {}, {Attribute::of(1.5), Attribute::of(false), Attribute::none()}).ok());
  const std::uint32_t three[] = {3}, two[] = {3, 1};
  EXPECT_TRUE(c.check(cat, 3, three, {Attribute::of(0)}).ok());
  EXPECT_FALSE(c.check(cat, 4, three, {Attribute::of(0)}).ok());
  EXPECT_FALSE(c.check(cat, 4, two, {Attribute::of(0)}).ok());
  EXPECT_FALSE(c.check(cat, 3, {}, {Attribute::of(0)}).ok());
  EXPECT_TRUE(c.check(add, 2, {}, {Attribute::of(2)}).ok());  // an integer is accepted as a float
  Attribute unknown = Attribute::of(DType::kF32);
  unknown.integer = 77;
  EXPECT_FALSE(c.check(cast, 1, {}, {unknown}).ok());
  EXPECT_FALSE(c.check(static_cast<OpId>(c.size()), 1, {}, {}).ok());
  // A flag that was added to the op later: calls of older clients leave it out.
  const OpId addmm = OpRef("addmm");
  core::Attributes given{Attribute::of(1.0)};
  EXPECT_FALSE(c.check(addmm, 3, {}, given).ok());
  given.push_back(Attribute::of(2.0));
  EXPECT_TRUE(c.check(addmm, 3, {}, given).ok());
  for (const Attribute& flag : {Attribute::none(), Attribute::of(true)}) {
    core::Attributes whole = given;
    whole.push_back(flag);
    EXPECT_TRUE(c.check(addmm, 3, {}, whole).ok());
    whole.push_back(flag);
    EXPECT_FALSE(c.check(addmm, 3, {}, whole).ok());
  }
  given.push_back(Attribute::of(1));
  EXPECT_FALSE(c.check(addmm, 3, {}, given).ok());
}

class Promotion : public testing::Test {
 protected:
  void tensor(DType dtype, int rank) {
    layouts_.push_back({dtype, {}, core::Geometry(core::Dims(rank, 2))});
  }
  DType type(std::initializer_list<core::Number> numbers = {}) {
    std::vector<OperandInfo> infos;
    for (const core::Layout& layout : layouts_) infos.push_back({&layout, nullptr});
    for (const core::Number& number : numbers) infos.push_back({nullptr, &number});
    return result_type(infos, DType::kF32);
  }
  std::vector<core::Layout> layouts_;
};

TEST_F(Promotion, NumbersAndZeroDimensionalTensorsCountOnlyByCategory) {
  tensor(DType::kF16, 1);
  EXPECT_EQ(type({core::Number::of_float(1)}), DType::kF16);
  tensor(DType::kF64, 0);
  EXPECT_EQ(type(), DType::kF16);
  tensor(DType::kBF16, 2);
  EXPECT_EQ(type(), DType::kF32);
}

TEST_F(Promotion, ALowerCategoryTakesTheHigherRanksDType) {
  tensor(DType::kU8, 1);
  EXPECT_EQ(type({core::Number::of_int(300)}), DType::kU8);
  EXPECT_EQ(type({core::Number::of_float(0.5)}), DType::kF32);
  tensor(DType::kF64, 0);
  EXPECT_EQ(type(), DType::kF64);
}

TEST_F(Promotion, BoolIsBelowIntegers) {
  tensor(DType::kBool, 1);
  EXPECT_EQ(type({core::Number::of_bool(true)}), DType::kBool);
  EXPECT_EQ(type({core::Number::of_int(1)}), DType::kI64);
  tensor(DType::kI32, 0);
  EXPECT_EQ(type(), DType::kI32);
}

}  // namespace
}  // namespace teletensor::ops
