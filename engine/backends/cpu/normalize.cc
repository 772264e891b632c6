// softmax, log_softmax and layer_norm with their derivatives, a row at a time.
#include <cmath>

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/panels.h"
#include "engine/backends/cpu/rows.h"
#include "engine/backends/cpu/rowwise_simd.h"

namespace teletensor::backends::cpu {
namespace {

using core::Status;

// Sum over blocks, in order, of `block(start, n)`.
template <class A, class F>
A block_sum(std::int64_t length, F&& block) {
  A total = 0;
  each_block(length, [&](std::int64_t start, std::int64_t n) { total += block(start, n); });
  return total;
}

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

// ---------------------------------------------------------------- layer_norm

template <class A>
struct Moments {
  A mean = 0, scale = 0;  // scale = 1 / sqrt(variance + eps)
};

template <class A>
Moments<A> moments(const Row<A>& x, std::int64_t length, double eps) {
  const Fold<A>& sum = fold_of<A>(FoldKind::kSum);
  A buffer[kRoom];
  const A count = static_cast<A>(length);
  const A mean =
      block_sum<A>(length, [&](std::int64_t start,
                               std::int64_t n) { return sum.leaf(x.read(start, n, buffer), n); }) /
      count;
  const A variance = block_sum<A>(length,
                                  [&](std::int64_t start, std::int64_t n) {
                                    apply_map<A>(Map::kSquaredDifference, x.read(start, n, buffer),
                                                 n, &mean, 0, 0, buffer);
                                    return sum.leaf(buffer, n);
                                  }) /
                     count;
  return {mean, A(1) / std::sqrt(variance + static_cast<A>(eps))};
}

// Rows of the normalised dimensions: how many elements each, and how many rows.
struct NormRows {
  std::int64_t length = 1, count = 1;
  NormRows(const core::Dims& shape, std::size_t normalized) {
    const int first = shape.size() - static_cast<int>(normalized);
    for (int i = 0; i < shape.size(); ++i) (i < first ? count : length) *= shape[i];
  }
};

template <class A>
Row<A> whole_row(const RowMajor& operand) {
  return operand.absent() ? Row<A>() : Row<A>(operand.arg(), 0, 1);
}

Status layer_norm(KernelCall& call) {
  if (call.in[0].geometry->numel() == 0) return {};
  const NormRows rows(call.in[0].geometry->shape, call.attributes.ints(0).size());
  Status status;
  const RowMajor x(call, call.in[0], status), weight(call, call.in[1], status),
      bias(call, call.in[2], status);
  TT_RETURN_IF_ERROR(status);
  const double eps = call.attributes.real(1);
  with_float_type(call.out[0].dtype, [&](auto a) {
    using A = decltype(a);
    const Row<A> w = whole_row<A>(weight), b = whole_row<A>(bias);
    const Lines lines(core::Dims{rows.count, rows.length}, 1);
    lines.run(call.parallel, 1, [&](std::int64_t i) {
      const Row<A> from(x.arg(), i * rows.length, 1), to(call.out[0], i * rows.length, 1);
      const Moments<A> m = moments(from, rows.length, eps);
      A xs[kRoom], ws[kRoom], bs[kRoom];
      each_block(rows.length, [&](std::int64_t start, std::int64_t n) {
        A* y = to.room(start, xs);
        row_steps<A>().normalize(from.read(start, n, xs), n, m.mean, m.scale, w.read(start, n, ws),
                                 b.read(start, n, bs), y);
        to.write(start, n, y);
      });
    });
  });
  return {};
}

// Gradients of x, weight and bias. With xhat the normalised row and h = g * weight:
// dx = scale * (h - mean(h) - xhat * mean(h * xhat)), dweight = sum(g * xhat), dbias = sum(g).
template <class A>
class LayerNormGradient {
 public:
  LayerNormGradient(const RowMajor& g, const RowMajor& x, const RowMajor& weight,
                    const TensorArg& dx, const NormRows& rows, double eps)
      : g_(g), x_(x), weight_(whole_row<A>(weight)), dx_(dx), rows_(rows), eps_(eps) {}

