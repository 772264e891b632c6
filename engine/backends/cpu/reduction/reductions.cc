// Kernels of reductions to one value: sum, nan_sum, mean, prod, amax, amin, any, all, var, std,
// norm, logsumexp, count_nonzero. The result is computed in chunks along the fastest kept axis.
// Each chunk takes one or two passes of a reduction, either along memory (one result after another)
// or across it (a row of results at once).
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/complex_parts.h"
#include "engine/backends/cpu/access/lines.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/reduction/reduce_plan.h"
#include "engine/backends/cpu/reduction/reduce_simd.h"
#include "engine/backends/scratch_bytes.h"
#include "engine/ops/reduction/reduce_dims.h"

namespace teletensor::backends::cpu {
namespace {

using core::DType;
using core::Status;

enum class Recipe {
  kSum,
  kNanSum,
  kProd,
  kMax,
  kMin,
  kAny,
  kAll,
  kCount,
  kMean,
  kVar,
  kStd,
  kNorm,
  kLogSumExp
};

constexpr std::int64_t kSplitAbove = std::int64_t{1} << 20;  // elements; about 0.15 ms and more

struct Settings {
  Recipe recipe = Recipe::kSum;
  double p = 2;           // for norm
  double correction = 1;  // for var
};

// The largest leaf * 2^k below n, at which a tree over n > leaf elements is split.
std::int64_t cut(std::int64_t n, std::int64_t leaf) {
  std::int64_t half = leaf;
  while (half * 2 < n) half *= 2;
  return half;
}

template <class A>
class Reduction {
 public:
  Reduction(KernelCall& call, const ReducePlan& plan, const Settings& settings)
      : call_(call),
        plan_(plan),
        settings_(settings),
        base_(call.in[0].first<const char>()),
        element_(static_cast<std::int64_t>(core::size_of(call.in[0].dtype))),
        out_(call.out[0].first<char>()),
        out_element_(static_cast<std::int64_t>(core::size_of(call.out[0].dtype))),
        store_(store_block<A>(call.out[0].dtype)) {
    const Recipe r = settings.recipe;
    const bool nonzero = r == Recipe::kAny || r == Recipe::kAll || r == Recipe::kCount;
    load_ = nonzero ? load_nonzero<A>(call.in[0].dtype) : load_block<A>(call.in[0].dtype);
    same_type_ = !nonzero && call.in[0].dtype == kDTypeOf<A>;
    in_place_ = same_type_ && plan.reduced_count == 1 && plan.reduced[0].in == 1;
    if (plan.kept_count > 0) columns_ = plan.kept[plan.kept_count - 1];
    // Short reductions also go across memory, because computing one result at a time would cost
    // more than its elements.
    across_ = columns_.size >= 4 &&
              (plan.count <= 32 ||
               std::abs(columns_.in) < std::abs(plan.reduced[plan.reduced_count - 1].in));
  }

  Status run() {
    const std::int64_t work = plan_.outputs * plan_.count;
    std::int64_t chunk = ReducePlan::kChunk;
    if (!across_) {
      chunk = std::clamp<std::int64_t>(
          ReducePlan::kPart / 4 / std::max<std::int64_t>(plan_.count, 1), 1, ReducePlan::kChunk);
    }
    const std::int64_t per_row = (columns_.size + chunk - 1) / chunk;
    const std::int64_t chunks = plan_.outputs / columns_.size * per_row;
    const auto make = [&](std::int64_t i) {
      const std::int64_t first = i % per_row * chunk;
      const Axis row = ReducePlan::at(plan_.kept, plan_.kept_count - 1, i / per_row);
      results(base_ + (row.in + first * columns_.in) * element_,
              std::min(chunk, columns_.size - first),
              out_ + (row.out + first * columns_.out) * out_element_);
    };
    if (work <= kSplitAbove) {
      for (std::int64_t i = 0; i < chunks; ++i) make(i);
      return {};
    }
    if (chunks >= 4) {
      const std::int64_t parts =
          std::min(chunks, (work + ReducePlan::kPart - 1) / ReducePlan::kPart);
      call_.parallel.run(parts, [&](std::int64_t part) {
        const std::int64_t end = (part + 1) * chunks / parts;
        for (std::int64_t i = part * chunks / parts; i < end; ++i) make(i);
      });
      return {};
    }
    // If there are few long reductions, each is split. A block is a whole subtree, so the bits stay
    // the same.
    block_ = across_ ? kLeafRows : kLeaf;
    const std::int64_t width = across_ ? std::min(columns_.size, ReducePlan::kChunk) : 1;
    while (block_ * width < ReducePlan::kPart) block_ *= 2;
    const std::int64_t blocks = (plan_.count + block_ - 1) / block_;
    const std::size_t bytes = scratch_bytes(blocks, width, sizeof(A));
    if (blocks > 1) {
      partial_ = static_cast<A*>(call_.scratch.allocate(bytes));
      if (!partial_) return out_of_scratch(call_.op.name, bytes);
    }
    for (std::int64_t i = 0; i < chunks; ++i) make(i);
    return {};
  }

