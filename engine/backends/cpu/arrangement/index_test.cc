#include <gtest/gtest.h>

#include <numeric>

#include "engine/backends/cpu/arrangement/index_places.h"
#include "engine/backends/cpu/kernel_test.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {
namespace {

using core::Attribute;
using core::Attributes;
using core::Dims;
using core::DType;
using core::Geometry;

using Values = std::vector<double>;

TestTensor counting(DType dtype, const Dims& shape) {
  TestTensor x(dtype, Geometry(shape));
  Values values(static_cast<std::size_t>(x.geometry.numel()));
  std::iota(values.begin(), values.end(), 0);
  x.fill(values);
  return x;
}
TestTensor ints(const Dims& shape, const Values& values, DType dtype = DType::kI64) {
  return TestTensor(dtype, shape, values);
}
Attribute dims(std::initializer_list<std::int64_t> d) { return Attribute::of(Dims(d)); }
Attribute at(std::int64_t dim) { return Attribute::of(dim); }

TEST(Index, OneDimensionOfEveryDtypeAndLayout) {
  for (const DType dtype : core::kAllDTypes) {
    if (dtype == DType::kBool) continue;
    const TestTensor x = counting(dtype, {3, 4});
    for (const TestTensor& y :
         {x, x.laid_out(Geometry({3, 4}, {1, 3})), x.laid_out(Geometry({3, 4}, {20, 2}, 5))}) {
      EXPECT_EQ(call_op("index", {y, ints({2}, {2, -3})}, {dims({0})}, {1})[0].values(),
                (Values{8, 9, 10, 11, 0, 1, 2, 3}));
      EXPECT_EQ(call_op("index", {y, ints({2}, {3, 0}, DType::kI32)}, {dims({1})}, {1})[0].values(),
                (Values{3, 0, 7, 4, 11, 8}));
    }
  }
}

TEST(Index, SeveralDimensionsBroadcast) {
  const TestTensor x = counting(DType::kF32, {2, 3, 4});
  const TestResult pairs =
      call_op("index", {x, ints({2, 1}, {0, 1}), ints({3}, {2, 1, 0})}, {dims({0, 1})}, {2});
  EXPECT_EQ(pairs[0].geometry.shape, (Dims{2, 3, 4}));
  EXPECT_EQ(pairs[0].values()[0], 8);
  EXPECT_EQ(pairs[0].values()[12], 20);
  // Indexed dimensions that are adjacent are replaced in place.
  const TestResult tail =
      call_op("index", {x, ints({2}, {0, 2}), ints({2}, {3, 1})}, {dims({1, 2})}, {2});
  EXPECT_EQ(tail[0].geometry.shape, (Dims{2, 2}));
  EXPECT_EQ(tail[0].values(), (Values{3, 9, 15, 21}));
  // If they are not adjacent, the dimensions of the indices come first.
  const TestResult apart =
      call_op("index", {x, ints({2}, {1, 0}), ints({2}, {3, 1})}, {dims({0, 2})}, {2});
  EXPECT_EQ(apart[0].geometry.shape, (Dims{2, 3}));
  EXPECT_EQ(apart[0].values(), (Values{15, 19, 23, 1, 5, 9}));
}

TEST(Index, OutOfRangeIsFoundBeforeTheFirstStore) {
  const TestTensor x = counting(DType::kF32, {5});
  const TestTensor bad = ints({2}, {0, 7});
  EXPECT_EQ(call_op("index_select", {x, bad}, {at(0)}).status.message(),
            "index_select: index 7 is out of range for size 5 (dim 0)");
  EXPECT_EQ(call_op("index_select", {x, bad}, {at(0)}).status.code(), core::Code::kOutOfRange);
  for (const TestResult& out :
       {call_op("index_put", {x, 9.0, bad}, {dims({0})}, {1}),
        call_op("index_fill", {x, bad, 9.0}, {at(0)}),
        call_op("index_add", {x, bad, counting(DType::kF32, {2})}, {at(0)})}) {
    EXPECT_EQ(out.status.code(), core::Code::kOutOfRange);
    ASSERT_EQ(out.tensors.size(), 1u);
    EXPECT_EQ(out[0].values(), (Values{0, 1, 2, 3, 4}));
  }
  const TestResult scattered = call_op("scatter", {x, bad, 9.0}, {at(0)});
  EXPECT_EQ(scattered.status.code(), core::Code::kInvalidArgument);
  EXPECT_EQ(scattered[0].values(), (Values{0, 1, 2, 3, 4}));
  EXPECT_FALSE(call_op("index", {x, ints({1}, {-6})}, {dims({0})}, {1}).status.ok());
  for (const double far : {-0x1p63, -0x1p62, 0x1p62, 0x1.fffffffffffffp62}) {
    EXPECT_EQ(call_op("index", {x, ints({2}, {4, far})}, {dims({0})}, {1}).status.code(),
              core::Code::kOutOfRange);
    EXPECT_EQ(call_op("gather", {x, ints({2}, {4, far})}, {at(0)}).status.code(),
              core::Code::kInvalidArgument);
  }
  EXPECT_FALSE(call_op("gather", {x, ints({1}, {-1})}, {at(0)}).status.ok());
  EXPECT_FALSE(call_op("embedding", {counting(DType::kF32, {2, 2}), ints({1}, {2})}).status.ok());
  EXPECT_FALSE(
      call_op("index", {counting(DType::kF32, {0}), ints({1}, {0})}, {dims({0})}, {1}).status.ok());
}

TEST(Index, HostileAttributesAreRefused) {
  const TestTensor x = counting(DType::kF32, {2, 3});
  const TestTensor i = ints({1}, {0});
  for (const auto& d : {Dims{2}, Dims{-1}, Dims{0, 1}, Dims{INT64_MAX}, Dims{}}) {
    EXPECT_FALSE(call_op("index", {x, i}, {Attribute::of(d)}, {1}).status.ok());
  }
  EXPECT_FALSE(call_op("index", {x, i, i}, {dims({1, 0})}, {2}).status.ok());
  EXPECT_FALSE(call_op("index", {x, i, i}, {dims({0, 0})}, {2}).status.ok());
  EXPECT_FALSE(call_op("index", {x}, {dims({})}, {0}).status.ok());
  EXPECT_FALSE(call_op("gather", {x, i}, {at(INT64_MIN)}).status.ok());
  EXPECT_FALSE(call_op("nonzero", {x}, {at(7)}).status.ok());
  EXPECT_FALSE(call_op("nonzero", {x}, {at(-1)}).status.ok());
}

// The product of the shapes below is 2^61 + 8 elements, whose size in bytes wraps to 64.
TEST(Index, IndicesThatBroadcastBeyondMemoryAreRefused) {
  const TestTensor x = counting(DType::kF32, {5, 5, 5});
  const TestTensor nothing(DType::kF32, Geometry({5, 5, 5, 0}));
  const auto expanded = [](const Dims& shape) {
    return TestTensor(DType::kI64, Geometry(shape, Dims(shape.size(), 0)));
  };
  const auto three = dims({0, 1, 2});
  const std::pair<std::vector<Dims>, bool> rows[] = {
      {{{40, 1, 1}, {1, 107367629, 1}, {1, 1, 536903681}}, false},
      {{{1ll << 33, 1, 1}, {1, 1ll << 31, 1}, {1, 1, 1}}, false},
      {{{1ll << 32, 1, 1}, {1, 1ll << 32, 1}, {1, 1, 1}}, false},
      {{{1ll << 33, 1}, {1, 1ll << 31}, {1, 1}}, false},
      {{{1ll << 17, 1}, {1, (1ll << 16) + 1}, {1, 1}}, false},  // 2^33 + 2^17
      {{{1ll << 10, 1}, {1, 1ll << 8}, {1, 1}}, true},
  };
  for (const auto& [shapes, fits] : rows) {
    const std::vector<TestTensor> i = {expanded(shapes[0]), expanded(shapes[1]),
                                       expanded(shapes[2])};
    for (const TestResult& result :
         {call_op("index", {x, i[0], i[1], i[2]}, {three}, {3}),
          call_op("index", {nothing, i[0], i[1], i[2]}, {three}, {3}),
          call_op("index_put", {x, 1.0, i[0], i[1], i[2]}, {three}, {3}),
          call_op("index_put", {x, counting(DType::kF32, {1}), i[0], i[1], i[2]}, {three}, {3}),
          call_op("index_put", {x, 1.0, i[0], i[1], i[2]}, {three, Attribute::of(true)}, {3})}) {
      EXPECT_EQ(result.status.ok(), fits) << result.status.message();
      if (fits) continue;
      EXPECT_EQ(result.status.code(), core::Code::kInvalidArgument);
      EXPECT_NE(result.status.message().find("indexing tensors broadcast to shape ["),
                std::string::npos)
          << result.status.message();
    }
  }
  // The indexed shape may be too large to address although the indices and x are small.
  const TestTensor repeated(DType::kF32, Geometry({2, 1ll << 40, 0}, {0, 0, 1}));
  EXPECT_NE(call_op("index_put", {repeated, 1.0, expanded({1ll << 32})}, {dims({0})}, {1})
                .status.message()
                .find("too large to address"),
            std::string::npos);
}

// Kernels check sizes themselves and do not rely on earlier checks.
TEST(Index, KernelsRefusePlacesThatTheirMemoryCannotHold) {
  const Geometry x({5, 5, 5});
  const Dims shapes[] = {{40, 1, 1}, {1, 107367629, 1}, {1, 1, 536903681}};
  const std::int64_t zero = 0, along[] = {0, 1, 2};
  std::vector<Geometry> geometries;
  for (const Dims& shape : shapes) geometries.emplace_back(shape, Dims(3, 0));
  std::vector<TensorArg> indices(3);
  for (std::size_t i = 0; i < 3; ++i) {
    indices[i].kind = TensorArg::Kind::kTensor;
    indices[i].data = const_cast<std::int64_t*>(&zero);
    indices[i].dtype = DType::kI64;
    indices[i].geometry = &geometries[i];
  }
  const Attributes none;
  TestParallel parallel;
  TestScratch scratch;
  KernelCall call{*ops::catalog().find("index"), indices, {}, {}, none, parallel, scratch};
  EXPECT_EQ(places_of(call, x, indices, along, true).status().code(),
            core::Code::kResourceExhausted);
  const DenseCopy copy = dense_copy(call, indices[0], {40, 107367629, 536903681}, DType::kI64);
  EXPECT_EQ(copy.data, nullptr);
  EXPECT_EQ(copy.bytes, kNoSuchScratch);
}

TEST(ScratchBytes, AreExactOrMoreThanThereIs) {
  constexpr std::int64_t kLarge = 1ll << 61;
  EXPECT_EQ(scratch_bytes(3, std::size_t{8}), 24u);
  EXPECT_EQ(scratch_bytes(kLarge, std::size_t{2}), std::size_t{1} << 62);
  EXPECT_EQ(scratch_bytes(kLarge + 8, std::size_t{8}), kNoSuchScratch);
  EXPECT_EQ(scratch_bytes(kLarge, std::size_t{4}), kNoSuchScratch);
  EXPECT_EQ(scratch_bytes(std::int64_t{-1}, std::size_t{4}), kNoSuchScratch);
  EXPECT_EQ(scratch_bytes(kLarge, kLarge, 0), 0u);
  EXPECT_EQ(scratch_bytes(std::size_t{1} << 63, 1), kNoSuchScratch);
  EXPECT_EQ(scratch_bytes(Dims{40, 107367629, 536903681}, 8), kNoSuchScratch);
  EXPECT_EQ(scratch_bytes(Dims{2, 3}, 8), 48u);
  EXPECT_EQ(add_scratch_bytes(5, 7), 12u);
  EXPECT_EQ(add_scratch_bytes(kNoSuchScratch, 1), kNoSuchScratch);
  EXPECT_EQ(add_scratch_bytes(~std::size_t{0}, ~std::size_t{0}), kNoSuchScratch);
}

TEST(IndexPut, ReplacesAddsAndBroadcasts) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI64, DType::kBF16, DType::kU8}) {
    const TestTensor x = counting(dtype, {2, 3});
    const TestTensor i = ints({3}, {1, 1, 0});
    EXPECT_EQ(call_op("index_put", {x, 9, i}, {dims({1})}, {1})[0].values(),
              (Values{9, 9, 2, 9, 9, 5}));
    const TestTensor values(dtype, {3}, {10, 20, 30});
    EXPECT_EQ(call_op("index_put", {x, values, i}, {dims({1})}, {1})[0].values(),
              (Values{30, 20, 2, 30, 20, 5}));  // the last write to a place wins
    EXPECT_EQ(
        call_op("index_put", {x, values, i}, {dims({1}), Attribute::of(true)}, {1})[0].values(),
        (Values{30, 31, 2, 33, 34, 5}));
    EXPECT_EQ(call_op("index_put", {x, TestTensor(dtype, {2, 1}, {7, 8}), ints({1}, {2})},
                      {dims({1})}, {1})[0]
                  .values(),
              (Values{0, 1, 7, 3, 4, 8}));
  }
  EXPECT_FALSE(
      call_op("index_put",
              {counting(DType::kF32, {2, 3}), counting(DType::kF32, {4}), ints({3}, {0, 0, 0})},
              {dims({1})}, {1})
          .status.ok());
}

