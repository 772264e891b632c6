// Kernels of ops that create tensors: full, arange, linspace, eye, triangles, diagonals, one_hot.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::Geometry;
using core::Number;
using core::Status;

std::size_t bytes_of(const TensorArg& out) {
  return static_cast<std::size_t>(out.geometry->numel()) * core::size_of(out.dtype);
}

Status full(KernelCall& call) {
  const TensorArg& value = call.in[0];
  const TensorArg& out = call.out[0];
  if (value.kind == TensorArg::Kind::kTensor) {
    // The tensor has one element, whatever its rank.
    static const Geometry scalar{Dims()};
    TensorArg one = value;
    one.data = value.first();
    one.geometry = &scalar;
    strided_copy(one, out, call.parallel);
  } else if (value.number == Number::of_int(0) || value.number == Number::of_bool(false)) {
    if (const std::size_t bytes = bytes_of(out)) std::memset(out.first(), 0, bytes);
  } else {
    strided_copy(value, out, call.parallel);
  }
  return {};
}

Status empty(KernelCall&) { return {}; }  // memory of another owner was zeroed by the pool

// Fills a tensor block by block: fill(first, n, to) computes n elements from number `first` on, in
// the compute type of the dtype. A block has fewer than 2^31 elements, because short counters can
// be converted to doubles in vectors.
template <class A, class F>
void generate(KernelCall& call, F fill) {
  const TensorArg& out = call.out[0];
  const StoreBlock<A> store = store_block<A>(out.dtype);
  const auto element = static_cast<std::int64_t>(core::size_of(out.dtype));
  constexpr std::int64_t kBlock = 1024;
  split(call.parallel, out.geometry->numel(), 1.0, kBlock,
        [&](std::int64_t begin, std::int64_t end) {
          A block[kBlock];
          for (std::int64_t at = begin; at < end; at += kBlock) {
            const auto n = static_cast<int>(std::min<std::int64_t>(kBlock, end - at));
            A* const to = out.dtype == kDTypeOf<A> ? out.first<A>() + at : block;
            fill(at, n, to);
            if (to == block) store(block, n, out.first<char>() + at * element, 1);
          }
        });
}

Status arange(KernelCall& call) {
  const Number &start = call.in[0].number, &end = call.in[1].number, &step = call.in[2].number;
  const bool whole = start.kind != Number::Kind::kFloat && end.kind != Number::Kind::kFloat &&
                     step.kind != Number::Kind::kFloat;
  if (whole && !core::is_floating(call.out[0].dtype)) {
    const auto a = static_cast<std::uint64_t>(start.integer);
    const auto s = static_cast<std::uint64_t>(step.integer);
    generate<std::int64_t>(call, [=](std::int64_t first, int n, std::int64_t* to) {
      std::uint64_t next = a + s * static_cast<std::uint64_t>(first);
      for (int j = 0; j < n; ++j, next += s) to[j] = static_cast<std::int64_t>(next);
    });
    return {};
  }
  // RULE: computed in double and rounded once, for every dtype.
  const double a = start.as_double(), s = step.as_double();
  generate<double>(call, [=](std::int64_t first, int n, double* to) {
    const auto at = static_cast<double>(first);
    for (int j = 0; j < n; ++j) to[j] = a + s * (at + j);
  });
  return {};
}

Status linspace(KernelCall& call) {
  const double start = call.in[0].number.as_double(), end = call.in[1].number.as_double();
  const std::int64_t steps = call.attributes.integer(0);
  const double step = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0;
  // Counted from both ends, so that the last element is exactly `end`.
  const std::int64_t half = steps == 1 ? 1 : steps / 2;
  generate<double>(call, [=](std::int64_t first, int n, double* to) {
    const auto at = static_cast<double>(first), left = static_cast<double>(steps - 1 - first);
    const auto rising = static_cast<int>(std::clamp<std::int64_t>(half - first, 0, n));
    for (int j = 0; j < rising; ++j) to[j] = start + step * (at + j);
    for (int j = rising; j < n; ++j) to[j] = end - step * (left - j);
  });
  return {};
}

Status eye(KernelCall& call) {
  const TensorArg& out = call.out[0];
  const Dims& shape = out.geometry->shape;
  const std::size_t bytes = bytes_of(out);
  if (bytes == 0) return {};
  std::memset(out.first(), 0, bytes);
  const Geometry diagonal({std::min(shape[0], shape[1])}, {shape[1] + 1}, out.geometry->offset);
  TensorArg line = out, one;
  line.geometry = &diagonal;
  one.kind = TensorArg::Kind::kNumber;
  one.number = Number::of_int(1);
  strided_copy(one, line, call.parallel);
  return {};
}

