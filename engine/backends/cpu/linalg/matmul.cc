// Kernels of matrix products of all ranks. f32: oneDNN's sgemm with one thread per call, or our own
// kernel if the call would cost more than the work; f64: our own kernel; f16 and bf16: through f32;
// integers: plain loops. The work is split into panels of rows or columns; their number depends
// only on the shapes.

#include <omp.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/complex_parts.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/access/targets.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/linalg/gemm.h"
#include "engine/backends/cpu/linalg/products.h"
#include "engine/backends/scratch_bytes.h"
#include "oneapi/dnnl/dnnl.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Status;

// ---------------------------------------------------------------- one matrix

// For fewer multiplications than this our own kernel is faster than a call.
constexpr double kOwn = 32 * 32 * 32;

constexpr std::int64_t kLong = std::int64_t{1} << 20;

// As a double, because with expanded operands the number can exceed 63 bits.
double multiplications(std::int64_t m, std::int64_t n, std::int64_t k) {
  return static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

// c = a @ b, or c += a @ b.
Status sgemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const float> a,
             MatrixRef<const float> b, float* c, std::int64_t ldc, bool adds = false) {
  // RULE: only the daemon's lanes run in parallel; the bits of oneDNN's sgemm depend on the number
  // of threads.
  thread_local const bool single = (omp_set_num_threads(1), true);
  (void)single;
  // Expresses the strides as a leading dimension and a flag. The strides of a single row or column
  // do not matter.
  const bool straight_a = a.column == 1 || k == 1, straight_b = b.column == 1 || n == 1;
  const std::int64_t lda = straight_a ? (m == 1 ? k : a.row) : a.column;
  const std::int64_t ldb = straight_b ? (k == 1 ? n : b.row) : b.column;
  const dnnl_status_t status =
      dnnl_sgemm(straight_a ? 'N' : 'T', straight_b ? 'N' : 'T', m, n, k, 1.0f, a.data, lda, b.data,
                 ldb, adds ? 1.0f : 0.0f, c, ldc);
  if (status == dnnl_success) return {};
  if (status == dnnl_out_of_memory) {
    return Status(core::Code::kResourceExhausted, "matmul: oneDNN has no memory for its buffers");
  }
  return core::internal("matmul: oneDNN refuses the product, status " + std::to_string(status));
}

// Returns true if sgemm can read the operand without a copy.
bool fits_sgemm(const Side& s, std::int64_t rows, std::int64_t columns) {
  const bool straight = (s.column == 1 || columns == 1) && (s.row >= columns || rows == 1);
  const bool turned = (s.row == 1 || rows == 1) && (s.column >= rows || columns == 1);
  return straight || turned;
}

}  // namespace

bool lines_collide(std::int64_t stride) {
  static const bool reads_in_place = dnnl_get_effective_cpu_isa() < dnnl_cpu_isa_avx512_core;
  constexpr std::int64_t kAlias = 2048 / sizeof(float);
  return reads_in_place && stride > 0 && stride % kAlias == 0;
}

Status gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const float> a,
            MatrixRef<const float> b, float* c, std::int64_t ldc) {
  if (m == 1 && n == 1 && a.column == 1 && b.row == 1) {
    gemm_dot<float>(m, n, k, a, b, c, ldc);
    return {};
  }
  // Dot products read b in place. The library copies it first, which takes as long as the products
  // of a few rows.
  if (b.row == 1 && a.column == 1 && k >= 32 && m >= 4 && m <= 32) {
    gemm_dot<float>(m, n, k, a, b, c, ldc);
    return {};
  }
  if (multiplications(m, n, k) > kOwn) return sgemm(m, n, k, a, b, c, ldc);
  if (b.column == 1 || n == 1) {
    if (n == 1 && b.row == 1 && a.column == 1) {
      gemm_dot<float>(m, n, k, a, b, c, ldc);
    } else {
      gemm_rows<float>(m, n, k, a, b, c, ldc, false);
    }
  } else if (b.row == 1 && (a.column == 1 || k == 1) && (m < 4 || k >= 32)) {
    gemm_dot<float>(m, n, k, a, b, c, ldc);
  } else {
    gemm_blocked<float>(m, n, k, a, b, c, ldc);
  }
  return {};
}

