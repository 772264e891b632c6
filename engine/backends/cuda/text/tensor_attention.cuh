// Attention for heads of up to 128 16-bit numbers on tensor cores, after FlashAttention-2 (Dao,
// 2023). A warp keeps 16 of its block's 128 rows in registers and iterates over the other sequence
// in tiles; the next tile is copied to shared memory while one is used. Scores are float32 and
// exist only in registers; weights and the gradients of scores are rounded to T for their products.
// The backward has one kernel for keys and one for queries, so sums are never combined in memory
// and the bits are the same in every run.
namespace tt {

inline constexpr int kTensorKeys = 32;  // keys per tile
inline constexpr float kLog2E = 1.442695040888963f;
// The score of a key that a query may not see.
inline constexpr float kUnseen = -static_cast<float>(__builtin_inf());

// A matrix in memory from which tiles are copied.
struct TensorMatrix {
  const std::uint16_t* first;
  int rows, columns;
};

// kRows lines of a matrix in shared memory. A line is 16 bytes longer than its numbers, so that the
// lines that one load reads are in different banks.
template <int kRows, int kWidth>
struct alignas(16) TensorTile {
  std::uint16_t lines[kRows][kWidth + 8];

  // Starts to copy rows `first` to first + kRows of a matrix; elements outside of the matrix become
  // zero.
  void fetch(const TensorMatrix& matrix, int first) {
    const int columns = matrix.columns;
    const bool whole =
        columns % 8 == 0 && reinterpret_cast<std::uint64_t>(matrix.first) % 16 == 0;
    constexpr int kPieces = kWidth / 8;
#pragma unroll
    for (int e = threadIdx.x; e < kRows * kPieces; e += 256) {
      const int row = e / kPieces, column = e % kPieces * 8;
      const bool inside = first + row < matrix.rows;
      const std::uint16_t* const from =
          matrix.first + std::int64_t{first + row} * columns + column;
      if (whole && inside && column < columns) {
        begin_copy<16>(&lines[row][column], from);
        continue;
      }
#pragma unroll 1
      for (int i = 0; i < 8; ++i) {
        lines[row][column + i] = inside && column + i < columns ? from[i] : std::uint16_t{0};
      }
    }
  }
};

// Loads 16 rows of a matrix as left pieces; elements outside of the matrix become zero.
template <int kWidth>
void load_left(unsigned (&left)[kWidth / 16][4], const std::uint16_t* matrix, int first, int rows,
               int columns) {
  const Lane lane;
  const auto number = [&](int row, int column) {
    return row < rows && column < columns ? matrix[std::int64_t{row} * columns + column]
                                          : std::uint16_t{0};
  };
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + lane.quad + i % 2 * 8;
      const int column = step * 16 + lane.pair + i / 2 * 8;
      left[step][i] = joined(number(row, column), number(row, column + 1));
    }
  }
}

// sums += left * transpose(tile): one column for each line of the tile.
template <class T, int kRows, int kWidth>
void multiply_turned(float (&sums)[kRows / 8][4], const unsigned (&left)[kWidth / 16][4],
                     const TensorTile<kRows, kWidth>& tile) {
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
#pragma unroll
    for (int n = 0; n < kRows / 16; ++n) {
      unsigned right[4];
      load_right<true>(right, &tile.lines[n * 16][step * 16], kWidth + 8);
      multiply<T>(sums[n * 2], left[step], right[0], right[1]);
      multiply<T>(sums[n * 2 + 1], left[step], right[2], right[3]);
    }
  }
}

// sums += weights * tile, where the weights are rounded to T.
template <class T, int kRows, int kWidth>
void multiply_weights(float (&sums)[kWidth / 8][4], const float (&weights)[kRows / 8][4],
                      const TensorTile<kRows, kWidth>& tile) {
#pragma unroll
  for (int step = 0; step < kRows / 16; ++step) {
    const auto &low = weights[step * 2], &high = weights[step * 2 + 1];
    const unsigned left[4] = {packed<T>(low[0], low[1]), packed<T>(low[2], low[3]),
                              packed<T>(high[0], high[1]), packed<T>(high[2], high[3])};
#pragma unroll
    for (int n = 0; n < kWidth / 16; ++n) {
      unsigned right[4];
      load_right<false>(right, &tile.lines[step * 16][n * 16], kWidth + 8);
      multiply<T>(sums[n * 2], left, right[0], right[1]);
      multiply<T>(sums[n * 2 + 1], left, right[2], right[3]);
    }
  }
}

