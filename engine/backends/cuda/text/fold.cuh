// Folds: what reduce_simd.cc is on the host, operation by operation.
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

// An extremum and where it stands; the first of equal ones, a NaN before numbers.
template <class A>
struct Found {
  A value;
  std::int64_t at;
};
template <class A, bool kMax>
struct FirstBest {
  static Found<A> identity() { return {A(0), INT64_MAX}; }  // lies behind everything
  static Found<A> one(Found<A> a, Found<A> b) {
    if (a.at == INT64_MAX || b.at == INT64_MAX) return a.at == INT64_MAX ? b : a;
    const bool first = a.at < b.at, nan_a = a.value != a.value, nan_b = b.value != b.value;
    if (nan_a || nan_b) return nan_a && (!nan_b || first) ? a : b;
    if (a.value == b.value) return first ? a : b;
    return (kMax ? a.value > b.value : a.value < b.value) ? a : b;
  }
};

// The result of one leaf, from the value of each of its kWidth lanes; `n` elements, called by all
// threads of the block. `acc` holds a value for each.
template <class Op, int kWidth, class A>
A fold_lanes(A* acc, A mine, int lane, int n) {
  A* const group = acc + (threadIdx.x - lane);
  group[lane] = mine;
  __syncthreads();
  int live = n < kWidth ? n : kWidth;
#pragma unroll
  for (int w = kWidth / 2; w >= 1; w /= 2) {
    if (live > w) {
      if (lane < live - w) group[lane] = Op::one(group[lane], group[lane + w]);
      live = w;
    }
    __syncthreads();
  }
  return n == 1 ? Op::one(Op::identity(), group[0]) : group[0];
}

// The tree over n results, `step` apart, into the first: by one thread.
template <class Op, class A>
A fold_tree(A* x, std::int64_t n, std::int64_t step) {
  for (std::int64_t w = 1; w < n; w *= 2) {
    for (std::int64_t i = 0; i + w < n; i += 2 * w) {
      x[i * step] = Op::one(x[i * step], x[(i + w) * step]);
    }
  }
  return x[0];
}
// By a block, 2 * blockDim.x of them at most, in `shared`.
template <class Op, class A>
A fold_tree_together(A* shared, const A* x, int n, std::int64_t step) {
  const int t = threadIdx.x, threads = blockDim.x;
  for (int i = t; i < n; i += threads) shared[i] = x[i * step];
  __syncthreads();
  for (int w = 1; w < n; w *= 2) {
    const int i = t * 2 * w;
    if (i + w < n) shared[i] = Op::one(shared[i], shared[i + w]);
    __syncthreads();
  }
  return shared[0];
}

}  // namespace tt