Status gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const double> a,
            MatrixRef<const double> b, double* c, std::int64_t ldc) {
  if (b.row == 1 && (a.column == 1 || k == 1) && m < 4) {
    gemm_dot<double>(m, n, k, a, b, c, ldc);
  } else if ((b.column == 1 || n == 1) && multiplications(m, n, k) <= kOwn) {
    gemm_rows<double>(m, n, k, a, b, c, ldc, false);
  } else {
    gemm_blocked<double>(m, n, k, a, b, c, ldc);
  }
  return {};
}

namespace {

template <class T>
Status gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<const T> a,
            MatrixRef<const T> b, T* c, std::int64_t ldc) {
  using U = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;
  for (std::int64_t i = 0; i < m; ++i) {
    T* const row = c + i * ldc;
    std::fill(row, row + n, T{});
    for (std::int64_t p = 0; p < k; ++p) {
      const U factor = static_cast<U>(a.data[i * a.row + p * a.column]);
      const T* from = b.data + p * b.row;
      if (b.column == 1) {
        for (std::int64_t j = 0; j < n; ++j) {
          row[j] = static_cast<T>(static_cast<U>(row[j]) + factor * static_cast<U>(from[j]));
        }
      } else {
        for (std::int64_t j = 0; j < n; ++j) {
          row[j] =
              static_cast<T>(static_cast<U>(row[j]) + factor * static_cast<U>(from[j * b.column]));
        }
      }
    }
  }
  return {};
}

// ---------------------------------------------------------------- all matrices

// Approximate nanoseconds of one multiply-add on one core.
template <class T>
constexpr double kCost = std::is_same_v<T, float>    ? 0.02
                         : std::is_same_v<T, double> ? 0.05
                                                     : 0.5;
// Approximate nanoseconds to read one byte of an operand. A product of few rows costs what reading
// its weights costs.
constexpr double kCostOfByte = 0.05;

// A product with so few rows or columns takes the time in which its other operand is read. Two
// lanes read it in half of the time, and a piece packs nothing that another piece packs as well.
constexpr std::int64_t kFewRows = 16;

// Products that take less time than this, in nanoseconds, are not split.
constexpr double kWhole = 300e3, kWholeOfFew = 150e3;

// Splits a side of a product that takes `ns` nanoseconds into pieces; returns their length and
// number. Pieces are not shorter than `least`, because the library packs the operands again for
// each of them.
std::pair<std::int64_t, std::int64_t> cut(std::int64_t side, double ns, std::int64_t least) {
  const auto wanted = static_cast<std::int64_t>(std::min(ns / 400e3 + 1, 1e6));
  const std::int64_t count = std::clamp<std::int64_t>(side / least, 1, wanted);
  const std::int64_t size = ((side + count - 1) / count + 15) / 16 * 16;
  return {size, (side + size - 1) / size};
}

// The result in `panels` panels of `size` along its longer side, each in `pieces` pieces of
// `across`.
struct Pieces {
  std::int64_t size, panels, across, pieces;
};

Pieces pieces_of(std::int64_t length, std::int64_t width, double ns, std::int64_t least) {
  const auto [size, panels] = cut(length, ns, least);
  const auto [across, pieces] = cut(width, ns / static_cast<double>(panels), 2 * least);
  return {size, panels, across, pieces};
}

// If there are so many tasks, larger ones still occupy all lanes. A product of 2048 x 2048 matrices
// in pieces of 256 x 512 takes 1.17x of its time in one piece, and in pieces of 128 x 256 1.32x.
constexpr std::int64_t kManyTasks = 128;