// Calls f(row, column, sum) for a thread's sums. Rows are counted from the first of the warp's 16
// rows, columns from the start of the tile.
template <int kColumns, class F>
void each_of_warp(float (&sums)[kColumns / 8][4], F&& f) {
  const Lane lane;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) f(lane.quad + i / 2 * 8, n * 8 + lane.pair + i % 2, sums[n][i]);
  }
}

// Stores rows of 16 sums as T, as far as they are inside rows x columns, multiplied by the factors
// of the thread's two rows.
template <class T, int kWidth>
void store_rows(float (&sums)[kWidth / 8][4], T* to, int first, int rows, int columns,
                const float (&factors)[2]) {
  each_of_warp<kWidth>(sums, [&](int row, int column, float sum) {
    if (first + row < rows && column < columns) {
      to[std::int64_t{first + row} * columns + column] = s::from_compute<T>(sum * factors[row / 8]);
    }
  });
}

// A block's head, its matrices, and its first row in a sequence of `rows`. If a query sees only
// earlier keys, blocks with many tiles start first: those of the last queries, or of the first
// keys.
struct TensorHead {
  static constexpr int kRows = calls::kTensorAttentionRows;  // rows per block
  std::int64_t head;
  int first, warp_first;  // first row of the block and of the warp
  const std::uint16_t *query, *key, *value, *gradient;
  const float* mask;

  TensorHead(const calls::AttentionCall& p, int rows, bool last_first) {
    const int blocks = (rows + kRows - 1) / kRows;
    const int block = static_cast<int>(blockIdx.x % static_cast<unsigned>(blocks));
    head = blockIdx.x / static_cast<unsigned>(blocks);
    first = (last_first ? blocks - 1 - block : block) * kRows;
    warp_first = first + static_cast<int>(threadIdx.x) / 32 * 16;
    query = static_cast<const std::uint16_t*>(p.query) + head * p.length * p.inner;
    key = static_cast<const std::uint16_t*>(p.key) + head * p.keys * p.inner;
    value = static_cast<const std::uint16_t*>(p.value) + head * p.keys * p.values;
    gradient = static_cast<const std::uint16_t*>(p.gradient) + head * p.length * p.values;
    mask = static_cast<const float*>(p.mask);
    if (mask != nullptr && p.mask_heads != 0) mask += head / p.mask_heads * p.mask_size;
  }
};

// The columns of a tile that the thread's two rows may see, and the mask that is added to them.
// Columns are counted from the thread's first column, so that they are compile-time constants.
struct TensorSight {
  int low[2], high[2];  // visible columns: low to high - 1
  const float* mask[2];
  unsigned step;  // of the mask, from one column to the next

  // Turns products into scores in units of log 2; the score is kUnseen if the row may not see the
  // column.
  template <int kColumns>
  void make_scores(float (&products)[kColumns / 8][4], float scale) const {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i / 2, column = n * 8 + i % 2;
        float& x = products[n][i];
        x = column >= low[half] && column < high[half] ? x * scale : kUnseen;
        // The mask of a column that may not be seen can be outside of its memory.
        if (mask[0] != nullptr && x != kUnseen) {
          x = std::fma(mask[half][static_cast<std::uint64_t>(step) * column], kLog2E, x);
        }
      }
    }
  }
};

// For rows that are queries and columns that are keys.
inline TensorSight sight_of_queries(const calls::AttentionCall& p, const float* mask, int query,
                                    int key) {
  const Lane lane;
  TensorSight sight;
  sight.step = static_cast<unsigned>(p.mask_column);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = query + lane.quad + half * 8, column = key + lane.pair;
    const int keys = static_cast<int>(p.keys);
    sight.low[half] = 0;
    sight.high[half] = row >= p.length ? 0 : (p.causal && row < keys ? row + 1 : keys) - column;
    sight.mask[half] = mask == nullptr ? nullptr : mask + row * p.mask_row + column * p.mask_column;
  }
  return sight;
}
// For rows that are keys and columns that are queries.
inline TensorSight sight_of_keys(const calls::AttentionCall& p, const float* mask, int query,
                                 int key) {
  const Lane lane;
  TensorSight sight;
  sight.step = static_cast<unsigned>(p.mask_row);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = key + lane.quad + half * 8, column = query + lane.pair;
    sight.low[half] = p.causal ? row - column : 0;
    sight.high[half] = row < p.keys ? static_cast<int>(p.length) - column : 0;
    sight.mask[half] = mask == nullptr ? nullptr : mask + column * p.mask_row + row * p.mask_column;
  }
  return sight;
}

