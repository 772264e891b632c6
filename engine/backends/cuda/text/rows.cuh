// Rows: kLanes threads of a block share one, and meet at barriers.
namespace tt {

// The fold of a value of each lane; all threads of the block call it. `acc` has a place for each.
template <class Op, int kLanes, class A>
A fold_row(A* acc, A mine) {
  const int lane = threadIdx.x % kLanes;
  A* const row = acc + (threadIdx.x - lane);
  row[lane] = mine;
  __syncthreads();
#pragma unroll
  for (int w = kLanes / 2; w >= 1; w /= 2) {
    if (lane < w) row[lane] = Op::one(row[lane], row[lane + w]);
    __syncthreads();
  }
  const A value = row[0];
  __syncthreads();
  return value;
}

}  // namespace tt
