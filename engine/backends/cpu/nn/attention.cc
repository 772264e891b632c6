// Attention in blocks of query rows. The scores of one block are in temporary memory; the whole
// score matrix is never stored. The backward recomputes the scores from the saved logarithms.
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "engine/backends/cpu/access/rows.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/arrangement/index_places.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/linalg/gemm.h"
#include "engine/backends/cpu/linalg/matrices.h"
#include "engine/backends/cpu/nn/rowwise_simd.h"
#include "engine/backends/cpu/reduction/reduce_simd.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {
namespace {

using core::Status;

constexpr std::int64_t kRows = 64;  // rows per block
// Maximum number of parts, because each has its own temporary memory.
constexpr std::int64_t kMaxParts = 16;
// The logarithm of a query row that sees no key.
template <class A>
constexpr A kNoVisibleKey = -std::numeric_limits<A>::infinity();

// Whether products read the matrices as right factors, row by row, or otherwise.
enum class Use { kRightFactor, kOther };

// The matrices of one operand; the elements of each row are adjacent.
template <class A>
class Heads {
 public:
  Heads(KernelCall& call, const TensorArg& arg, Use use, Status& status) : arg_(arg) {
    const core::Geometry& g = *arg.geometry;
    const int rank = g.rank();
    const std::int64_t row = g.strides[rank - 2], columns = g.shape[rank - 1];
    const bool slow = std::is_same_v<A, float> && use == Use::kRightFactor && lines_collide(row) &&
                      !lines_collide(columns);
    if (slow || g.strides[rank - 1] != 1 || row < columns) {
      copy_.emplace(call, arg, status);
      if (!status.ok()) return;
      arg_ = copy_->arg();
    }
    batch_ = batch_of(arg_, 2);
    matrices_ = Matrices(arg_, batch_, 2);
    row_ = arg_.geometry->strides[rank - 2];
  }
  A* head(std::int64_t i) const { return arg_.first<A>() + matrices_.offset(i); }
  MatrixRef<const A> from(std::int64_t i, std::int64_t row) const {
    return {head(i) + row * row_, row_, 1};
  }
  MatrixRef<const A> turned(std::int64_t i, std::int64_t row) const {
    return {head(i) + row * row_, 1, row_};
  }
  std::int64_t row() const { return row_; }

 private:
  TensorArg arg_;
  std::optional<RowMajor> copy_;
  core::Dims batch_;
  Matrices matrices_;
  std::int64_t row_ = 0;
};

struct Sizes4 {
  std::int64_t heads = 1, length = 0, keys = 0, inner = 0, values = 0;
  Sizes4(const core::Geometry& q, const core::Geometry& v) {
    const int rank = q.rank();
    for (int d = 0; d + 2 < rank; ++d) heads *= q.shape[d];
    length = q.shape[rank - 2];
    inner = q.shape[rank - 1];
    keys = v.shape[rank - 2];
    values = v.shape[rank - 1];
  }
  std::int64_t blocks() const { return (length + kRows - 1) / kRows; }
  // The number of columns that at least one of the rows up to `last` can see.
  std::int64_t seen(std::int64_t last, bool causal) const {
    return causal ? std::min(keys, last + 1) : keys;
  }
};

// The mask that is added to the scores; its last sizes are [..., L, S] or 1. It may be absent.
template <class A>
class Mask {
 public:
  Mask(const TensorArg& arg, const TensorArg& query)
      : present_(arg.kind == TensorArg::Kind::kTensor) {
    if (!present_) return;
    arg_ = arg;
    matrices_ = Matrices(arg, batch_of(query, 2), 2);
    const core::Geometry& g = *arg.geometry;
    const int rank = g.rank();
    row_ = g.shape[rank - 2] == 1 ? 0 : g.strides[rank - 2];
    column_ = g.shape[rank - 1] == 1 ? 0 : g.strides[rank - 1];
  }
  void add_to(std::int64_t head, std::int64_t row, std::int64_t n, A* scores) const {
    if (!present_) return;
    const Row<A> from(arg_, matrices_.offset(head) + row * row_, column_);
    each_block(n, [&](std::int64_t start, std::int64_t m) {
      A buffer[kRoom];
      row_steps<A>().add(from.read(start, m, buffer), m, scores + start);
    });
  }

