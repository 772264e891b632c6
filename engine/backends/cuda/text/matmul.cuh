// Tiles of matrix products: a block of 256 threads makes 64 x 64 results, each thread 4 x 4.
namespace tt {

template <class A>
A multiply_add(A a, A b, A c) {
  if constexpr (std::is_floating_point_v<A>) {
    return std::fma(a, b, c);
  } else {
    return s::Add()(c, s::Mul()(a, b));
  }
}

// Steps of 16 along k. kTurned: neighbours in memory lie along the other dimension.
template <class A, bool kTurnedA, bool kTurnedB, class T>
void tile_product(A (&acc)[4][4], A (&as)[16][65], A (&bs)[16][65], const T* a, const T* b,
                  std::int64_t rows, std::int64_t columns, std::int64_t k, std::int64_t a_row,
                  std::int64_t a_column, std::int64_t b_row, std::int64_t b_column) {
  const int t = threadIdx.x, ty = t / 16, tx = t % 16;
  for (std::int64_t k0 = 0; k0 < k; k0 += 16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = kTurnedA ? t % 64 : t / 16 + i * 16, p = kTurnedA ? t / 64 + i * 4 : t % 16;
      as[p][m] = m < rows && k0 + p < k ? s::to_compute<A>(a[m * a_row + (k0 + p) * a_column]) : A(0);
      const int n = kTurnedB ? t / 16 + i * 16 : t % 64, q = kTurnedB ? t % 16 : t / 64 + i * 4;
      bs[q][n] =
          n < columns && k0 + q < k ? s::to_compute<A>(b[(k0 + q) * b_row + n * b_column]) : A(0);
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

}  // namespace tt