// Other sessions may be waiting for the lane, so the kernel checks for an interruption after each
// million elements or so.
TEST(IndexPut, LongWritesAndReadsLookForAnInterruption) {
  class Interrupted : public TestParallel {
   public:
    bool cancelled() const override { return ++looks > 3; }
    mutable int looks = 0;
  };
  const KernelTable table = make_kernels(ops::catalog());
  constexpr std::int64_t kRow = 1 << 20, kRows = 64;
  const TestTensor x(DType::kF32, Geometry({1, kRow})), rows = ints({kRows}, Values(kRows, 0));
  for (const bool adds : {false, true}) {
    const Attributes attributes = {dims({0}), Attribute::of(adds)};
    Interrupted parallel;
    call_op("index_put", {x, 1.0, rows}, attributes, {1}, [&](KernelCall& call) {
      KernelCall mine{call.op,         call.in,  call.out,    call.counts,
                      call.attributes, parallel, call.scratch};
      return table.find(ops::catalog().id(call.op))(mine);
    });
    EXPECT_EQ(parallel.looks, 4) << adds;
  }
  Interrupted parallel;
  call_op("index", {x, rows}, {dims({0})}, {1}, [&](KernelCall& call) {
    KernelCall mine{call.op,         call.in,  call.out,    call.counts,
                    call.attributes, parallel, call.scratch};
    return table.find(ops::catalog().id(call.op))(mine);
  });
  EXPECT_GT(parallel.looks, 0);
}

