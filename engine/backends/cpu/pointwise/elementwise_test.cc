#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/kernel_test.h"
#include "engine/core/half.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Number;

class Serial : public Parallel {
 public:
  void run(std::int64_t parts, const std::function<void(std::int64_t)>& part) override {
    for (std::int64_t i = parts; i-- > 0;) part(i);
    parts_ += parts;
  }
  std::int64_t parts_ = 0;
};

class Heap : public Scratch {
 public:
  void* allocate(std::size_t bytes) override {
    memory_.emplace_back(bytes + 64);
    return memory_.back().data();
  }

 private:
  std::vector<std::vector<char>> memory_;
};

template <class T>
constexpr DType kType = DType::kF32;
template <>
constexpr DType kType<double> = DType::kF64;
template <>
constexpr DType kType<std::int64_t> = DType::kI64;
template <>
constexpr DType kType<std::int32_t> = DType::kI32;
template <>
constexpr DType kType<std::uint8_t> = DType::kU8;
template <>
constexpr DType kType<core::Half> = DType::kF16;

const KernelTable& table() {
  static const KernelTable* const kernels = [] {
    auto* made = new KernelTable(ops::catalog());
    add_copy_kernels(*made);
    add_unary_kernels(*made);
    add_binary_kernels(*made);
    add_ternary_kernels(*made);
    return made;
  }();
  return *kernels;
}

