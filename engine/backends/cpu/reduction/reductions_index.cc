// Kernels of reductions that return positions: max_dim, min_dim, argmax, argmin. Of equal elements
// the first counts, and NaN counts as the extremum.
#include <algorithm>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/reduction/reduce_plan.h"
#include "engine/backends/cpu/reduction/reduce_simd.h"
#include "engine/ops/reduction/reduce_dims.h"

namespace teletensor::backends::cpu {
namespace {

using core::Status;

// Elements above which the work is divided into parts.
constexpr std::int64_t kIndexSplitAbove = std::int64_t{1} << 20;

template <class A, bool kMax>
bool better(A a, A than) {
  if (a != a) return than == than;
  return kMax ? a > than : a < than;
}

template <class A, bool kMax>
class Extremum {
 public:
  // `values` or `indices` may be null.
  Extremum(KernelCall& call, const ReducePlan& plan, const TensorArg* values,
           const TensorArg* indices)
      : call_(call),
        plan_(plan),
        values_(values),
        indices_(indices),
        element_(static_cast<std::int64_t>(core::size_of(call.in[0].dtype))),
        load_(load_block<A>(call.in[0].dtype)),
        same_type_(call.in[0].dtype == kDTypeOf<A>) {
    if (values) store_ = store_block<A>(values->dtype);
    if (plan.kept_count > 0) columns_ = plan.kept[plan.kept_count - 1];
    if (plan.reduced_count > 0) inner_ = plan.reduced[plan.reduced_count - 1];
    across_ =
        columns_.size >= 4 && (plan.count <= 16 || std::abs(columns_.in) < std::abs(inner_.in));
  }

  void run() {
    const std::int64_t work = plan_.outputs * plan_.count;
    const std::int64_t chunk =
        across_
            ? ReducePlan::kChunk
            : std::clamp<std::int64_t>(ReducePlan::kPart / 4 / plan_.count, 1, ReducePlan::kChunk);
    const std::int64_t per_row = (columns_.size + chunk - 1) / chunk;
    const std::int64_t chunks = plan_.outputs / columns_.size * per_row;
    const auto make = [&](std::int64_t i) {
      const std::int64_t first = i % per_row * chunk;
      const std::int64_t n = std::min(chunk, columns_.size - first);
      const Axis row = ReducePlan::at(plan_.kept, plan_.kept_count - 1, i / per_row);
      results(call_.in[0].first<const char>() + (row.in + first * columns_.in) * element_, n,
              row.out + first * columns_.out);
    };
    if (work <= kIndexSplitAbove || chunks == 1) {
      for (std::int64_t i = 0; i < chunks; ++i) make(i);
      return;
    }
    const std::int64_t parts = std::min(chunks, (work + ReducePlan::kPart - 1) / ReducePlan::kPart);
    call_.parallel.run(parts, [&](std::int64_t part) {
      const std::int64_t end = (part + 1) * chunks / parts;
      for (std::int64_t i = part * chunks / parts; i < end; ++i) make(i);
    });
  }

 private:
  void results(const char* base, std::int64_t n, std::int64_t out) {
    A best[ReducePlan::kChunk];
    std::int64_t where[ReducePlan::kChunk];
    if (across_) {
      across(base, n, best, where);
    } else {
      for (std::int64_t i = 0; i < n; ++i) {
        along(base + i * columns_.in * element_, best[i], where[i]);
      }
    }
    if (values_) {
      store_(best, n, values_->first<char>() + out * element_, columns_.out);
    }
    if (indices_) {
      std::int64_t* to = indices_->first<std::int64_t>() + out;
      for (std::int64_t i = 0; i < n; ++i) to[i * columns_.out] = where[i];
    }
  }

  const char* outer_row(const char* base, std::int64_t outer) const {
    if (plan_.reduced_count <= 1) return base;
    return base + ReducePlan::at(plan_.reduced, plan_.reduced_count - 1, outer).in * element_;
  }

  const A* block(const char* row, std::int64_t start, std::int64_t n, A* buffer) const {
    const char* from = row + start * inner_.in * element_;
    if (same_type_ && inner_.in == 1) return reinterpret_cast<const A*>(from);
    load_(from, inner_.in, n, buffer);
    return buffer;
  }