TEST(Gather, AndScatterFollowTheIndex) {
  for (const DType dtype : {DType::kF32, DType::kI32, DType::kF16, DType::kU8}) {
    const TestTensor x = counting(dtype, {2, 3});
    const TestTensor i = ints({2, 2}, {2, 0, 1, 1});
    const TestTensor y = x.laid_out(Geometry({2, 3}, {1, 2}));
    EXPECT_EQ(call_op("gather", {y, i}, {at(1)})[0].values(), (Values{2, 0, 4, 4}));
    const TestTensor rows = ints({1, 3}, {1, 0, 1});
    EXPECT_EQ(call_op("gather", {y, rows}, {at(0)})[0].values(), (Values{3, 1, 5}));
    const TestTensor src(dtype, {2, 3}, {10, 20, 30, 40, 50, 60});
    EXPECT_EQ(call_op("scatter", {x, i, src}, {at(1)})[0].values(), (Values{20, 1, 10, 3, 50, 5}));
    EXPECT_EQ(call_op("scatter", {x, i, 7}, {at(1)})[0].values(), (Values{7, 1, 7, 3, 7, 5}));
    EXPECT_EQ(call_op("scatter_add", {x, i, src}, {at(1)})[0].values(),
              (Values{20, 1, 12, 3, 94, 5}));
  }
  const TestTensor scalar(DType::kF32, Dims(), {5});
  EXPECT_EQ(call_op("gather", {scalar, ints({3}, {0, 0, 0})}, {at(0)})[0].values(),
            (Values{5, 5, 5}));
  EXPECT_FALSE(call_op("gather", {counting(DType::kF32, {2, 3}), ints({3, 1}, {0, 0, 0})}, {at(1)})
                   .status.ok());
}