// Calls `finish(matrix, first row, rows, first column, columns)` for each piece of a matrix of the
// result while it is in the cache.
template <class T, class F>
Status run(KernelCall& call, const Product& p, T* c, F finish) {
  const T *a = static_cast<const T*>(p.a.data), *b = static_cast<const T*>(p.b.data);
  const auto matrix = [&](std::int64_t index, std::int64_t i0, std::int64_t m, std::int64_t j0,
                          std::int64_t n) -> Status {
    std::int64_t from_a = i0 * p.a.row, from_b = j0 * p.b.column, rest = index;
    for (int d = p.batch.size() - 1; d >= 0; --d) {
      const std::int64_t at = rest % p.batch[d];
      rest /= p.batch[d];
      from_a += at * p.a.batch[d];
      from_b += at * p.b.batch[d];
    }
    T* const result = c + index * p.m * p.n;
    T* const to = result + i0 * p.n + j0;
    if (p.k == 0) {
      for (std::int64_t i = 0; i < m; ++i) std::fill_n(to + i * p.n, n, T{});
    } else {
      TT_RETURN_IF_ERROR(gemm(m, n, p.k, MatrixRef<const T>{a + from_a, p.a.row, p.a.column},
                              MatrixRef<const T>{b + from_b, p.b.row, p.b.column}, to, p.n));
    }
    if constexpr (std::is_same_v<T, float>) {
      for (std::int64_t i = 1; i < p.terms; ++i) {
        if (call.parallel.cancelled()) return {};
        from_a += p.a.next, from_b += p.b.next;
        TT_RETURN_IF_ERROR(sgemm(m, n, p.k, {a + from_a, p.a.row, p.a.column},
                                 {b + from_b, p.b.row, p.b.column}, to, p.n, true));
      }
    }
    finish(result, i0, m, j0, n);
    return {};
  };
  const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n);
  const auto k = static_cast<double>(std::max<std::int64_t>(p.k, 1));
  const double cost = (m * n * k * kCost<T> + (m + n) * k * (kCostOfByte * sizeof(T))) *
                      static_cast<double>(p.terms);
  const double total = cost * static_cast<double>(p.batches);
  const bool few = p.batches == 1 && std::min(p.m, p.n) <= kFewRows;
  if (total < (few ? kWholeOfFew : kWhole)) {
    for (std::int64_t i = 0; i < p.batches; ++i) {
      TT_RETURN_IF_ERROR(matrix(i, 0, p.m, 0, p.n));
    }
    return {};
  }
  const bool by_rows = p.m >= p.n;
  const std::int64_t length = by_rows ? p.m : p.n, width = by_rows ? p.n : p.m;
  // Few rows form two pieces or more.
  Pieces cuts = pieces_of(length, width, few ? std::max(cost, 400e3) : cost, 128);
  if (p.batches * cuts.panels * cuts.pieces >= kManyTasks) {
    cuts = pieces_of(length, width, cost, 256);
  }
  const auto [size, panels, across, pieces] = cuts;
  const std::int64_t tasks = p.batches * panels * pieces;
  // Several small matrices form one part.
  const double task_cost = total / static_cast<double>(tasks);
  const auto group =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(200e3 / task_cost), 1, tasks);
  const std::int64_t parts = (tasks + group - 1) / group;
  std::vector<Status> failures(static_cast<std::size_t>(parts));
  call.parallel.run(parts, [&](std::int64_t part) {
    for (std::int64_t t = part * group; t < std::min(tasks, (part + 1) * group); ++t) {
      if (call.parallel.cancelled()) return;
      const std::int64_t i = t / pieces % panels * size, n = std::min(size, length - i);
      const std::int64_t j = t % pieces * across, w = std::min(across, width - j);
      const std::int64_t index = t / pieces / panels;
      Status status = by_rows ? matrix(index, i, n, j, w) : matrix(index, j, w, i, n);
      if (!status.ok()) {
        failures[static_cast<std::size_t>(part)] = std::move(status);
        return;
      }
    }
  });
  for (Status& failure : failures) {
    if (!failure.ok()) return std::move(failure);
  }
  return {};
}

