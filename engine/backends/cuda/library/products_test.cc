// Tests matrix products with cuBLASLt on the fake library, which checks its arguments strictly.
#include "engine/backends/cuda/library/products.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "engine/backends/cuda/fake_device_test.h"
#include "engine/backends/cuda/samples_test.h"

namespace teletensor::backends::cuda {
namespace {

using core::Attribute;
using core::DType;
using core::Geometry;
using cpu::TestOperand;
using cpu::TestTensor;

TEST(Products, MatricesThatAreTaken) {
  const auto turned = [](std::int64_t rows, std::int64_t columns, std::int64_t row,
                         std::int64_t column) {
    const auto made = product_matrix(nullptr, rows, columns, row, column);
    return made ? (made->turned ? -made->line : made->line) : 0;
  };
  EXPECT_EQ(turned(3, 4, 4, 1), 4);
  EXPECT_EQ(turned(3, 4, 9, 1), 9);   // part of a wider matrix
  EXPECT_EQ(turned(3, 4, 1, 3), -3);  // transposed
  EXPECT_EQ(turned(3, 4, 1, 8), -8);
  EXPECT_EQ(turned(1, 4, 77, 1), 4);  // one row
  EXPECT_EQ(turned(1, 4, 77, 2), -2);
  EXPECT_EQ(turned(3, 1, 5, 77), 5);  // one column
  EXPECT_EQ(turned(1, 1, 0, 0), 1);
  EXPECT_EQ(turned(3, 4, 8, 2), 0);  // with gaps
  EXPECT_EQ(turned(3, 4, 0, 1), 0);  // a row that repeats
  EXPECT_EQ(turned(3, 4, 2, 1), 0);  // overlapping rows
}

#ifdef TT_FAKE_CUDA_LIBRARY

class Device : public FakeDevice {
 public:
  using Ask = decltype(Blas::cublasLtMatmulAlgoGetHeuristic);
  using Multiply = decltype(Blas::cublasLtMatmul);

  // `ask` and `multiply` are called instead of the library's heuristic and product.
  explicit Device(Ask ask = nullptr, Multiply multiply = nullptr) {
    EXPECT_EQ(load_blas(driver(), TT_FAKE_CUDA_LIBRARY, &blas_).message(), "");
    if (ask != nullptr) blas_.cublasLtMatmulAlgoGetHeuristic = ask;
    if (multiply != nullptr) blas_.cublasLtMatmul = multiply;
    auto products = Products::open(blas_, gpu());
    EXPECT_EQ(products.status().message(), "");
    products_ = std::move(*products);
  }

  Products& products() { return *products_; }

 private:
  void lend(Work& work) override { work.products = products_.get(); }
  bool is_taken(const Launch& launch) override { return launch.product.has_value(); }
  core::Status start(const Launch& launch) override { return products_->run(*launch.product); }

