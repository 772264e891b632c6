#include "engine/backends/cpu/arrangement/index_places.h"

#include <algorithm>
#include <cstring>

#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/access/wide_sums.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Status;

DenseCopy dense_copy(KernelCall& call, const TensorArg& x, const Dims& shape, DType dtype) {
  const bool as_is = x.kind == TensorArg::Kind::kTensor && x.dtype == dtype &&
                     x.geometry->shape == shape && x.geometry->contiguous();
  if (as_is) return {x.first<const void>(), 0};
  const Geometry geometry(shape);
  const std::size_t bytes = scratch_bytes(shape, core::size_of(dtype));
  void* memory = call.scratch.allocate(std::max<std::size_t>(bytes, 8));
  if (memory == nullptr) return {nullptr, bytes};
  TensorArg copy;
  copy.kind = TensorArg::Kind::kTensor;
  copy.data = memory;
  copy.dtype = dtype;
  copy.geometry = &geometry;
  if (bytes > 0) strided_copy(x, copy, call.parallel);
  return {memory, bytes};
}

namespace {

// Checks that the indices are in range, and determines whether any of them is negative.
Status check_values(KernelCall& call, const std::int64_t* values, std::int64_t count,
                    std::int64_t size, int dim, bool wrap, bool& any_negative) {
  const std::int64_t least = wrap ? -size : 0;
  // Uses sign bits instead of comparisons, because the vectors of the baseline instruction set have
  // no 64-bit comparison. Out of range values can make one of the two differences wrap, but then
  // the other one shows it. For sizes above 2^62, which an expanded view can have, valid indices
  // can look invalid; hence the second, exact check.
  std::uint64_t outside = 0, negative = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto v = static_cast<std::uint64_t>(values[i]);
    outside |= (v - static_cast<std::uint64_t>(least)) | (static_cast<std::uint64_t>(size - 1) - v);
    negative |= v;
  }
  any_negative = negative >> 63 != 0;
  if (outside >> 63 == 0) return {};
  const std::int64_t* at =
      std::find_if(values, values + count, [&](std::int64_t v) { return v < least || v >= size; });
  if (at == values + count) return {};
  return Status(core::Code::kOutOfRange, call.op.name + ": index " + std::to_string(*at) +
                                             " is out of range for size " + std::to_string(size) +
                                             " (dim " + std::to_string(dim) + ")");
}

core::Result<std::int64_t*> table(KernelCall& call, std::int64_t count) {
  const std::size_t bytes = scratch_bytes(std::max<std::int64_t>(count, 1), sizeof(std::int64_t));
  void* const memory = call.scratch.allocate(bytes);
  if (memory == nullptr) return out_of_scratch(call.op.name, bytes);
  return static_cast<std::int64_t*>(memory);
}

// The offsets of all index combinations of some dimensions, in row-major order.
Status offsets(KernelCall& call, const Dims& shape, const Dims& strides,
               std::span<const std::int64_t>& out) {
  static constexpr std::int64_t kZero[] = {0};
  if (shape.empty()) {
    out = kZero;
    return {};
  }
  const auto elements = core::checked_numel(shape.span());
  if (!elements.ok()) return out_of_scratch(call.op.name, kNoSuchScratch);
  const std::int64_t count = *elements;
  const auto memory = table(call, count);
  if (!memory.ok()) return memory.status();
  std::int64_t* const to = *memory;
  std::int64_t done = 1;
  to[0] = 0;
  for (int d = 0; d < shape.size() && count > 0; ++d) {
    // Backwards, so that an entry is read before it is overwritten.
    for (std::int64_t i = done - 1; i >= 0; --i) {
      for (std::int64_t j = shape[d] - 1; j >= 0; --j)
        to[i * shape[d] + j] = to[i] + j * strides[d];
    }
    done *= shape[d];
  }
  out = {to, static_cast<std::size_t>(count)};
  return {};
}

}  // namespace

core::Result<IndexList> read_index(KernelCall& call, const TensorArg& index, std::int64_t size,
                                   int dim, bool wrap) {
  IndexList list;
  list.count = index.geometry->numel();
  const DenseCopy values = dense_copy(call, index, index.geometry->shape, DType::kI64);
  if (values.data == nullptr) return out_of_scratch(call.op.name, values.bytes);
  list.values = static_cast<const std::int64_t*>(values.data);
  bool negative;
  TT_RETURN_IF_ERROR(check_values(call, list.values, list.count, size, dim, wrap, negative));
  if (negative) {
    const auto wrapped = table(call, list.count);
    if (!wrapped.ok()) return wrapped.status();
    for (std::int64_t i = 0; i < list.count; ++i) {
      (*wrapped)[i] = list.values[i] + (list.values[i] < 0 ? size : 0);
    }
    list.values = *wrapped;
  }
  return list;
}