// Returns true if the tile of 16 rows is inside the matrix and below the diagonal, and there is no
// mask. Then the largest score is that of the largest product, provided that the scale is not
// negative.
inline bool plain_tile(const calls::AttentionCall& p, int query, int queries, int key, int keys) {
  return p.mask == nullptr && p.scale >= 0 && query + queries <= p.length && key + keys <= p.keys &&
         (!p.causal || key + keys - 1 <= query);
}

// Iterates over tiles: fetch(tile, place) starts to copy a tile into one of kPlaces places in
// shared memory, and use(tile, place) computes with an earlier one. The barrier of a tile also
// guarantees that all warps have finished the previous tile, whose place is filled next.
template <int kPlaces, class Fetch, class Use>
void each_tile(int tiles, Fetch&& fetch, Use&& use) {
#pragma unroll
  for (int tile = 0; tile < kPlaces - 1; ++tile) {
    if (tile < tiles) fetch(tile, tile);
    end_group();
  }
  for (int tile = 0, place = 0; tile < tiles; ++tile) {
    wait_for_groups<kPlaces - 2>();
    __syncthreads();
    const int later = tile + kPlaces - 1;
    if (later < tiles) fetch(later, place == 0 ? kPlaces - 1 : place - 1);
    end_group();
    use(tile, place);
    place = place + 1 == kPlaces ? 0 : place + 1;
  }
}
// Number of tiles in shared memory at a time, limited by 48 KiB.
template <int kWidth>
inline constexpr int kTensorPlaces = kWidth > 64 ? 2 : 3;

// Calls each_tile() for the keys and values that a block of queries may see.
template <int kWidth, class Use>
void each_tile_of_keys(const calls::AttentionCall& p, const TensorHead& of, Use&& use) {
  constexpr int kPlaces = kTensorPlaces<kWidth>;
  __shared__ TensorTile<kTensorKeys, kWidth> keys[kPlaces], values[kPlaces];
  const int all = static_cast<int>(p.keys), end = of.first + of.kRows;
  const int seen = p.causal && end < all ? end : all;
  const TensorMatrix all_keys{of.key, all, static_cast<int>(p.inner)},
      all_values{of.value, all, static_cast<int>(p.values)};
  const auto fetch = [&](int tile, int place) {
    keys[place].fetch(all_keys, tile * kTensorKeys);
    values[place].fetch(all_values, tile * kTensorKeys);
  };
  each_tile<kPlaces>(
      (seen + kTensorKeys - 1) / kTensorKeys, fetch,
      [&](int tile, int place) { use(tile * kTensorKeys, keys[place], values[place]); });
}

// Turns the scores of a tile, multiplied by `by` in units of log 2, into weights. If the largest
// score of a row grows, its total and its sums are scaled accordingly.
template <int kKeys, int kWidth>
void soften(float (&scores)[kKeys / 8][4], float by, float (&most)[2], float (&total)[2],
            float (&sums)[kWidth / 8][4]) {
  float now[2] = {kUnseen, kUnseen}, from[2];
  each_of_warp<kKeys>(scores,
                      [&](int row, int, float x) { now[row / 8] = ::fmaxf(now[row / 8], x); });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    now[half] = ::fmaxf(most[half], most_of_row(now[half]) * by);
    // A row that has not seen any key has no largest score to subtract.
    from[half] = now[half] == kUnseen ? 0.0f : now[half];
    if (now[half] != most[half]) {
      const float factor = power_of_2(most[half] - from[half]);
      most[half] = now[half];
      total[half] *= factor;
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
        sums[n][half * 2] *= factor;
        sums[n][half * 2 + 1] *= factor;
      }
    }
  }
  each_of_warp<kKeys>(scores, [&](int row, int, float& x) {
    x = power_of_2(std::fma(x, by, -from[row / 8]));
    total[row / 8] += x;
  });
}