  Blas blas_;
  std::unique_ptr<Products> products_;
};

TEST(Products, OfAnyLayoutThatTheLibraryTakes) {
  std::mt19937 random(101);
  Device device;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    const auto x = [&](const Geometry& g) { return sample_places(dtype, g, 0, 4, random); };
    const bool wide = dtype == DType::kF64;
    EXPECT_TRUE(device.takes("matmul", {x(Geometry({70, 33})), x(Geometry({33, 65}))}));
    EXPECT_TRUE(
        device.takes("matmul", {x(Geometry({7, 33}, {1, 7})), x(Geometry({33, 5}, {1, 33}))}));
    EXPECT_TRUE(
        device.takes("matmul", {x(Geometry({7, 9}, {20, 1}, 3)), x(Geometry({9, 5}, {1, 11}))}));
    EXPECT_TRUE(device.takes("matmul", {x(Geometry({2, 3, 4, 5})), x(Geometry({2, 3, 5, 6}))}));
    EXPECT_TRUE(device.takes("matmul", {x(Geometry({2, 3, 4, 5})), x(Geometry({5, 6}))}));
    EXPECT_TRUE(device.takes("matmul", {x(Geometry({4, 5})), x(Geometry({7, 5, 6}))}));
    EXPECT_TRUE(
        device.takes("bmm", {x(Geometry({3, 4, 40}, {160, 1, 4})), x(Geometry({3, 40, 2}))}));
    EXPECT_TRUE(device.takes("mv", {x(Geometry({9, 20})), x(Geometry({20}, {2}, 1))}));
    EXPECT_TRUE(device.takes("dot", {x(Geometry({1024})), x(Geometry({1024}))}));
    EXPECT_FALSE(device.takes("dot", {x(Geometry({40})), x(Geometry({40}))}));
    EXPECT_TRUE(device.takes("linear", {x(Geometry({3, 4, 8})), x(Geometry({6, 8})), nullptr}));
    // For doubles only a matrix can be added to the product, no bias.
    EXPECT_EQ(
        device.takes("linear", {x(Geometry({3, 4, 8})), x(Geometry({6, 8})), x(Geometry({6}))}),
        !wide);
    EXPECT_EQ(device.takes("addmm", {x(Geometry({1, 6})), x(Geometry({4, 8})), x(Geometry({8, 6}))},
                           {Attribute::of(1.0), Attribute::of(3.0)}),
              !wide);
    EXPECT_TRUE(device.takes(
        "addmm", {x(Geometry({4, 6}, {9, 1})), x(Geometry({4, 8})), x(Geometry({8, 6}))},
        {Attribute::of(2.0), Attribute::of(3.0)}));
    EXPECT_TRUE(device.takes("addmm", {x(Geometry({6})), x(Geometry({4, 8})), x(Geometry({8, 6}))},
                             {Attribute::of(0.0), Attribute::of(0.5)}));
    // Not supported: gaps, two batch dimensions, and addends that repeat along rows.
    EXPECT_FALSE(device.takes("matmul", {x(Geometry({4, 5}, {12, 2})), x(Geometry({5, 6}))}));
    EXPECT_FALSE(device.takes("matmul", {x(Geometry({2, 3, 4, 5})), x(Geometry({3, 5, 6}))}));
    EXPECT_FALSE(device.takes("addmm",
                              {x(Geometry({4, 1})), x(Geometry({4, 8})), x(Geometry({8, 6}))},
                              {Attribute::of(1.0), Attribute::of(1.0)}));
  }
  const auto whole = [&](const Geometry& g) { return sample_places(DType::kI32, g, 0, 4, random); };
  EXPECT_FALSE(device.takes("matmul", {whole(Geometry({3, 4})), whole(Geometry({4, 5}))}));
}

TEST(Products, Tf32RoundsFactorsWhereItIsAsked) {
  Device device;
  const auto all = [](DType dtype, double value) {
    return TestTensor(dtype, {4, 4}, std::vector<double>(16, value));
  };
  const double fine = 1 + 0x1p-12;  // more bits than TF32 has, fewer than float32 and float64
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const auto product = [&](const char* op, const core::Attributes& attributes) {
      std::vector<TestOperand> operands;
      if (op == std::string("addmm")) operands.emplace_back(all(dtype, fine));
      operands.emplace_back(all(dtype, fine));
      operands.emplace_back(all(dtype, 1));
      if (op == std::string("linear")) operands.emplace_back(nullptr);
      return device.value_of(op, operands, attributes);
    };
    const double rounded = dtype == DType::kF32 ? 4 : 4 * fine;
    for (const char* op : {"matmul", "mm", "linear"}) {
      EXPECT_EQ(product(op, {}), 4 * fine) << op;
      EXPECT_EQ(product(op, {Attribute::of(false)}), 4 * fine) << op;
      EXPECT_EQ(product(op, {Attribute::none()}), 4 * fine) << op;
      EXPECT_EQ(product(op, {Attribute::of(true)}), rounded) << op;
    }
    // An addend is not rounded, because it is no factor.
    const Attribute one = Attribute::of(1.0);
    EXPECT_EQ(product("addmm", {one, one}), 5 * fine);
    EXPECT_EQ(product("addmm", {one, one, Attribute::of(true)}), rounded + fine);
  }
}