TEST(IndexSelect, AndItsKin) {
  const TestTensor x = counting(DType::kF64, {3, 2});
  const TestTensor i = ints({2}, {2, 0});
  EXPECT_EQ(call_op("index_select", {x, i}, {at(0)})[0].values(), (Values{4, 5, 0, 1}));
  EXPECT_EQ(call_op("index_select", {x, ints({1}, {1})}, {at(-1)})[0].values(), (Values{1, 3, 5}));
  const TestTensor source(DType::kF64, {2, 2}, {10, 20, 30, 40});
  EXPECT_EQ(call_op("index_add", {x, i, source}, {at(0), Attribute::of(0.5)})[0].values(),
            (Values{15, 21, 2, 3, 9, 15}));
  EXPECT_EQ(call_op("index_copy", {x, i, source}, {at(0)})[0].values(),
            (Values{30, 40, 2, 3, 10, 20}));
  EXPECT_EQ(call_op("index_fill", {x, ints({1}, {-1}), 9}, {at(0)})[0].values(),
            (Values{0, 1, 2, 3, 9, 9}));
  EXPECT_EQ(call_op("take", {x, ints({2, 1}, {-1, 2})})[0].values(), (Values{5, 2}));
  const TestTensor scalar(DType::kF32, Dims(), {5});
  EXPECT_EQ(call_op("index_select", {scalar, ints({1}, {0})}, {at(0)})[0].values(), Values{5});
}

