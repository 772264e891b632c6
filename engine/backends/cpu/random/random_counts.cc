// Kernels of Poisson and binomial counts. Element i has 256 Philox blocks of its own, one for each
// attempt of the rejection methods, so that its number depends only on (seed, ordinal, i) and its
// parameters.

#include <algorithm>
#include <cmath>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/arrangement/index_places.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/random/random_simd.h"
#include "engine/ops/scalar/gamma.h"

namespace teletensor::backends::cpu {
namespace {

using core::DType;
using core::Status;
using ops::scalar::log_gamma;

constexpr int kAttemptBits = 8, kAttempts = 1 << kAttemptBits;

// The uniform numbers in (0, 1) of one element; each attempt uses a pair.
class Uniforms {
 public:
  // `known` are the words of the first attempt.
  Uniforms(const Stream& stream, std::int64_t element, const std::uint32_t* known)
      : stream_(stream),
        first_(static_cast<std::uint64_t>(element) << kAttemptBits),
        known_(known) {}
  void pair(int attempt, double& u, double& v) const {
    std::uint32_t made[4];
    const std::uint32_t* w = known_;
    if (attempt > 0) {
      random_words(stream_, first_ + static_cast<std::uint64_t>(attempt), 1, made);
      w = made;
    }
    u = unit(w[0], w[1]);
    v = unit(w[2], w[3]);
  }

 private:
  static double unit(std::uint32_t low, std::uint32_t high) {
    const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32 | low) >> 12;
    return (static_cast<double>(bits) + 0.5) * 0x1p-52;
  }
  const Stream& stream_;
  const std::uint64_t first_;
  const std::uint32_t* const known_;
};

// Rates below 10 use inversion; others use transformed rejection (W. Hoermann, "The transformed
// rejection method for generating Poisson random variables", 1993).
double poisson_number(double rate, const Uniforms& uniforms) {
  if (rate == 0) return 0;
  double u, v;
  if (rate < 10) {
    uniforms.pair(0, u, v);
    double p = std::exp(-rate), k = 0;
    for (; u > p && k < 1000; ++k) {
      u -= p;
      p *= rate / (k + 1);
    }
    return k;
  }
  const double root = std::sqrt(rate), b = 0.931 + 2.53 * root, a = -0.059 + 0.02483 * b;
  const double alpha = 1.1239 + 1.1328 / (b - 3.4), sure = 0.9277 - 3.6224 / (b - 2);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    uniforms.pair(attempt, u, v);
    u -= 0.5;
    const double rest = 0.5 - std::abs(u);
    const double k = std::floor((2 * a / rest + b) * u + rate + 0.43);
    if (rest >= 0.07 && v <= sure) return k;
    if (k < 0 || (rest < 0.013 && v > rest)) continue;
    if (std::log(v * alpha / (a / (rest * rest) + b)) <=
        k * std::log(rate) - rate - log_gamma(k + 1)) {
      return k;
    }
  }
  return std::floor(rate);
}

// Precondition: p <= 1/2. Uses inversion if few successes are expected, and otherwise Hoermann's
// method for the binomial distribution ("The generation of binomial random variates", 1993).
double binomial_number(double n, double p, const Uniforms& uniforms) {
  if (n == 0 || p == 0) return 0;
  double u, v;
  const double q = 1 - p;
  if (n * p < 10) {
    uniforms.pair(0, u, v);
    double share = std::exp(n * std::log1p(-p)), k = 0;
    for (; u > share && k < n && k < 1000; ++k) {
      u -= share;
      share *= (n - k) / (k + 1) * (p / q);
    }
    return k;
  }
  const double root = std::sqrt(n * p * q), b = 1.15 + 2.53 * root;
  const double a = -0.0873 + 0.0248 * b + 0.01 * p, centre = n * p + 0.5;
  const double sure = 0.92 - 4.2 / b, alpha = (2.83 + 5.1 / b) * root;
  const double mode = std::floor((n + 1) * p);
  const double peak = log_gamma(mode + 1) + log_gamma(n - mode + 1);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    uniforms.pair(attempt, u, v);
    u -= 0.5;
    const double rest = 0.5 - std::abs(u);
    const double k = std::floor((2 * a / rest + b) * u + centre);
    if (rest >= 0.07 && v <= sure) return k;
    if (k < 0 || k > n) continue;
    if (std::log(v * alpha / (a / (rest * rest) + b)) <=
        peak - log_gamma(k + 1) - log_gamma(n - k + 1) + (k - mode) * std::log(p / q)) {
      return k;
    }
  }
  return mode;
}