// A dense operand that owns its data.
struct Operand {
  template <class T>
  Operand(std::vector<T> values, Dims shape) : layout{kType<T>, {}, Geometry(shape)} {
    bytes.resize(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  template <class T>
  explicit Operand(std::vector<T> values)
      : Operand(values, Dims{static_cast<std::int64_t>(values.size())}) {}
  Operand(Number n) : number(n), is_number(true) {}
  Operand(double v) : Operand(Number::of_float(v)) {}
  Operand(int v) : Operand(Number::of_int(v)) {}

  TensorArg arg() const {
    TensorArg out;
    out.kind = is_number ? TensorArg::Kind::kNumber : TensorArg::Kind::kTensor;
    out.data = const_cast<char*>(bytes.data());
    out.dtype = layout.dtype;
    out.geometry = &layout.geometry;
    out.number = number;
    return out;
  }
  core::Layout layout;
  std::vector<char> bytes;
  Number number;
  bool is_number = false;
};

struct Outcome {
  core::Status status;
  core::Layout layout;
  std::vector<char> bytes;
  std::int64_t parts = 0;

  template <class T>
  std::vector<T> values() const {
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
};

Outcome run(std::string_view name, const std::vector<Operand>& operands,
            core::Attributes attributes = {}) {
  const ops::OpDef& op = *ops::catalog().find(name);
  for (std::size_t i = op.operand_parameters + attributes.size(); i < op.parameters.size(); ++i) {
    attributes.push_back(op.parameters[i].fallback);
  }
  std::vector<ops::OperandInfo> infos;
  std::vector<TensorArg> in;
  for (const Operand& operand : operands) {
    infos.push_back(operand.is_number ? ops::OperandInfo{nullptr, &operand.number}
                                      : ops::OperandInfo{&operand.layout, nullptr});
    in.push_back(operand.arg());
  }
  ops::InferContext context{.op = op.name,
                            .operands = infos,
                            .counts = {},
                            .attributes = attributes,
                            .default_dtype = DType::kF32,
                            .device = {},
                            .results = {}};
  Outcome out;
  out.status = op.infer(context);
  if (!out.status.ok()) return out;
  out.layout = context.results[0];
  out.bytes.resize(static_cast<std::size_t>(out.layout.geometry.storage_end()) *
                   core::size_of(out.layout.dtype));
  TensorArg result;
  result.kind = TensorArg::Kind::kTensor;
  result.data = out.bytes.data();
  result.dtype = out.layout.dtype;
  result.geometry = &out.layout.geometry;
  Serial parallel;
  Heap scratch;
  KernelCall call{op, in, {&result, 1}, {}, attributes, parallel, scratch};
  out.status = table().find(ops::catalog().id(op))(call);
  out.parts = parallel.parts_;
  return out;
}

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

TEST(Elementwise, KnownValues) {
  const Operand x(std::vector<float>{-2, -0.5f, 0, 1, 3});
  const auto near = [&](std::string_view op, std::vector<float> want) {
    const auto got = run(op, {x}).values<float>();
    ASSERT_EQ(got.size(), want.size()) << op;
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 3e-7 * std::max(1.0f, std::abs(want[i]))) << op << ' ' << i;
    }
  };
  near("exp", {0.135335283f, 0.606530660f, 1, 2.718281828f, 20.08553692f});
  near("tanh", {-0.964027580f, -0.462117157f, 0, 0.761594156f, 0.995054754f});
  near("sigmoid", {0.119202922f, 0.377540669f, 0.5f, 0.731058579f, 0.952574127f});
  near("gelu", {-0.0455002625f, -0.154268771f, 0, 0.841344714f, 2.99595031f});
  near("erf", {-0.995322265f, -0.520499878f, 0, 0.842700793f, 0.999977910f});
  near("softplus", {0.126928011f, 0.474076984f, 0.693147181f, 1.313261688f, 3.048587352f});
  near("round", {-2, 0, 0, 1, 3});
  near("relu", {0, 0, 0, 1, 3});
}

TEST(Elementwise, NanAndSignedZero) {
  const Operand x(std::vector<float>{kNan, -0.0f, kInf});
  EXPECT_TRUE(std::isnan(run("relu", {x}).values<float>()[0]));
  EXPECT_TRUE(std::isnan(run("maximum", {x, 1.0}).values<float>()[0]));
  EXPECT_EQ(run("fmax", {x, 1.0}).values<float>()[0], 1);
  EXPECT_TRUE(std::isnan(run("clamp", {x, -1.0, 1.0}).values<float>()[0]));
  EXPECT_TRUE(std::signbit(run("sqrt", {x}).values<float>()[1]));
  EXPECT_TRUE(std::signbit(run("tanh", {x}).values<float>()[1]));
  EXPECT_EQ(run("isfinite", {x}).values<std::uint8_t>(), (std::vector<std::uint8_t>{0, 1, 0}));
  EXPECT_EQ(run("exp", {Operand(std::vector<float>{-kInf, kInf})}).values<float>(),
            (std::vector<float>{0, kInf}));
}

// The bits of an element must not depend on its position in the tensor.
TEST(Elementwise, SameBitsAtEveryPosition) {
  std::vector<float> repeated(1037, 0.3711f);
  for (const char* op :
       {"exp", "log", "sin", "tanh", "erf", "gelu", "sigmoid", "softplus", "asinh"}) {
    const auto all = run(op, {Operand(repeated)}).values<float>();
    for (float value : all) ASSERT_EQ(value, all[0]) << op;
    EXPECT_EQ(run(op, {Operand(std::vector<float>{0.3711f})}).values<float>()[0], all[0]) << op;
  }
}

TEST(Elementwise, BroadcastsAndFollowsTheOrderOfStrides) {
  Operand a(std::vector<float>{1, 2, 3, 4, 5, 6}, Dims{2, 3});
  a.layout.geometry = Geometry(Dims{3, 2}).transpose(0, 1);
  const Operand row(std::vector<float>{10, 20, 30});
  const Outcome sum = run("add", {a, row});
  EXPECT_EQ(sum.layout.geometry.strides, (Dims{1, 2}));
  EXPECT_EQ(sum.values<float>(), (std::vector<float>{11, 12, 23, 24, 35, 36}));
  EXPECT_EQ(run("add", {Operand(std::vector<float>{1, 2}, Dims{2, 1}), row}).values<float>(),
            (std::vector<float>{11, 21, 31, 12, 22, 32}));
  EXPECT_FALSE(run("add", {row, Operand(std::vector<float>{1, 2})}).status.ok());
}

TEST(Elementwise, BlocksAgreeWithTheDirectPath) {
  std::vector<double> x(5000), wide(10000);
  for (std::size_t i = 0; i < x.size(); ++i) wide[2 * i] = x[i] = std::sin(static_cast<double>(i));
  Operand strided(wide);
  strided.layout.geometry = Geometry(Dims{5000}, Dims{2});
  EXPECT_EQ(run("exp", {strided}).bytes, run("exp", {Operand(x)}).bytes);
  EXPECT_EQ(run("mul", {strided, 3}).bytes, run("mul", {Operand(x), 3.0}).bytes);
}

TEST(Elementwise, SixteenBitFloatsRoundOnce) {
  const auto half = [](float v) { return core::Half(v); };
  const Operand x(std::vector<core::Half>{half(1), half(2048), half(65504)});
  const auto sum = run("add", {x, 1.0});
  ASSERT_EQ(sum.layout.dtype, DType::kF16);
  const auto got = sum.values<core::Half>();
  EXPECT_EQ(static_cast<float>(got[0]), 2);
  // 2049 is halfway between two values and is rounded to even
  EXPECT_EQ(static_cast<float>(got[1]), 2048);
  EXPECT_EQ(static_cast<float>(got[2]), 65504);
}

// A 0-d operand of another dtype is used like a number, in float32.
TEST(Elementwise, ZeroDimensionalOperandsMeetSixteenBitsUnrounded) {
  const auto tensor = [](DType dtype, double value) { return TestTensor(dtype, Dims(), {value}); };
  const TestTensor x(DType::kF16, {2}, {5e4, 0.5});
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI64}) {
    const TestResult quotient = call_op("div", {x, tensor(dtype, 131072)});
    ASSERT_EQ(quotient[0].dtype, DType::kF16);
    EXPECT_EQ(quotient[0].values(),
              TestTensor(DType::kF16, {2}, {49984.0 / 131072, 0.5 / 131072}).values());
    EXPECT_EQ(call_op("mul", {tensor(dtype, 98304), x})[0].values()[1], 49152);
    EXPECT_EQ(
        call_op("add", {TestTensor(DType::kF16, {1}, {-6e4}), tensor(dtype, 1e5)})[0].values(),
        TestTensor(DType::kF16, {1}, {40000}).values());
  }
  const double more = 1 + 3.0 / 1024;  // the nearest bfloat16 is 1
  EXPECT_EQ(call_op("mul", {TestTensor(DType::kBF16, {1}, {255}), tensor(DType::kF32, more)})[0]
                .values()[0],
            256);
  EXPECT_EQ(
      call_op("sub", {TestTensor(DType::kBF16, {1}, {1}), tensor(DType::kF16, 1 + 1.0 / 512)})[0]
          .values()[0],
      -1.0 / 512);
  // A tensor of one element with more than 0 dimensions is an ordinary operand.
  EXPECT_EQ(call_op("mul", {x, TestTensor(DType::kI64, {1}, {2})})[0].values()[1], 1);
  // Comparisons convert their operands, and integers wrap.
  EXPECT_EQ(
      call_op("eq", {TestTensor(DType::kF16, {1}, {0.1}), tensor(DType::kF64, 0.1)})[0].values()[0],
      1);
  EXPECT_EQ(
      call_op("add", {TestTensor(DType::kU8, {1}, {1}), tensor(DType::kI64, 300)})[0].values()[0],
      45);
}