TEST(Embedding, RowsAndTheirGradient) {
  const TestTensor weight = counting(DType::kF32, {4, 3});
  const TestResult rows = call_op("embedding", {weight, ints({2, 2}, {3, 0, 3, 1})});
  EXPECT_EQ(rows[0].geometry.shape, (Dims{2, 2, 3}));
  EXPECT_EQ(rows[0].values(), (Values{9, 10, 11, 0, 1, 2, 9, 10, 11, 3, 4, 5}));
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    const TestTensor g = counting(dtype, {2, 2, 3});
    const auto sums = [&](int padding) {
      return call_op("embedding_backward", {g, ints({2, 2}, {3, 0, 3, 1})}, {at(4), at(padding)})[0]
          .values();
    };
    EXPECT_EQ(sums(-1), (Values{3, 4, 5, 9, 10, 11, 0, 0, 0, 6, 8, 10}));
    EXPECT_EQ(sums(3), (Values{3, 4, 5, 9, 10, 11, 0, 0, 0, 0, 0, 0}));
  }
}

// Adding 1/16 to an element of 1 for 3000 times gives 188.5 in float32; in 16 bits the sum would
// stop growing earlier. For a small x the kernel copies x to float32, for a large x it sorts the
// indices; the results are the same.
TEST(SixteenBits, SumsByIndexAreRoundedOnce) {
  constexpr std::int64_t kCount = 3000;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    // bfloat16 has 8 bits: a tie is rounded to even
    const double sum = dtype == DType::kF16 ? 188.5 : 188;
    for (const std::int64_t rows : {std::int64_t{3}, std::int64_t{100000}}) {
      const TestTensor index = ints({kCount}, Values(kCount, 1));
      const TestTensor x(dtype, {rows}, Values(static_cast<std::size_t>(rows), 1));
      const TestTensor source(dtype, {kCount}, Values(kCount, 1.0 / 16));
      const TestTensor strided = x.laid_out(Geometry({rows}, {3}, 2));
      for (const TestTensor& to : {x, strided}) {
        for (const TestResult& out :
             {call_op("index_add", {to, index, source}, {at(0)}),
              call_op("index_put", {to, source, index}, {dims({0}), Attribute::of(true)}, {1}),
              call_op("index_put", {to, 1.0 / 16, index}, {dims({0}), Attribute::of(true)}, {1}),
              call_op("scatter_add", {to, index, source}, {at(0)}),
              call_op("scatter_reduce", {to, index, source},
                      {at(0), Attribute::of("sum"), Attribute::of(true)})}) {
          ASSERT_TRUE(out.status.ok()) << out.status.message();
          const Values got = out[0].values();
          EXPECT_EQ(got[0], 1);
          EXPECT_EQ(got[1], sum);
          EXPECT_EQ(got[2], 1);
          EXPECT_EQ(got.back(), 1);
        }
        const TestResult mean = call_op("scatter_reduce", {to, index, source},
                                        {at(0), Attribute::of("mean"), Attribute::of(false)});
        EXPECT_EQ(mean[0].values()[1], 1.0 / 16);
        EXPECT_EQ(mean[0].values()[2], 1);
      }
      // Rows of a tensor with two indexed dimensions, and a tensor indexed along its last
      // dimension.
      const TestTensor table(dtype, {rows, 2, 5}, Values(static_cast<std::size_t>(rows) * 10, 1));
      const TestTensor blocks(dtype, {kCount, 5}, Values(kCount * 5, 1.0 / 16));
      const TestTensor last = ints({kCount}, Values(kCount, -1));
      const Values got = call_op("index_put", {table, blocks, index, last},
                                 {dims({0, 1}), Attribute::of(true)}, {2})[0]
                             .values();
      EXPECT_EQ(Values(got.begin() + 10, got.begin() + 22),
                (Values{1, 1, 1, 1, 1, sum, sum, sum, sum, sum, 1, 1}));
      const TestTensor wide(dtype, {2, rows}, Values(static_cast<std::size_t>(rows) * 2, 1));
      const TestTensor columns(dtype, {2, kCount}, Values(kCount * 2, 1.0 / 32));
      const TestResult turned =
          call_op("index_add", {wide, index, columns}, {at(1), Attribute::of(2.0)});
      EXPECT_EQ(turned[0].values()[1], sum);
      EXPECT_EQ(turned[0].values()[static_cast<std::size_t>(rows) + 1], sum);
      EXPECT_EQ(turned[0].values()[0], 1);
    }
    // Factors of 1 + 1/64: their square needs 12 bits.
    const double factor = 1 + 1.0 / 64;
    for (const std::int64_t rows : {2, 1000}) {
      const TestTensor x(dtype, {rows}, Values(static_cast<std::size_t>(rows), 1));
      const TestResult out = call_op(
          "scatter_reduce", {x, ints({3}, {1, 1, 1}), TestTensor(dtype, {3}, {factor, factor, 64})},
          {at(0), Attribute::of("prod"), Attribute::of(true)});
      const TestTensor want(dtype, {1}, {factor * factor * 64});
      EXPECT_EQ(out[0].values()[1], want.values()[0]);
    }
  }
}

