// Tests convolutions with cuDNN on the fake library, which checks its arguments strictly.
#include "engine/backends/cuda/library/convolutions.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "engine/backends/cuda/fake_device_test.h"
#include "engine/backends/cuda/samples_test.h"

namespace teletensor::backends::cuda {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Geometry;
using cpu::TestTensor;

TEST(Convolutions, EnginesThatMayBeUsed) {
  const auto allowed = [](DType dtype, bool tf32, std::vector<int> notes) {
    return engine_allowed(dtype, tf32, notes);
  };
  constexpr int kStrictNan = 9;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    EXPECT_TRUE(allowed(dtype, false, {}));
    EXPECT_TRUE(allowed(dtype, false, {kStrictNan}));
    EXPECT_EQ(allowed(dtype, false, {kNoteTensorCore}), dtype != DType::kF32);
    EXPECT_TRUE(allowed(dtype, true, {kNoteTensorCore}));
    for (const int note : {kNoteNarrowInputs, kNoteNarrowSums, kNoteFft, kNoteNotRepeatable,
                           kNoteWinograd, kNoteWinograd4, kNoteWinograd6, kNoteWinograd13}) {
      EXPECT_FALSE(allowed(dtype, true, {kStrictNan, note})) << note;
    }
  }
}

#ifdef TT_FAKE_CUDA_LIBRARY

class Device : public FakeDevice {
 public:
  Device() {
    EXPECT_EQ(load_dnn(driver(), TT_FAKE_CUDA_LIBRARY, &dnn_).message(), "");
    auto made = Convolutions::open(dnn_, gpu());
    EXPECT_EQ(made.status().message(), "");
    convolutions_ = std::move(*made);
  }

 private:
  void lend(Work& work) override { work.convolutions = convolutions_.get(); }
  bool is_taken(const Launch& launch) override { return launch.convolution.has_value(); }
  core::Status start(const Launch& launch) override {
    return convolutions_->run(*launch.convolution);
  }

  Dnn dnn_;
  std::unique_ptr<Convolutions> convolutions_;
};

Attribute ints(const Dims& d) { return Attribute::of(d); }

// stride, padding, dilation, transposed, output_padding, groups
core::Attributes how(const Dims& stride, const Dims& padding, const Dims& dilation, bool transposed,
                     const Dims& extra, std::int64_t groups) {
  return {ints(stride), ints(padding),        ints(dilation), Attribute::of(transposed),
          ints(extra),  Attribute::of(groups)};
}

TEST(Convolutions, ThreePassesOfAnyWindow) {
  std::mt19937 random(111);
  Device device;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    const auto x = [&](const Geometry& g) { return sample_places(dtype, g, -2, 2, random); };
    for (const std::int64_t groups : {1, 2}) {
      const auto image = x(Geometry({2, 6, 11, 9})), weight = x(Geometry({4, 6 / groups, 3, 2}));
      EXPECT_TRUE(device.takes("convolution", {image, weight, x(Geometry({4}))},
                               how({2, 1}, {1, 1}, {1, 2}, false, {0, 0}, groups)));
      EXPECT_TRUE(device.takes("convolution",
                               {x(Geometry({2, 6, 11, 9}, {594, 1, 54, 6})), weight, nullptr},
                               how({1, 1}, {0, 0}, {1, 1}, false, {0, 0}, groups)));
      EXPECT_TRUE(device.takes("convolution", {x(Geometry({2, 4, 6, 5})), weight, nullptr},
                               how({2, 3}, {1, 0}, {1, 2}, true, {1, 0}, groups)));
      EXPECT_TRUE(device.takes(
          "convolution_weight", {image, x(Geometry({2, 4, 6, 10}))},
          {ints({3, 2}), ints({2, 1}), ints({1, 1}), ints({1, 1}), Attribute::of(groups)}));
      // A gradient that lacks the last windows is not supported.
      EXPECT_FALSE(device.takes(
          "convolution_weight", {image, x(Geometry({2, 4, 5, 10}))},
          {ints({3, 2}), ints({2, 1}), ints({1, 1}), ints({1, 1}), Attribute::of(groups)}));
    }
    EXPECT_TRUE(device.takes("convolution",
                             {x(Geometry({2, 3, 40})), x(Geometry({7, 3, 5})), x(Geometry({7}))},
                             how({2}, {2}, {1}, false, {0}, 1)));
    EXPECT_TRUE(device.takes("convolution_weight",
                             {x(Geometry({7, 2, 40})), x(Geometry({7, 3, 40}))},
                             {ints({5}), ints({1}), ints({2}), ints({1}), Attribute::of(1)}));
    EXPECT_TRUE(
        device.takes("convolution",
                     {x(Geometry({1, 2, 4, 5, 6})), x(Geometry({3, 2, 2, 2, 2})), x(Geometry({3}))},
                     how({1, 1, 2}, {1, 0, 1}, {1, 1, 1}, false, {0, 0, 0}, 1)));
  }
  const auto whole = [&](const Geometry& g) { return sample_places(DType::kI32, g, 0, 4, random); };
  EXPECT_FALSE(device.takes("convolution",
                            {whole(Geometry({1, 2, 5, 5})), whole(Geometry({3, 2, 2, 2})), nullptr},
                            how({1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1)));
}