core::Result<Places> places_of(KernelCall& call, const Geometry& x,
                               std::span<const TensorArg> indices,
                               std::span<const std::int64_t> dims, bool wrap) {
  Places places;
  Dims broad = indices[0].geometry->shape;
  for (const TensorArg& index : indices.subspan(1)) {
    auto next = core::broadcast_shapes(broad, index.geometry->shape, call.op.name);
    if (!next.ok()) return next.status();
    broad = *next;
  }
  const auto elements = core::checked_numel(broad.span());
  if (!elements.ok()) return out_of_scratch(call.op.name, kNoSuchScratch);
  const std::int64_t count = *elements;
  std::int64_t* at = nullptr;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto d = static_cast<int>(dims[i]);
    const std::int64_t size = x.rank() == 0 ? 1 : x.shape[d];
    const std::int64_t stride = x.rank() == 0 ? 0 : x.strides[d];
    const DenseCopy values = dense_copy(call, indices[i], broad, DType::kI64);
    if (values.data == nullptr) return out_of_scratch(call.op.name, values.bytes);
    const auto* v = static_cast<const std::int64_t*>(values.data);
    bool negative;
    TT_RETURN_IF_ERROR(check_values(call, v, count, size, d, wrap, negative));
    if (indices.size() == 1 && stride == 1 && !negative && indices[0].data != call.out[0].data) {
      // The indices are the offsets, and the call does not write to their memory, so no table is
      // needed.
      places.indices = {v, static_cast<std::size_t>(count)};
      break;
    }
    if (at == nullptr) {
      const auto memory = table(call, count);
      if (!memory.ok()) return memory.status();
      at = *memory;
    }
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t offset = (v[j] + (v[j] < 0 ? size : 0)) * stride;
      at[j] = i == 0 ? offset : at[j] + offset;
    }
  }
  if (at != nullptr) places.indices = {at, static_cast<std::size_t>(count)};
  if (count == 0) return places;

  const std::size_t n = dims.size();
  const bool neighbours = dims[n - 1] - dims[0] + 1 == static_cast<std::int64_t>(n);
  Geometry before, after;
  std::size_t next = 0;
  for (int d = 0; d < x.rank(); ++d) {
    if (next < n && dims[next] == d) {
      ++next;
      continue;
    }
    Geometry& side = neighbours && next == 0 ? before : after;
    side.shape.push_back(x.shape[d]);
    side.strides.push_back(x.strides[d]);
  }
  // Trailing dimensions that together are uniformly strided become the runs.
  while (after.rank() > 0) {
    const int last = after.rank() - 1;
    const std::int64_t size = after.shape[last], stride = after.strides[last];
    if (size != 1) {
      if (places.length == 1) {
        places.stride = stride;
      } else if (stride != places.stride * places.length) {
        break;
      }
      places.length *= size;
    }
    after.shape.erase(last);
    after.strides.erase(last);
    if (places.length == 0) break;
  }
  TT_RETURN_IF_ERROR(offsets(call, before.shape, before.strides, places.before));
  TT_RETURN_IF_ERROR(offsets(call, after.shape, after.strides, places.runs));
  return places;
}

// ---------------------------------------------------------------- iterating over the places

