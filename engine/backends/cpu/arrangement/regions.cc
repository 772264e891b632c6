// Kernels of regions: copies between a base tensor, taken in its own row-major order, and a strided
// view on it.

#include "engine/backends/cpu/arrangement/regions.h"

#include <cstring>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Status;

// Allocates memory with the layout of the base. Returns nullptr if the budget does not allow it.
void* base_memory(KernelCall& call, const Geometry& base, std::size_t element, std::size_t& bytes) {
  bytes = scratch_bytes(base.storage_end(), element);
  return call.scratch.allocate(std::max<std::size_t>(bytes, 1));
}

Status index_region(KernelCall& call) {
  const Region region(call.attributes);
  const TensorArg &x = call.in[0], &out = call.out[0];
  if (lies_as(*x.geometry, region.base)) {
    strided_copy(seen_as(x, x.first(), region.view), out, call.parallel);
    return {};
  }
  std::size_t bytes;
  void* memory = base_memory(call, region.base, core::size_of(x.dtype), bytes);
  if (memory == nullptr) return out_of_scratch(call.op.name, bytes);
  std::memset(memory, 0, bytes);
  strided_copy(x, seen_as(x, memory, region.base), call.parallel);
  strided_copy(seen_as(x, memory, region.view), out, call.parallel);
  return {};
}

// Splits the dimensions of a view into those that do not repeat elements and those (stride 0) that
// do.
void split_repeats(const Geometry& view, const Geometry& x, Geometry& once, Geometry& x_once,
                   Geometry& repeats) {
  once.offset = view.offset;
  x_once.offset = repeats.offset = 0;
  for (int d = 0; d < view.rank(); ++d) {
    const bool repeated = view.strides[d] == 0 && view.shape[d] > 1;
    Geometry& part = repeated ? repeats : x_once;
    part.shape.push_back(view.shape[d]);
    part.strides.push_back(x.strides[d]);
    if (!repeated) {
      once.shape.push_back(view.shape[d]);
      once.strides.push_back(view.strides[d]);
    }
  }
}

// to[view] += x; the sums of each element of `to` are added in the order of x.
template <class A>
void add_region(const TensorArg& x, const Geometry& view, void* to, DType dtype) {
  constexpr std::int64_t kPiece = 256;
  const LoadBlock<A> load = load_block<A>(x.dtype), load_sum = load_block<A>(dtype);
  const StoreBlock<A> store = store_block<A>(dtype);
  const auto element = static_cast<std::int64_t>(core::size_of(x.dtype)),
             sum_element = static_cast<std::int64_t>(core::size_of(dtype));
  Geometry once, x_once, repeats;
  split_repeats(view, *x.geometry, once, x_once, repeats);
  const LinearOrder order(once), turns(repeats);
  const Walk to_walk(once, order, once.rank()), from_walk(x_once, order, once.rank());
  const Walk turn_walk(repeats, turns, repeats.rank());
  A sum[kPiece], add[kPiece];
  char* const base = static_cast<char*>(to) + view.offset * sum_element;
  // The rows of a view like unfold's share elements with each other, but not within a row.
  const std::int64_t row = order.rank > 0 && once.overlaps_itself() ? order.sizes[0] : order.count;
  std::int64_t n = 0;
  for (std::int64_t start = 0; start < order.count; start += n) {
    n = std::min(kPiece, row - start % row);
    std::int64_t at = 0;
    to_walk.runs(start, n, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
      load_sum(base + offset * sum_element, stride, length, sum + at);
      at += length;
    });
    turn_walk.runs(0, turns.count, [&](std::int64_t turn, std::int64_t step, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i, turn += step) {
        at = 0;
        from_walk.runs(
            start, n, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
              load(x.first<const char>() + (offset + turn) * element, stride, length, add + at);
              at += length;
            });
        for (std::int64_t j = 0; j < n; ++j) {
          if constexpr (std::is_same_v<A, std::int64_t>) {
            sum[j] = static_cast<A>(static_cast<std::uint64_t>(sum[j]) +
                                    static_cast<std::uint64_t>(add[j]));
          } else {
            sum[j] += add[j];
          }
        }
      }
    });
    at = 0;
    to_walk.runs(start, n, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
      store(sum + at, length, base + offset * sum_element, stride);
      at += length;
    });
  }
}

Status scatter_region(KernelCall& call) {
  const Region region(call.attributes);
  const TensorArg &x = call.in[0], &out = call.out[0];
  // Sums of 16-bit floats are computed in float32.
  const bool wide =
      core::is_floating(x.dtype) && core::size_of(x.dtype) == 2 && region.view.overlaps_itself();
  const DType dtype = wide ? DType::kF32 : x.dtype;
  const bool direct = !wide && lies_as(*out.geometry, region.base);
  std::size_t bytes = static_cast<std::size_t>(out.geometry->numel()) * core::size_of(x.dtype);
  void* memory = out.first();
  if (!direct) {
    memory = base_memory(call, region.base, core::size_of(dtype), bytes);
    if (memory == nullptr) return out_of_scratch(call.op.name, bytes);
  }
  if (bytes > 0) std::memset(memory, 0, bytes);
  if (region.view.numel() > 0) {
    if (region.view.overlaps_itself()) {
      with_any_compute_type(
          x.dtype, [&](auto a) { add_region<decltype(a)>(x, region.view, memory, dtype); });
    } else {
      strided_copy(x, seen_as(x, memory, region.view), call.parallel);
    }
  }
  TensorArg made = seen_as(x, memory, region.base);
  made.dtype = dtype;
  if (!direct) strided_copy(made, out, call.parallel);
  return {};
}

// Calls write(memory) with memory that contains the result in the layout of the region's base.
// Operand 0 has already been copied to the result.
template <class Write>
Status write_region(KernelCall& call, const Region& region, const Write& write) {
  const TensorArg& out = call.out[0];
  if (lies_as(*out.geometry, region.base)) {
    write(out.first());
    return {};
  }
  std::size_t bytes;
  void* const memory = base_memory(call, region.base, core::size_of(out.dtype), bytes);
  if (memory == nullptr) return out_of_scratch(call.op.name, bytes);
  strided_copy(out, seen_as(out, memory, region.base), call.parallel);
  write(memory);
  strided_copy(seen_as(out, memory, region.base), out, call.parallel);
  return {};
}

Status update_region(KernelCall& call) {
  const Region region(call.attributes);
  return write_region(call, region, [&](void* memory) {
    strided_copy(call.in[1], seen_as(call.out[0], memory, region.view), call.parallel);
  });
}

Status add_to_region(KernelCall& call) {
  const Region region(call.attributes);
  if (region.view.numel() == 0) return {};
  return write_region(call, region, [&](void* memory) {
    with_any_compute_type(call.out[0].dtype, [&](auto a) {
      add_region<decltype(a)>(call.in[1], region.view, memory, call.out[0].dtype);
    });
  });
}

Status relayout(KernelCall& call) {
  strided_copy(call.in[0], call.out[0], call.parallel);
  return {};
}

}  // namespace

void add_region_kernels(KernelTable& table) {
  table.add("index_region", index_region);
  table.add("scatter_region", scatter_region);
  table.add("add_region", add_to_region);
  table.add("update_region", update_region);
  table.add("relayout", relayout);
}

}  // namespace teletensor::backends::cpu