TEST(Integers, WrapAndHaveOneResultForEveryInput) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  const Operand x(std::vector<std::int64_t>{kMin, 7, -7});
  EXPECT_EQ(run("neg", {x}).values<std::int64_t>()[0], kMin);
  EXPECT_EQ(run("floor_divide", {x, -1}).values<std::int64_t>()[0], kMin);
  EXPECT_EQ(run("floor_divide", {x, 2}).values<std::int64_t>()[2], -4);
  EXPECT_EQ(run("remainder", {x, 3}).values<std::int64_t>()[2], 2);
  EXPECT_EQ(run("fmod", {x, 3}).values<std::int64_t>()[2], -1);
  EXPECT_EQ(run("remainder", {x, -1}).values<std::int64_t>()[0], 0);
  EXPECT_EQ(run("bitwise_left_shift", {x, 64}).values<std::int64_t>()[1], 0);
  EXPECT_EQ(run("bitwise_right_shift", {x, 100}).values<std::int64_t>()[2], -1);
  EXPECT_EQ(run("pow", {x, 2}).values<std::int64_t>()[1], 49);
  const Operand bytes(std::vector<std::uint8_t>{1, 250});
  EXPECT_EQ(run("add", {bytes, 10}).values<std::uint8_t>(), (std::vector<std::uint8_t>{11, 4}));
}

TEST(Integers, DivisionByZeroIsAnErrorBeforeTheFirstStore) {
  const Operand x(std::vector<std::int64_t>{1, 2, 3});
  for (const char* op : {"floor_divide", "remainder", "fmod"}) {
    EXPECT_FALSE(run(op, {x, 0}).status.ok()) << op;
    EXPECT_FALSE(run(op, {x, Operand(std::vector<std::int64_t>{1, 0, 1})}).status.ok()) << op;
    EXPECT_TRUE(run(op, {x, 0.0}).status.ok()) << op;
  }
  EXPECT_FALSE(run("pow", {x, -1}).status.ok());
}

