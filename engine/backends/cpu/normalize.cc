// softmax and log_softmax with their derivatives, a row at a time.
#include <cmath>

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/panels.h"
#include "engine/backends/cpu/rows.h"
#include "engine/backends/cpu/rowwise_simd.h"

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
  const bool kept = y.direct() || length <= kLeaf;  // the exponentials are still there
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

// y = p * (g - sum(g * p)) with p the softmax.
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

// y = g - exp(l) * sum(g) with l the log-softmax.
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
    if (Panels<A>::wanted(call.out[0].geometry->shape, call.attributes.integer(0))) {
      return Panels<A>(call, call.attributes.integer(0)).template run<1>([&](const auto& line) {
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

void add_normalize_kernels(KernelTable& table) {
  table.add("softmax", softmax<false>);
  table.add("log_softmax", softmax<true>);
  table.add("softmax_backward", softmax_backward<false>);
  table.add("log_softmax_backward", softmax_backward<true>);
}

}  // namespace teletensor::backends::cpu
