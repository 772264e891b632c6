// Matrix products in tiles: a block of 256 threads computes 64 x 64 results, 4 x 4 per thread.
namespace tt {

template <class A>
A multiply_add(A a, A b, A c) {
  if constexpr (std::is_floating_point_v<A>) {
    return std::fma(a, b, c);
  } else {
    return s::Add()(c, s::Mul()(a, b));
  }
}

// acc += a * b, where a(row, p) for p < k and b(p, column) are functions, in steps of 16 along k.
// kTurnedA and kTurnedB say that elements which are adjacent in memory lie along the other
// dimension. A thread has the rows ty * 4 + i and the columns tx + 16 * j.
template <class A, bool kTurnedA, bool kTurnedB, class Left, class Right>
void tile_product(A (&acc)[4][4], A (&as)[16][65], A (&bs)[16][65], std::int64_t rows,
                  std::int64_t columns, std::int64_t k, Left&& a, Right&& b) {
  const int t = threadIdx.x, ty = t / 16, tx = t % 16;
  for (std::int64_t k0 = 0; k0 < k; k0 += 16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = kTurnedA ? t % 64 : t / 16 + i * 16, p = kTurnedA ? t / 64 + i * 4 : t % 16;
      as[p][m] = m < rows && k0 + p < k ? a(m, k0 + p) : A(0);
      const int n = kTurnedB ? t / 16 + i * 16 : t % 64, q = kTurnedB ? t % 16 : t / 64 + i * 4;
      bs[q][n] = n < columns && k0 + q < k ? b(k0 + q, n) : A(0);
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < 16; ++p) {
      A x[4], y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = as[p][ty * 4 + i], y[i] = bs[p][tx + i * 16];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[i][j] = multiply_add(x[i], y[j], acc[i][j]);
      }
    }
    __syncthreads();
  }
}

// Calls f(row, column, value) for those of a thread's results that are inside rows x columns.
template <class A, class F>
void each_of_tile(const A (&acc)[4][4], std::int64_t rows, std::int64_t columns, F&& f) {
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = ty * 4 + i, column = tx + j * 16;
      if (row < rows && column < columns) f(row, column, acc[i][j]);
    }
  }
}

}  // namespace tt
