// Selection by a mask in row-major order. Each block counts the selected ones among its 1024
// elements, one block computes where the results of each block begin, and then each block writes
// its elements.
namespace tt {

// The sum of `mine` over the earlier of the block's 256 threads; all threads must call it. `total`
// gets the sum over all threads.
inline std::int64_t before_thread(std::int64_t mine, std::int64_t& total) {
  __shared__ std::int64_t sums[256];
  const int t = threadIdx.x;
  sums[t] = mine;
  __syncthreads();
  for (int apart = 1; apart < 256; apart *= 2) {
    const std::int64_t left = t >= apart ? sums[t - apart] : 0;
    __syncthreads();
    sums[t] += left;
    __syncthreads();
  }
  total = sums[255];
  const std::int64_t before = sums[t] - mine;
  __syncthreads();
  return before;
}

// The four of a block's 1024 elements that belong to this thread.
struct SelectFour {
  std::int64_t first;
  bool picked[4];
  int count = 0;
  SelectFour(const calls::SelectCall& p) {
    first = static_cast<std::int64_t>(blockIdx.x) * 1024 + threadIdx.x * 4;
    const Bool* const mask = static_cast<const Bool*>(p.mask);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      picked[i] = first + i < p.size && mask[first + i].byte != 0;
      count += picked[i];
    }
  }
};

inline void select_counts(const calls::SelectCall& p) {
  const SelectFour own(p);
  std::int64_t total;
  before_thread(own.count, total);
  if (threadIdx.x == 0) p.starts[blockIdx.x] = total;
}

enum SelectCheck { kSelectAny, kSelectExactly, kSelectAtMost };

// One block: computes where the results of each of p.blocks begin, and checks the total number
// against the stated one.
template <int kCheck>
void select_starts(const calls::SelectCall& p) {
  std::int64_t found = 0;
  for (std::int64_t first = 0; first < p.blocks; first += 256) {
    const std::int64_t at = first + threadIdx.x;
    std::int64_t total;
    const std::int64_t before = before_thread(at < p.blocks ? p.starts[at] : 0, total);
    if (at < p.blocks) p.starts[at] = found + before;
    found += total;
  }
  const bool fits = kCheck == kSelectAny || found == p.wanted ||
                    (kCheck == kSelectAtMost && found < p.wanted);
  if (!fits && threadIdx.x == 0) *p.flag = 1;
}

// Calls f(position among the selected, position in the mask) for those before p.wanted.
template <class F>
void each_selected(const calls::SelectCall& p, F&& f) {
  if (p.flag && *p.flag != 0) return;
  const SelectFour own(p);
  std::int64_t total;
  std::int64_t to = p.starts[blockIdx.x] + before_thread(own.count, total);
  for (int i = 0; i < 4; ++i) {
    if (!own.picked[i]) continue;
    if (to < p.wanted) f(to, own.first + i);
    ++to;
  }
}

inline void select_places(const calls::SelectCall& p) {
  each_selected(p, [&](std::int64_t to, std::int64_t from) {
    std::int64_t* const row = static_cast<std::int64_t*>(p.y) + to * p.rank;
    for (int d = p.rank - 1; d >= 0; --d) row[d] = coordinate(from, p.shape[d]);
  });
}

template <class T>
void select_pack(const calls::SelectCall& p) {
  each_selected(p, [&](std::int64_t to, std::int64_t from) {
    static_cast<T*>(p.y)[to] = static_cast<const T*>(p.x)[from];
  });
}

template <class T>
void select_spread(const calls::SelectCall& p) {
  each_selected(p, [&](std::int64_t from, std::int64_t to) {
    static_cast<T*>(p.y)[to] = static_cast<const T*>(p.x)[from];
  });
}

}  // namespace tt
