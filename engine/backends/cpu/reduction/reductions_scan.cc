// Kernels of scans along one dimension: cumsum, reverse_cumsum, cumprod, and helpers for the
// gradients of products. They are sequential along the dimension, with the bits of a plain loop
// whose running result has double precision; lines run in parallel.
#include <algorithm>
#include <array>

#include "engine/backends/cpu/access/line_io.h"
#include "engine/backends/cpu/access/panels.h"
#include "engine/backends/cpu/cpu.h"

namespace teletensor::backends::cpu {
namespace {

using core::Complex128;
using core::Complex64;
using core::Status;

template <class A>
A add(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}
template <class A>
A multiply(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

enum class Scan { kSum, kReverseSum, kProduct };

// The type of the running result. A sum of float32 numbers would stop growing at 2^24 times the
// size of an element, and products would lose a bit at each step.
template <class A>
using Running = std::conditional_t<std::is_same_v<A, float>, double,
                                   std::conditional_t<std::is_same_v<A, Complex64>, Complex128, A>>;

template <class To, class From>
To converted(From x) {
  if constexpr (core::kIsComplex<From>) {
    using T = decltype(To::re);
    return {static_cast<T>(x.re), static_cast<T>(x.im)};
  } else {
    return static_cast<To>(x);
  }
}

// Processes several lines at the same time, because each element has to wait only for the previous
// result of its own line.
template <class A, Scan kScan, std::size_t kLines>
void scan_lines(const std::array<Line<A>, kLines>& x, const std::array<Line<A>, kLines>& y,
                std::int64_t length) {
  constexpr std::int64_t kBlock = 1024;
  constexpr bool kReverse = kScan == Scan::kReverseSum;
  // With a distance of a power of two, blocks would share cache sets.
  A buffer[kLines][kBlock + 16];
  using R = Running<A>;
  R running[kLines];
  std::fill_n(running, kLines, kScan == Scan::kProduct ? R(1) : R(0));
  for (std::int64_t done = 0; done < length; done += kBlock) {
    const std::int64_t n = std::min(kBlock, length - done);
    const std::int64_t start = kReverse ? length - done - n : done;
    for (std::size_t k = 0; k < kLines; ++k) x[k].load(start, n, buffer[k]);
    for (std::int64_t j = 0; j < n; ++j) {
#pragma GCC unroll 4
      for (std::size_t k = 0; k < kLines; ++k) {
        A& value = buffer[k][kReverse ? n - 1 - j : j];
        const R next = converted<R>(value);
        running[k] = kScan == Scan::kProduct ? multiply(running[k], next) : add(running[k], next);
        value = converted<A>(running[k]);
      }
    }
    for (std::size_t k = 0; k < kLines; ++k) y[k].store(start, n, buffer[k]);
  }
}

template <Scan kScan>
Status scan(KernelCall& call) {
  const std::int64_t dim = call.attributes.integer(0);
  const Lines lines(call.in[0].geometry->shape, dim);
  return with_any_compute_type(call.out[0].dtype, [&](auto a) -> Status {
    using A = decltype(a);
    if (Panels<A>::wanted(call.out[0].geometry->shape, dim)) {
      return Panels<A>(call, dim).template run<1>([&](const auto& line) {
        const std::array<Line<A>, 1> own{Line<A>(line[0])};
        scan_lines<A, kScan>(own, own, lines.length());
      });
    }
    const auto line = [&](const TensorArg& arg, std::int64_t i) { return Line<A>(arg, lines, i); };
    const auto four = [&](const TensorArg& arg, std::int64_t i) {
      return std::array{line(arg, i), line(arg, i + 1), line(arg, i + 2), line(arg, i + 3)};
    };
    lines.ranges(call.parallel, 2, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t i = begin;
      for (; i + 4 <= end; i += 4) {
        scan_lines<A, kScan>(four(call.in[0], i), four(call.out[0], i), lines.length());
      }
      for (; i < end; ++i) {
        scan_lines<A, kScan>(std::array{line(call.in[0], i)}, std::array{line(call.out[0], i)},
                             lines.length());
      }
    });
    return {};
  });
}

// y[i] = product of x[j] over j != i. If x has one zero, only the element at that position is not
// 0; if x has two, all are 0.
template <class A>
void others(const Line<A>& x, const Line<A>& y, std::int64_t length) {
  std::int64_t zeros = 0, zero_at = 0;
  A product(1);
  for (std::int64_t i = 0; i < length; ++i) {
    const A value = x.at(i);
    if (value == A(0)) {
      ++zeros;
      zero_at = i;
    } else {
      product *= value;
    }
  }
  for (std::int64_t i = 0; i < length; ++i) {
    const bool only_zero = zeros == 1 && i == zero_at;
    y.set(i, zeros == 0 ? product / x.at(i) : only_zero ? product : A(0));
  }
}

Status product_of_others(KernelCall& call) {
  const Lines lines(call.in[0].geometry->shape, call.attributes.integer(0));
  with_inexact_type(call.out[0].dtype, [&](auto a) {
    using A = decltype(a);
    lines.run(call.parallel, 8, [&](std::int64_t i) {
      others(Line<A>(call.in[0], lines, i), Line<A>(call.out[0], lines, i), lines.length());
    });
  });
  return {};
}

// dx[j] = sum over i >= j of g[i] * (product of x[k] over k <= i, k != j). The sums stop at the
// first zero of x; the sum for the zero itself stops at the second.
template <class A>
void cumprod_gradient(const Line<A>& g, const Line<A>& x, const Line<A>& dx, std::int64_t n) {
  std::int64_t zero = 0;
  A before(1);  // product of the elements before the first zero
  for (; zero < n; ++zero) {
    const A value = x.at(zero);
    if (value == A(0)) break;
    before *= value;
    dx.set(zero, before * g.at(zero));  // contains g * y until the next loop
  }
  A sum(0);
  for (std::int64_t j = zero - 1; j >= 0; --j) {
    sum += dx.at(j);
    dx.set(j, sum / x.at(j));
  }
  if (zero == n) return;
  A product = before, at_zero(0);
  for (std::int64_t i = zero; i < n; ++i) {
    if (i > zero) {
      const A value = x.at(i);
      if (value == A(0)) break;
      product *= value;
    }
    at_zero += g.at(i) * product;
  }
  dx.set(zero, at_zero);
  for (std::int64_t j = zero + 1; j < n; ++j) dx.set(j, A(0));
}

Status cumprod_backward(KernelCall& call) {
  const Lines lines(call.in[0].geometry->shape, call.attributes.integer(0));
  with_inexact_type(call.out[0].dtype, [&](auto a) {
    using A = decltype(a);
    lines.run(call.parallel, 10, [&](std::int64_t i) {
      cumprod_gradient(Line<A>(call.in[0], lines, i), Line<A>(call.in[1], lines, i),
                       Line<A>(call.out[0], lines, i), lines.length());
    });
  });
  return {};
}

}  // namespace

void add_scan_kernels(KernelTable& table) {
  table.add("cumsum", scan<Scan::kSum>);
  table.add("reverse_cumsum", scan<Scan::kReverseSum>);
  table.add("cumprod", scan<Scan::kProduct>);
  table.add("product_of_others", product_of_others);
  table.add("cumprod_backward", cumprod_backward);
}

}  // namespace teletensor::backends::cpu