// One block: 128 queries of one head. kUnits is the number of units of 32 columns, for the larger
// of keys and values.
template <class T, int kUnits>
void tensor_attention(const calls::AttentionCall& p) {
  constexpr int kWidth = kUnits * 32, kKeys = kTensorKeys;
  const int length = static_cast<int>(p.length);
  const TensorHead of(p, length, p.causal);
  const float scale = static_cast<float>(p.scale) * kLog2E;
  const int inner = static_cast<int>(p.inner), columns = static_cast<int>(p.values);
  unsigned query[kWidth / 16][4];
  load_left<kWidth>(query, of.query, of.warp_first, length, inner);
  float sums[kWidth / 8][4] = {};
  float most[2] = {kUnseen, kUnseen}, total[2] = {};
  each_tile_of_keys<kWidth>(p, of, [&](int key, const auto& keys, const auto& values) {
    float scores[kKeys / 8][4] = {};
    multiply_turned<T>(scores, query, keys);
    float by = scale;
    if (!plain_tile(p, of.warp_first, 16, key, kKeys)) {
      sight_of_queries(p, of.mask, of.warp_first, key).make_scores<kKeys>(scores, scale);
      by = 1;
    }
    soften<kKeys, kWidth>(scores, by, most, total, sums);
    multiply_weights<T>(sums, scores, values);
  });
  const Lane lane;
  float factors[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float all = sum_of_row(total[half]);
    factors[half] = all == 0 ? 0.0f : 1.0f / all;
    const int row = of.warp_first + lane.quad + half * 8;
    if (lane.pair == 0 && row < length) {
      static_cast<float*>(p.logs)[of.head * p.length + row] = most[half] / kLog2E + s::log(all);
    }
  }
  store_rows<T, kWidth>(sums, static_cast<T*>(p.y) + of.head * p.length * p.values, of.warp_first,
                        length, columns, factors);
}

// The two numbers of a query from which its weights and the gradients of its scores are computed:
// the negative logarithm of the sum of weights, in units of log 2, and sum(g * y).
struct TensorLine {
  float log, dot;
};

// Computes the lines of 32 queries, over all heads, in one block with eight threads per query.
template <class T>
void tensor_attention_lines(const calls::AttentionCall& p) {
  const std::int64_t row = std::int64_t{blockIdx.x} * 32 + threadIdx.x / 8;
  const T* const g = static_cast<const T*>(p.gradient) + row * p.values;
  const T* const y = static_cast<const T*>(p.y) + row * p.values;
  float sum = 0;
  for (int e = threadIdx.x % 8; row < p.rows && e < p.values; e += 8) {
    sum = std::fma(s::to_compute<float>(g[e]), s::to_compute<float>(y[e]), sum);
  }
#pragma unroll
  for (int other = 1; other < 8; other *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
  if (row < p.rows && threadIdx.x % 8 == 0) {
    static_cast<TensorLine*>(p.dots)[row] = {static_cast<const float*>(p.logs)[row] * -kLog2E, sum};
  }
}

// Turns weights into the gradients of scores, without the scale: each weight is multiplied by its
// `changes` (the gradient of the weight) minus the dot product of its query.
template <int kColumns, class F>
void change_scores(float (&weights)[kColumns / 8][4], const float (&changes)[kColumns / 8][4],
                   F&& dot) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[n][i] *= changes[n][i] - dot(n, i);
  }
}