TEST(Products, PlansAreKeptByShapeAndAlignment) {
  std::mt19937 random(102);
  Device device;
  const auto x = [&](const Geometry& g) { return sample_places(DType::kF32, g, 0, 4, random); };
  for (int round = 0; round < 3; ++round) {
    // The same shapes at other addresses: the fake library refuses an algorithm that was chosen for
    // a higher alignment.
    for (const std::int64_t offset : {0, 1, 2, 4}) {
      EXPECT_TRUE(device.takes("matmul", {x(Geometry({5, 40}, {40, 1}, offset)),
                                          x(Geometry({40, 7}, {7, 1}, 3 * offset))}));
    }
  }
}

// The library's heuristic, which waits here until another thread has run a product.
struct Asking {
  static inline Device::Ask library = nullptr;
  static inline std::atomic<int> entered{0};
  static inline std::atomic<bool> slow{false}, done{false}, gave_up{false};

  template <class... Arguments>
  static int ask(Arguments... arguments) {
    if (slow) {
      ++entered;
      for (int i = 0; i < 24'000 && !done; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      if (!done) gave_up = true;
    }
    return library(arguments...);
  }
};

TEST(Products, APlanThatIsMadeHoldsUpNoOtherProduct) {
  std::mt19937 random(104);
  Driver driver;
  Blas blas;
  ASSERT_TRUE(load_driver(TT_FAKE_CUDA_LIBRARY, &driver).ok());
  ASSERT_TRUE(load_blas(driver, TT_FAKE_CUDA_LIBRARY, &blas).ok());
  Asking::library = blas.cublasLtMatmulAlgoGetHeuristic;
  Device device(&Asking::ask);
  const auto x = [&](const Geometry& g) { return sample_places(DType::kF32, g, 0, 4, random); };
  const TestTensor a = x(Geometry({4, 8})), b = x(Geometry({8, 4})), c = x(Geometry({8, 9}));
  EXPECT_TRUE(device.takes("matmul", {a, b}));
  Asking::slow = true;
  std::thread other([&] { EXPECT_TRUE(device.takes("matmul", {a, c})); });
  while (Asking::entered == 0) std::this_thread::yield();
  EXPECT_TRUE(device.takes("matmul", {a, b}));
  Asking::done = true;
  other.join();
  Asking::slow = false;
  EXPECT_FALSE(Asking::gave_up);
  EXPECT_EQ(Asking::entered, 1);
}

// A library that returns a plan and then refuses to start it.
struct Refusing {
  template <class... Arguments>
  static int multiply(Arguments...) {
    return kBlasInvalidValue;
  }
};

TEST(Products, APlanThatIsRefusedIsNotUsedAgain) {
  Device device(nullptr, &Refusing::multiply);
  void* const memory = device.gpu().allocate(3 * 256);
  Product dot;
  dot.dtype = DType::kF32;
  dot.m = dot.n = 1;
  dot.k = 4;
  dot.a = *product_matrix(memory, 1, 4, 4, 1);
  dot.b = *product_matrix(static_cast<char*>(memory) + 256, 4, 1, 1, 1);
  dot.out = static_cast<char*>(memory) + 512;
  ASSERT_EQ(device.products().workspace(dot), std::size_t{0});
  EXPECT_EQ(device.products().run(dot).code(), core::Code::kUnimplemented);
  EXPECT_EQ(device.products().workspace(dot), std::nullopt);
  device.gpu().free(memory);
}

TEST(Products, WithoutTemporaryMemoryTheyAreOurOwn) {
  std::mt19937 random(103);
  Device device;
  const auto x = [&](const Geometry& g) { return sample_places(DType::kF32, g, 0, 4, random); };
  EXPECT_TRUE(device.takes("matmul", {x(Geometry({4, 8})), x(Geometry({8, 4}))}, {}, 0));
  EXPECT_FALSE(device.takes("matmul", {x(Geometry({4, 80})), x(Geometry({80, 4}))}, {}, 0));
}

#endif

}  // namespace
}  // namespace teletensor::backends::cuda