// Copies x as `dtype` in row-major order; batch dimensions with stride 0 keep it. Returns null if
// there is no memory.
const void* copy_dense(KernelCall& call, const TensorArg& x, DType dtype, Geometry& geometry,
                       std::size_t& bytes) {
  Geometry once = *x.geometry;
  for (int d = 0; d + 2 < once.rank(); ++d) {
    if (x.geometry->strides[d] == 0) once.shape[d] = 1;
  }
  Geometry dense(once.shape);
  bytes = scratch_bytes(dense.numel(), core::size_of(dtype));
  void* memory = call.scratch.allocate(std::max<std::size_t>(bytes, 1));
  if (memory == nullptr) return nullptr;
  TensorArg from = x, to = x;
  from.geometry = &once;
  to.data = memory;
  to.dtype = dtype;
  to.geometry = &dense;
  strided_copy(from, to, call.parallel);
  geometry = Geometry(x.geometry->shape, dense.strides);
  for (int d = 0; d + 2 < once.rank(); ++d) {
    if (x.geometry->strides[d] == 0) geometry.strides[d] = 0;
  }
  return memory;
}

// Treats a stack of matrices times one matrix as a single product, if the rows of the stack have
// one stride (and, if sgemm is used, it can read them).
void fold_batch(Product& p, bool uses_sgemm) {
  if (p.batch.empty()) return;
  Side folded{p.a.data, p.a.row, p.a.column, {}, p.a.next};
  std::int64_t rows = p.m;
  for (int d = p.batch.size() - 1; d >= 0; --d) {
    if (p.batch[d] == 1) continue;
    if (p.b.batch[d] != 0) return;
    if (rows == 1) {
      folded.row = p.a.batch[d];
    } else if (p.a.batch[d] != folded.row * rows) {
      return;
    }
    rows *= p.batch[d];
  }
  if (uses_sgemm && !fits_sgemm(folded, rows, p.k)) return;
  p.m = rows;
  p.a = folded;
  p.batch = p.b.batch = Dims();
  p.batches = 1;
}

// Copies `lines` lines of `length` elements, which begin `stride` elements apart, to lines that do
// not collide; that costs a few percent of the product and leaves its bits as they are. `uses` is
// the number of result rows or columns that each line contributes to. Leaves the operand as it is
// if few results use it or if the session has no memory for the copy.
void spread_lines(KernelCall& call, std::int64_t lines, std::int64_t length, std::int64_t uses,
                  const void*& data, std::int64_t& stride) {
  constexpr std::int64_t kFew = 64;
  if (!lines_collide(stride) || uses < kFew || lines < kFew) return;
  const std::int64_t apart = stride_of_lines((length + 15) / 16 * 16);
  auto* const to =
      static_cast<float*>(call.scratch.allocate(scratch_bytes(lines * apart, sizeof(float))));
  if (to == nullptr) return;
  const auto* const from = static_cast<const float*>(data);
  split(call.parallel, lines, static_cast<double>(length) * 0.25, 1,
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            std::copy_n(from + i * stride, length, to + i * apart);
          }
        });
  data = to;
  stride = apart;
}

void spread_operands(KernelCall& call, Product& p) {
  if (p.batches != 1 || multiplications(p.m, p.n, p.k) <= kOwn) return;
  if (p.a.row == 1 && p.a.column != 1 && p.m > 1)
    spread_lines(call, p.k, p.m, p.n, p.a.data, p.a.column);
  if (p.b.column == 1 && p.n > 1) spread_lines(call, p.k, p.n, p.m, p.b.data, p.b.row);
}

// Adds the addend to a finished piece of a matrix c.
template <class T>
void add_piece(const Addend& addend, T* c, std::int64_t n_all, std::int64_t i0, std::int64_t m,
               std::int64_t j0, std::int64_t n) {
  constexpr std::int64_t kPiece = 256;
  using A = std::conditional_t<std::is_floating_point_v<T>, T, std::int64_t>;
  const auto element = static_cast<std::int64_t>(core::size_of(addend.x->dtype));
  const LoadBlock<A> load = load_block<A>(addend.x->dtype);
  A block[kPiece];
  for (std::int64_t j = 0; j < n; j += kPiece) {
    const std::int64_t wide = std::min(kPiece, n - j);
    for (std::int64_t i = 0; i < m; ++i) {
      if (addend.beta != 0 && (i == 0 || addend.row != 0)) {
        load(addend.x->first<const char>() +
                 ((i0 + i) * addend.row + (j0 + j) * addend.column) * element,
             addend.column, wide, block);
      }
      T* const to = c + (i0 + i) * n_all + j0 + j;
      if constexpr (std::is_floating_point_v<T>) {
        const T alpha = static_cast<T>(addend.alpha), beta = static_cast<T>(addend.beta);
        if (alpha != 1) {
          for (std::int64_t q = 0; q < wide; ++q) to[q] *= alpha;
        }
        if (beta == 1) {
          for (std::int64_t q = 0; q < wide; ++q) to[q] += block[q];
        } else if (beta != 0) {
          for (std::int64_t q = 0; q < wide; ++q) to[q] += beta * block[q];
        }
      } else {
        const auto alpha = static_cast<std::uint64_t>(static_cast<std::int64_t>(addend.alpha));
        const auto beta = static_cast<std::uint64_t>(static_cast<std::int64_t>(addend.beta));
        for (std::int64_t q = 0; q < wide; ++q) {
          const std::uint64_t x = beta == 0 ? 0 : beta * static_cast<std::uint64_t>(block[q]);
          to[q] = static_cast<T>(alpha * static_cast<std::uint64_t>(to[q]) + x);
        }
      }
    }
  }
}