namespace {

// Calls f(offset of the run in x, position of its first element) for the pieces [begin, end) of the
// `before` x `indices` combinations, until the call is cancelled.
template <class F>
void each_run(const Parallel& parallel, const Places& p, std::int64_t begin, std::int64_t end,
              F&& f) {
  const std::size_t count = p.indices.size();
  // Elements between two checks for cancellation, about half a millisecond.
  constexpr std::int64_t kLook = 1 << 20;
  const std::int64_t piece_size = static_cast<std::int64_t>(p.runs.size()) * p.length;
  std::int64_t left = kLook;
  std::size_t outer = static_cast<std::size_t>(begin) / count;
  std::size_t inner = static_cast<std::size_t>(begin) % count;
  std::int64_t at = begin * static_cast<std::int64_t>(p.runs.size()) * p.length;
  for (std::int64_t piece = begin; piece < end; ++piece) {
    const std::int64_t base = p.before[outer] + p.indices[inner];
    for (const std::int64_t run : p.runs) {
      f(base + run, at);
      at += p.length;
    }
    if (++inner == count) {
      inner = 0;
      ++outer;
    }
    if ((left -= piece_size) < 0) {
      if (parallel.cancelled()) return;
      left = kLook;
    }
  }
}

template <class T>
void read(KernelCall& call, const Places& p, const T* x, T* to) {
  const auto pieces = static_cast<std::int64_t>(p.before.size() * p.indices.size());
  const double cost = static_cast<double>(p.count()) / static_cast<double>(pieces) * 0.3 + 2;
  split(call.parallel, pieces, cost, 1, [&](std::int64_t begin, std::int64_t end) {
    if (p.runs.size() == 1 && p.length == 1) {
      const auto count = static_cast<std::int64_t>(p.indices.size());
      std::size_t row = static_cast<std::size_t>(begin / count);
      std::int64_t at = begin % count;
      for (std::int64_t i = begin; i < end; ++row, at = 0) {
        const T* const from = x + p.before[row] + p.runs[0];
        const std::int64_t* const index = p.indices.data() + at;
        const std::int64_t n = std::min(end - i, count - at);
#pragma GCC unroll 8
        for (std::int64_t j = 0; j < n; ++j) to[i + j] = from[index[j]];
        i += n;
      }
    } else if (p.stride == 1) {
      each_run(call.parallel, p, begin, end, [&](std::int64_t from, std::int64_t at) {
        std::memcpy(to + at, x + from, static_cast<std::size_t>(p.length) * sizeof(T));
      });
    } else {
      each_run(call.parallel, p, begin, end, [&](std::int64_t from, std::int64_t at) {
        for (std::int64_t i = 0; i < p.length; ++i) to[at + i] = x[from + i * p.stride];
      });
    }
  });
}

// The writes are in order, so the last write to a place wins.
template <class T>
void write(const Parallel& parallel, const Places& p, T* x, const T* from, bool fill) {
  const auto pieces = static_cast<std::int64_t>(p.before.size() * p.indices.size());
  if (fill) {
    each_run(parallel, p, 0, pieces, [&](std::int64_t to, std::int64_t) {
      for (std::int64_t i = 0; i < p.length; ++i) x[to + i * p.stride] = *from;
    });
  } else if (p.stride == 1) {
    each_run(parallel, p, 0, pieces,
             [&](std::int64_t to, std::int64_t at) { std::copy_n(from + at, p.length, x + to); });
  } else {
    each_run(parallel, p, 0, pieces, [&](std::int64_t to, std::int64_t at) {
      for (std::int64_t i = 0; i < p.length; ++i) x[to + i * p.stride] = from[at + i];
    });
  }
}

// S is the type of the source; 16 bits if T is float.
template <class T, class S>
void add(const Parallel& parallel, const Places& p, T* x, const S* from, bool fill, double alpha) {
  const auto pieces = static_cast<std::int64_t>(p.before.size() * p.indices.size());
  if constexpr (std::is_floating_point_v<T>) {
    if (!fill && p.stride == 1 && alpha == 1) {
      each_run(parallel, p, 0, pieces, [&](std::int64_t to, std::int64_t at) {
        for (std::int64_t i = 0; i < p.length; ++i) x[to + i] += static_cast<T>(from[at + i]);
      });
      return;
    }
  }
  if (p.before.size() == 1 && p.runs.size() == 1 && p.length == 1) {
    T* const to = x + p.before[0] + p.runs[0];
    const std::int64_t* const index = p.indices.data();
    const T first = static_cast<T>(*from);
    if (fill && alpha == 1) {
      for (std::int64_t i = 0; i < pieces; ++i) accumulate(to[index[i]], first, 1);
    } else if (fill) {
      for (std::int64_t i = 0; i < pieces; ++i) accumulate(to[index[i]], first, alpha);
    } else {
      for (std::int64_t i = 0; i < pieces; ++i) {
        accumulate(to[index[i]], static_cast<T>(from[i]), alpha);
      }
    }
    return;
  }
  each_run(parallel, p, 0, pieces, [&](std::int64_t to, std::int64_t at) {
    for (std::int64_t i = 0; i < p.length; ++i) {
      accumulate(x[to + i * p.stride], static_cast<T>(fill ? *from : from[at + i]), alpha);
    }
  });
}

// Adds index by index, with the sums of each in a block of float32.
template <class T>
Status add_sorted(KernelCall& call, const Places& p, T* x, const T* from, bool fill, double alpha) {
  const auto count = static_cast<std::int64_t>(p.indices.size());
  const auto sorted =
      by_place(call, count, [&](std::int64_t i) { return p.indices[static_cast<std::size_t>(i)]; });
  if (!sorted.ok()) return sorted.status();
  constexpr std::int64_t kPiece = 256;
  const auto runs = static_cast<std::int64_t>(p.runs.size());
  const auto factor = static_cast<float>(alpha);
  const auto size = static_cast<std::int64_t>(sorted->size());
  for (std::int64_t begin = 0, end = 0; begin < size; begin = end) {
    const Entry* const group = sorted->data() + begin;
    while (end < size && (*sorted)[static_cast<std::size_t>(end)].place == group->place) ++end;
    if (call.parallel.cancelled()) return {};
    for (std::int64_t b = 0; b < static_cast<std::int64_t>(p.before.size()); ++b) {
      for (std::int64_t r = 0; r < runs; ++r) {
        T* const to = x + p.before[static_cast<std::size_t>(b)] + group->place +
                      p.runs[static_cast<std::size_t>(r)];
        for (std::int64_t start = 0; start < p.length; start += kPiece) {
          const std::int64_t n = std::min(kPiece, p.length - start);
          float sum[kPiece];
          for (std::int64_t j = 0; j < n; ++j) {
            sum[j] = static_cast<float>(to[(start + j) * p.stride]);
          }
          for (std::int64_t e = 0; e < end - begin; ++e) {
            const T* const row = from + ((b * count + group[e].at) * runs + r) * p.length + start;
            for (std::int64_t j = 0; j < n; ++j) {
              sum[j] += factor * static_cast<float>(fill ? *from : row[j]);
            }
          }
          for (std::int64_t j = 0; j < n; ++j) to[(start + j) * p.stride] = T(sum[j]);
        }
      }
    }
  }
  return {};
}

}  // namespace