// One block: 128 keys of one head; computes dkey and dvalue.
template <class T, int kUnits>
void tensor_attention_keys(const calls::AttentionCall& p) {
  constexpr int kWidth = kUnits * 32, kQueries = kWidth > 64 ? 16 : 32;
  constexpr int kPlaces = kTensorPlaces<kWidth>;
  __shared__ TensorTile<kQueries, kWidth> queries[kPlaces], gradients[kPlaces];
  __shared__ TensorLine lines[kPlaces][kQueries];
  const int length = static_cast<int>(p.length), all_keys = static_cast<int>(p.keys);
  const TensorHead of(p, all_keys, false);
  const TensorLine* const all_lines = static_cast<const TensorLine*>(p.dots) + of.head * p.length;
  const float scale = static_cast<float>(p.scale) * kLog2E;
  const int inner = static_cast<int>(p.inner), columns = static_cast<int>(p.values);
  const int start = p.causal ? of.first : 0;
  const TensorMatrix all_queries{of.query, length, inner},
      all_gradients{of.gradient, length, columns};
  const auto fetch = [&](int tile, int place) {
    const int query = start + tile * kQueries, row = query + static_cast<int>(threadIdx.x);
    queries[place].fetch(all_queries, query);
    gradients[place].fetch(all_gradients, query);
    if (threadIdx.x < kQueries) {
      TensorLine& line = lines[place][threadIdx.x];
      if (row < length) {
        begin_copy<8>(&line, all_lines + row);
      } else {
        line = {0, 0};
      }
    }
  };
  unsigned key[kWidth / 16][4], value[kWidth / 16][4];
  load_left<kWidth>(key, of.key, of.warp_first, all_keys, inner);
  load_left<kWidth>(value, of.value, of.warp_first, all_keys, columns);
  float key_sums[kWidth / 8][4] = {}, value_sums[kWidth / 8][4] = {};
  const int tiles = length <= start ? 0 : (length - start + kQueries - 1) / kQueries;
  each_tile<kPlaces>(tiles, fetch, [&](int tile, int place) {
    const int query = start + tile * kQueries;
    const TensorLine(&line)[kQueries] = lines[place];
    // In this product rows are keys and columns are queries.
    float weights[kQueries / 8][4] = {};
    multiply_turned<T>(weights, key, queries[place]);
    if (plain_tile(p, query, kQueries, of.warp_first, 16)) {
      each_of_warp<kQueries>(weights, [&](int, int column, float& x) {
        x = power_of_2(std::fma(x, scale, line[column].log));
      });
    } else {
      sight_of_keys(p, of.mask, query, of.warp_first).make_scores<kQueries>(weights, scale);
      each_of_warp<kQueries>(weights, [&](int, int column, float& x) {
        x = x == kUnseen ? 0.0f : power_of_2(x + line[column].log);
      });
    }
    multiply_weights<T>(value_sums, weights, gradients[place]);
    float changes[kQueries / 8][4] = {};
    multiply_turned<T>(changes, value, gradients[place]);
    change_scores<kQueries>(weights, changes,
                            [&](int n, int i) { return line[n * 8 + Lane().pair + i % 2].dot; });
    multiply_weights<T>(key_sums, weights, queries[place]);
  });
  const float by = static_cast<float>(p.scale);
  store_rows<T, kWidth>(value_sums, static_cast<T*>(p.dvalue) + of.head * p.keys * p.values,
                        of.warp_first, all_keys, columns, {1.0f, 1.0f});
  store_rows<T, kWidth>(key_sums, static_cast<T*>(p.dkey) + of.head * p.keys * p.inner,
                        of.warp_first, all_keys, inner, {by, by});
}

// One block: 128 queries of one head; computes dquery.
template <class T, int kUnits>
void tensor_attention_queries(const calls::AttentionCall& p) {
  constexpr int kWidth = kUnits * 32, kKeys = kTensorKeys;
  const int length = static_cast<int>(p.length);
  const TensorHead of(p, length, p.causal);
  const float scale = static_cast<float>(p.scale) * kLog2E;
  const int inner = static_cast<int>(p.inner), columns = static_cast<int>(p.values);
  unsigned query[kWidth / 16][4], gradient[kWidth / 16][4];
  load_left<kWidth>(query, of.query, of.warp_first, length, inner);
  load_left<kWidth>(gradient, of.gradient, of.warp_first, length, columns);
  TensorLine line[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = of.warp_first + Lane().quad + half * 8;
    if (row < length) {
      line[half] = static_cast<const TensorLine*>(p.dots)[of.head * p.length + row];
    }
  }
  float sums[kWidth / 8][4] = {};
  each_tile_of_keys<kWidth>(p, of, [&](int key, const auto& keys, const auto& values) {
    float weights[kKeys / 8][4] = {}, changes[kKeys / 8][4] = {};
    multiply_turned<T>(weights, query, keys);
    multiply_turned<T>(changes, gradient, values);
    if (plain_tile(p, of.warp_first, 16, key, kKeys)) {
      each_of_warp<kKeys>(weights, [&](int row, int, float& x) {
        x = power_of_2(std::fma(x, scale, line[row / 8].log));
      });
    } else {
      sight_of_queries(p, of.mask, of.warp_first, key).make_scores<kKeys>(weights, scale);
      each_of_warp<kKeys>(weights, [&](int row, int, float& x) {
        x = x == kUnseen ? 0.0f : power_of_2(x + line[row / 8].log);
      });
    }
    change_scores<kKeys>(weights, changes, [&](int, int i) { return line[i / 2].dot; });
    multiply_weights<T>(sums, weights, keys);
  });
  const float by = static_cast<float>(p.scale);
  store_rows<T, kWidth>(sums, static_cast<T*>(p.dquery) + of.head * p.length * p.inner,
                        of.warp_first, length, inner, {by, by});
}

}  // namespace tt