 private:
  struct Pass {
    const Fold<A>& fold;
    Map map;
    const A* centers;  // one per result
  };

  // Reads the elements that are reduced into one result (step 0), or rows of results, in the plan's
  // order.
  class Reader {
   public:
    Reader(const Reduction& r, const char* base, std::int64_t start) : r_(r), base_(base) {
      const ReducePlan& plan = r.plan_;
      inner_ = plan.reduced_count > 0 ? plan.reduced[plan.reduced_count - 1] : Axis{};
      outer_ = start / inner_.size;
      at_ = start % inner_.size;
      seek();
    }
    // Returns the next n elements; they are copied to `buffer` unless they can be used in place.
    const A* next(std::int64_t n, A* buffer) {
      if (r_.same_type_ && inner_.in == 1 && at_ + n <= inner_.size) {
        const A* x = reinterpret_cast<const A*>(row_) + at_;
        advance(n);
        return x;
      }
      for (std::int64_t done = 0; done < n;) {
        const std::int64_t take = std::min(n - done, inner_.size - at_);
        r_.load_(row_ + at_ * inner_.in * r_.element_, inner_.in, take, buffer + done);
        done += take;
        advance(take);
      }
      return buffer;
    }
    // The address of the next row of results, and the number of rows that follow at equal
    // distances.
    const char* row() const { return row_ + at_ * inner_.in * r_.element_; }
    std::int64_t rows_left() const { return inner_.size - at_; }
    std::int64_t row_stride() const { return inner_.in; }
    void advance(std::int64_t n) {
      at_ += n;
      if (at_ < inner_.size) return;
      at_ = 0;
      ++outer_;
      seek();
    }

   private:
    void seek() {
      const ReducePlan& plan = r_.plan_;
      if (plan.reduced_count <= 1) {
        row_ = base_;
      } else {
        row_ =
            base_ + ReducePlan::at(plan.reduced, plan.reduced_count - 1, outer_).in * r_.element_;
      }
    }
    const Reduction& r_;
    const char* base_;
    const char* row_ = nullptr;
    Axis inner_;
    std::int64_t outer_ = 0, at_ = 0;
  };

  A along_tree(Reader& reader, const Pass& pass, const A* center, std::int64_t n, A* buffer) const {
    if (n > kLeaf) {
      // An expanded operand can make a reduction arbitrarily long, so it can be cancelled.
      if (n >= ReducePlan::kPart && call_.parallel.cancelled()) return pass.fold.identity;
      const std::int64_t half = cut(n, kLeaf);
      const A left = along_tree(reader, pass, center, half, buffer);
      return pass.fold.pair(left, along_tree(reader, pass, center, n - half, buffer));
    }
    return along_leaf(reader.next(n, buffer), pass, center, n, buffer);
  }

  A along_leaf(const A* x, const Pass& pass, const A* center, std::int64_t n, A* buffer) const {
    if (pass.map == Map::kNone) return pass.fold.leaf(x, n);
    apply_map(pass.map, x, n, center, 0, settings_.p, buffer);
    return pass.fold.leaf(buffer, n);
  }

