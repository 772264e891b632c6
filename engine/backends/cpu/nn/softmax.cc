// Kernels of softmax and log_softmax and their derivatives, one row at a time.
#include <algorithm>
#include <cmath>

#include "engine/backends/cpu/access/panels.h"
#include "engine/backends/cpu/access/rows.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/nn/rowwise_simd.h"

namespace teletensor::backends::cpu {
namespace {

using core::Status;

template <class A>
A maximum(const Row<A>& x, std::int64_t length, A* buffer) {
  const Fold<A>& max = fold_of<A>(FoldKind::kMax);
  A largest = max.identity;
  each_block(length, [&](std::int64_t start, std::int64_t n) {
    largest = max.pair(largest, max.leaf(x.read(start, n, buffer), n));
  });
  return largest;
}

template <class A>
void softmax_row(const Row<A>& x, const Row<A>& y, std::int64_t length) {
  const Fold<A>& sum = fold_of<A>(FoldKind::kSum);
  const RowSteps<A>& steps = row_steps<A>();
  A buffer[kRoom];
  const A largest = maximum(x, length, buffer);
  const A total = block_sum<A>(length, [&](std::int64_t start, std::int64_t n) {
    A* e = y.room(start, buffer);
    apply_map<A>(Map::kExpDifference, x.read(start, n, buffer), n, &largest, 0, 0, e);
    return sum.leaf(e, n);
  });
  const A inverse = A(1) / total;
  const bool kept = y.direct() || length <= kLeaf;  // the exponentials are still available
  each_block(length, [&](std::int64_t start, std::int64_t n) {
    A* e = y.room(start, buffer);
    if (!kept) {
      apply_map<A>(Map::kExpDifference, x.read(start, n, buffer), n, &largest, 0, 0, e);
    }
    steps.scale(e, n, inverse, e);
    y.write(start, n, e);
  });
}

template <class A>
void log_softmax_row(const Row<A>& x, const Row<A>& y, std::int64_t length) {
  const Fold<A>& sum = fold_of<A>(FoldKind::kSum);
  const RowSteps<A>& steps = row_steps<A>();
  A buffer[kRoom];
  const A largest = maximum(x, length, buffer);
  const A total = block_sum<A>(length, [&](std::int64_t start, std::int64_t n) {
    apply_map<A>(Map::kExpDifference, x.read(start, n, buffer), n, &largest, 0, 0, buffer);
    return sum.leaf(buffer, n);
  });
  const A log_total = std::log(total);
  each_block(length, [&](std::int64_t start, std::int64_t n) {
    A* to = y.room(start, buffer);
    steps.shift(x.read(start, n, buffer), n, largest, log_total, to);
    y.write(start, n, to);
  });
}

// y = p * (g - sum(g * p)), where p is the softmax.
template <class A>
void softmax_gradient_row(const Row<A>& g, const Row<A>& p, const Row<A>& y, std::int64_t length) {
  const Fold<A>& sum = fold_of<A>(FoldKind::kSum);
  const RowSteps<A>& steps = row_steps<A>();
  A a[kRoom], b[kRoom], c[kRoom];
  const A dot = block_sum<A>(length, [&](std::int64_t start, std::int64_t n) {
    steps.product(g.read(start, n, a), p.read(start, n, b), n, c);
    return sum.leaf(c, n);
  });
  each_block(length, [&](std::int64_t start, std::int64_t n) {
    A* to = y.room(start, c);
    steps.softmax_gradient(g.read(start, n, a), p.read(start, n, b), n, dot, to);
    y.write(start, n, to);
  });
}

// y = g - exp(l) * sum(g), where l is the log-softmax.
template <class A>
void log_softmax_gradient_row(const Row<A>& g, const Row<A>& l, const Row<A>& y,
                              std::int64_t length) {
  const Fold<A>& sum = fold_of<A>(FoldKind::kSum);
  const RowSteps<A>& steps = row_steps<A>();
  A a[kRoom], b[kRoom], c[kRoom];
  const A total = block_sum<A>(
      length, [&](std::int64_t start, std::int64_t n) { return sum.leaf(g.read(start, n, a), n); });
  const A zero = 0;
  each_block(length, [&](std::int64_t start, std::int64_t n) {
    apply_map<A>(Map::kExpDifference, l.read(start, n, b), n, &zero, 0, 0, b);
    A* to = y.room(start, c);
    steps.minus_scaled(g.read(start, n, a), b, n, total, to);
    y.write(start, n, to);
  });
}

// Columns of a row-major matrix, processed in strips of adjacent columns without transposing them:
// every step reads and writes runs of kStrip elements. In both tensors the last dimension is dense.
template <class A>
class Strips {
 public:
  static constexpr std::int64_t kStrip = 256;

  static bool wanted(const KernelCall& call, std::int64_t dim) {
    const core::Geometry &x = *call.in[0].geometry, &y = *call.out[0].geometry;
    return Panels<A>::wanted(y.shape, dim) && call.in[0].dtype == call.out[0].dtype &&
           call.out[0].dtype ==
               core::DType(std::is_same_v<A, float> ? core::DType::kF32 : core::DType::kF64) &&
           x.strides.back() == 1 && y.strides.back() == 1 && y.shape.back() >= 32;
  }

