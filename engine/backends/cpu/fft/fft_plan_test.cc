#include "engine/backends/cpu/fft/fft_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>

namespace teletensor::backends::cpu {
namespace {

// The largest error of a forward transform of `lines` lines, compared with the direct sum, relative
// to the square root of the length (the typical size of a result).
template <class T>
double error_of(std::int64_t n, std::int64_t lines) {
  std::vector<T> tables(static_cast<std::size_t>(FftPlan<T>::table_size(n)));
  const FftPlan<T> plan(n, tables.data());
  const std::int64_t size = plan.size() * lines;
  std::vector<T> room(static_cast<std::size_t>(4 * size));
  SplitLines<T> x{room.data(), room.data() + size, room.data() + 2 * size, room.data() + 3 * size};
  std::mt19937 random(static_cast<unsigned>(n));
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<std::complex<double>> in(static_cast<std::size_t>(n * lines));
  for (std::size_t i = 0; i < in.size(); ++i) {
    x.re[i] = static_cast<T>(uniform(random));
    x.im[i] = static_cast<T>(uniform(random));
    in[i] = {x.re[i], x.im[i]};
  }
  plan.run(x, lines);
  double worst = 0;
  for (std::int64_t l = 0; l < lines; ++l) {
    for (std::int64_t j = 0; j < n; ++j) {
      std::complex<double> sum = 0;
      for (std::int64_t k = 0; k < n; ++k) {
        sum += in[static_cast<std::size_t>(k * lines + l)] * root_of_unity(j * k, n);
      }
      const std::complex<double> got(x.re[j * lines + l], x.im[j * lines + l]);
      worst = std::max(worst, std::abs(got - sum));
    }
  }
  return worst / std::sqrt(static_cast<double>(n));
}

TEST(FftPlan, EveryLengthUpTo130) {
  for (std::int64_t n = 1; n <= 130; ++n) {
    for (std::int64_t lines : {1, 5}) {
      EXPECT_LT(error_of<double>(n, lines), 4e-15) << n << " x " << lines;
      EXPECT_LT(error_of<float>(n, lines), 2e-6) << n << " x " << lines;
    }
  }
}

TEST(FftPlan, LongerLengths) {
  for (std::int64_t n : {1024, 1155, 1001, 1331, 1009, 2018}) {
    EXPECT_LT(error_of<double>(n, 1), 2e-14) << n;
    EXPECT_LT(error_of<float>(n, 2), 4e-6) << n;
  }
}

// A sine wave with k periods has two nonzero elements in its spectrum.
TEST(FftPlan, LongLines) {
  for (std::int64_t n : {8192 * 2, 3 * 5 * 7 * 11 * 13, 27720, 13 * 13 * 13 * 13, 10007, 1 << 17}) {
    std::vector<double> tables(static_cast<std::size_t>(FftPlan<double>::table_size(n)));
    const FftPlan<double> plan(n, tables.data());
    const std::int64_t size = plan.size();
    for (std::int64_t k : {std::int64_t{1}, n / 3}) {
      std::vector<double> room(static_cast<std::size_t>(4 * size));
      SplitLines<double> x{room.data(), room.data() + size, room.data() + 2 * size,
                           room.data() + 3 * size};
      for (std::int64_t j = 0; j < n; ++j) {
        x.re[j] = root_of_unity(j % n * k % n, n).real();
        x.im[j] = 0;
      }
      plan.run(x, 1);
      for (std::int64_t j = 0; j < n; ++j) {
        const double want = j == k || j == n - k ? static_cast<double>(n) / 2 : 0;
        ASSERT_NEAR(x.re[j], want, 1e-10) << n << " at " << j;
        ASSERT_NEAR(x.im[j], 0, 1e-10) << n << " at " << j;
      }
    }
  }
}

TEST(FftPlan, RootsAreExactAtTheEighths) {
  EXPECT_EQ(root_of_unity(0, 8), std::complex<double>(1, 0));
  EXPECT_EQ(root_of_unity(2, 8), std::complex<double>(0, -1));
  EXPECT_EQ(root_of_unity(4, 8), std::complex<double>(-1, 0));
  EXPECT_EQ(root_of_unity(6, 8), std::complex<double>(0, 1));
  for (std::int64_t k = 0; k < 1000; ++k) {
    const long double angle =
        -2 * std::numbers::pi_v<long double> * static_cast<long double>(k) / 1000;
    EXPECT_NEAR(root_of_unity(k, 1000).real(), static_cast<double>(std::cos(angle)), 2e-16);
    EXPECT_NEAR(root_of_unity(k, 1000).imag(), static_cast<double>(std::sin(angle)), 2e-16);
  }
}

}  // namespace
}  // namespace teletensor::backends::cpu
