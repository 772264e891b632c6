// Kernels of gather, nonzero and the ops with bool masks.

#include <algorithm>
#include <cstring>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/arrangement/gather_index.h"
#include "engine/backends/cpu/cpu.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Status;

template <class T>
void copy_picks(const T* x, const std::int64_t* index, std::int64_t n, T* to) {
#pragma GCC unroll 8
  for (std::int64_t j = 0; j < n; ++j) to[j] = x[index[j]];
}

template <class T>
void gather_rows(KernelCall& call, const Picks& picks) {
  const Geometry& g = *call.in[0].geometry;
  const T* const x = call.in[0].first<const T>();
  T* const out = call.out[0].first<T>();
  const Rows rows(picks.shape);
  const double cost = static_cast<double>(rows.length()) + 10;
  split(call.parallel, rows.count(), cost, 1, [&](std::int64_t begin, std::int64_t end) {
    each_row(rows, picks, g, begin, end,
             [&](std::int64_t base, std::int64_t stride, std::int64_t at) {
               const std::int64_t* const index = picks.index.values + at;
               if (stride == 0 && picks.step == 1) {
                 return copy_picks(x + base, index, rows.length(), out + at);
               }
               for (std::int64_t j = 0; j < rows.length(); ++j) {
                 out[at + j] = x[base + j * stride + index[j] * picks.step];
               }
             });
  });
}

Status gather(KernelCall& call) {
  Picks picks;
  TT_RETURN_IF_ERROR(picks_of(call, *call.in[0].geometry, call.in[1], picks));
  with_bytes(core::size_of(call.in[0].dtype),
             [&](auto t) { gather_rows<decltype(t)>(call, picks); });
  return {};
}

// ---------------------------------------------------------------- masks

// Writes the positions of the first `wanted` elements that are not zero. Returns the number of all
// such elements.
std::int64_t write_nonzero(KernelCall& call, std::int64_t wanted) {
  const TensorArg& x = call.in[0];
  const Dims& shape = x.geometry->shape;
  const int rank = shape.size();
  const Rows rows(shape);
  const std::int64_t stride = rows.stride(*x.geometry);
  const auto element = static_cast<std::int64_t>(core::size_of(x.dtype));
  auto* to = call.out[0].first<std::int64_t>();
  std::int64_t found = 0;
  constexpr std::int64_t kPiece = 512;
  const auto scan = [&](auto a) {
    using A = decltype(a);
    const LoadBlock<A> load = load_nonzero<A>(x.dtype);
    A block[kPiece];
    std::int64_t pieces = 0;
    for (std::int64_t r = 0; r < rows.count(); ++r) {
      const char* const row = x.first<const char>() + rows.offset(*x.geometry, r) * element;
      for (std::int64_t j0 = 0; j0 < rows.length(); j0 += kPiece) {
        // An expanded operand may have more elements than would fit into memory, so the loop can be
        // cancelled.
        if (++pieces % 4096 == 0 && call.parallel.cancelled()) return;
        const std::int64_t n = std::min(kPiece, rows.length() - j0);
        load(row + j0 * stride * element, stride, n, block);
        for (std::int64_t j = 0; j < n; ++j) {
          if (block[j] == A(0)) continue;
          if (found++ >= wanted || rank == 0) continue;
          std::int64_t rest = r;
          to[rank - 1] = j0 + j;
          for (int d = rank - 2; d >= 0; --d) {
            to[d] = rest % shape[d];
            rest /= shape[d];
          }
          to += rank;
        }
      }
    }
  };
  with_any_compute_type(x.dtype, scan);
  return found;
}

Status nonzero(KernelCall& call) {
  const std::int64_t wanted = call.attributes.integer(0), found = write_nonzero(call, wanted);
  if (found == wanted) return {};
  return core::invalid("nonzero: the count is " + std::to_string(found) + ", " +
                       std::to_string(wanted) + " was said");
}

Status nonzero_static(KernelCall& call) {
  const std::int64_t size = call.attributes.integer(0), rank = call.in[0].geometry->rank();
  const std::int64_t found = std::min(write_nonzero(call, size), size);
  auto* to = call.out[0].first<std::int64_t>();
  std::fill(to + found * rank, to + size * rank, call.attributes.integer(1));
  return {};
}

// Calls f(offset in x) for the elements where the mask is set, in row-major order.
template <class F>
void each_masked(const Geometry& x, const std::uint8_t* mask, F&& f) {
  const Rows rows(x.shape);
  const std::int64_t stride = rows.stride(x);
  for (std::int64_t r = 0; r < rows.count(); ++r) {
    const std::int64_t base = rows.offset(x, r);
    const std::uint8_t* const bits = mask + r * rows.length();
    for (std::int64_t j = 0; j < rows.length(); ++j) {
      if (bits[j]) f(base + j * stride);
    }
  }
}

Status masked_scatter(KernelCall& call) {
  const TensorArg &out = call.out[0], &source = call.in[2];
  const DenseCopy mask = dense_copy(call, call.in[1], out.geometry->shape, DType::kBool);
  if (mask.data == nullptr) return out_of_scratch(call.op.name, mask.bytes);
  const auto* bits = static_cast<const std::uint8_t*>(mask.data);
  const std::int64_t n = out.geometry->numel();
  const std::int64_t ones = n - std::count(bits, bits + n, std::uint8_t{0});
  if (ones > source.geometry->numel()) {
    return core::invalid("masked_scatter: source has " + std::to_string(source.geometry->numel()) +
                         " elements, the mask " + std::to_string(ones) + " ones");
  }
  const DenseCopy from = dense_copy(call, source, source.geometry->shape, out.dtype);
  if (from.data == nullptr) return out_of_scratch(call.op.name, from.bytes);
  with_type(out.dtype, [&](auto t) {
    using T = decltype(t);
    const T* next = static_cast<const T*>(from.data);
    T* const x = out.first<T>();
    each_masked(*out.geometry, bits, [&](std::int64_t at) { x[at] = *next++; });
  });
  return {};
}

Status masked_pack(KernelCall& call) {
  const TensorArg &x = call.in[0], &out = call.out[0];
  const DenseCopy mask = dense_copy(call, call.in[1], x.geometry->shape, DType::kBool);
  if (mask.data == nullptr) return out_of_scratch(call.op.name, mask.bytes);
  const std::int64_t room = out.geometry->numel();
  with_type(x.dtype, [&](auto t) {
    using T = decltype(t);
    T* const to = out.first<T>();
    std::int64_t count = 0;
    each_masked(*x.geometry, static_cast<const std::uint8_t*>(mask.data), [&](std::int64_t at) {
      if (count < room) to[count++] = x.first<const T>()[at];
    });
    std::fill(to + count, to + room, T{});
  });
  return {};
}

}  // namespace

void add_gather_kernels(KernelTable& table) {
  table.add("gather", gather);
  table.add("nonzero", nonzero);
  table.add("nonzero_static", nonzero_static);
  table.add("masked_scatter", masked_scatter);
  table.add("masked_pack", masked_pack);
}

}  // namespace teletensor::backends::cpu