// Copies the rows of each matrix; only columns [from(row), to(row)) are kept, and the others are
// set to zero.
template <class T>
void triangle_rows(KernelCall& call, bool lower) {
  const TensorArg &x = call.in[0], &out = call.out[0];
  const Geometry &g = *x.geometry, &o = *out.geometry;
  const int rank = g.rank();
  const std::int64_t rows = g.shape[rank - 2], columns = g.shape[rank - 1];
  // Diagonals outside of the matrix all give the same result; clamping them keeps the sums below
  // from overflowing.
  const std::int64_t k = std::clamp(call.attributes.integer(0), -rows - 1, columns + 1);
  const std::int64_t stride = g.strides[rank - 1];
  const std::int64_t count = o.numel() / std::max<std::int64_t>(columns, 1);
  Dims lead_shape, lead_strides;
  for (int d = 0; d + 1 < rank; ++d) {
    lead_shape.push_back(g.shape[d]);
    lead_strides.push_back(g.strides[d]);
  }
  split(call.parallel, count, static_cast<double>(columns) * 0.5, 1,
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t r = begin; r < end; ++r) {
            std::int64_t from = 0, rest = r;
            for (int d = rank - 2; d >= 0; --d) {
              from += rest % lead_shape[d] * lead_strides[d];
              rest /= lead_shape[d];
            }
            const std::int64_t row = r % rows;
            const std::int64_t first = lower ? 0 : std::clamp<std::int64_t>(row + k, 0, columns);
            const std::int64_t last =
                lower ? std::clamp<std::int64_t>(row + k + 1, 0, columns) : columns;
            const T* source = x.first<const T>() + from;
            T* to = out.first<T>() + r * columns;
            std::fill(to, to + first, T{});
            if (stride == 1) {
              std::copy(source + first, source + last, to + first);
            } else {
              for (std::int64_t j = first; j < last; ++j) to[j] = source[j * stride];
            }
            std::fill(to + last, to + columns, T{});
          }
        });
}

template <bool kLower>
Status triangle(KernelCall& call) {
  if (call.out[0].geometry->numel() == 0) return {};
  with_bytes(core::size_of(call.in[0].dtype),
             [&](auto t) { triangle_rows<decltype(t)>(call, kLower); });
  return {};
}

Status diag(KernelCall& call) {
  const TensorArg &x = call.in[0], &out = call.out[0];
  const std::int64_t k = call.attributes.integer(0);
  const bool build = x.geometry->rank() == 1;
  // The diagonal of the operand or of the result, whichever is the matrix.
  const Geometry& matrix = build ? *out.geometry : *x.geometry;
  if (build && bytes_of(out) > 0) std::memset(out.first(), 0, bytes_of(out));
  const std::int64_t length = build ? x.geometry->shape[0] : out.geometry->shape[0];
  if (length == 0) return {};
  const Geometry diagonal(
      {length}, {matrix.strides[0] + matrix.strides[1]},
      matrix.offset + (k >= 0 ? k * matrix.strides[1] : -k * matrix.strides[0]));
  TensorArg line = build ? out : x;
  line.geometry = &diagonal;
  strided_copy(build ? x : line, build ? line : out, call.parallel);
  return {};
}

Status one_hot(KernelCall& call) {
  const TensorArg &x = call.in[0], &out = call.out[0];
  const std::int64_t classes = call.attributes.integer(0), count = x.geometry->numel();
  if (count == 0) return {};
  const std::size_t bytes = scratch_bytes(count, sizeof(std::int64_t));
  auto* index = static_cast<std::int64_t*>(call.scratch.allocate(bytes));
  if (index == nullptr) return out_of_scratch(call.op.name, bytes);
  const Geometry dense(x.geometry->shape);
  TensorArg copy;
  copy.kind = TensorArg::Kind::kTensor;
  copy.data = index;
  copy.dtype = core::DType::kI64;
  copy.geometry = &dense;
  strided_copy(x, copy, call.parallel);
  for (std::int64_t i = 0; i < count; ++i) {
    if (index[i] < 0 || index[i] >= classes) {
      return core::invalid("one_hot: class " + std::to_string(index[i]) +
                           " is out of range for num_classes " + std::to_string(classes));
    }
  }
  std::memset(out.first(), 0, bytes_of(out));
  for (std::int64_t i = 0; i < count; ++i) out.first<std::int64_t>()[i * classes + index[i]] = 1;
  return {};
}

}  // namespace

void add_creation_kernels(KernelTable& table) {
  table.add("full", full);
  table.add("empty", empty);
  table.add("arange", arange);
  table.add("linspace", linspace);
  table.add("eye", eye);
  table.add("tril", triangle<true>);
  table.add("triu", triangle<false>);
  table.add("diag", diag);
  table.add("one_hot", one_hot);
}

}  // namespace teletensor::backends::cpu
