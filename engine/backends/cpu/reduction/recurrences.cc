// Kernels of cummax, cummin, logcumsumexp and linear recurrences. They are sequential along the
// dimension; lines run in parallel.
#include <algorithm>
#include <cmath>

#include "engine/backends/cpu/access/line_io.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/cpu.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::Status;

constexpr std::int64_t kPanel = 256;  // number of adjacent lines that are processed together

constexpr std::int64_t kRun = 16;  // elements of a line that are checked together first

template <class A, bool kLargest>
bool none_better(const A* x, A best) {
  int worse = 0;
  for (std::int64_t i = 0; i < kRun; ++i) worse += kLargest ? x[i] < best : x[i] > best;
  return worse == kRun;
}

template <class A, bool kLargest>
void extremum_line(const Line<A>& x, const Line<A>& values, const Line<std::int64_t>& indices,
                   std::int64_t n) {
  constexpr std::int64_t kBlock = 512;
  A values_buffer[kBlock];
  std::int64_t places_buffer[kBlock];
  A best = x.at(0);
  std::int64_t at = 0;
  for (std::int64_t done = 0; done < n; done += kBlock) {
    const std::int64_t count = std::min(kBlock, n - done);
    A* const block = values.room(done, values_buffer);
    std::int64_t* const places = indices.room(done, places_buffer);
    x.load(done, count, block);
    for (std::int64_t i = 0; i < count; ++i) {
      if (i % kRun == 0 && i + kRun <= count && none_better<A, kLargest>(block + i, best)) {
        std::fill_n(block + i, kRun, best);
        std::fill_n(places + i, kRun, at);
        i += kRun - 1;
        continue;
      }
      const A value = block[i];
      const bool better = kLargest ? value >= best : value <= best;
      if ((value != value) | ((best == best) & better)) {
        best = value;
        at = done + i;
      }
      block[i] = best;
      places[i] = at;
    }
    if (block == values_buffer) values.store(done, count, block);
    if (places == places_buffer) indices.store(done, count, places);
  }
}

// Processes `width` adjacent lines from line `first` on, one row of all of them at a time.
template <class A, bool kLargest>
void extremum_lines(KernelCall& call, const Lines& lines, std::int64_t first, std::int64_t width) {
  A best[kPanel], row[kPanel];
  std::int64_t at[kPanel] = {};
  const TensorArg &x = call.in[0], &values = call.out[0], &indices = call.out[1];
  const auto step = [&](const TensorArg& t) {
    return lines.stride(*t.geometry) * static_cast<std::int64_t>(core::size_of(t.dtype));
  };
  const auto start = [&](const TensorArg& t) {
    return t.first<char>() +
           lines.offset(*t.geometry, first) * static_cast<std::int64_t>(core::size_of(t.dtype));
  };
  const LoadBlock<A> load = load_block<A>(x.dtype);
  const StoreBlock<A> store = store_block<A>(values.dtype);
  const char* from = start(x);
  char *to = start(values), *places = start(indices);
  load(from, x.geometry->strides.back(), width, best);
  for (std::int64_t r = 0; r < lines.length(); ++r) {
    load(from, x.geometry->strides.back(), width, row);
    for (std::int64_t c = 0; c < width; ++c) {
      const A value = row[c], so_far = best[c];
      const bool better = kLargest ? value >= so_far : value <= so_far;
      const bool take = (value != value) | ((so_far == so_far) & better);
      best[c] = take ? value : so_far;
      at[c] = take ? r : at[c];
    }
    store(best, width, to, values.geometry->strides.back());
    auto* const found = reinterpret_cast<std::int64_t*>(places);
    const std::int64_t apart = indices.geometry->strides.back();
    for (std::int64_t c = 0; c < width; ++c) found[c * apart] = at[c];
    from += step(x);
    to += step(values);
    places += step(indices);
  }
}

template <bool kLargest>
Status cumulative_extremum(KernelCall& call) {
  const Dims& shape = call.in[0].geometry->shape;
  const Lines lines(shape, call.attributes.integer(0));
  const int rank = shape.size();
  const std::int64_t given = call.attributes.integer(0);
  if (rank >= 2 && (given < 0 ? given + rank : given) != rank - 1 && shape.back() >= 4 &&
      lines.length() > 0) {
    const std::int64_t columns = shape.back(), across = (columns + kPanel - 1) / kPanel;
    const double cost = static_cast<double>(lines.length() * std::min(columns, kPanel)) * 1.5;
    split(call.parallel, lines.count() / columns * across, cost, 1,
          [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
              const std::int64_t at = i % across * kPanel;
              with_compute_type(call.in[0].dtype, [&](auto a) {
                extremum_lines<decltype(a), kLargest>(call, lines, i / across * columns + at,
                                                      std::min(kPanel, columns - at));
              });
            }
          });
    return {};
  }
  with_compute_type(call.in[0].dtype, [&](auto a) {
    using A = decltype(a);
    lines.run(call.parallel, 8, [&](std::int64_t i) {
      extremum_line<A, kLargest>(Line<A>(call.in[0], lines, i), Line<A>(call.out[0], lines, i),
                                 Line<std::int64_t>(call.out[1], lines, i), lines.length());
    });
  });
  return {};
}

