// Kernels of scatter, scatter_add, scatter_reduce.

#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/access/wide_sums.h"
#include "engine/backends/cpu/arrangement/gather_index.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Status;

Status picks_of(KernelCall& call, const Geometry& x, const TensorArg& index, Picks& picks) {
  const std::int64_t given = call.attributes.integer(0);
  const int rank = x.rank();
  picks.shape = index.geometry->shape;
  picks.dim = static_cast<int>(given < 0 ? given + std::max(rank, 1) : given);
  picks.step = rank == 0 ? 0 : x.strides[picks.dim];
  const auto list = read_index(call, index, rank == 0 ? 1 : x.shape[picks.dim], picks.dim, false);
  if (list.status().code() == core::Code::kOutOfRange) {
    // PyTorch raises this kind of error for these ops
    return core::invalid(std::string(list.status().message()));
  }
  if (!list.ok()) return list.status();
  picks.index = *list;
  return {};
}

namespace {

// The part of the source that the shape of the index covers, as dense elements of `dtype`.
DenseCopy covered(KernelCall& call, const TensorArg& source, const Dims& shape, DType dtype) {
  TensorArg part = source;
  Geometry window = *source.geometry;
  if (window.rank() == shape.size()) window.shape = shape;
  part.geometry = &window;
  return dense_copy(call, part, window.shape, dtype);
}

// Calls f(position in x, position in the index) in row-major order, on one lane: of several writes
// to one position the last wins, and sums are added in one order.
template <class F>
void each_place(const Rows& rows, const Picks& picks, const Geometry& geometry, F&& f) {
  const std::int64_t n = rows.length(), step = picks.step;
  const std::int64_t* const values = picks.index.values;
  each_row(rows, picks, geometry, 0, rows.count(),
           [&](std::int64_t base, std::int64_t stride, std::int64_t at) {
             const std::int64_t* const index = values + at;
             if (stride == 0 && step == 1) {
               for (std::int64_t j = 0; j < n; ++j) f(base + index[j], at + j);
             } else {
               for (std::int64_t j = 0; j < n; ++j) f(base + j * stride + index[j] * step, at + j);
             }
           });
}

// Like each_place(), but calls f with the element of x instead of its position.
template <class T, class F>
void each_pick(const Rows& rows, const Picks& picks, const Geometry& geometry, T* x, F&& f) {
  each_place(rows, picks, geometry, [&](std::int64_t place, std::int64_t at) { f(x[place], at); });
}

// The 16-bit values that are added to x: `count` sources, or with `one` the same value for all.
template <class T>
struct Added {
  const T* values = nullptr;
  bool one = false;
  float operator()(std::int64_t at) const { return static_cast<float>(values[one ? 0 : at]); }
};

// For 16-bit floats: x[positions] = finish(combine(combine(x, source), source)...), computed in
// float32 and rounded once. With `fresh` the first source replaces the value of x.
template <class T, class Combine, class Finish>
Status scatter_sorted(KernelCall& call, const Picks& picks, const Added<T>& added, bool fresh,
                      Combine&& combine, Finish&& finish) {
  const TensorArg& out = call.out[0];
  const std::int64_t count = picks.index.count;
  const std::size_t bytes = scratch_bytes(std::max<std::int64_t>(count, 1), sizeof(std::int64_t));
  auto* const places = static_cast<std::int64_t*>(call.scratch.allocate(bytes));
  if (places == nullptr) return out_of_scratch(call.op.name, bytes);
  each_place(Rows(picks.shape), picks, *out.geometry,
             [&](std::int64_t place, std::int64_t at) { places[at] = place; });
  const auto sorted = by_place(call, count, [&](std::int64_t i) { return places[i]; });
  if (!sorted.ok()) return sorted.status();
  T* const x = out.first<T>();
  for (std::size_t i = 0; i < sorted->size();) {
    const std::int64_t place = (*sorted)[i].place;
    float total = static_cast<float>(x[place]);
    std::int64_t sources = 0;
    for (; i < sorted->size() && (*sorted)[i].place == place; ++i, ++sources) {
      const float value = added((*sorted)[i].at);
      total = fresh && sources == 0 ? value : combine(total, value);
    }
    x[place] = T(finish(total, sources));
  }
  return {};
}

template <class T>
Status add_halves(KernelCall& call, const Picks& picks, const Added<T>& added) {
  const TensorArg& out = call.out[0];
  if (!WideSums::pays(out, picks.index.count)) {
    return scatter_sorted(
        call, picks, added, false, [](float total, float value) { return total + value; },
        [](float total, std::int64_t) { return total; });
  }
  Status status;
  const WideSums sums(call, out, status);
  TT_RETURN_IF_ERROR(status);
  each_pick(Rows(picks.shape), picks, *out.geometry, sums.first(),
            [&](float& to, std::int64_t at) { to += added(at); });
  sums.store();
  return {};
}

template <bool kAdd>
Status scatter(KernelCall& call) {
  const TensorArg &out = call.out[0], &source = call.in[2];
  Picks picks;
  TT_RETURN_IF_ERROR(picks_of(call, *out.geometry, call.in[1], picks));
  const bool number = source.kind == TensorArg::Kind::kNumber;
  const DenseCopy from = number ? dense_copy(call, source, Dims(), out.dtype)
                                : covered(call, source, picks.shape, out.dtype);
  if (from.data == nullptr) return out_of_scratch(call.op.name, from.bytes);
  const Rows rows(picks.shape);
  Status status;
  with_type(out.dtype, [&](auto t) {
    using T = decltype(t);
    const T* const values = static_cast<const T*>(from.data);
    if constexpr (kAdd && kIsHalf<T>) {
      status = add_halves<T>(call, picks, {values, number});
      return;
    }
    const auto store = [](T& to, T value) {
      if constexpr (kAdd && std::is_floating_point_v<T>) {
        to += value;
      } else if constexpr (kAdd) {
        accumulate(to, value, 1);
      } else {
        to = value;
      }
    };
    if (number) {
      const T value = *values;
      each_pick(rows, picks, *out.geometry, out.first<T>(),
                [=](T& to, std::int64_t) { store(to, value); });
    } else {
      each_pick(rows, picks, *out.geometry, out.first<T>(),
                [=](T& to, std::int64_t at) { store(to, values[at]); });
    }
  });
  return status;
}

// ---------------------------------------------------------------- scatter_reduce

enum class Mode { kSum, kProduct, kMean, kMax, kMin };

Mode mode_of(std::string_view text) {
  if (text == "sum") return Mode::kSum;
  if (text == "prod") return Mode::kProduct;
  if (text == "mean") return Mode::kMean;
  return text == "amax" ? Mode::kMax : Mode::kMin;
}

template <class T>
bool is_nan(const T& x) {
  if constexpr (std::is_integral_v<T> || core::kIsComplex<T>) {
    return false;
  } else {
    return static_cast<double>(x) != static_cast<double>(x);
  }
}

template <class T>
void multiply(T& to, T from) {
  if constexpr (std::is_same_v<T, bool>) {
    to = to && from;
  } else if constexpr (std::is_integral_v<T>) {
    to = static_cast<T>(static_cast<std::uint64_t>(to) * static_cast<std::uint64_t>(from));
  } else if constexpr (std::is_floating_point_v<T> || core::kIsComplex<T>) {
    to = to * from;
  } else {
    to = T(static_cast<float>(to) * static_cast<float>(from));
  }
}

// NaN wins. infer refuses complex numbers.
template <class T>
void keep_extreme(T& to, T from, bool largest) {
  if (is_nan(to)) return;
  bool better;
  if constexpr (core::kIsComplex<T>) {
    return;
  } else if constexpr (std::is_arithmetic_v<T>) {
    better = largest ? from > to : from < to;
  } else {
    const float a = static_cast<float>(from), b = static_cast<float>(to);
    better = largest ? a > b : a < b;
  }
  if (better || is_nan(from)) to = from;
}

template <Mode kMode, class T>
void combine(T& to, T from) {
  if constexpr (kMode == Mode::kProduct) {
    multiply(to, from);
  } else if constexpr (kMode == Mode::kMax || kMode == Mode::kMin) {
    keep_extreme(to, from, kMode == Mode::kMax);
  } else if constexpr (std::is_floating_point_v<T>) {
    to += from;
  } else {
    accumulate(to, from, 1);
  }
}

// Calls f with the mode as a compile-time constant.
template <class F>
void with_mode(Mode mode, F&& f) {
  switch (mode) {
    case Mode::kSum:
      return f(std::integral_constant<Mode, Mode::kSum>());
    case Mode::kMean:
      return f(std::integral_constant<Mode, Mode::kMean>());
    case Mode::kProduct:
      return f(std::integral_constant<Mode, Mode::kProduct>());
    case Mode::kMax:
      return f(std::integral_constant<Mode, Mode::kMax>());
    case Mode::kMin:
      return f(std::integral_constant<Mode, Mode::kMin>());
  }
}

// Division of integers rounds down, as in PyTorch's mean of a scatter.
template <class T>
void divide(T& to, std::int64_t count) {
  if constexpr (std::is_same_v<T, bool>) {
    return;
  } else if constexpr (std::is_unsigned_v<T>) {
    to = static_cast<T>(to / static_cast<std::uint64_t>(count));
  } else if constexpr (core::kIsComplex<T>) {
    to = to / T(static_cast<double>(count));
  } else if constexpr (std::is_integral_v<T>) {
    const auto n = static_cast<std::int64_t>(to);
    const std::int64_t quotient = n / count;
    to = static_cast<T>(n % count != 0 && n < 0 ? quotient - 1 : quotient);
  } else if constexpr (std::is_floating_point_v<T>) {
    to /= static_cast<T>(count);
  } else {
    to = T(static_cast<float>(to) / static_cast<float>(count));
  }
}

// x has the layout of `out` and type T; the sources have type S.
template <class T, class S>
void reduce_all(const Picks& picks, const Geometry& geometry, T* x, const S* values, Mode mode) {
  with_mode(mode, [&](auto constant) {
    each_pick(Rows(picks.shape), picks, geometry, x, [=](T& to, std::int64_t at) {
      combine<decltype(constant)::value>(to, static_cast<T>(values[at]));
    });
  });
}

// Like reduce_all(). `counts` has, for each element by its row-major position, the number of
// sources that have been combined into the element.
template <class T, class S>
void reduce_counted(const Picks& picks, const Geometry& geometry, T* x, const S* values, Mode mode,
                    bool include_self, std::int64_t* counts) {
  const Rows rows(picks.shape);
  const Geometry places(geometry.shape);
  const std::int64_t count_step = places.rank() == 0 ? 0 : places.strides[picks.dim];
  const auto each = [&](auto&& f) {  // f(element, its count, position in the index)
    each_row(rows, picks, geometry, 0, rows.count(),
             [&](std::int64_t base, std::int64_t stride, std::int64_t at) {
               std::int64_t place = 0, place_stride = 0;  // the same row in the table of counts
               each_row(rows, picks, places, at / rows.length(), at / rows.length() + 1,
                        [&](std::int64_t b, std::int64_t s, std::int64_t) {
                          place = b;
                          place_stride = s;
                        });
               for (std::int64_t j = 0; j < rows.length(); ++j) {
                 const std::int64_t index = picks.index.values[at + j];
                 std::int64_t* const count = counts + place + j * place_stride + index * count_step;
                 f(x[base + j * stride + index * picks.step], count, at + j);
               }
             });
  };
  with_mode(mode, [&](auto constant) {
    each([&](T& to, std::int64_t* count, std::int64_t at) {
      if ((*count)++ == 0 && !include_self) {
        to = static_cast<T>(values[at]);
      } else {
        combine<decltype(constant)::value>(to, static_cast<T>(values[at]));
      }
    });
  });
  if (mode != Mode::kMean) return;
  each([&](T& to, std::int64_t* count, std::int64_t) {
    if (*count > 0) divide(to, *count + include_self);
    *count = 0;
  });
}

// Sums, means and products of 16-bit floats, with few sources in a large tensor.
template <class T>
Status reduce_halves(KernelCall& call, const Picks& picks, const T* values, Mode mode,
                     bool include_self) {
  return scatter_sorted(
      call, picks, Added<T>{values}, !include_self,
      [mode](float total, float value) {
        return mode == Mode::kProduct ? total * value : total + value;
      },
      [=](float total, std::int64_t sources) {
        return mode == Mode::kMean ? total / static_cast<float>(sources + include_self) : total;
      });
}

Status scatter_reduce(KernelCall& call) {
  const TensorArg& out = call.out[0];
  const Mode mode = mode_of(call.attributes.text(1));
  const bool include_self = call.attributes.boolean(2),
             counted = !include_self || mode == Mode::kMean;
  Picks picks;
  TT_RETURN_IF_ERROR(picks_of(call, *out.geometry, call.in[1], picks));
  const DenseCopy from = covered(call, call.in[2], picks.shape, out.dtype);
  if (from.data == nullptr) return out_of_scratch(call.op.name, from.bytes);
  Status status;
  with_type(out.dtype, [&](auto t) {
    using T = decltype(t);
    const T* const values = static_cast<const T*>(from.data);
    const bool sums = kIsHalf<T> && mode != Mode::kMax && mode != Mode::kMin;
    if constexpr (kIsHalf<T>) {
      if (sums && !WideSums::pays(out, picks.index.count)) {
        status = reduce_halves(call, picks, values, mode, include_self);
        return;
      }
    }
    std::int64_t* counts = nullptr;
    if (counted) {
      const std::int64_t n = std::max<std::int64_t>(out.geometry->numel(), 1);
      const std::size_t bytes = scratch_bytes(n, sizeof(std::int64_t));
      counts = static_cast<std::int64_t*>(call.scratch.allocate(bytes));
      if (counts == nullptr) {
        status = out_of_scratch(call.op.name, bytes);
        return;
      }
      std::fill_n(counts, n, 0);
    }
    const auto reduce = [&](auto* x) {
      if (counted) {
        reduce_counted(picks, *out.geometry, x, values, mode, include_self, counts);
      } else {
        reduce_all(picks, *out.geometry, x, values, mode);
      }
    };
    if constexpr (kIsHalf<T>) {
      if (sums) {
        const WideSums wide(call, out, status);
        if (!status.ok()) return;
        reduce(wide.first());
        wide.store();
        return;
      }
    }
    reduce(out.first<T>());
  });
  return status;
}

}  // namespace

void add_scatter_kernels(KernelTable& table) {
  table.add("scatter", scatter<false>);
  table.add("scatter_add", scatter<true>);
  table.add("scatter_reduce", scatter_reduce);
}

}  // namespace teletensor::backends::cpu