void read_places(KernelCall& call, const Places& places, const TensorArg& x, void* to) {
  if (places.count() == 0) return;
  with_bytes(core::size_of(x.dtype), [&](auto t) {
    using T = decltype(t);
    read<T>(call, places, x.first<const T>(), static_cast<T*>(to));
  });
}

void write_places(KernelCall& call, const Places& places, const TensorArg& x, const void* from,
                  bool fill) {
  if (places.count() == 0) return;
  with_bytes(core::size_of(x.dtype), [&](auto t) {
    using T = decltype(t);
    write<T>(call.parallel, places, x.first<T>(), static_cast<const T*>(from), fill);
  });
}

template <class T>
void accumulate(T& to, T from, double alpha) {
  if constexpr (std::is_same_v<T, bool>) {
    to = to || (from && alpha != 0);
  } else if constexpr (core::kIsComplex<T>) {
    to += alpha == 1 ? from : T(alpha) * from;
  } else if constexpr (std::is_floating_point_v<T>) {
    to += alpha == 1 ? from : static_cast<T>(alpha) * from;
  } else if constexpr (std::is_integral_v<T>) {
    const auto factor =
        alpha == 1 ? 1u : static_cast<std::uint64_t>(static_cast<std::int64_t>(alpha));
    to = static_cast<T>(static_cast<std::uint64_t>(to) + factor * static_cast<std::uint64_t>(from));
  } else {
    to = T(static_cast<float>(to) + static_cast<float>(alpha) * static_cast<float>(from));
  }
}
template void accumulate(bool&, bool, double);
template void accumulate(std::uint8_t&, std::uint8_t, double);
template void accumulate(std::int8_t&, std::int8_t, double);
template void accumulate(std::int16_t&, std::int16_t, double);
template void accumulate(std::uint16_t&, std::uint16_t, double);
template void accumulate(std::uint32_t&, std::uint32_t, double);
template void accumulate(std::uint64_t&, std::uint64_t, double);
template void accumulate(core::Complex64&, core::Complex64, double);
template void accumulate(core::Complex128&, core::Complex128, double);
template void accumulate(std::int32_t&, std::int32_t, double);
template void accumulate(std::int64_t&, std::int64_t, double);
template void accumulate(core::Half&, core::Half, double);
template void accumulate(core::BFloat16&, core::BFloat16, double);
template void accumulate(float&, float, double);
template void accumulate(double&, double, double);

Status add_places(KernelCall& call, const Places& places, const TensorArg& x, const void* from,
                  bool fill, double alpha) {
  if (places.count() == 0) return {};
  Status status;
  with_type(x.dtype, [&](auto t) {
    using T = decltype(t);
    const T* const values = static_cast<const T*>(from);
    if constexpr (kIsHalf<T>) {
      if (!WideSums::pays(x, places.count())) {
        status = add_sorted<T>(call, places, x.first<T>(), values, fill, alpha);
        return;
      }
      const WideSums sums(call, x, status);
      if (!status.ok()) return;
      add<float>(call.parallel, places, sums.first(), values, fill, alpha);
      sums.store();
    } else {
      add<T>(call.parallel, places, x.first<T>(), values, fill, alpha);
    }
  });
  return status;
}

}  // namespace teletensor::backends::cpu