TEST(Integers, FmodOfFloatsIsExact) {
  std::vector<float> a, b;
  for (int i = 0; i < 3000; ++i) {
    a.push_back(std::ldexp(std::sin(i * 1.7f), i % 60 - 20));
    b.push_back(std::ldexp(std::cos(i * 0.9f), i % 37 - 18));
  }
  a[5] = kInf, b[6] = kInf, b[7] = 0, a[8] = 0, a[9] = kNan;
  const auto got = run("fmod", {Operand(a), Operand(b)}).values<float>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float want = std::fmod(a[i], b[i]);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got[i])) << a[i] << ' ' << b[i];
    } else {
      EXPECT_EQ(got[i], want) << a[i] << ' ' << b[i];
    }
  }
}

TEST(Ternary, WhereClampAndMaskedFill) {
  Operand mask(std::vector<std::uint8_t>{1, 0, 7});  // any byte other than 0 is True
  mask.layout.dtype = DType::kBool;
  const Operand x(std::vector<float>{1, 2, 3});
  EXPECT_EQ(run("where", {mask, x, -1.0}).values<float>(), (std::vector<float>{1, -1, 3}));
  EXPECT_EQ(run("masked_fill", {x, mask, 9}).values<float>(), (std::vector<float>{9, 2, 9}));
  EXPECT_EQ(run("clamp", {x, 1.5, 2.5}).values<float>(), (std::vector<float>{1.5f, 2, 2.5f}));
  EXPECT_EQ(run("clamp", {x, 3, 2}).values<float>(), (std::vector<float>{2, 2, 2}));
  EXPECT_FALSE(run("where", {x, x, x}).status.ok());
}

TEST(Copies, CastSaturatesAndTruncates) {
  const Operand x(std::vector<float>{2.9f, -2.9f, kNan, 1e30f});
  EXPECT_EQ(run("cast", {x}, {core::Attribute::of(DType::kI64)}).values<std::int64_t>(),
            (std::vector<std::int64_t>{2, -2, 0, std::numeric_limits<std::int64_t>::max()}));
  EXPECT_EQ(run("cast", {x}, {core::Attribute::of(DType::kBool)}).values<std::uint8_t>(),
            (std::vector<std::uint8_t>{1, 1, 1, 1}));
}

TEST(Copies, TransposesOfEverySizeAndElement) {
  Serial parallel;
  for (std::int64_t rows : {1, 7, 16, 64, 65, 130}) {
    for (std::int64_t columns : {1, 8, 33, 200}) {
      const auto check = [&](auto zero) {
        using T = decltype(zero);
        std::vector<T> from(static_cast<std::size_t>(rows * columns)), to(from.size());
        for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<T>(i * 31 + 7);
        Operand a(from, Dims{rows, columns});
        const Geometry turned = a.layout.geometry.transpose(0, 1);
        const Geometry dense(turned.shape);
        TensorArg source = a.arg(), target = source;
        source.geometry = &turned;
        target.data = to.data();
        target.geometry = &dense;
        strided_copy(source, target, parallel);
        for (std::int64_t i = 0; i < rows; ++i) {
          for (std::int64_t j = 0; j < columns; ++j) {
            ASSERT_EQ(to[static_cast<std::size_t>(j * rows + i)],
                      from[static_cast<std::size_t>(i * columns + j)]);
          }
        }
      };
      check(std::uint8_t{}), check(std::int32_t{}), check(std::int64_t{});
    }
  }
}

TEST(Copies, AnExpandedTargetIsWrittenOncePerPlace) {
  Serial parallel;
  float places[3] = {};
  const Geometry expanded(Dims{1ll << 40, 3, 1ll << 20}, Dims{0, 1, 0});
  TensorArg value, target;
  value.kind = TensorArg::Kind::kNumber;
  value.number = Number::of_float(2.5);
  target.kind = TensorArg::Kind::kTensor;
  target.data = places;
  target.geometry = &expanded;
  strided_copy(value, target, parallel);
  EXPECT_EQ(places[0] + places[1] + places[2], 7.5f);
}

TEST(Parallelism, LargeWorkIsSplitByShapeAlone) {
  const Operand x(std::vector<float>(1 << 22, 0.25f));
  const Outcome out = run("exp", {x});
  EXPECT_GT(out.parts, 1);
  const std::vector<float> values = out.values<float>();
  EXPECT_EQ(std::count(values.begin(), values.end(), values[0]), 1 << 22);
}

}  // namespace
}  // namespace teletensor::backends::cpu