template <class T>
Status run_typed(KernelCall& call, const Product& p, T* c, const Addend& addend) {
  if (addend.x == nullptr) {
    return run<T>(call, p, c, [](T*, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {});
  }
  return run<T>(call, p, c,
                [&](T* result, std::int64_t i0, std::int64_t m, std::int64_t j0, std::int64_t n) {
                  add_piece<T>(addend, result, p.n, i0, m, j0, n);
                });
}

// The product of a and b; with `turned`, of a and the transpose of b.
Status product(KernelCall& call, const TensorArg& a, const TensorArg& b, bool turned,
               const Addend& addend) {
  const TensorArg& out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  const DType dtype = a.dtype;
  const bool half = dtype == DType::kF16 || dtype == DType::kBF16;
  Geometry geometry_a = *a.geometry, geometry_b = *b.geometry;
  Product p;
  // The batch dimensions of the result are those before the dimensions of the matrices.
  const int own = (geometry_a.rank() > 1) + (geometry_b.rank() > 1);
  const Dims& shape = out.geometry->shape;
  for (int d = 0; d + own < shape.size(); ++d) {
    p.batch.push_back(shape[d]);
    p.batches *= shape[d];
  }
  p.k = geometry_a.shape.back();
  if (geometry_a.rank() > 1) p.m = geometry_a.shape[geometry_a.rank() - 2];
  if (geometry_b.rank() > 1) {
    p.n = turned ? geometry_b.shape[geometry_b.rank() - 2] : geometry_b.shape.back();
  }
  const auto set_side = [&](const TensorArg& x, Geometry& g, bool left, bool copy) -> Status {
    const void* data = x.first<const void>();
    if (copy) {
      std::size_t bytes;
      data = copy_dense(call, x, half ? DType::kF32 : dtype, g, bytes);
      if (data == nullptr) return out_of_scratch(call.op.name, bytes);
    }
    Side& s = left ? p.a : p.b;
    s = side_of(data, g, left, p.batch);
    if (!left && turned) std::swap(s.row, s.column);
    return {};
  };
  TT_RETURN_IF_ERROR(set_side(a, geometry_a, true, half));
  TT_RETURN_IF_ERROR(set_side(b, geometry_b, false, half));
  if (dtype == DType::kF32) {
    if (!fits_sgemm(p.a, p.m, p.k)) TT_RETURN_IF_ERROR(set_side(a, geometry_a, true, true));
    if (!fits_sgemm(p.b, p.k, p.n)) TT_RETURN_IF_ERROR(set_side(b, geometry_b, false, true));
  } else if (p.k > kLong) {
    // An operand that repeats along k is copied, so that the memory quota bounds the work of one
    // part.
    if (p.a.column == 0) TT_RETURN_IF_ERROR(set_side(a, geometry_a, true, true));
    if (p.b.row == 0) TT_RETURN_IF_ERROR(set_side(b, geometry_b, false, true));
  }
  fold_batch(p, half || dtype == DType::kF32);
  switch (dtype) {
    case DType::kF32:
      spread_operands(call, p);
      return run_typed<float>(call, p, out.first<float>(), addend);
    case DType::kF64:
      return run_typed<double>(call, p, out.first<double>(), addend);
    case DType::kI32:
      return run_typed<std::int32_t>(call, p, out.first<std::int32_t>(), addend);
    case DType::kI64:
      return run_typed<std::int64_t>(call, p, out.first<std::int64_t>(), addend);
    case DType::kU8:
      return run_typed<std::uint8_t>(call, p, out.first<std::uint8_t>(), addend);
    case DType::kI8:
      return run_typed<std::int8_t>(call, p, out.first<std::int8_t>(), addend);
    case DType::kI16:
      return run_typed<std::int16_t>(call, p, out.first<std::int16_t>(), addend);
    case DType::kU16:
      return run_typed<std::uint16_t>(call, p, out.first<std::uint16_t>(), addend);
    case DType::kU32:
      return run_typed<std::uint32_t>(call, p, out.first<std::uint32_t>(), addend);
    case DType::kU64:
      return run_typed<std::uint64_t>(call, p, out.first<std::uint64_t>(), addend);
    default:
      break;
  }
  // For 16-bit floats, the sum is computed in f32 and rounded once.
  const Geometry dense(out.geometry->shape);
  const std::size_t bytes = scratch_bytes(dense.numel(), sizeof(float));
  auto* c = static_cast<float*>(call.scratch.allocate(bytes));
  if (c == nullptr) return out_of_scratch(call.op.name, bytes);
  spread_operands(call, p);
  TT_RETURN_IF_ERROR(run_typed<float>(call, p, c, addend));
  TensorArg wide = out;
  wide.data = c;
  wide.dtype = DType::kF32;
  wide.geometry = &dense;
  strided_copy(wide, out, call.parallel);
  return {};
}

}  // namespace