 private:
  bool present_;
  TensorArg arg_;
  Matrices matrices_;
  std::int64_t row_ = 0, column_ = 0;
};

// Runs `units` units of work, each with temporary memory of `elements` elements. The number of
// parts depends only on the sizes.
template <class A, class F>
Status each_unit(KernelCall& call, std::int64_t units, double ns, std::int64_t elements, F&& unit) {
  const bool short_work = static_cast<double>(units) * ns < 300e3;
  const std::int64_t parts = short_work ? 1 : std::min(units, kMaxParts);
  const std::size_t bytes = scratch_bytes(parts, elements + 64, sizeof(A));
  A* const memory = static_cast<A*>(call.scratch.allocate(bytes));
  if (memory == nullptr) return out_of_scratch(call.op.name, bytes);
  std::vector<Status> failed(static_cast<std::size_t>(parts));
  call.parallel.run(parts, [&](std::int64_t part) {
    Status& status = failed[static_cast<std::size_t>(part)];
    for (std::int64_t i = part * units / parts; i < (part + 1) * units / parts; ++i) {
      if (!status.ok() || call.parallel.cancelled()) return;
      status = unit(i, memory + part * (elements + 64));
    }
  });
  for (Status& status : failed) TT_RETURN_IF_ERROR(std::move(status));
  return {};
}

template <class A>
Status forward(KernelCall& call) {
  const bool causal = call.attributes.boolean(0);
  const A scale = static_cast<A>(call.attributes.real(1));
  const Sizes4 n(*call.in[0].geometry, *call.in[2].geometry);
  Status status;
  const Heads<A> q(call, call.in[0], Use::kOther, status), k(call, call.in[1], Use::kOther, status),
      v(call, call.in[2], Use::kRightFactor, status);
  const Mask<A> mask(call.in[3], call.in[0]);
  TT_RETURN_IF_ERROR(std::move(status));
  A* const out = call.out[0].first<A>();
  const Matrices result(call.out[0], batch_of(call.out[0], 2), 2);
  const core::Geometry& layout = *call.out[0].geometry;
  const std::int64_t out_row = std::max(layout.strides[layout.rank() - 2], n.values);
  A* const logs = call.out[1].first<A>();
  if (n.keys == 0) {
    std::fill_n(out, n.heads * n.length * n.values, A(0));
    std::fill_n(logs, n.heads * n.length, kNoVisibleKey<A>);
    return {};
  }
  const Fold<A>&max = fold_of<A>(FoldKind::kMax), &sum = fold_of<A>(FoldKind::kSum);
  const RowSteps<A>& steps = row_steps<A>();
  const double ns =
      0.02 * static_cast<double>(kRows * n.keys) * static_cast<double>(n.inner + n.values + 16);
  return each_unit<A>(
      call, n.heads * n.blocks(), ns, kRows * n.keys, [&](std::int64_t unit, A* scores) -> Status {
        const std::int64_t head = unit / n.blocks(), first = unit % n.blocks() * kRows;
        const std::int64_t rows = std::min(kRows, n.length - first);
        const std::int64_t columns = n.seen(first + rows - 1, causal);
        TT_RETURN_IF_ERROR(
            gemm(rows, columns, n.inner, q.from(head, first), k.turned(head, 0), scores, columns));
        for (std::int64_t r = 0; r < rows; ++r) {
          A* row = scores + r * columns;
          const std::int64_t seen = n.seen(first + r, causal);
          steps.scale(row, seen, scale, row);
          mask.add_to(head, first + r, seen, row);
          A largest = max.identity;
          each_block(seen, [&](std::int64_t start, std::int64_t m) {
            largest = max.pair(largest, max.leaf(row + start, m));
          });
          A& log = logs[head * n.length + first + r];
          if (largest == kNoVisibleKey<A>) {
            std::fill(row, row + columns, A(0));
            log = kNoVisibleKey<A>;
            continue;
          }
          const A total = block_sum<A>(seen, [&](std::int64_t start, std::int64_t m) {
            apply_map<A>(Map::kExpDifference, row + start, m, &largest, 0, 0, row + start);
            return sum.leaf(row + start, m);
          });
          steps.scale(row, seen, A(1) / total, row);
          std::fill(row + seen, row + columns, A(0));
          log = largest + std::log(total);
        }
        if (n.values == 0) return {};
        return gemm(rows, n.values, columns, MatrixRef<const A>{scores, columns, 1},
                    v.from(head, 0), out + result.offset(head) + first * out_row, out_row);
      });
}

template <class A>
Status backward(KernelCall& call) {
  const bool causal = call.attributes.boolean(0);
  const A scale = static_cast<A>(call.attributes.real(1));
  const Sizes4 n(*call.in[1].geometry, *call.in[3].geometry);
  Status status;
  const Heads<A> g(call, call.in[0], Use::kRightFactor, status),
      q(call, call.in[1], Use::kRightFactor, status),
      k(call, call.in[2], Use::kRightFactor, status), v(call, call.in[3], Use::kOther, status),
      y(call, call.in[4], Use::kOther, status);
  const RowMajor logs_row_major(call, call.in[5], status);
  const Mask<A> mask(call.in[6], call.in[1]);
  TT_RETURN_IF_ERROR(std::move(status));
  const A* const logs = logs_row_major.arg().template first<A>();
  A* const dq = call.out[0].first<A>();
  A* const dk = call.out[1].first<A>();
  A* const dv = call.out[2].first<A>();
  if (n.keys == 0 || n.length == 0) {
    std::fill_n(dq, n.heads * n.length * n.inner, A(0));
    std::fill_n(dk, n.heads * n.keys * n.inner, A(0));
    std::fill_n(dv, n.heads * n.keys * n.values, A(0));
    return {};
  }
  const Fold<A>& sum = fold_of<A>(FoldKind::kSum);
  const RowSteps<A>& steps = row_steps<A>();
  // The weights of a block, their gradients, and a product before it is added.
  const std::int64_t wide = std::max(n.inner, n.values);
  const std::int64_t block = kRows * (n.keys + kLineGap);
  const std::int64_t elements = 2 * block + std::max(n.keys, kRows) * wide;
  const double ns =
      0.05 * static_cast<double>(n.length * n.keys) * static_cast<double>(n.inner + n.values + 16);
  return each_unit<A>(call, n.heads, ns, elements, [&](std::int64_t head, A* memory) -> Status {
    A* const p = memory;
    A* const d = p + block;
    A* const product = d + block;
    A* const of_k = dk + head * n.keys * n.inner;
    A* const of_v = dv + head * n.keys * n.values;
    std::fill_n(of_k, n.keys * n.inner, A(0));
    std::fill_n(of_v, n.keys * n.values, A(0));
    for (std::int64_t first = 0; first < n.length; first += kRows) {
      const std::int64_t rows = std::min(kRows, n.length - first);
      const std::int64_t columns = n.seen(first + rows - 1, causal);
      const std::int64_t apart = stride_of_lines(columns);
      TT_RETURN_IF_ERROR(
          gemm(rows, columns, n.inner, q.from(head, first), k.turned(head, 0), p, apart));
      TT_RETURN_IF_ERROR(
          gemm(rows, columns, n.values, g.from(head, first), v.turned(head, 0), d, apart));
      for (std::int64_t r = 0; r < rows; ++r) {
        A *weights = p + r * apart, *gradient = d + r * apart;
        const std::int64_t seen = n.seen(first + r, causal);
        const A& log = logs[head * n.length + first + r];
        if (log == kNoVisibleKey<A>) {
          std::fill(weights, weights + columns, A(0));
          std::fill(gradient, gradient + columns, A(0));
          continue;
        }
        steps.scale(weights, seen, scale, weights);
        mask.add_to(head, first + r, seen, weights);
        each_block(seen, [&](std::int64_t start, std::int64_t m) {
          apply_map<A>(Map::kExpDifference, weights + start, m, &log, 0, 0, weights + start);
        });
        // sum(P * dP) over the row equals sum(g * y).
        A buffer[kRoom];
        const A* from_g = g.head(head) + (first + r) * g.row();
        const A* from_y = y.head(head) + (first + r) * y.row();
        const A dot = block_sum<A>(n.values, [&](std::int64_t start, std::int64_t m) {
          steps.product(from_g + start, from_y + start, m, buffer);
          return sum.leaf(buffer, m);
        });
        steps.softmax_gradient(gradient, weights, seen, dot, gradient);
        steps.scale(gradient, seen, scale, gradient);
        std::fill(weights + seen, weights + columns, A(0));
        std::fill(gradient + seen, gradient + columns, A(0));
      }
      const MatrixRef<const A> p_turned{p, 1, apart}, d_turned{d, 1, apart},
          d_straight{d, apart, 1};
      TT_RETURN_IF_ERROR(
          gemm(columns, n.values, rows, p_turned, g.from(head, first), product, n.values));
      steps.add(product, columns * n.values, of_v);
      TT_RETURN_IF_ERROR(
          gemm(columns, n.inner, rows, d_turned, q.from(head, first), product, n.inner));
      steps.add(product, columns * n.inner, of_k);
      TT_RETURN_IF_ERROR(gemm(rows, n.inner, columns, d_straight, k.from(head, 0),
                              dq + (head * n.length + first) * n.inner, n.inner));
    }
    return {};
  });
}

// Handles heads of 16 bits through float32 copies of operands and results.
template <bool kBackward>
Status widened(KernelCall& call) {
  std::vector<TensorArg> in(call.in.begin(), call.in.end()), out(call.out.begin(), call.out.end());
  std::deque<core::Geometry> geometries;
  for (TensorArg& arg : in) {
    if (arg.kind != TensorArg::Kind::kTensor || arg.dtype == core::DType::kF32) continue;
    const DenseCopy copy = dense_copy(call, arg, arg.geometry->shape, core::DType::kF32);
    if (copy.data == nullptr) return out_of_scratch(call.op.name, copy.bytes);
    arg.data = const_cast<void*>(copy.data);
    arg.dtype = core::DType::kF32;
    arg.geometry = &geometries.emplace_back(arg.geometry->shape);
  }
  for (TensorArg& arg : out) {
    if (arg.dtype == core::DType::kF32) continue;
    arg.dtype = core::DType::kF32;
    arg.geometry = &geometries.emplace_back(arg.geometry->shape);
    const std::int64_t n = std::max<std::int64_t>(arg.geometry->numel(), 1);
    const std::size_t bytes = scratch_bytes(n, sizeof(float));
    arg.data = call.scratch.allocate(bytes);
    if (arg.data == nullptr) return out_of_scratch(call.op.name, bytes);
  }
  KernelCall wide{call.op, in, out, call.counts, call.attributes, call.parallel, call.scratch};
  TT_RETURN_IF_ERROR(kBackward ? backward<float>(wide) : forward<float>(wide));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i].data != call.out[i].data) strided_copy(out[i], call.out[i], call.parallel);
  }
  return {};
}

template <bool kBackward>
Status attention(KernelCall& call) {
  if (!kBackward && call.out[1].geometry->numel() == 0) return {};
  if (call.out[0].dtype == core::DType::kF64) {
    return kBackward ? backward<double>(call) : forward<double>(call);
  }
  if (call.out[0].dtype != core::DType::kF32) return widened<kBackward>(call);
  return kBackward ? backward<float>(call) : forward<float>(call);
}

}  // namespace

void add_attention_kernels(KernelTable& table) {
  table.add("attention", attention<false>);
  table.add("attention_backward", attention<true>);
}

}  // namespace teletensor::backends::cpu
