#include "engine/backends/cuda/plans/matmul_plan.h"

#include <algorithm>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/linalg/products.h"
#include "engine/backends/cuda/codegen/key.h"
#include "engine/backends/cuda/codegen/names.h"
#include "engine/backends/cuda/codegen/params.h"
#include "engine/backends/cuda/codegen/shapes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/library/products.h"

namespace teletensor::backends::cuda {
namespace {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Status;
using cpu::Addend;
using cpu::Side;
using cpu::side_of;

// For products of one row and one column shorter than this the library is not used: cuBLASLt 13.1
// splits such a sum into more parts than it has terms, and on an H200 it sometimes refused its own
// plan (CUBLAS_STATUS_INVALID_VALUE).
constexpr std::int64_t kShortDot = 1024;

// alpha * left * right + beta * addend for matrices of m x k and k x n, for each index of the batch
// dimensions; the results are stored without gaps.
struct Sizes {
  Dims batch;
  std::int64_t m = 1, n = 1, k = 1;
};

// Merges batch dimensions with uniform strides into one, or turns them into rows of a larger
// product.
void merge(Sizes& sizes, Side& left, Side& right, const Addend& addend) {
  Dims batch, of_left, of_right;
  for (int d = sizes.batch.size() - 1; d >= 0; --d) {
    const std::int64_t size = sizes.batch[d], step_left = left.batch[d],
                       step_right = right.batch[d];
    if (size == 1) continue;
    const bool first = batch.empty();
    if (first && step_right == 0 && (sizes.m == 1 || step_left == sizes.m * left.row) &&
        (addend.x == nullptr || addend.row == 0)) {
      if (sizes.m == 1) left.row = step_left;
      sizes.m *= size;
    } else if (!first && step_left == of_left.back() * batch.back() &&
               step_right == of_right.back() * batch.back()) {
      batch[batch.size() - 1] *= size;
    } else {
      batch.push_back(size);
      of_left.push_back(step_left);
      of_right.push_back(step_right);
    }
  }
  const auto turned_round = [](const Dims& from) {
    Dims to;
    for (int d = from.size() - 1; d >= 0; --d) to.push_back(from[d]);
    return to;
  };
  sizes.batch = turned_round(batch);
  left.batch = turned_round(of_left);
  right.batch = turned_round(of_right);
}

// Describes the product for the library, if the library supports the dtype and the layouts.
bool by_library(KernelCall& call, Work& work, const Sizes& sizes, const Side& left,
                const Side& right, const Addend& addend, bool tf32) {
  const TensorArg& out = call.out[0];
  if (work.products == nullptr || sizes.k == 0 || sizes.batch.size() > 1) return false;
  if (sizes.m == 1 && sizes.n == 1 && sizes.k < kShortDot) return false;
  switch (out.dtype) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
      break;
    default:
      return false;
  }
  const auto a = product_matrix(left.data, sizes.m, sizes.k, left.row, left.column);
  const auto b = product_matrix(right.data, sizes.k, sizes.n, right.row, right.column);
  if (!a || !b) return false;
  Product p;
  p.dtype = out.dtype;
  p.tf32 = tf32;
  p.m = sizes.m;
  p.n = sizes.n;
  p.k = sizes.k;
  p.a = *a;
  p.b = *b;
  if (!sizes.batch.empty()) {
    p.batches = sizes.batch[0];
    p.a.batch = left.batch[0];
    p.b.batch = right.batch[0];
  }
  p.out = out.first();
  p.alpha = addend.alpha;
  if (addend.x != nullptr && addend.beta != 0) {
    const void* const x = addend.x->first();
    if (addend.row == 0 && (addend.column == 1 || sizes.n == 1) && addend.beta == 1) {
      p.bias = x;
    } else {
      const auto c = product_matrix(x, sizes.m, sizes.n, addend.row, addend.column);
      if (!c || c->turned) return false;
      p.c = *c;
      p.beta = addend.beta;
    }
  }
  const std::optional<std::size_t> workspace = work.products->workspace(p);
  if (!workspace) return false;
  p.workspace_bytes = *workspace;
  if (*workspace > 0) p.workspace = call.scratch.allocate(*workspace);
  if (*workspace > 0 && p.workspace == nullptr) return false;
  Launch launch;
  launch.product = p;
  work.launches.push_back(std::move(launch));
  return true;
}

// The product of a and b; with `turned` of a and the transpose of b. `tf32` is the index of that
// attribute.
Status product(KernelCall& call, Work& work, const TensorArg& a, const TensorArg& b, bool turned,
               const Addend& addend, std::size_t tf32) {
  const TensorArg& out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  if (!out.geometry->contiguous()) return not_on_device("a result that is not row-major");
  const Dims &shape_a = a.geometry->shape, &shape_b = b.geometry->shape;
  Sizes sizes;
  const int own = (shape_a.size() > 1) + (shape_b.size() > 1);
  for (int d = 0; d + own < out.geometry->rank(); ++d) {
    sizes.batch.push_back(out.geometry->shape[d]);
  }
  sizes.k = shape_a.back();
  if (shape_a.size() > 1) sizes.m = shape_a[shape_a.size() - 2];
  if (shape_b.size() > 1) sizes.n = turned ? shape_b[shape_b.size() - 2] : shape_b.back();
  Side left = side_of(a.first(), *a.geometry, true, sizes.batch);
  Side right = side_of(b.first(), *b.geometry, false, sizes.batch);
  if (turned) std::swap(right.row, right.column);
  merge(sizes, left, right, addend);
  const bool rounds = takes_tf32(call, out.dtype, tf32);
  if (by_library(call, work, sizes, left, right, addend, rounds)) return {};

  MatmulGraph graph;
  graph.dtype = out.dtype;
  graph.turned_a = left.column != 1 && left.row == 1;
  graph.turned_b = right.column != 1 && right.row == 1;
  graph.adds = addend.x != nullptr;
  graph.batch = static_cast<std::uint8_t>(sizes.batch.size());
  Launch launch;
  std::int64_t batches = 1;
  for (const std::int64_t size : sizes.batch) batches *= size;
  if (!tiles_for(batches, sizes.m, sizes.n, launch.shape)) return not_on_device("too many results");
  Params params;
  params.put(left.data);
  params.put(right.data);
  params.put(out.first());
  params.put(graph.adds ? addend.x->first() : nullptr);
  for (const std::int64_t number : {sizes.m, sizes.n, sizes.k, left.row, left.column, right.row,
                                    right.column, addend.row, addend.column}) {
    params.put(number);
  }
  params.put(addend.alpha);
  params.put(addend.beta);
  const Dims none(1, 0);
  for (const Dims* dims :
       std::initializer_list<const Dims*>{&sizes.batch, &left.batch, &right.batch}) {
    for (const std::int64_t number : dims->empty() ? none : *dims) params.put(number);
  }
  launch.key = graph.key();
  launch.params = params.take();
  work.launches.push_back(std::move(launch));
  return {};
}

Status matmul(KernelCall& call, Work& work) {
  return product(call, work, call.in[0], call.in[1], false, {}, 0);
}

Status linear(KernelCall& call, Work& work) {
  return product(call, work, call.in[0], call.in[1], true, cpu::addend_of_linear(call), 0);
}

Status addmm(KernelCall& call, Work& work) {
  if (call.in[0].dtype != call.out[0].dtype) return not_on_device("an addend of another dtype");
  return product(call, work, call.in[1], call.in[2], false, cpu::addend_of_addmm(call), 2);
}

}  // namespace