template <class T>
Status multiply(KernelCall& call, Product p, T* c, const Addend& addend) {
  fold_batch(p, std::is_same_v<T, float>);
  if constexpr (std::is_same_v<T, float>) spread_operands(call, p);
  return run_typed<T>(call, p, c, addend);
}
template Status multiply(KernelCall&, Product, float*, const Addend&);
template Status multiply(KernelCall&, Product, double*, const Addend&);

namespace {

// Allocates a contiguous tensor of the geometry's shape in the call's scratch memory.
Status allocate(KernelCall& call, DType dtype, const Geometry& geometry, TensorArg& out) {
  out = {TensorArg::Kind::kTensor, nullptr, dtype, &geometry, {}};
  const std::size_t bytes = scratch_bytes(geometry.numel(), core::size_of(dtype));
  out.data = call.scratch.allocate(std::max<std::size_t>(bytes, 1));
  return out.data == nullptr ? out_of_scratch(call.op.name, bytes) : Status();
}

// (ar + i ai)(br + i bi), as four real products.
template <class T>
Status complex_product(KernelCall& call, const TensorArg& a, const TensorArg& b, bool turned,
                       const Addend& addend) {
  constexpr DType kReal = kDTypeOf<T>;
  using A = core::Complex<T>;
  const TensorArg& out = call.out[0];
  if (out.geometry->numel() == 0) return {};
  const Geometry geometry_a(a.geometry->shape), geometry_b(b.geometry->shape),
      geometry(out.geometry->shape);
  TensorArg parts_a[2], parts_b[2], products[4];
  const auto take_apart = [&](const TensorArg& x, const Geometry& g, TensorArg* parts) -> Status {
    const Geometry layout = part_layout(*x.geometry);
    for (int i = 0; i < 2; ++i) {
      TT_RETURN_IF_ERROR(allocate(call, kReal, g, parts[i]));
      strided_copy(part_of(x, i, layout), parts[i], call.parallel);
    }
    return {};
  };
  TT_RETURN_IF_ERROR(take_apart(a, geometry_a, parts_a));
  TT_RETURN_IF_ERROR(take_apart(b, geometry_b, parts_b));
  for (int i = 0; i < 4; ++i) {
    TT_RETURN_IF_ERROR(allocate(call, kReal, geometry, products[i]));
    KernelCall real{call.op,     call.in,         std::span(&products[i], 1),
                    call.counts, call.attributes, call.parallel,
                    call.scratch};
    TT_RETURN_IF_ERROR(product(real, parts_a[i / 2], parts_b[i % 2], turned, {}));
  }
  const auto* rr = static_cast<const T*>(products[0].data);
  const auto* ri = static_cast<const T*>(products[1].data);
  const auto* ir = static_cast<const T*>(products[2].data);
  const auto* ii = static_cast<const T*>(products[3].data);
  const std::int64_t n = geometry.rank() == 0 ? 1 : geometry.shape.back();
  const bool adds = addend.x != nullptr && addend.beta != 0;
  const LoadBlock<A> load = adds ? load_block<A>(addend.x->dtype) : nullptr;
  const auto element = static_cast<std::int64_t>(core::size_of(a.dtype));
  split(call.parallel, geometry.numel() / n, static_cast<double>(n) * 2, 1,
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            A* const to = out.first<A>() + i * n;
            for (std::int64_t j = 0; j < n; ++j) {
              const std::int64_t at = i * n + j;
              to[j] = A(static_cast<T>(addend.alpha)) * A(rr[at] - ii[at], ri[at] + ir[at]);
              if (!adds) continue;
              A value;
              load(addend.x->first<const char>() + (i * addend.row + j * addend.column) * element,
                   1, 1, &value);
              to[j] += A(static_cast<T>(addend.beta)) * value;
            }
          }
        });
  return {};
}

