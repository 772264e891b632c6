// Rows: kLanes threads of a block share one, and meet at barriers.
namespace tt {

// The larger of two numbers, or NaN, by one instruction where the device has it. Unlike Max it does
// not say which of two zeros it is, which makes no difference to exp(x - largest).
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

// use(e, load(e)) for e = start, start + kStep and so on below n. kBatch elements are loaded before
// the first of them is used, because the compiler moves no load before a store that `use` makes.
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

// The elements of a row that are this thread's: lane, lane + kLanes and so on below n. kHeld of them
// at most are read once and stay in registers; with kHeld = 0 each pass reads them again. kWhole: n
// is kLanes * kHeld, or 0 for threads without a row, so that no element has a condition of its own.
template <class Element, int kLanes, int kHeld, bool kWhole, class Load>
struct Row {
  const Load& load;
  std::int64_t n;
  int lane;
  Element held[kHeld > 0 ? kHeld : 1];

  // `filling` is the value of places after the row's end, so that read() has no condition for each
  // element: with one the compiler uses some elements before it loads the others.
  Row(const Load& load, std::int64_t n, int lane, Element filling) : load(load), n(n), lane(lane) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held[i] = filling;
      if (inside(i)) held[i] = load(lane + i * kLanes);
    }
  }
  // use(element) for all, and for fillings; what it changes of a held one stays changed.
  template <class Use>
  void read(Use&& use) {
    if constexpr (kHeld == 0) {
      each_in_batches<kLanes, 4>(lane, n, load, [&](std::int64_t, Element& v) { use(v); });
    } else {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) use(held[i]);
    }
  }
  // use(e, element) for all.
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

// The fold of a value of each lane; all threads of the block call it. `acc` has a place for each.
// Level by level, lane i takes the value of lane i + w for w = kLanes / 2, kLanes / 4, ..., 1.
template <class Op, int kLanes, class A>
A fold_row(A* acc, A mine) {
  constexpr int kWarps = kLanes / 32;
  if constexpr (kWarps > 1) {  // each thread folds what its place in the other warps has
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