// The gradient of unfold, whose windows share elements.
TEST(SixteenBits, RegionsThatOverlapAreRoundedOnce) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    constexpr std::int64_t kWindows = 2000;
    const TestTensor spread(dtype, {kWindows, 2}, Values(kWindows * 2, 1.0 / 16));
    const TestResult out =
        call_op("scatter_region", {spread},
                {dims({3}), dims({1}), dims({kWindows, 2}), Attribute::of(Dims{0, 1}), at(0)});
    ASSERT_TRUE(out.status.ok()) << out.status.message();
    EXPECT_EQ(out[0].values(), (Values{125, 125, 0}));
    // Windows [i, i + 500) of 700 elements.
    constexpr std::int64_t kLength = 500, kSteps = 201;
    const TestTensor windows(dtype, {kSteps, kLength}, Values(kSteps * kLength, 1.0 / 64));
    const TestResult sums = call_op(
        "scatter_region", {windows},
        {dims({700}), dims({1}), dims({kSteps, kLength}), Attribute::of(Dims{1, 1}), at(0)});
    ASSERT_TRUE(sums.status.ok()) << sums.status.message();
    EXPECT_EQ(sums[0].values()[350], TestTensor(dtype, {1}, {201.0 / 64}).values()[0]);
  }
}

TEST(Masks, NonzeroVerifiesTheCount) {
  const TestTensor x(DType::kF32, {2, 3}, {0, 1, 0, -2, 0, 3});
  EXPECT_EQ(call_op("nonzero", {x}, {at(3)})[0].values(), (Values{0, 1, 1, 0, 1, 2}));
  EXPECT_EQ(call_op("nonzero", {x.laid_out(Geometry({2, 3}, {1, 2}))}, {at(3)})[0].values(),
            (Values{0, 1, 1, 0, 1, 2}));
  EXPECT_FALSE(call_op("nonzero", {x}, {at(2)}).status.ok());
  EXPECT_FALSE(call_op("nonzero", {x}, {at(4)}).status.ok());
  const TestResult scalar = call_op("nonzero", {TestTensor(DType::kBool, Dims(), {1})}, {at(1)});
  EXPECT_EQ(scalar[0].geometry.shape, (Dims{1, 0}));
}

TEST(Masks, ScatterAndPack) {
  const TestTensor x = counting(DType::kF32, {2, 3});
  const TestTensor mask(DType::kBool, {3}, {1, 0, 1});
  const TestTensor source(DType::kF32, {5}, {10, 20, 30, 40, 50});
  EXPECT_EQ(call_op("masked_scatter", {x, mask, source})[0].values(),
            (Values{10, 1, 20, 30, 4, 40}));
  EXPECT_EQ(call_op("masked_pack", {x, mask}, {dims({5})})[0].values(), (Values{0, 2, 3, 5, 0}));
  const TestResult few = call_op("masked_scatter", {x, mask, TestTensor(DType::kF32, {2}, {1, 2})});
  EXPECT_FALSE(few.status.ok());
  EXPECT_EQ(few[0].values(), (Values{0, 1, 2, 3, 4, 5}));
}

