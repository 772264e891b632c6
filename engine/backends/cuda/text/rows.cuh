// Rows: kLanes threads of a block share a row and synchronise at barriers.
namespace tt {

// The larger of two numbers, or NaN, with one instruction if the device has it. In contrast to Max,
// it may return either of two zeros, which makes no difference to exp(x - largest).
template <class A>
struct Largest {
  static A identity() { return Max<A>::identity(); }
  static A one(A a, A b) {
#if __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<A, float>) {
      asm("max.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(a), "f"(b));
      return a;
    }
#endif
    return Max<A>::one(a, b);
  }
};

// Calls use(e, load(e)) for e = start, start + kStep, ... below n. kBatch elements are loaded
// before the first of them is used, because the compiler does not move a load before a store in
// `use`.
template <int kStep, int kBatch, class Load, class Use>
void each_in_batches(std::int64_t start, std::int64_t n, const Load& load, Use&& use) {
  std::int64_t e = start;
#pragma unroll 1
  for (; e + (kBatch - 1) * kStep < n; e += kBatch * kStep) {
    decltype(load(e)) held[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) held[i] = load(e + i * kStep);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) use(e + i * kStep, held[i]);
  }
#pragma unroll 1
  for (; e < n; e += kStep) {
    auto one = load(e);
    use(e, one);
  }
}

// The elements of a row that belong to this thread: lane, lane + kLanes, ... below n. Up to kHeld
// elements are read once and stay in registers; with kHeld = 0 each pass reads them again. kWhole
// promises that n is kLanes * kHeld, or 0 for threads without a row, so that no element needs a
// condition of its own.
template <class Element, int kLanes, int kHeld, bool kWhole, class Load>
struct Row {
  const Load& load;
  std::int64_t n;
  int lane;
  Element held[kHeld > 0 ? kHeld : 1];

  // `filling` is the value of the elements after the end of the row. Because of it read() needs no
  // condition for each element; with conditions the compiler uses some elements before it loads the
  // others.
  Row(const Load& load, std::int64_t n, int lane, Element filling) : load(load), n(n), lane(lane) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held[i] = filling;
      if (inside(i)) held[i] = load(lane + i * kLanes);
    }
  }
  // Calls use(element) for all elements and for fillings. Changes to elements in registers persist.
  template <class Use>
  void read(Use&& use) {
    if constexpr (kHeld == 0) {
      each_in_batches<kLanes, 4>(lane, n, load, [&](std::int64_t, Element& v) { use(v); });
    } else {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) use(held[i]);
    }
  }
  // Calls use(e, element) for all elements.
  template <class Use>
  void store(Use&& use) {
    if constexpr (kHeld == 0) {
      each_in_batches<kLanes, 4>(lane, n, load, use);
    } else {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (inside(i)) use(lane + i * kLanes, held[i]);
      }
    }
  }

 private:
  bool inside(int i) const {
    return kWhole ? n > 0 : lane + i * kLanes < static_cast<int>(n);
  }
};

// Reduces one value per lane; all threads of the block must call it. `acc` has room for one value
// per thread. Level by level, lane i combines its value with that of lane i + w, for w = kLanes /
// 2, kLanes / 4, ..., 1.
template <class Op, int kLanes, class A>
A fold_row(A* acc, A mine) {
  constexpr int kWarps = kLanes / 32;
  // Each thread first reduces the values at its own position in all warps.
  if constexpr (kWarps > 1) {
    const int lane = threadIdx.x % kLanes;
    A* const row = acc + (threadIdx.x - lane);
    row[lane] = mine;
    __syncthreads();
    A part[kWarps];
#pragma unroll
    for (int i = 0; i < kWarps; ++i) part[i] = row[lane % 32 + 32 * i];
    __syncthreads();
#pragma unroll
    for (int w = kWarps / 2; w >= 1; w /= 2) {
#pragma unroll
      for (int i = 0; i < w; ++i) part[i] = Op::one(part[i], part[i + w]);
    }
    mine = part[0];
  }
#pragma unroll
  for (int w = 16; w >= 1; w /= 2) mine = Op::one(mine, __shfl_xor_sync(0xffffffffu, mine, w));
  return __shfl_sync(0xffffffffu, mine, 0);
}

}  // namespace tt