  void along(const char* base, A& best, std::int64_t& where) const {
    const Fold<A>& fold = fold_of<A>(kMax ? FoldKind::kMax : FoldKind::kMin);
    A buffer[kLeaf];
    bool any = false;
    best = fold.identity;
    std::int64_t best_outer = 0, best_start = 0;
    for (std::int64_t outer = 0; outer < plan_.count / inner_.size; ++outer) {
      if (outer > 0 && outer % 1024 == 0 && call_.parallel.cancelled()) break;
      const char* row = outer_row(base, outer);
      for (std::int64_t start = 0; start < inner_.size; start += kLeaf) {
        // An expanded operand can make a line arbitrarily long, so the loop can be cancelled.
        if (start > 0 && start % ReducePlan::kPart == 0 && call_.parallel.cancelled()) break;
        const std::int64_t n = std::min(kLeaf, inner_.size - start);
        const A value = fold.leaf(block(row, start, n, buffer), n);
        if (any && !better<A, kMax>(value, best)) continue;
        any = true;
        best = value;
        best_outer = outer;
        best_start = start;
      }
    }
    const std::int64_t n = std::min(kLeaf, inner_.size - best_start);
    const A* x = block(outer_row(base, best_outer), best_start, n, buffer);
    std::int64_t i = 0;
    while (i < n - 1 && !(x[i] == best || x[i] != x[i])) ++i;
    where = best_outer * inner_.size + best_start + i;
  }

  void across(const char* base, std::int64_t n, A* best, std::int64_t* where) const {
    A buffer[ReducePlan::kChunk];
    for (std::int64_t r = 0; r < plan_.count; ++r) {
      if (r > 0 && r % 4096 == 0 && call_.parallel.cancelled()) return;
      const char* row = outer_row(base, r / inner_.size) + r % inner_.size * inner_.in * element_;
      load_(row, columns_.in, n, r == 0 ? best : buffer);
      if (r == 0) {
        std::fill_n(where, n, 0);
        continue;
      }
      for (std::int64_t i = 0; i < n; ++i) {
        const bool take = better<A, kMax>(buffer[i], best[i]);
        best[i] = take ? buffer[i] : best[i];
        where[i] = take ? r : where[i];
      }
    }
  }

  KernelCall& call_;
  const ReducePlan& plan_;
  const TensorArg* const values_;
  const TensorArg* const indices_;
  const std::int64_t element_;
  const LoadBlock<A> load_;
  const bool same_type_;
  StoreBlock<A> store_ = nullptr;
  bool across_ = false;
  Axis columns_{1, 0, 1}, inner_;
};

template <bool kMax>
Status find(KernelCall& call, std::uint32_t mask, const TensorArg* values,
            const TensorArg* indices) {
  const ReducePlan plan(*call.in[0].geometry, mask, true);
  if (plan.outputs == 0 || plan.count == 0) return {};
  with_compute_type(call.in[0].dtype, [&](auto a) {
    Extremum<decltype(a), kMax>(call, plan, values, indices).run();
  });
  if (plan.count <= 1024 || !call.parallel.cancelled()) return {};
  return Status(core::Code::kCancelled, call.op.name + ": interrupted");
}

std::uint32_t mask_of(const KernelCall& call) {
  return *ops::dims_mask(call.attributes, 0, call.in[0].geometry->rank(), call.op.name);
}

template <bool kMax>
Status with_values(KernelCall& call) {
  return find<kMax>(call, mask_of(call), &call.out[0], &call.out[1]);
}

template <bool kMax>
Status index_only(KernelCall& call) {
  return find<kMax>(call, mask_of(call), nullptr, &call.out[0]);
}

}  // namespace

void add_index_reduction_kernels(KernelTable& table) {
  table.add("max_dim", with_values<true>);
  table.add("min_dim", with_values<false>);
  table.add("argmax", index_only<true>);
  table.add("argmin", index_only<false>);
}

}  // namespace teletensor::backends::cpu