// Calls `line(number, n)` for every line of n elements, in the compute type of the result.
template <class F>
Status floating_lines(KernelCall& call, std::int64_t cost, F&& line) {
  const Lines lines(call.in[0].geometry->shape, call.attributes.integer(0));
  with_float_type(call.out[0].dtype, [&](auto a) {
    lines.run(call.parallel, cost, [&](std::int64_t i) { line(a, lines, i); });
  });
  return {};
}

// Float32 results would stop growing after some millions of equal elements.
template <class A>
using Precise = std::conditional_t<std::is_same_v<A, float>, double, A>;

Status logcumsumexp(KernelCall& call) {
  return floating_lines(call, 30, [&](auto a, const Lines& lines, std::int64_t number) {
    using A = decltype(a);
    const Line<A> x(call.in[0], lines, number), y(call.out[0], lines, number);
    using R = Precise<A>;
    R sum = -std::numeric_limits<R>::infinity();
    for (std::int64_t i = 0; i < lines.length(); ++i) {
      const R value = x.at(i);
      if (value != value || sum != sum) {
        sum = std::numeric_limits<R>::quiet_NaN();
      } else {
        const R most = std::max(value, sum), least = std::min(value, sum);
        sum = std::isinf(most) ? most : most + std::log1p(std::exp(least - most));
      }
      y.set(i, static_cast<A>(sum));
    }
  });
}

// exp(x - y), or 0 if nothing has been summed.
template <class A>
A weight(A x, A y) {
  return x == -std::numeric_limits<A>::infinity() ? A(0) : std::exp(x - y);
}

Status logcumsumexp_weighted(KernelCall& call) {
  const bool reverse = call.attributes.boolean(1);
  return floating_lines(call, 30, [&](auto a, const Lines& lines, std::int64_t number) {
    using A = decltype(a);
    const Line<A> g(call.in[0], lines, number), x(call.in[1], lines, number),
        y(call.in[2], lines, number), out(call.out[0], lines, number);
    const std::int64_t n = lines.length();
    Precise<A> sum = 0;
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t i = reverse ? n - 1 - k : k;
      if (reverse) {
        if (k > 0) sum *= weight(y.at(i), y.at(i + 1));
        sum += g.at(i);
        out.set(i, static_cast<A>(sum * weight(x.at(i), y.at(i))));
      } else {
        if (k > 0) sum *= weight(y.at(i - 1), y.at(i));
        sum += g.at(i) * weight(x.at(i), y.at(i));
        out.set(i, static_cast<A>(sum));
      }
    }
  });
}

Status linear_recurrence(KernelCall& call) {
  const bool reverse = call.attributes.boolean(1), own = call.attributes.boolean(2);
  const Lines lines(call.in[0].geometry->shape, call.attributes.integer(0));
  const std::int64_t n = lines.length(), step = reverse ? -1 : 1;
  with_inexact_type(call.out[0].dtype, [&](auto a) {
    using A = decltype(a);
    lines.run(call.parallel, 10, [&](std::int64_t number) {
      const Line<A> factor(call.in[0], lines, number), b(call.in[1], lines, number),
          out(call.out[0], lines, number);
      std::int64_t i = reverse ? n - 1 : 0;
      A sum{};
      for (std::int64_t k = 0; k < n; ++k, i += step) {
        sum = k == 0 ? b.at(i) : factor.at(own ? i : i - step) * sum + b.at(i);
        out.set(i, sum);
      }
    });
  });
  return {};
}

}  // namespace

void add_recurrence_kernels(KernelTable& table) {
  table.add("cummax", cumulative_extremum<true>);
  table.add("cummin", cumulative_extremum<false>);
  table.add("logcumsumexp", logcumsumexp);
  table.add("logcumsumexp_weighted", logcumsumexp_weighted);
  table.add("linear_recurrence", linear_recurrence);
}

}  // namespace teletensor::backends::cpu