TEST(Convolutions, Tf32RoundsFactorsWhereItIsAsked) {
  Device device;
  const double fine = 1 + 0x1p-12;  // more bits than TF32 has, fewer than float32 and float64
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const auto all = [&](const Dims& shape, double value) {
      const auto count = static_cast<std::size_t>(Geometry(shape).numel());
      return TestTensor(dtype, shape, std::vector<double>(count, value));
    };
    const auto image = all({1, 4, 1, 1}, fine), weight = all({2, 4, 1, 1}, 1),
               bias = all({2}, fine);
    const auto gradient = all({1, 2, 1, 1}, 1);
    const auto value = [&](const std::vector<Attribute>& tf32) {
      core::Attributes a = how({1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1);
      for (const Attribute& each : tf32) a.push_back(each);
      return device.value_of("convolution", {image, weight, bias}, a);
    };
    const auto of_weight = [&](const std::vector<Attribute>& tf32) {
      core::Attributes a = {ints({1, 1}), ints({1, 1}), ints({0, 0}), ints({1, 1}),
                            Attribute::of(1)};
      for (const Attribute& each : tf32) a.push_back(each);
      return device.value_of("convolution_weight", {image, gradient}, a);
    };
    const bool rounds = dtype == DType::kF32;
    for (const std::vector<Attribute>& without :
         {std::vector<Attribute>{}, {Attribute::of(false)}, {Attribute::none()}}) {
      EXPECT_EQ(value(without), 5 * fine);
      EXPECT_EQ(of_weight(without), fine);
    }
    EXPECT_EQ(value({Attribute::of(true)}), rounds ? 4 + fine : 5 * fine);
    EXPECT_EQ(of_weight({Attribute::of(true)}), rounds ? 1 : fine);
  }
}

TEST(Convolutions, PlansAreKeptByShapeAndAlignment) {
  std::mt19937 random(112);
  Device device;
  const auto x = [&](const Geometry& g) { return sample_places(DType::kF16, g, -2, 2, random); };
  for (int round = 0; round < 3; ++round) {
    // The same shapes at other addresses: the fake library refuses addresses with less alignment
    // than the plan was made for.
    for (const std::int64_t offset : {0, 1, 2, 4}) {
      EXPECT_TRUE(
          device.takes("convolution",
                       {x(Geometry({1, 3, 8, 8}, {192, 64, 8, 1}, offset)),
                        x(Geometry({2, 3, 3, 3}, {27, 9, 3, 1}, 3 * offset)), x(Geometry({2}))},
                       how({1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1)));
    }
  }
}

TEST(Convolutions, ManyThreadsAtOnce) {
  Device device;
  std::vector<std::thread> threads;
  threads.reserve(6);
  for (int seed = 0; seed < 6; ++seed) {
    threads.emplace_back([&device, seed] {
      std::mt19937 random(static_cast<unsigned>(seed));
      for (std::int64_t size = 4; size < 12; ++size) {  // two seeds each, which share their plans
        const auto x = [&](const Geometry& g) {
          return sample_places(DType::kF32, g, -2, 2, random);
        };
        EXPECT_TRUE(device.takes("convolution",
                                 {x(Geometry({1, 3, size, size + seed / 2})),
                                  x(Geometry({2, 3, 3, 3})), x(Geometry({2}))},
                                 how({1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1)));
      }
    });
  }
  for (std::thread& each : threads) each.join();
}

TEST(Convolutions, WithoutTemporaryMemoryTheyAreOurOwn) {
  std::mt19937 random(113);
  Device device;
  const auto x = [&](const Geometry& g) { return sample_places(DType::kF32, g, -2, 2, random); };
  const auto usual = how({1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1);
  const auto image = x(Geometry({1, 3, 8, 8})), weight = x(Geometry({2, 3, 3, 3}));
  EXPECT_TRUE(device.takes("convolution", {image, weight, nullptr}, usual));
  EXPECT_FALSE(device.takes("convolution", {image, weight, nullptr}, usual, 0));
  EXPECT_TRUE(device.takes("convolution", {image, x(Geometry({2, 3, 1, 1})), nullptr}, usual, 0));
}

#endif

}  // namespace
}  // namespace teletensor::backends::cuda
