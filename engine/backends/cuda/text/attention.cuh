// Attention for heads of 32-bit numbers, in tiles of 64 queries and 64 keys. Scores exist only in
// shared memory. The forward pass computes the softmax tile by tile, with the largest score so far;
// the backward pass recomputes the weights from the saved logarithms.
namespace tt {

// The head and the first row of a block, which has 64 of the `rows` rows.
template <class A>
struct AttentionBlock {
  std::int64_t head, first;
  const A *q, *k, *v, *g;
  const A* mask;
  AttentionBlock(const calls::AttentionCall& p, std::int64_t rows) {
    head = blockIdx.x;
    first = coordinate(head, (rows + 63) / 64) * 64;
    q = static_cast<const A*>(p.query) + head * p.length * p.inner;
    k = static_cast<const A*>(p.key) + head * p.keys * p.inner;
    v = static_cast<const A*>(p.value) + head * p.keys * p.values;
    g = static_cast<const A*>(p.gradient) + head * p.length * p.values;
    mask = static_cast<const A*>(p.mask);
    if (p.mask_heads) mask += head / p.mask_heads * p.mask_size;
  }
};

// Computes the scaled and masked scores of a tile; the score is -infinity if a query does not see a
// key. All threads of the block must call it; it ends with a barrier.
template <class A>
void attention_scores(const calls::AttentionCall& p, A (&scores)[64][65], A (&as)[16][65],
                      A (&bs)[16][65], const AttentionBlock<A>& of, std::int64_t q0,
                      std::int64_t k0) {
  A acc[4][4] = {};
  const A scale = static_cast<A>(p.scale);
  tile_product<A, false, true>(
      acc, as, bs, p.length - q0, p.keys - k0, p.inner,
      [&](std::int64_t m, std::int64_t e) { return of.q[(q0 + m) * p.inner + e]; },
      [&](std::int64_t e, std::int64_t n) { return of.k[(k0 + n) * p.inner + e]; });
  each_of_tile(acc, 64, 64, [&](int row, int column, A value) {
    const bool seen =
        q0 + row < p.length && k0 + column < p.keys && (!p.causal || k0 + column <= q0 + row);
    scores[row][column] = seen ? value * scale : -A(__builtin_inf());
  });
  __syncthreads();
  if (!of.mask) return;
    // Not unrolled, because the sums in registers leave no room for several addresses.
#pragma unroll 1
  for (int e = threadIdx.x; e < 64 * 64; e += 256) {
    const std::int64_t row = q0 + e / 64, column = k0 + e % 64;
    if (row < p.length && column < p.keys && (!p.causal || column <= row)) {
      scores[e / 64][e % 64] += of.mask[row * p.mask_row + column * p.mask_column];
    }
  }
  __syncthreads();
}

// Replaces the scores of a tile by weights exp(score - less(row)). All threads of the block must
// call it; it ends with a barrier.
template <class A, class F>
void attention_weights(A (&tile)[64][65], F&& less) {
  for (int e = threadIdx.x; e < 64 * 64; e += 256) {
    const int row = e / 64, column = e % 64;
    const A x = tile[row][column];
    tile[row][column] = x == -A(__builtin_inf()) ? A(0) : s::exp(x - less(row));
  }
  __syncthreads();
}

// Stores the part of a tile of results that is inside rows x columns. The tile begins at column 64
// * tile.
template <class A>
void store_tile(const A (&acc)[4][4], A* to, std::int64_t rows, std::int64_t columns, int tile) {
  each_of_tile(acc, rows, columns - tile * 64,
               [&](int row, int column, A sum) { to[row * columns + tile * 64 + column] = sum; });
}

// One block: 64 queries of one head. kValues is the number of tiles of value columns.
template <class A, int kValues>
void attention(const calls::AttentionCall& p) {
  __shared__ A scores[64][65];
  __shared__ A as[16][65];
  __shared__ A bs[16][65];
  __shared__ A most[64], total[64], factor[64];
  const AttentionBlock<A> of(p, p.length);
  const std::int64_t q0 = of.first;
  const int t = threadIdx.x, ty = t / 16;
  if (t < 64) {
    most[t] = -A(__builtin_inf());
    total[t] = 0;
  }
  A acc[kValues][4][4] = {};
  const std::int64_t last = p.causal && q0 + 64 < p.keys ? q0 + 64 : p.keys;
  for (std::int64_t k0 = 0; k0 < last; k0 += 64) {
    attention_scores(p, scores, as, bs, of, q0, k0);
    if (t < 64) {
      A now = most[t];
      for (int c = 0; c < 64; ++c) now = Max<A>::one(now, scores[t][c]);
      factor[t] = most[t] == now ? A(1) : s::exp(most[t] - now);
      most[t] = now;
    }
    __syncthreads();
    attention_weights(scores, [&](int row) { return most[row]; });
    if (t < 64) {
      A sum = 0;
      for (int c = 0; c < 64; ++c) sum += scores[t][c];
      total[t] = total[t] * factor[t] + sum;
    }
#pragma unroll
    for (int tile = 0; tile < kValues; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[tile][i][j] *= factor[ty * 4 + i];
      }
      tile_product<A, false, false>(
          acc[tile], as, bs, 64, p.values - tile * 64, p.keys - k0 < 64 ? p.keys - k0 : 64,
          [&](std::int64_t m, std::int64_t e) { return scores[m][e]; },
          [&](std::int64_t e, std::int64_t n) {
            return of.v[(k0 + e) * p.values + tile * 64 + n];
          });
    }
    __syncthreads();
  }
  A* const y = static_cast<A*>(p.y) + (of.head * p.length + q0) * p.values;
#pragma unroll
  for (int tile = 0; tile < kValues; ++tile) {
    each_of_tile(acc[tile], p.length - q0, p.values - tile * 64, [&](int row, int column, A sum) {
      y[row * p.values + tile * 64 + column] = total[row] == 0 ? A(0) : sum / total[row];
    });
  }
  if (t < 64 && q0 + t < p.length) {
    static_cast<A*>(p.logs)[of.head * p.length + q0 + t] = most[t] + s::log(total[t]);
  }
}