Status any_product(KernelCall& call, const TensorArg& a, const TensorArg& b, bool turned,
                   const Addend& addend) {
  if (a.dtype == DType::kC64) return complex_product<float>(call, a, b, turned, addend);
  if (a.dtype == DType::kC128) return complex_product<double>(call, a, b, turned, addend);
  return product(call, a, b, turned, addend);
}

Status matmul(KernelCall& call) { return any_product(call, call.in[0], call.in[1], false, {}); }

Status linear(KernelCall& call) {
  return any_product(call, call.in[0], call.in[1], true, addend_of_linear(call));
}

Status addmm(KernelCall& call) {
  return any_product(call, call.in[1], call.in[2], false, addend_of_addmm(call));
}

// Dense rows of the result. As in any matrix product, each element is a sum that starts with 0, so
// that -0 becomes 0.
template <class T>
void outer_rows(KernelCall& call) {
  const std::int64_t m = call.in[0].geometry->shape[0], n = call.in[1].geometry->shape[0];
  const T *x = call.in[0].first<T>(), *y = call.in[1].first<T>();
  T* const out = call.out[0].first<T>();
  split(call.parallel, m, static_cast<double>(n) * 0.05 * sizeof(T), 1,
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            const T factor = x[i];
            T* const to = out + i * n;
            TT_INDEPENDENT
            for (std::int64_t j = 0; j < n; ++j) to[j] = factor * y[j] + T(0);
          }
        });
}

// The product of a column and a row.
Status outer(KernelCall& call) {
  const auto plain = [&](DType dtype) {
    return call.in[0].dtype == dtype && call.in[1].dtype == dtype && call.out[0].dtype == dtype &&
           call.in[0].geometry->contiguous() && call.in[1].geometry->contiguous() &&
           call.out[0].geometry->contiguous();
  };
  if (plain(DType::kF32)) return outer_rows<float>(call), Status();
  if (plain(DType::kF64)) return outer_rows<double>(call), Status();
  const Geometry &x = *call.in[0].geometry, &y = *call.in[1].geometry;
  const Geometry column({x.shape[0], 1}, {x.strides[0], 1}, x.offset);
  const Geometry row({1, y.shape[0]}, {std::max<std::int64_t>(y.shape[0], 1), y.strides[0]},
                     y.offset);
  TensorArg a = call.in[0], b = call.in[1];
  a.geometry = &column;
  b.geometry = &row;
  return any_product(call, a, b, false, {});
}

}  // namespace

void add_matmul_kernels(KernelTable& table) {
  for (const char* name : {"matmul", "mm", "bmm", "mv", "dot"}) table.add(name, matmul);
  table.add("outer", outer);
  table.add("addmm", addmm);
  table.add("linear", linear);
}

}  // namespace teletensor::backends::cpu