  A along(const char* base, const Pass& pass, const A* center, std::int64_t start,
          std::int64_t n) const {
    A buffer[kLeaf];
    if (in_place_ && n <= kLeaf) {
      return along_leaf(reinterpret_cast<const A*>(base) + start, pass, center, n, buffer);
    }
    Reader reader(*this, base, start);
    return along_tree(reader, pass, center, n, buffer);
  }

  void across_tree(Reader& reader, const Pass& pass, std::int64_t columns, std::int64_t n,
                   A* acc) const {
    if (n > kLeafRows) {
      if (n >= ReducePlan::kPart / ReducePlan::kChunk && call_.parallel.cancelled()) return;
      const std::int64_t half = cut(n, kLeafRows);
      across_tree(reader, pass, columns, half, acc);
      A other[ReducePlan::kChunk];
      across_tree(reader, pass, columns, n - half, other);
      pass.fold.merge(acc, other, columns);
    } else {
      across_leaf(reader, pass, columns, n, acc);
    }
  }

  void across_leaf(Reader& reader, const Pass& pass, std::int64_t columns, std::int64_t n,
                   A* acc) const {
    std::fill_n(acc, columns, pass.fold.identity);
    const bool direct = same_type_ && columns_.in == 1 && pass.map == Map::kNone;
    A buffer[4 * ReducePlan::kChunk];
    while (n > 0) {
      if (direct) {
        const std::int64_t take = std::min(n, reader.rows_left());
        pass.fold.rows(acc, reinterpret_cast<const A*>(reader.row()), reader.row_stride(), take,
                       columns);
        reader.advance(take);
        n -= take;
        continue;
      }
      const std::int64_t take = std::min<std::int64_t>({n, 4, reader.rows_left()});
      for (std::int64_t r = 0; r < take; ++r) {
        A* row = buffer + r * columns;
        load_(reader.row(), columns_.in, columns, row);
        if (pass.map != Map::kNone) {
          apply_map(pass.map, row, columns, pass.centers, 1, settings_.p, row);
        }
        reader.advance(1);
      }
      pass.fold.rows(acc, buffer, columns, take, columns);
      n -= take;
    }
  }

  void across(const char* base, const Pass& pass, std::int64_t columns, std::int64_t start,
              std::int64_t n, A* acc) const {
    Reader reader(*this, base, start);
    across_tree(reader, pass, columns, n, acc);
  }

  // Computes `n` results, the first of them from `base`, into `to`.
  void fold(const char* base, std::int64_t n, const Pass& pass, A* to) {
    if (partial_) return split(base, n, pass, to);
    if (across_) return across(base, pass, n, 0, plan_.count, to);
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = along(base + i * columns_.in * element_, pass, pass.centers ? pass.centers + i : to,
                    0, plan_.count);
    }
  }

  void split(const char* base, std::int64_t n, const Pass& pass, A* to) {
    const std::int64_t blocks = (plan_.count + block_ - 1) / block_;
    const std::int64_t width = across_ ? n : 1, rounds = across_ ? 1 : n;
    for (std::int64_t i = 0; i < rounds; ++i) {
      const char* from = base + i * columns_.in * element_;
      const A* center = pass.centers ? pass.centers + i : to;
      call_.parallel.run(blocks, [&](std::int64_t b) {
        const std::int64_t start = b * block_, size = std::min(block_, plan_.count - start);
        if (across_) {
          across(from, pass, n, start, size, partial_ + b * width);
        } else {
          partial_[b] = along(from, pass, center, start, size);
        }
      });
      merge_blocks(pass, partial_, blocks, width);
      std::copy_n(partial_, width, to + i);
    }
  }

  // Reduces `blocks` rows in a tree into the first row.
  void merge_blocks(const Pass& pass, A* rows, std::int64_t blocks, std::int64_t width) const {
    if (blocks == 1) return;
    const std::int64_t half = cut(blocks, 1);
    merge_blocks(pass, rows, half, width);
    merge_blocks(pass, rows + half * width, blocks - half, width);
    pass.fold.merge(rows, rows + half * width, width);
  }

