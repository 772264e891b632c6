// Special functions of float32 (and narrower) numbers from tables of polynomials. The polynomials
// interpolate the float64 function, cell by cell, with an error far below the precision of float32.
// A table is computed from the function itself when it is first used.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace teletensor::backends::cpu {

enum class Symmetry : std::uint8_t { kNone, kPositive, kEven, kOdd };

// The range in which a function is computed from its table; outside of it the function is called.
// It is also called if the result is smaller than `least_result`, because near a zero only the
// function itself is accurate enough (with kNone, this is checked only for negative arguments).
struct TableRange {
  int least;  // from 2^least
  int most;   // up to 2^most
  Symmetry symmetry;
  double least_result = 0;
};

class SpecialTable {
 public:
  static constexpr int kTerms = 8;
  static constexpr int kCellBits = 4;  // log2 of the number of cells per octave

  template <class F>
  SpecialTable(const TableRange& range, F&& f)
      : first_(static_cast<std::uint32_t>(range.least + 127) << kCellBits),
        cells_(static_cast<std::uint32_t>(range.most - range.least) << kCellBits),
        least_result_(range.least_result),
        symmetry_(range.symmetry) {
    const bool both = symmetry_ == Symmetry::kNone;
    for (std::uint32_t i = 0; i < cells_ * (both ? 2 : 1); ++i) {
      const std::uint32_t bits = (first_ + i % cells_) << kShift;
      const double from = std::bit_cast<float>(bits);
      const double half = (std::bit_cast<float>(bits + (1u << kShift)) - from) / 2;
      table_.push_back(fitted(i < cells_ ? from + half : -(from + half), half, f));
    }
  }

  // Computes f(x) for each element.
  template <class F>
  void run(const float* a, float* y, std::int64_t n, F&& f) const {
    const bool both = symmetry_ == Symmetry::kNone, folded = !both;
    const std::uint32_t refused = symmetry_ == Symmetry::kPositive ? 0x80000000u : 0u;
    const std::uint32_t flip = symmetry_ == Symmetry::kOdd ? 0x80000000u : 0u;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(a[i]), size = bits & 0x7fffffffu;
      const std::uint32_t cell = (size >> kShift) - first_;
      if (cell >= cells_ || (bits & refused) != 0) {
        y[i] = static_cast<float>(f(static_cast<double>(a[i])));
        continue;
      }
      const std::uint32_t used = folded ? size : bits;
      const std::uint32_t middle = (used & ~((1u << kShift) - 1)) | (1u << (kShift - 1));
      const double t = static_cast<double>(std::bit_cast<float>(used)) -
                       static_cast<double>(std::bit_cast<float>(middle));
      const double r = table_[both && (bits >> 31) != 0 ? cell + cells_ : cell].at(t);
      if (std::abs(r) < least_result_ && (folded || (bits >> 31) != 0)) {
        y[i] = static_cast<float>(f(static_cast<double>(a[i])));
        continue;
      }
      const float rounded = static_cast<float>(r);
      y[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounded) ^ (bits & flip));
    }
  }

 private:
  static constexpr int kShift = 23 - kCellBits;
  // A polynomial whose lower and upper half are evaluated in parallel.
  struct alignas(64) Cell {
    using Halves = double __attribute__((vector_size(16)));
    Halves terms[kTerms / 2];
    double at(double t) const {
      const double t2 = t * t;
      const Halves r = (terms[0] + terms[1] * t) + (terms[2] + terms[3] * t) * t2;
      return r[0] + r[1] * (t2 * t2);
    }
  };

  // The polynomial in x - middle that interpolates f at Chebyshev's nodes.
  template <class F>
  static Cell fitted(double middle, double half, F&& f) {
    constexpr double kPi = 3.14159265358979323846;
    double at[kTerms], chebyshev[kTerms] = {};
    for (int j = 0; j < kTerms; ++j) at[j] = f(middle + half * std::cos(kPi * (j + 0.5) / kTerms));
    for (int k = 0; k < kTerms; ++k) {
      for (int j = 0; j < kTerms; ++j) {
        chebyshev[k] += at[j] * std::cos(kPi * k * (j + 0.5) / kTerms) * (k == 0 ? 1 : 2) / kTerms;
      }
    }
    // Converts to powers with the recurrence T_k+1 = 2 x T_k - T_k-1.
    double before[kTerms] = {}, now[kTerms] = {1};
    double terms[kTerms] = {};
    double scale = 1;
    for (int k = 0; k < kTerms; ++k) {
      for (int j = 0; j < kTerms; ++j) terms[j] += chebyshev[k] * now[j];
      double next[kTerms];
      for (int j = 0; j < kTerms; ++j) {
        next[j] = (k == 0 ? 1 : 2) * (j > 0 ? now[j - 1] : 0) - before[j];
      }
      for (int j = 0; j < kTerms; ++j) before[j] = now[j], now[j] = next[j];
    }
    Cell cell{};
    for (int k = 0; k < kTerms; ++k) {
      cell.terms[k % 4][k / 4] = terms[k] * scale;
      scale /= half;
    }
    return cell;
  }

  std::uint32_t first_, cells_;
  double least_result_;
  Symmetry symmetry_;
  std::vector<Cell> table_;
};

}  // namespace teletensor::backends::cpu