  template <bool kLog>
  static void run(KernelCall& call, std::int64_t dim) {
    const Lines lines(call.out[0].geometry->shape, dim);
    const std::int64_t columns = call.out[0].geometry->shape.back();
    const std::int64_t across = (columns + kStrip - 1) / kStrip;
    const std::int64_t strips = lines.count() / columns * across;
    const double cost = static_cast<double>(lines.length() * kStrip) * 2;
    split(call.parallel, strips, cost, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t first = i / across * columns + i % across * kStrip;
        strip<kLog>(call, lines, first, std::min(kStrip, columns - first % columns));
      }
    });
  }

 private:
  template <bool kLog>
  static void strip(KernelCall& call, const Lines& lines, std::int64_t first, std::int64_t width) {
    const core::Geometry &gx = *call.in[0].geometry, &gy = *call.out[0].geometry;
    const A* const x = call.in[0].first<const A>() + lines.offset(gx, first);
    A* const y = call.out[0].first<A>() + lines.offset(gy, first);
    const std::int64_t step = lines.stride(gx), to = lines.stride(gy), n = lines.length();
    A most[kStrip], total[kStrip] = {}, power[kStrip], lost[kStrip] = {};
    std::copy_n(x, width, most);
    for (std::int64_t r = 1; r < n; ++r) {
      const A* const row = x + r * step;
      for (std::int64_t c = 0; c < width; ++c) {
        const A larger = row[c] > most[c] ? row[c] : most[c];
        most[c] = row[c] != row[c] ? row[c] : larger;
      }
    }
    const A zero = 0;
    for (std::int64_t r = 0; r < n; ++r) {
      const A* const row = x + r * step;
      A* const e = kLog ? power : y + r * to;
      for (std::int64_t c = 0; c < width; ++c) e[c] = row[c] - most[c];
      apply_map<A>(Map::kExpDifference, e, width, &zero, 0, 0, e);
      for (std::int64_t c = 0; c < width; ++c) {  // Kahan summation
        const A part = e[c] - lost[c], sum = total[c] + part;
        lost[c] = (sum - total[c]) - part;
        total[c] = sum;
      }
    }
    for (std::int64_t c = 0; c < width; ++c) {
      total[c] = kLog ? std::log(total[c]) : A(1) / total[c];
    }
    for (std::int64_t r = 0; r < n; ++r) {
      const A* const row = x + r * step;
      A* const out = y + r * to;
      for (std::int64_t c = 0; c < width; ++c) {
        out[c] = kLog ? (row[c] - most[c]) - total[c] : out[c] * total[c];
      }
    }
  }
};

template <class A>
Row<A> line_row(const TensorArg& arg, const Lines& lines, std::int64_t i) {
  return Row<A>(arg, lines.offset(*arg.geometry, i), lines.stride(*arg.geometry));
}

template <bool kLog>
Status softmax(KernelCall& call) {
  const Lines lines(call.in[0].geometry->shape, call.attributes.integer(0));
  if (lines.length() == 0) return {};
  return with_float_type(call.out[0].dtype, [&](auto a) -> Status {
    using A = decltype(a);
    const std::int64_t dim = call.attributes.integer(0);
    if (Strips<A>::wanted(call, dim)) {
      Strips<A>::template run<kLog>(call, dim);
      return {};
    }
    if (Panels<A>::wanted(call.out[0].geometry->shape, dim)) {
      return Panels<A>(call, dim).template run<1>([&](const auto& line) {
        const Row<A> x(line[0]);
        kLog ? log_softmax_row(x, x, lines.length()) : softmax_row(x, x, lines.length());
      });
    }
    lines.run(call.parallel, 2, [&](std::int64_t i) {
      const Row<A> x = line_row<A>(call.in[0], lines, i), y = line_row<A>(call.out[0], lines, i);
      kLog ? log_softmax_row(x, y, lines.length()) : softmax_row(x, y, lines.length());
    });
    return {};
  });
}

template <bool kLog>
Status softmax_backward(KernelCall& call) {
  const Lines lines(call.in[0].geometry->shape, call.attributes.integer(0));
  if (lines.length() == 0) return {};
  return with_float_type(call.out[0].dtype, [&](auto a) -> Status {
    using A = decltype(a);
    if (Panels<A>::wanted(call.out[0].geometry->shape, call.attributes.integer(0))) {
      return Panels<A>(call, call.attributes.integer(0)).template run<2>([&](const auto& line) {
        const Row<A> g(line[0]), p(line[1]);
        kLog ? log_softmax_gradient_row(g, p, g, lines.length())
             : softmax_gradient_row(g, p, g, lines.length());
      });
    }
    lines.run(call.parallel, 2, [&](std::int64_t i) {
      const Row<A> g = line_row<A>(call.in[0], lines, i), p = line_row<A>(call.in[1], lines, i),
                   y = line_row<A>(call.out[0], lines, i);
      kLog ? log_softmax_gradient_row(g, p, y, lines.length())
           : softmax_gradient_row(g, p, y, lines.length());
    });
    return {};
  });
}

}  // namespace

void add_softmax_kernels(KernelTable& table) {
  table.add("softmax", softmax<false>);
  table.add("log_softmax", softmax<true>);
  table.add("softmax_backward", softmax_backward<false>);
  table.add("log_softmax_backward", softmax_backward<true>);
}

}  // namespace teletensor::backends::cpu