  void results(const char* base, std::int64_t n, char* out) {
    A value[ReducePlan::kChunk];
    const auto pass = [&](FoldKind kind, Map map, const A* centers, A* to) {
      fold(base, n, Pass{fold_of<A>(kind), map, centers}, to);
    };
    switch (settings_.recipe) {
      case Recipe::kSum:
      case Recipe::kCount:
        pass(FoldKind::kSum, Map::kNone, nullptr, value);
        break;
      case Recipe::kNanSum:
        pass(FoldKind::kNanSum, Map::kNone, nullptr, value);
        break;
      case Recipe::kProd:
        pass(FoldKind::kProd, Map::kNone, nullptr, value);
        break;
      case Recipe::kAny:
      case Recipe::kMax:
        pass(FoldKind::kMax, Map::kNone, nullptr, value);
        break;
      case Recipe::kAll:
      case Recipe::kMin:
        pass(FoldKind::kMin, Map::kNone, nullptr, value);
        break;
      default:
        if constexpr (std::is_floating_point_v<A>) floating_results(pass, n, value);
        if constexpr (core::kIsComplex<A>) {
          pass(FoldKind::kSum, Map::kNone, nullptr, value);  // the mean
          for (std::int64_t i = 0; i < n; ++i) value[i] = value[i] / A(plan_.count);
        }
    }
    store_(value, n, out, columns_.out);
  }

  template <class PassFn>
  void floating_results(const PassFn& pass, std::int64_t n, A* value) const {
    const A count = static_cast<A>(plan_.count);
    const auto each = [&](auto&& f) {
      for (std::int64_t i = 0; i < n; ++i) value[i] = f(value[i]);
    };
    A center[ReducePlan::kChunk];
    switch (settings_.recipe) {
      case Recipe::kMean:
        pass(FoldKind::kSum, Map::kNone, nullptr, value);
        return each([&](A v) { return v / count; });
      case Recipe::kVar:
      case Recipe::kStd: {
        pass(FoldKind::kSum, Map::kNone, nullptr, center);
        for (std::int64_t i = 0; i < n; ++i) center[i] /= count;
        pass(FoldKind::kSum, Map::kSquaredDifference, center, value);
        const A divisor =
            static_cast<A>(std::max(0.0, static_cast<double>(plan_.count) - settings_.correction));
        each([&](A v) { return v / divisor; });
        if (settings_.recipe == Recipe::kStd) each([](A v) { return std::sqrt(v); });
        return;
      }
      case Recipe::kLogSumExp:
        pass(FoldKind::kMax, Map::kNone, nullptr, center);
        for (std::int64_t i = 0; i < n; ++i) {
          if (std::isinf(center[i])) center[i] = 0;
        }
        pass(FoldKind::kSum, Map::kExpDifference, center, value);
        for (std::int64_t i = 0; i < n; ++i) value[i] = std::log(value[i]) + center[i];
        return;
      default:
        break;
    }
    const double p = settings_.p;
    if (p == std::numeric_limits<double>::infinity()) {
      pass(FoldKind::kMax, Map::kAbs, nullptr, value);
    } else if (p == -std::numeric_limits<double>::infinity()) {
      pass(FoldKind::kMin, Map::kAbs, nullptr, value);
    } else if (p == 0) {
      pass(FoldKind::kSum, Map::kNonZero, nullptr, value);
    } else if (p == 1) {
      pass(FoldKind::kSum, Map::kAbs, nullptr, value);
    } else if (p == 2) {
      pass(FoldKind::kSum, Map::kSquare, nullptr, value);
      each([](A v) { return std::sqrt(v); });
    } else {
      pass(FoldKind::kSum, Map::kAbsPower, nullptr, value);
      each([&](A v) { return std::pow(v, static_cast<A>(1 / p)); });
    }
  }

