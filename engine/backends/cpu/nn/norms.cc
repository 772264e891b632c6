// Kernels of layer_norm, one row at a time, of batch_norm, one channel at a time, and of their
// derivatives.
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/backends/cpu/access/dense.h"
#include "engine/backends/cpu/access/rows.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/nn/rowwise_simd.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::Geometry;
using core::Status;

// Fills the statistics of an empty reduction: the mean is 0, the other statistics are NaN.
Status fill_statistics(KernelCall& call, int count) {
  TensorArg number;
  number.kind = TensorArg::Kind::kNumber;
  for (int i = 1; i <= count; ++i) {
    number.number = core::Number::of_float(i == 1 ? 0.0 : std::numeric_limits<double>::quiet_NaN());
    if (call.out[i].geometry->numel() > 0) strided_copy(number, call.out[i], call.parallel);
  }
  return {};
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

// The rows over the normalised dimensions: their length and their number.
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
  if (call.in[0].geometry->numel() == 0) return fill_statistics(call, 2);
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
    A *const means = call.out[1].first<A>(), *const scales = call.out[2].first<A>();
    lines.run(call.parallel, 1, [&](std::int64_t i) {
      const Row<A> from(x.arg(), i * rows.length, 1), to(call.out[0], i * rows.length, 1);
      const Moments<A> m = moments(from, rows.length, eps);
      means[i] = m.mean;
      scales[i] = m.scale;
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

// The gradients of x, weight and bias. With xhat the normalised row and h = g * weight: dx = scale
// * (h - mean(h) - xhat * mean(h * xhat)), dweight = sum(g * xhat), dbias = sum(g).
template <class A>
class LayerNormGradient {
 public:
  LayerNormGradient(const RowMajor& g, const RowMajor& x, const RowMajor& weight,
                    const TensorArg& dx, const NormRows& rows, const A* means, const A* scales)
      : g_(g),
        x_(x),
        weight_(whole_row<A>(weight)),
        dx_(dx),
        rows_(rows),
        means_(means),
        scales_(scales) {}

  // Processes row i and adds to the gradients of weight and bias (arrays of a row's length).
  void row(std::int64_t i, A* weight, A* bias) const {
    const Fold<A>& sum = fold_of<A>(FoldKind::kSum);
    const RowSteps<A>& steps = row_steps<A>();
    const Row<A> x(x_.arg(), i * rows_.length, 1), g(g_.arg(), i * rows_.length, 1),
        dx(dx_, i * rows_.length, 1);
    const Moments<A> m{means_[i], scales_[i]};
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
      const A* h = hs;  // still available if the row is one block
      if (rows_.length > kLeaf) {
        h = g.read(start, n, gs);
        if (!weight_.absent()) {
          steps.product(h, weight_.read(start, n, ws), n, hs);
          h = hs;
        }
      }
      A* y = dx.room(start, hxs);
      steps.normalize_gradient(h, x.read(start, n, xs), n, m.mean, m.scale, mean_h, mean_hx, A(1),
                               y);
      dx.write(start, n, y);
    });
  }

 private:
  const RowMajor& g_;
  const RowMajor& x_;
  const Row<A> weight_;
  const TensorArg& dx_;
  const NormRows rows_;
  const A *const means_, *const scales_;
};

template <class A>
Status layer_norm_gradient(KernelCall& call, const RowMajor& g, const RowMajor& x,
                           const RowMajor& weight, const NormRows& rows) {
  // Sums over rows: in order within a group, and then the groups in order. The groups depend only
  // on the shape.
  const std::int64_t group = std::max<std::int64_t>(16, 200'000 / rows.length);
  const std::int64_t groups = (rows.count + group - 1) / group;
  const std::size_t bytes = scratch_bytes(groups, rows.length, 2 * sizeof(A));
  A* sums = static_cast<A*>(call.scratch.allocate(bytes));
  if (!sums) return out_of_scratch(call.op.name, bytes);
  core::Status status;
  const Dense<A> means(call, call.in[3], true, status), scales(call, call.in[4], true, status);
  TT_RETURN_IF_ERROR(status);
  const LayerNormGradient<A> gradient(g, x, weight, call.out[0], rows, means.memory(),
                                      scales.memory());
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

// ---------------------------------------------------------------- batch_norm

// The elements of each channel of [N, C, ...]: `runs` rows of `length` elements. Short rows are
// copied into one row.
struct ChannelRuns {
  std::int64_t batch, channels, area = 1, runs, length;
  explicit ChannelRuns(const Dims& x) : batch(x[0]), channels(x[1]) {
    for (int d = 2; d < x.size(); ++d) area *= x[d];
    const bool gathered = area < 16;
    runs = gathered ? 1 : batch;
    length = gathered ? batch * area : area;
  }
  bool gathered() const { return runs == 1 && length != area; }
  double ns() const {
    return static_cast<double>(batch) * static_cast<double>(channels) * static_cast<double>(area);
  }
};

template <class A>
class Channels {
 public:
  Channels(KernelCall& call, const TensorArg& arg, const ChannelRuns& runs, bool read,
           Status& status)
      : call_(call), arg_(arg), own_(arg), runs_(runs) {
    if (!runs.gathered() && arg.geometry->contiguous()) return;
    const Dims& shape = arg.geometry->shape;
    geometry_ = Geometry(shape);
    if (runs.gathered()) {  // order in memory: [C, N, ...]
      geometry_.strides[1] = runs.length;
      geometry_.strides[0] = runs.area;
    }
    const std::size_t bytes = scratch_bytes(arg.geometry->numel(), core::size_of(arg.dtype));
    own_.data = call.scratch.allocate(bytes);
    own_.geometry = &geometry_;
    if (!own_.data) {
      status = out_of_scratch(call.op.name, bytes);
      return;
    }
    copied_ = true;
    if (read) strided_copy(arg, own_, call.parallel);
  }
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;
  Row<A> row(std::int64_t channel, std::int64_t run) const {
    const std::int64_t at =
        runs_.gathered() ? channel * runs_.length : (run * runs_.channels + channel) * runs_.area;
    return Row<A>(own_, at, 1);
  }
  void store() const {
    if (copied_) strided_copy(own_, arg_, call_.parallel);
  }

 private:
  KernelCall& call_;
  const TensorArg& arg_;
  TensorArg own_;
  Geometry geometry_;
  const ChannelRuns& runs_;
  bool copied_ = false;
};

// Calls f(start, n, run) for all blocks of a channel.
template <class F>
void each_channel_block(const ChannelRuns& runs, F&& f) {
  for (std::int64_t r = 0; r < runs.runs; ++r) {
    each_block(runs.length, [&](std::int64_t start, std::int64_t n) { f(start, n, r); });
  }
}

// A parameter with one element per channel; if it is absent, the elements are `otherwise`.
template <class A>
class PerChannel {
 public:
  PerChannel(const TensorArg& arg, A otherwise) : otherwise_(otherwise) {
    if (arg.kind == TensorArg::Kind::kTensor) row_ = Row<A>(arg, 0, arg.geometry->strides[0]);
  }
  A operator[](std::int64_t i) const {
    A one;
    return row_.absent() ? otherwise_ : *row_.read(i, 1, &one);
  }

 private:
  Row<A> row_;
  A otherwise_;
};

Status batch_norm(KernelCall& call) {
  if (call.in[0].geometry->numel() == 0) return fill_statistics(call, 3);
  const ChannelRuns runs(call.in[0].geometry->shape);
  const double eps = call.attributes.real(0);
  return with_float_type(call.out[0].dtype, [&](auto type) -> Status {
    using A = decltype(type);
    Status status;
    const Channels<A> x(call, call.in[0], runs, true, status),
        y(call, call.out[0], runs, false, status);
    TT_RETURN_IF_ERROR(status);
    const PerChannel<A> weight(call.in[1], A(1)), bias(call.in[2], A(0));
    A *const means = call.out[1].first<A>(), *const scales = call.out[2].first<A>(),
             *const variances = call.out[3].first<A>();
    const Fold<A>& sum = fold_of<A>(FoldKind::kSum);
    const auto count = static_cast<double>(runs.runs * runs.length);
    share(call.parallel, runs.channels, parts_of(runs.ns(), runs.channels),
          [&](std::int64_t c, std::int64_t) {
            A buffer[kRoom];
            double total = 0;
            each_channel_block(runs, [&](std::int64_t start, std::int64_t n, std::int64_t r) {
              total += static_cast<double>(sum.leaf(x.row(c, r).read(start, n, buffer), n));
            });
            const A mean = static_cast<A>(total / count);
            total = 0;
            each_channel_block(runs, [&](std::int64_t start, std::int64_t n, std::int64_t r) {
              apply_map<A>(Map::kSquaredDifference, x.row(c, r).read(start, n, buffer), n, &mean, 0,
                           0, buffer);
              total += static_cast<double>(sum.leaf(buffer, n));
            });
            const double variance = total / count;
            const A scale = static_cast<A>(1 / std::sqrt(variance + eps));
            means[c] = mean;
            scales[c] = scale;
            variances[c] = static_cast<A>(variance);
            // (x - mean) * (scale * weight) + bias
            const A factor = scale * weight[c], shift = -bias[c];
            each_channel_block(runs, [&](std::int64_t start, std::int64_t n, std::int64_t r) {
              const Row<A> to = y.row(c, r);
              A* const out = to.room(start, buffer);
              row_steps<A>().affine(x.row(c, r).read(start, n, buffer), n, mean, factor, shift,
                                    out);
              to.write(start, n, out);
            });
          });
    y.store();
    return {};
  });
}

Status batch_norm_backward(KernelCall& call) {
  if (call.in[1].geometry->numel() == 0) {
    for (int i = 1; i <= 2; ++i) {
      std::memset(call.out[i].first(), 0,
                  static_cast<std::size_t>(call.out[i].geometry->numel()) *
                      core::size_of(call.out[i].dtype));
    }
    return {};
  }
  const ChannelRuns runs(call.in[1].geometry->shape);
  return with_float_type(call.out[0].dtype, [&](auto type) -> Status {
    using A = decltype(type);
    Status status;
    const Channels<A> g(call, call.in[0], runs, true, status),
        x(call, call.in[1], runs, true, status), dx(call, call.out[0], runs, false, status);
    const Dense<A> means(call, call.in[3], true, status), scales(call, call.in[4], true, status);
    TT_RETURN_IF_ERROR(status);
    const PerChannel<A> weight(call.in[2], A(1));
    const Row<A> dweight(call.out[1], 0, 1), dbias(call.out[2], 0, 1);
    const Fold<A>& sum = fold_of<A>(FoldKind::kSum);
    const RowSteps<A>& steps = row_steps<A>();
    const auto count = static_cast<double>(runs.runs * runs.length);
    share(call.parallel, runs.channels, parts_of(runs.ns() * 1.5, runs.channels),
          [&](std::int64_t c, std::int64_t) {
            A gs[kRoom], xs[kRoom], products[kRoom];
            const A mean = means.memory()[c], scale = scales.memory()[c], w = weight[c];
            double total = 0, total_x = 0;
            each_channel_block(runs, [&](std::int64_t start, std::int64_t n, std::int64_t r) {
              const A* const gradient = g.row(c, r).read(start, n, gs);
              steps.centred_product(gradient, x.row(c, r).read(start, n, xs), n, mean, products);
              total += static_cast<double>(sum.leaf(gradient, n));
              total_x += static_cast<double>(sum.leaf(products, n));
            });
            // gradient * xhat, where xhat = (x - mean) * scale
            total_x *= static_cast<double>(scale);
            const A to_weight = static_cast<A>(total_x), to_bias = static_cast<A>(total);
            if (A* const room = dweight.room(c, xs)) {
              *room = to_weight;
              dweight.write(c, 1, room);
            }
            if (A* const room = dbias.room(c, xs)) {
              *room = to_bias;
              dbias.write(c, 1, room);
            }
            const A a = static_cast<A>(total / count), b = static_cast<A>(total_x / count);
            each_channel_block(runs, [&](std::int64_t start, std::int64_t n, std::int64_t r) {
              const Row<A> to = dx.row(c, r);
              A* const out = to.room(start, products);
              steps.normalize_gradient(g.row(c, r).read(start, n, gs),
                                       x.row(c, r).read(start, n, xs), n, mean, scale, a, b, w,
                                       out);
              to.write(start, n, out);
            });
          });
    dx.store();
    return {};
  });
}

}  // namespace

void add_norm_kernels(KernelTable& table) {
  table.add("layer_norm", layer_norm);
  table.add("layer_norm_backward", layer_norm_backward);
  table.add("batch_norm", batch_norm);
  table.add("batch_norm_backward", batch_norm_backward);
}

}  // namespace teletensor::backends::cpu