// Computes number(i, uniforms) for every element in row-major order and stores it in the result's
// dtype.
template <class F>
Status fill(KernelCall& call, F&& number) {
  const TensorArg& out = call.out[0];
  const core::Attributes& a = call.attributes;
  const Stream stream{static_cast<std::uint64_t>(a.integer(a.size() - 2)),
                      static_cast<std::uint64_t>(a.integer(a.size() - 1))};
  const core::Geometry& g = *out.geometry;
  const StoreBlock<double> store = store_block<double>(out.dtype);
  const auto size = static_cast<std::int64_t>(core::size_of(out.dtype));
  split(call.parallel, g.numel(), 200, 64, [&](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kAtOnce = 64;
    std::uint32_t words[4 * kAtOnce];
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t at = (i - begin) % kAtOnce;
      if (at == 0) {
        random_words_apart(stream, static_cast<std::uint64_t>(i) << kAttemptBits, kAttemptBits,
                           std::min(kAtOnce, end - i), words);
      }
      const double value = number(i, Uniforms(stream, i, words + 4 * at));
      std::int64_t offset = 0, rest = i;
      for (int d = g.rank() - 1; d >= 0; --d) {
        offset += rest % g.shape[d] * g.strides[d];
        rest /= g.shape[d];
      }
      store(&value, 1, out.first<char>() + offset * size, 1);
    }
  });
  return {};
}

Status poisson(KernelCall& call) {
  const TensorArg& x = call.in[0];
  const DenseCopy rates = dense_copy(call, x, x.geometry->shape, DType::kF64);
  if (rates.data == nullptr) return out_of_scratch(call.op.name, rates.bytes);
  const auto* rate = static_cast<const double*>(rates.data);
  for (std::int64_t i = 0, n = x.geometry->numel(); i < n; ++i) {
    if (!(rate[i] >= 0 && std::isfinite(rate[i]))) {
      return core::invalid(
          "poisson: invalid Poisson rate, expected rate to be non-negative; one is " +
          std::to_string(rate[i]));
    }
  }
  return fill(call, [=](std::int64_t i, const Uniforms& uniforms) {
    return poisson_number(rate[i], uniforms);
  });
}

Status binomial(KernelCall& call) {
  const TensorArg& x = call.in[0];
  const DenseCopy counts = dense_copy(call, x, x.geometry->shape, DType::kF64);
  if (counts.data == nullptr) return out_of_scratch(call.op.name, counts.bytes);
  const DenseCopy probs = dense_copy(call, call.in[1], x.geometry->shape, DType::kF64);
  if (probs.data == nullptr) return out_of_scratch(call.op.name, probs.bytes);
  const auto* count = static_cast<const double*>(counts.data);
  const auto* prob = static_cast<const double*>(probs.data);
  for (std::int64_t i = 0, n = x.geometry->numel(); i < n; ++i) {
    if (!(count[i] >= 0 && std::isfinite(count[i]) && prob[i] >= 0 && prob[i] <= 1)) {
      return core::invalid(
          "binomial: count must not be negative and prob be in [0, 1]; one pair is " +
          std::to_string(count[i]) + ", " + std::to_string(prob[i]));
    }
  }
  return fill(call, [=](std::int64_t i, const Uniforms& uniforms) {
    const double n = std::floor(count[i]), p = prob[i];
    return p > 0.5 ? n - binomial_number(n, 1 - p, uniforms) : binomial_number(n, p, uniforms);
  });
}

}  // namespace

void add_random_count_kernels(KernelTable& table) {
  table.add("poisson", poisson);
  table.add("binomial", binomial);
}

}  // namespace teletensor::backends::cpu