  // Row i; adds to weight and bias (arrays of a row's length).
  void row(std::int64_t i, A* weight, A* bias) const {
    const Fold<A>& sum = fold_of<A>(FoldKind::kSum);
    const RowSteps<A>& steps = row_steps<A>();
    const Row<A> x(x_.arg(), i * rows_.length, 1), g(g_.arg(), i * rows_.length, 1),
        dx(dx_, i * rows_.length, 1);
    const Moments<A> m = moments(x, rows_.length, eps_);
    A gs[kRoom], xs[kRoom], ws[kRoom], hs[kRoom], hxs[kRoom];
    A mean_h = 0, mean_hx = 0;
    each_block(rows_.length, [&](std::int64_t start, std::int64_t n) {
      steps.normalize_sums(g.read(start, n, gs), x.read(start, n, xs), weight_.read(start, n, ws),
                           n, m.mean, m.scale, weight + start, bias + start, hs, hxs);
      mean_h += sum.leaf(hs, n);
      mean_hx += sum.leaf(hxs, n);
    });
    mean_h /= static_cast<A>(rows_.length);
    mean_hx /= static_cast<A>(rows_.length);
    each_block(rows_.length, [&](std::int64_t start, std::int64_t n) {
      const A* h = hs;  // still there where the row is one block
      if (rows_.length > kLeaf) {
        h = g.read(start, n, gs);
        if (!weight_.absent()) {
          steps.product(h, weight_.read(start, n, ws), n, hs);
          h = hs;
        }
      }
      A* y = dx.room(start, hxs);
      steps.normalize_gradient(h, x.read(start, n, xs), n, m.mean, m.scale, mean_h, mean_hx, y);
      dx.write(start, n, y);
    });
  }

 private:
  const RowMajor& g_;
  const RowMajor& x_;
  const Row<A> weight_;
  const TensorArg& dx_;
  const NormRows rows_;
  const double eps_;
};

template <class A>
Status layer_norm_gradient(KernelCall& call, const RowMajor& g, const RowMajor& x,
                           const RowMajor& weight, const NormRows& rows) {
  // Sums over rows: within a group in order, then group by group. Groups follow from the shape.
  const std::int64_t group = std::max<std::int64_t>(16, 200'000 / rows.length);
  const std::int64_t groups = (rows.count + group - 1) / group;
  const std::size_t bytes = static_cast<std::size_t>(groups * rows.length) * 2 * sizeof(A);
  A* sums = static_cast<A*>(call.scratch.allocate(bytes));
  if (!sums) return out_of_scratch(call.op.name, bytes);
  const LayerNormGradient<A> gradient(g, x, weight, call.out[0], rows, call.attributes.real(1));
  const auto run_group = [&](std::int64_t p) {
    A* weight_sum = sums + p * 2 * rows.length;
    std::fill_n(weight_sum, 2 * rows.length, A(0));
    const std::int64_t end = std::min(rows.count, (p + 1) * group);
    for (std::int64_t i = p * group; i < end; ++i) {
      gradient.row(i, weight_sum, weight_sum + rows.length);
    }
  };
  if (groups > 2) {
    call.parallel.run(groups, run_group);
  } else {
    for (std::int64_t p = 0; p < groups; ++p) run_group(p);
  }
  for (std::int64_t p = 1; p < groups; ++p) {
    row_steps<A>().add(sums + p * 2 * rows.length, 2 * rows.length, sums);
  }
  store_block<A>(call.out[1].dtype)(sums, rows.length, call.out[1].first(), 1);
  store_block<A>(call.out[2].dtype)(sums + rows.length, rows.length, call.out[2].first(), 1);
  return {};
}

Status layer_norm_backward(KernelCall& call) {
  if (call.in[1].geometry->numel() == 0) {
    for (int i = 1; i <= 2; ++i) {
      std::memset(call.out[i].first(), 0,
                  static_cast<std::size_t>(call.out[i].geometry->numel()) *
                      core::size_of(call.out[i].dtype));
    }
    return {};
  }
  const NormRows rows(call.in[1].geometry->shape, call.attributes.ints(0).size());
  Status status;
  const RowMajor g(call, call.in[0], status), x(call, call.in[1], status),
      weight(call, call.in[2], status);
  TT_RETURN_IF_ERROR(status);
  return with_float_type(call.out[0].dtype, [&](auto a) {
    return layer_norm_gradient<decltype(a)>(call, g, x, weight, rows);
  });
}

}  // namespace

void add_normalize_kernels(KernelTable& table) {
  table.add("softmax", softmax<false>);
  table.add("log_softmax", softmax<true>);
  table.add("softmax_backward", softmax_backward<false>);
  table.add("log_softmax_backward", softmax_backward<true>);
  table.add("layer_norm", layer_norm);
  table.add("layer_norm_backward", layer_norm_backward);
}

}  // namespace teletensor::backends::cpu
