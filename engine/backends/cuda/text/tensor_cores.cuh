// Products of 16-bit matrices on tensor cores; the 32 threads of a warp compute them together. The
// matrices are split into the pieces of the PTX instruction mma.m16n8k16 (PTX ISA, "Matrix
// Fragments for mma.m16n8k16"). With quad = lane / 4 and pair = lane % 4 * 2, a thread has these
// elements:
//   left piece, 16 rows x 16 columns:  {quad, pair}, {quad + 8, pair}, {quad, pair + 8},
//                                      {quad + 8, pair + 8}
//   right piece, 16 rows x 8 columns:  {pair, quad}, {pair + 8, quad}
//   sums, 16 rows x 8 columns:         {quad, pair}, {quad, pair + 1}, {quad + 8, pair},
//                                      {quad + 8, pair + 1}
// Each listed element of a left or right piece stands for two 16-bit numbers, which are adjacent
// along the dimension that the product sums over. One load reads two adjacent right pieces. Devices
// older than sm_80, and the emulator, exchange the pieces through shared memory; there all threads
// of the block have to call multiply() the same number of times.
namespace tt {

// The position of a thread in its warp.
struct Lane {
  int quad = static_cast<int>(threadIdx.x % 32 / 4), pair = static_cast<int>(threadIdx.x % 4) * 2;
};

// Two numbers of T in one register, with `first` at the lower address.
template <class T>
unsigned packed(float first, float second) {
#if __CUDA_ARCH__ >= 800
  unsigned both;
  if constexpr (std::is_same_v<T, Half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  }
  return both;
#else
  return s::from_compute<T>(first).bits | unsigned{s::from_compute<T>(second).bits} << 16;
#endif
}
inline unsigned joined(std::uint16_t first, std::uint16_t second) {
  return first | unsigned{second} << 16;
}

// sums += left * right. All threads of the warp must call it.
template <class T>
void multiply(float (&sums)[4], const unsigned (&left)[4], unsigned right, unsigned right_below) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, Half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right), "r"(right_below));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right), "r"(right_below));
  }
#else
  __shared__ unsigned held[256][6];
  const Lane lane;
  const int t = threadIdx.x, warp = t / 32 * 32;
  for (int i = 0; i < 4; ++i) held[t][i] = left[i];
  held[t][4] = right;
  held[t][5] = right_below;
  __syncthreads();
  const auto number = [&](int thread, int piece, int half) {
    T x;
    x.bits = static_cast<std::uint16_t>(held[warp + thread][piece] >> (half * 16));
    return static_cast<float>(x);
  };
  for (int i = 0; i < 4; ++i) {
    const int column = lane.pair + i % 2;
    for (int e = 0; e < 16; ++e) {
      const int along = e % 8 / 2, lower = e / 8;
      sums[i] = std::fma(number(lane.quad * 4 + along, i / 2 + lower * 2, e % 2),
                         number(column * 4 + along, 4 + lower, e % 2), sums[i]);
    }
  }
  __syncthreads();
#endif
}

// Loads two adjacent right pieces from 16 lines of shared memory that begin at `first` and are
// `stride` numbers apart. With kTurned a line lies along the summed dimension and there is one line
// for each of the 16 columns; without, a line has the 16 columns. right[0] and right[1] are the
// first piece.
template <bool kTurned>
void load_right(unsigned (&right)[4], const std::uint16_t* first, int stride) {
#if __CUDA_ARCH__ >= 800
  const int lane = threadIdx.x % 32, matrix = lane / 8;
  const int line = (kTurned ? matrix / 2 : matrix % 2) * 8 + lane % 8;
  const int place = (kTurned ? matrix % 2 : matrix / 2) * 8;
  std::uint64_t address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(first + line * stride + place));
  if constexpr (kTurned) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(right[0]), "=r"(right[1]), "=r"(right[2]), "=r"(right[3])
                 : "r"(static_cast<unsigned>(address)));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(right[0]), "=r"(right[1]), "=r"(right[2]), "=r"(right[3])
                 : "r"(static_cast<unsigned>(address)));
  }
#else
  const Lane lane;
  for (int i = 0; i < 4; ++i) {
    const int along = i % 2 * 8 + lane.pair, column = i / 2 * 8 + lane.quad;
    right[i] = kTurned
                   ? joined(first[column * stride + along], first[column * stride + along + 1])
                   : joined(first[along * stride + column], first[(along + 1) * stride + column]);
  }
#endif
}

// Asynchronous copies of kBytes (8 or 16, with both addresses aligned to that) into shared memory.
// end_group() closes the group of copies that the thread has started; wait_for_groups<n>() waits
// until at most the n latest groups are unfinished.
template <int kBytes>
void begin_copy(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  std::uint64_t address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(address)),
                 "l"(global)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(static_cast<unsigned>(address)),
                 "l"(global)
                 : "memory");
  }
#else
  using Words = Vec<unsigned, kBytes / 4>;
  *static_cast<Words*>(shared) = *static_cast<const Words*>(global);
#endif
}
inline void end_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kGroups>
void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}

// 2 to the power of x, within 2 units in the last place; 0 if the result is below the smallest
// normal number.
inline float power_of_2(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return ::exp2f(x);
#endif
}

// The maximum and the sum over the four threads of a warp that have one row of sums.
inline float most_of_row(float x) {
#pragma unroll
  for (int other = 1; other < 4; other *= 2) {
    x = ::fmaxf(x, __shfl_xor_sync(0xffffffffu, x, other));
  }
  return x;
}
inline float sum_of_row(float x) {
#pragma unroll
  for (int other = 1; other < 4; other *= 2) x += __shfl_xor_sync(0xffffffffu, x, other);
  return x;
}

}  // namespace tt
