// Reductions with the same operations in the same order as reduce_simd.cc on the host.
namespace tt {

template <class A>
struct Sum {
  static A identity() { return A(0); }
  static A one(A a, A b) { return s::Add()(a, b); }
};
template <class A>
struct Prod {
  static A identity() { return A(1); }
  static A one(A a, A b) { return s::Mul()(a, b); }
};
template <class A>
struct Max {
  static A identity() {
    if constexpr (std::is_same_v<A, std::int64_t>) return INT64_MIN;
    if constexpr (std::is_same_v<A, std::uint64_t>) return 0;
    if constexpr (std::is_floating_point_v<A>) return -A(__builtin_inf());
  }
  static A one(A a, A b) { return b > a || b != b ? b : a; }
};
template <class A>
struct Min {
  static A identity() {
    if constexpr (std::is_same_v<A, std::int64_t>) return INT64_MAX;
    if constexpr (std::is_same_v<A, std::uint64_t>) return UINT64_MAX;
    if constexpr (std::is_floating_point_v<A>) return A(__builtin_inf());
  }
  static A one(A a, A b) { return b < a || b != b ? b : a; }
};

// An extremum and its position. The first of equal values wins; NaN wins over numbers.
template <class A>
struct Found {
  A value;
  std::int64_t at;
};
template <class A, bool kMax>
struct FirstBest {
  static Found<A> identity() { return {A(0), INT64_MAX}; }  // loses against every element
  static Found<A> one(Found<A> a, Found<A> b) {
    if (a.at == INT64_MAX || b.at == INT64_MAX) return a.at == INT64_MAX ? b : a;
    const bool first = a.at < b.at, nan_a = a.value != a.value, nan_b = b.value != b.value;
    if (nan_a || nan_b) return nan_a && (!nan_b || first) ? a : b;
    if (a.value == b.value) return first ? a : b;
    return (kMax ? a.value > b.value : a.value < b.value) ? a : b;
  }
};

// Reduces the elements lane, lane + kWidth, ... below n, in this order. The loads of kBatch
// elements are issued before the first of them is used.
template <class Op, int kWidth, int kBatch, class A, class F>
A fold_strided(int lane, int n, F&& element) {
  A mine = Op::identity();
  int e = lane;
#pragma unroll 1
  for (; e + (kBatch - 1) * kWidth < n; e += kBatch * kWidth) {
    A held[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) held[i] = element(e + i * kWidth);
    mine = e == lane ? held[0] : Op::one(mine, held[0]);
#pragma unroll
    for (int i = 1; i < kBatch; ++i) mine = Op::one(mine, held[i]);
  }
#pragma unroll 1
  for (; e < n; e += kWidth) mine = e == lane ? element(e) : Op::one(mine, element(e));
  return mine;
}

// True for types that the threads of a warp can exchange without shared memory.
template <class A>
inline constexpr bool kShuffled = std::is_floating_point_v<A> || std::is_same_v<A, std::int64_t> ||
                                  std::is_same_v<A, std::uint64_t>;

// Reduces the values of the kWidth lanes of one leaf, which has `n` elements. All threads of the
// block must call it. `acc` has room for one value per thread. Level by level, lane i combines its
// value with that of lane i + w, for w = kWidth / 2, kWidth / 4, ..., 1.
template <class Op, int kWidth, class A>
A fold_lanes(A* acc, A mine, int lane, int n) {
  constexpr bool kByWarp = kShuffled<A> && kWidth >= 32;
  A* const group = acc + (threadIdx.x - lane);
  int live = n < kWidth ? n : kWidth;
  if (!kByWarp || kWidth > 32) {
    group[lane] = mine;
    __syncthreads();
  }
#pragma unroll
  for (int w = kWidth / 2; w >= (kByWarp ? 32 : 1); w /= 2) {
    if (live > w) {
      if (lane < live - w) group[lane] = Op::one(group[lane], group[lane + w]);
      live = w;
    }
    __syncthreads();
  }
  if constexpr (kByWarp) {  // each warp of the group reduces the same 32 values
    if (kWidth > 32) mine = group[lane % 32];
#pragma unroll
    for (int w = 16; w >= 1; w /= 2) {
      const A other = __shfl_xor_sync(0xffffffffu, mine, w);
      if (live > w) {
        if (lane % 32 < live - w) mine = Op::one(mine, other);
        live = w;
      }
    }
    mine = __shfl_sync(0xffffffffu, mine, 0);
  } else {
    mine = group[0];
  }
  return n == 1 ? Op::one(Op::identity(), mine) : mine;
}

// Reduces n results, `step` apart, in a tree into the first one; called by one thread.
template <class Op, class A>
A fold_tree(A* x, std::int64_t n, std::int64_t step) {
  for (std::int64_t w = 1; w < n; w *= 2) {
    for (std::int64_t i = 0; i + w < n; i += 2 * w) {
      x[i * step] = Op::one(x[i * step], x[(i + w) * step]);
    }
  }
  return x[0];
}
// Like fold_tree(), but called by all threads of a block, for at most kEach * blockDim.x results;
// `shared` has room for one value per thread. Each thread reduces kEach adjacent results, a power
// of two, so that its tree is a part of the whole tree.
template <class Op, int kEach, class A>
A fold_tree_together(A* shared, const A* x, int n, std::int64_t step) {
  const int t = threadIdx.x, first = t * kEach, parts = (n + kEach - 1) / kEach;
  A part[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) part[i] = first + i < n ? x[(first + i) * step] : Op::identity();
#pragma unroll
  for (int w = 1; w < kEach; w *= 2) {
#pragma unroll
    for (int i = 0; i + w < kEach; i += 2 * w) {
      if (first + i + w < n) part[i] = Op::one(part[i], part[i + w]);
    }
  }
  shared[t] = part[0];
  __syncthreads();
  for (int w = 1; w < parts; w *= 2) {
    const int i = t * 2 * w;
    if (i + w < parts) shared[i] = Op::one(shared[i], shared[i + w]);
    __syncthreads();
  }
  return shared[0];
}

}  // namespace tt