// Computes sum(g * y) of a row.
template <class A>
void attention_dots(const calls::AttentionCall& p, std::int64_t row) {
  const A *const g = static_cast<const A*>(p.gradient) + row * p.values, *const y =
                                                                             static_cast<const A*>(
                                                                                 p.y) +
                                                                             row * p.values;
  A sum = 0;
  for (std::int64_t e = 0; e < p.values; ++e) sum += g[e] * y[e];
  static_cast<A*>(p.dots)[row] = sum;
}

// Replaces the weights of a tile by the gradients of its scores.
template <class A>
void attention_score_gradients(const calls::AttentionCall& p, A (&weights)[64][65], A (&as)[16][65],
                               A (&bs)[16][65], const AttentionBlock<A>& of, std::int64_t q0,
                               std::int64_t k0) {
  const A* const dots = static_cast<const A*>(p.dots) + of.head * p.length;
  const A scale = static_cast<A>(p.scale);
  A acc[4][4] = {};
  tile_product<A, false, true>(
      acc, as, bs, p.length - q0, p.keys - k0, p.values,
      [&](std::int64_t m, std::int64_t e) { return of.g[(q0 + m) * p.values + e]; },
      [&](std::int64_t e, std::int64_t n) { return of.v[(k0 + n) * p.values + e]; });
  each_of_tile(acc, p.length - q0, p.keys - k0, [&](int row, int column, A value) {
    A& weight = weights[row][column];
    weight = weight * (value - dots[q0 + row]) * scale;
  });
  __syncthreads();
}

// One block: 64 keys of one head; computes dkey and dvalue. kTiles is the number of column tiles of
// the larger of the two.
template <class A, int kTiles>
void attention_keys(const calls::AttentionCall& p) {
  __shared__ A weights[64][65];
  __shared__ A as[16][65];
  __shared__ A bs[16][65];
  const AttentionBlock<A> of(p, p.keys);
  const std::int64_t k0 = of.first;
  const A* const logs = static_cast<const A*>(p.logs) + of.head * p.length;
  A dv[kTiles][4][4] = {}, dk[kTiles][4][4] = {};
  for (std::int64_t q0 = p.causal ? k0 : 0; q0 < p.length; q0 += 64) {
    const std::int64_t rows = p.length - q0 < 64 ? p.length - q0 : 64;
    attention_scores(p, weights, as, bs, of, q0, k0);
    attention_weights(weights, [&](int row) { return logs[q0 + row]; });
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      tile_product<A, true, false>(
          dv[tile], as, bs, 64, p.values - tile * 64, rows,
          [&](std::int64_t m, std::int64_t e) { return weights[e][m]; },
          [&](std::int64_t e, std::int64_t n) {
            return of.g[(q0 + e) * p.values + tile * 64 + n];
          });
    }
    attention_score_gradients(p, weights, as, bs, of, q0, k0);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      tile_product<A, true, false>(
          dk[tile], as, bs, 64, p.inner - tile * 64, rows,
          [&](std::int64_t m, std::int64_t e) { return weights[e][m]; },
          [&](std::int64_t e, std::int64_t n) { return of.q[(q0 + e) * p.inner + tile * 64 + n]; });
    }
    __syncthreads();
  }
  A* const of_v = static_cast<A*>(p.dvalue) + (of.head * p.keys + k0) * p.values;
  A* const of_k = static_cast<A*>(p.dkey) + (of.head * p.keys + k0) * p.inner;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    store_tile(dv[tile], of_v, p.keys - k0, p.values, tile);
    store_tile(dk[tile], of_k, p.keys - k0, p.inner, tile);
  }
}

// One block: 64 queries of one head; computes dquery.
template <class A, int kTiles>
void attention_queries(const calls::AttentionCall& p) {
  __shared__ A weights[64][65];
  __shared__ A as[16][65];
  __shared__ A bs[16][65];
  const AttentionBlock<A> of(p, p.length);
  const std::int64_t q0 = of.first;
  const A* const logs = static_cast<const A*>(p.logs) + of.head * p.length;
  A dq[kTiles][4][4] = {};
  const std::int64_t last = p.causal && q0 + 64 < p.keys ? q0 + 64 : p.keys;
  for (std::int64_t k0 = 0; k0 < last; k0 += 64) {
    attention_scores(p, weights, as, bs, of, q0, k0);
    attention_weights(weights, [&](int row) { return logs[q0 + row]; });
    attention_score_gradients(p, weights, as, bs, of, q0, k0);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      tile_product<A, false, false>(
          dq[tile], as, bs, 64, p.inner - tile * 64, p.keys - k0 < 64 ? p.keys - k0 : 64,
          [&](std::int64_t m, std::int64_t e) { return weights[m][e]; },
          [&](std::int64_t e, std::int64_t n) { return of.k[(k0 + e) * p.inner + tile * 64 + n]; });
    }
    __syncthreads();
  }
  A* const to = static_cast<A*>(p.dquery) + (of.head * p.length + q0) * p.inner;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    store_tile(dq[tile], to, p.length - q0, p.inner, tile);
  }
}

}  // namespace tt