  KernelCall& call_;
  const ReducePlan& plan_;
  const Settings settings_;
  const char* const base_;
  const std::int64_t element_;
  char* const out_;
  const std::int64_t out_element_;
  const StoreBlock<A> store_;
  LoadBlock<A> load_ = nullptr;
  bool same_type_ = false;  // elements have the compute type
  bool in_place_ = false;   // same_type_, and the elements of each reduction are adjacent
  bool across_ = false;     // the fastest kept axis has a smaller stride than the reduced ones
  Axis columns_{1, 0, 1};   // the fastest kept axis
  A* partial_ = nullptr;    // the results of the blocks while reductions are split
  std::int64_t block_ = 0;
};

// The result of a reduction over no elements.
double empty_value(const Settings& s) {
  switch (s.recipe) {
    case Recipe::kProd:
    case Recipe::kAll:
      return 1;
    case Recipe::kMean:
    case Recipe::kVar:
    case Recipe::kStd:
      return std::numeric_limits<double>::quiet_NaN();
    case Recipe::kLogSumExp:
      return -std::numeric_limits<double>::infinity();
    case Recipe::kNorm:
      return s.p < 0 ? std::numeric_limits<double>::infinity() : 0;
    default:
      return 0;
  }
}

Status reduce(KernelCall& call, std::uint32_t mask, const Settings& settings);

Status reduce_other(KernelCall& call, const TensorArg& in, const TensorArg& out, std::uint32_t mask,
                    const Settings& settings) {
  KernelCall other{call.op,         std::span(&in, 1), std::span(&out, 1), call.counts,
                   call.attributes, call.parallel,     call.scratch};
  return reduce(other, mask, settings);
}

// The norm of complex numbers is the norm of their absolute values.
template <class T>
Status complex_norm(KernelCall& call, std::uint32_t mask, const Settings& settings) {
  const TensorArg& x = call.in[0];
  const core::Geometry geometry(x.geometry->shape);
  const std::int64_t n = geometry.numel();
  TensorArg sizes = x;
  sizes.dtype = kDTypeOf<T>;
  sizes.geometry = &geometry;
  const std::size_t bytes = scratch_bytes(n, sizeof(T));
  sizes.data = call.scratch.allocate(bytes);
  if (!sizes.data) return out_of_scratch(call.op.name, bytes);
  const LoadBlock<core::Complex<T>> load = load_block<core::Complex<T>>(x.dtype);
  const Lines lines(x.geometry->shape, -1);
  const auto element = static_cast<std::int64_t>(core::size_of(x.dtype));
  T* to = static_cast<T*>(sizes.data);
  for (std::int64_t i = 0; i < lines.count(); ++i) {
    if (i % 4096 == 4095 && call.parallel.cancelled()) break;
    const char* from = x.first<const char>() + lines.offset(*x.geometry, i) * element;
    const std::int64_t stride = lines.stride(*x.geometry);
    core::Complex<T> block[256];
    for (std::int64_t j = 0; j < lines.length(); j += 256) {
      const std::int64_t m = std::min<std::int64_t>(256, lines.length() - j);
      load(from + j * stride * element, stride, m, block);
      for (std::int64_t q = 0; q < m; ++q) *to++ = std::hypot(block[q].re, block[q].im);
    }
  }
  return reduce_other(call, sizes, call.out[0], mask, settings);
}

// The variance of complex numbers is the sum of the variances of their real and imaginary parts.
template <class T>
Status complex_variance(KernelCall& call, std::uint32_t mask, const Settings& settings) {
  const TensorArg &x = call.in[0], &out = call.out[0];
  const core::Geometry parts = part_layout(*x.geometry);
  const std::int64_t n = out.geometry->numel();
  TensorArg other = out;
  const core::Geometry geometry(out.geometry->shape);
  other.geometry = &geometry;
  const std::size_t bytes = scratch_bytes(n, sizeof(T));
  other.data = call.scratch.allocate(bytes);
  if (!other.data) return out_of_scratch(call.op.name, bytes);
  const Settings variance{.recipe = Recipe::kVar, .correction = settings.correction};
  TT_RETURN_IF_ERROR(reduce_other(call, part_of(x, 0, parts), out, mask, variance));
  TT_RETURN_IF_ERROR(reduce_other(call, part_of(x, 1, parts), other, mask, variance));
  T* const to = out.first<T>();
  const T* const more = static_cast<const T*>(other.data);
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] += more[i];
    if (settings.recipe == Recipe::kStd) to[i] = std::sqrt(to[i]);
  }
  return {};
}

template <class T>
Status complex_reduce(KernelCall& call, std::uint32_t mask, const Settings& settings) {
  return settings.recipe == Recipe::kNorm ? complex_norm<T>(call, mask, settings)
                                          : complex_variance<T>(call, mask, settings);
}