bool tiles_for(std::int64_t batches, std::int64_t m, std::int64_t n, LaunchShape& shape) {
  std::int64_t tiles = 0;
  const std::int64_t rows = m / kTile + (m % kTile != 0), columns = n / kTile + (n % kTile != 0);
  if (__builtin_mul_overflow(rows, columns, &tiles) ||
      __builtin_mul_overflow(tiles, batches, &tiles) || tiles > kMaxBlocks) {
    return false;
  }
  shape = {};
  shape.grid[0] = static_cast<std::uint32_t>(tiles);
  shape.block[0] = kBlockThreads;
  return true;
}

KernelSource print_matmul(const MatmulGraph& g) {
  const std::string t = type_name_of(g.dtype);
  DType compute = g.dtype;
  cpu::with_any_compute_type(g.dtype, [&](auto a) { compute = cpu::kDTypeOf<decltype(a)>; });
  const std::string batch = std::to_string(std::max<int>(g.batch, 1));
  // Minimum number of blocks per multiprocessor, which bounds the registers of a thread; 16 sums of
  // 16 bytes need most of them.
  const std::string blocks = compute == DType::kC128 ? "1" : "2";
  KernelSource source;
  source.name = std::string("tt_matmul") + (g.turned_a ? "_t" : "_n") + (g.turned_b ? "t" : "n");
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  std::string text = "namespace s = teletensor::ops::scalar;\nusing T = " + t +
                     ";\nusing A = " + compute_name(compute) +
                     ";\nstruct Params {\n  const T* a;\n  const T* b;\n  T* out;\n  const T* x;\n"
                     "  std::int64_t m, n, k, a_row, a_column, b_row, b_column, x_row, x_column;\n"
                     "  double alpha, beta;\n  std::int64_t batch[" +
                     batch + "], batch_a[" + batch + "], batch_b[" + batch +
                     "];\n};\nextern \"C\" __global__ void __launch_bounds__(256, " + blocks +
                     ") " + source.name +
                     "(const Params p) {\n"
                     "  __shared__ A as[16][65];\n  __shared__ A bs[16][65];\n"
                     "  const unsigned rows = (p.m + 63) / 64, columns = (p.n + 63) / 64;\n"
                     "  unsigned rest = blockIdx.x / columns;\n"
                     "  const std::int64_t j0 = (blockIdx.x - rest * columns) * std::int64_t{64};\n"
                     "  const std::int64_t i0 = rest % rows * std::int64_t{64};\n"
                     "  rest /= rows;\n  const std::int64_t index = rest;\n"
                     "  const T* a = p.a + i0 * p.a_row;\n  const T* b = p.b + j0 * p.b_column;\n";
  for (int d = g.batch - 1; d >= 0; --d) {
    const std::string i = std::to_string(d);
    text += "  { const unsigned size = p.batch[" + i +
            "], at = rest % size; rest /= size; a += at * p.batch_a[" + i +
            "]; b += at * p.batch_b[" + i + "]; }\n";
  }
  text += std::string("  A acc[4][4] = {};\n  tt::tile_product<A, ") + flag(g.turned_a) + ", " +
          flag(g.turned_b) +
          ">(acc, as, bs, p.m - i0, p.n - j0, p.k,\n"
          "      [&](int m, std::int64_t k) { return s::to_compute<A>(a[m * p.a_row + k * "
          "p.a_column]); },\n"
          "      [&](std::int64_t k, int n) { return s::to_compute<A>(b[k * p.b_row + n * "
          "p.b_column]); "
          "});\n"
          "  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;\n"
          "#pragma unroll\n  for (int i = 0; i < 4; ++i) {\n"
          "#pragma unroll\n    for (int j = 0; j < 4; ++j) {\n"
          "      const std::int64_t row = i0 + ty * 4 + i, column = j0 + tx + j * 16;\n"
          "      if (row >= p.m || column >= p.n) continue;\n      A value = acc[i][j];\n";
  if (g.adds) {
    // As on the CPU, x is not read if beta is 0.
    const std::string alpha = core::is_inexact(compute) ? "A(p.alpha)" : "A(s::to_int(p.alpha))",
                      beta = core::is_inexact(compute) ? "A(p.beta)" : "A(s::to_int(p.beta))";
    text +=
        "      if (p.alpha != 1) value = s::Mul()(value, " + alpha +
        ");\n      if (p.beta != 0) {\n        const A x = s::to_compute<A>(p.x[row * p.x_row + "
        "column * p.x_column]);\n        value = s::Add()(value, p.beta == 1 ? x : s::Mul()(" +
        beta + ", x));\n      }\n";
  }
  source.text = text +
                "      p.out[(index * p.m + row) * p.n + column] = s::from_compute<T>(value);\n"
                "    }\n  }\n}\nTT_KERNEL_WITH_BARRIERS(" +
                source.name + ")\n";
  return source;
}

std::string MatmulGraph::key() const {
  KeyWriter key(KernelKind::kMatmul);
  key.put(dtype);
  key.put(static_cast<char>(turned_a | turned_b << 1 | adds << 2));
  key.put(batch);
  return key.take();
}

MatmulGraph MatmulGraph::of_key(std::string_view text) {
  KeyReader key(text);
  key.get<KernelKind>();
  MatmulGraph g;
  g.dtype = key.get<DType>();
  const char flags = key.get<char>();
  g.turned_a = (flags & 1) != 0;
  g.turned_b = (flags & 2) != 0;
  g.adds = (flags & 4) != 0;
  g.batch = key.get<std::uint8_t>();
  return g;
}

void add_matmul_kernels(DeviceTable& table) {
  for (const char* name : {"matmul", "mm", "bmm", "mv", "dot"}) {
    table.add(name, Skeleton::kMatmul, matmul);
  }
  table.add("addmm", Skeleton::kMatmul, addmm);
  table.add("linear", Skeleton::kMatmul, linear);
}

}  // namespace teletensor::backends::cuda