TEST(Join, CatAndStack) {
  const TestTensor a = counting(DType::kF32, {2, 2}), b(DType::kI32, {2, 1}, {7, 8});
  const TestTensor none(DType::kF64, Geometry({0}));
  const TestResult joined = call_op("cat", {a, none, b}, {at(-1)}, {3});
  EXPECT_EQ(joined[0].dtype, DType::kF64);
  EXPECT_EQ(joined[0].values(), (Values{0, 1, 7, 2, 3, 8}));
  EXPECT_EQ(call_op("cat", {a, a.laid_out(Geometry({2, 2}, {1, 2}))}, {at(0)}, {2})[0].values(),
            (Values{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(call_op("stack", {a, a}, {at(-1)}, {2})[0].values(), (Values{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_FALSE(call_op("cat", {}, {at(0)}, {0}).status.ok());
  EXPECT_FALSE(call_op("cat", {a, b}, {at(0)}, {2}).status.ok());
  EXPECT_FALSE(call_op("stack", {a, b}, {at(0)}, {2}).status.ok());
}

Attributes region(const Geometry& base, const Geometry& view) {
  return {Attribute::of(base.shape), Attribute::of(base.strides), Attribute::of(view.shape),
          Attribute::of(view.strides), Attribute::of(view.offset)};
}

TEST(Regions, IndexScatterUpdate) {
  const TestTensor x = counting(DType::kF32, {2, 3});
  const Geometry row_major({2, 3}), column_major({2, 3}, {1, 2});
  const Geometry column({2}, {3}, 1);  // x[:, 1] of the row-major base
  const Geometry same({2}, {1}, 2);    // the same elements of the column-major base
  const TestTensor pair(DType::kF32, {2}, {10, 20});
  for (const TestTensor& y : {x, x.laid_out(column_major)}) {
    EXPECT_EQ(call_op("index_region", {y}, region(row_major, column))[0].values(), (Values{1, 4}));
    EXPECT_EQ(call_op("index_region", {y}, region(column_major, same))[0].values(), (Values{1, 4}));
    EXPECT_EQ(call_op("update_region", {y, pair}, region(column_major, same))[0].values(),
              (Values{0, 10, 2, 3, 20, 5}));
    EXPECT_EQ(call_op("update_region", {y, 7}, region(row_major, column))[0].values(),
              (Values{0, 7, 2, 3, 7, 5}));
    EXPECT_EQ(call_op("add_region", {y, pair}, region(column_major, same))[0].values(),
              (Values{0, 11, 2, 3, 24, 5}));
  }
  EXPECT_EQ(call_op("scatter_region", {pair}, region(row_major, column))[0].values(),
            (Values{0, 10, 0, 0, 20, 0}));
  EXPECT_EQ(call_op("scatter_region", {pair}, region(column_major, same))[0].values(),
            (Values{0, 10, 0, 0, 20, 0}));
  // A view that shows elements several times: their gradients are added.
  const Geometry repeated({2, 3, 2}, {3, 0, 2});
  EXPECT_EQ(
      call_op("scatter_region", {counting(DType::kF64, {2, 3, 2})}, region(row_major, repeated))[0]
          .values(),
      (Values{6, 0, 9, 24, 0, 27}));
  EXPECT_EQ(call_op("add_region", {counting(DType::kF64, {2, 3}), counting(DType::kF64, {2, 3, 2})},
                    region(row_major, repeated))[0]
                .values(),
            (Values{6, 1, 11, 27, 4, 32}));
}

TEST(Regions, OutsideOfTheBaseIsRefused) {
  const TestTensor x = counting(DType::kF32, {2, 3});
  for (const Geometry& view :
       {Geometry({2}, {3}, 3), Geometry({7}, {1}), Geometry({2}, {INT64_MAX})}) {
    EXPECT_FALSE(call_op("index_region", {x}, region(Geometry({2, 3}), view)).status.ok());
  }
}

}  // namespace
}  // namespace teletensor::backends::cpu