Status reduce(KernelCall& call, std::uint32_t mask, const Settings& settings) {
  const ReducePlan plan(*call.in[0].geometry, mask);
  if (plan.outputs == 0) return {};
  if (plan.count == 0) {
    const double value = empty_value(settings);
    store_block<double>(call.out[0].dtype)(&value, 1, call.out[0].first(), 1);
    const std::int64_t size = static_cast<std::int64_t>(core::size_of(call.out[0].dtype));
    char* out = call.out[0].first<char>();
    for (std::int64_t i = 1; i < plan.outputs; ++i) std::copy_n(out, size, out + i * size);
    return {};
  }
  const bool to_real = settings.recipe == Recipe::kNorm || settings.recipe == Recipe::kVar ||
                       settings.recipe == Recipe::kStd;
  if (to_real && core::is_complex(call.in[0].dtype)) {
    return call.in[0].dtype == DType::kC64 ? complex_reduce<float>(call, mask, settings)
                                           : complex_reduce<double>(call, mask, settings);
  }
  // The compute type follows the result's dtype: sums of integers are int64, sum(f32, dtype=f64) is
  // double.
  DType compute = call.out[0].dtype;
  if (settings.recipe == Recipe::kMax || settings.recipe == Recipe::kMin) {
    compute = call.in[0].dtype;
  } else if (settings.recipe == Recipe::kAny || settings.recipe == Recipe::kAll ||
             settings.recipe == Recipe::kCount) {
    compute = DType::kI64;
  }
  TT_RETURN_IF_ERROR(with_any_compute_type(
      compute, [&](auto a) { return Reduction<decltype(a)>(call, plan, settings).run(); }));
  if (plan.count < ReducePlan::kPart / ReducePlan::kChunk || !call.parallel.cancelled()) return {};
  return Status(core::Code::kCancelled, call.op.name + ": interrupted");
}

// The dimensions in the given attribute as a bit mask; infer has checked them.
std::uint32_t mask_of(const KernelCall& call, std::size_t attribute) {
  return *ops::dims_mask(call.attributes, attribute, call.in[0].geometry->rank(), call.op.name);
}

template <Recipe kRecipe>
Status by_dims(KernelCall& call) {
  return reduce(call, mask_of(call, 0), {.recipe = kRecipe});
}

template <Recipe kRecipe>
Status whole(KernelCall& call) {
  return reduce(call, (1u << call.in[0].geometry->rank()) - 1, {.recipe = kRecipe});
}

template <Recipe kRecipe>
Status spread(KernelCall& call) {
  return reduce(call, mask_of(call, 0), {.recipe = kRecipe, .correction = call.attributes.real(1)});
}

Status norm(KernelCall& call) {
  return reduce(call, mask_of(call, 1), {.recipe = Recipe::kNorm, .p = call.attributes.real(0)});
}

}  // namespace

void add_index_reduction_kernels(KernelTable& table);  // reductions_index.cc
void add_scan_kernels(KernelTable& table);             // reductions_scan.cc

void add_reduction_kernels(KernelTable& table) {
  table.add("sum", by_dims<Recipe::kSum>, LoopRole::kFold);
  table.add("nan_sum", by_dims<Recipe::kNanSum>);
  table.add("mean", by_dims<Recipe::kMean>, LoopRole::kFold);
  table.add("prod", by_dims<Recipe::kProd>);
  table.add("amax", by_dims<Recipe::kMax>, LoopRole::kFold);
  table.add("amin", by_dims<Recipe::kMin>, LoopRole::kFold);
  table.add("max", whole<Recipe::kMax>);
  table.add("min", whole<Recipe::kMin>);
  table.add("any", by_dims<Recipe::kAny>);
  table.add("all", by_dims<Recipe::kAll>);
  table.add("count_nonzero", by_dims<Recipe::kCount>);
  table.add("var", spread<Recipe::kVar>);
  table.add("std", spread<Recipe::kStd>);
  table.add("norm", norm);
  table.add("logsumexp", by_dims<Recipe::kLogSumExp>);
  add_index_reduction_kernels(table);
  add_scan_kernels(table);
}

}  // namespace teletensor::backends::cpu
