// CUDA's keywords and functions for g++, without any include. This file, prelude() and a kernel's
// text become a shared library, which emulator_test.h runs. For tests and the fake driver.
struct tt_uint3 {
  unsigned x, y, z;
};
// The indices that the emulator sets before it calls a thread, and the function that a thread calls
// at a barrier.
struct tt_thread {
  tt_uint3 thread, block, block_size, grid_size;
  void (*barrier)();
};
extern "C" __attribute__((visibility("default"))) tt_thread tt_current;
tt_thread tt_current;
#define threadIdx tt_current.thread
#define blockIdx tt_current.block
#define blockDim tt_current.block_size
#define gridDim tt_current.grid_size

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)

static inline void __syncthreads() { tt_current.barrier(); }
// All threads of a block have to call each of the functions below the same number of times.
template <class T>
T tt_of_thread(T x, unsigned thread) {
  static T held[1024];
  held[threadIdx.x] = x;
  __syncthreads();
  const T other = held[thread];
  __syncthreads();
  return other;
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int bits) {
  return tt_of_thread(x, threadIdx.x ^ static_cast<unsigned>(bits));
}
template <class T>
T __shfl_sync(unsigned, T x, int lane) {
  return tt_of_thread(x, (threadIdx.x & ~31u) | static_cast<unsigned>(lane));
}
static inline int __syncthreads_or(int x) {
  static int any;
  if (threadIdx.x == 0) any = 0;
  __syncthreads();
  any |= x;
  __syncthreads();
  const int result = any;
  __syncthreads();
  return result;
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long>(a) * b) >> 32);
}
static inline unsigned long __umul64hi(unsigned long a, unsigned long b) {
  return static_cast<unsigned long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
static inline long __mul64hi(long a, long b) {
  return static_cast<long>((static_cast<__int128>(a) * b) >> 64);
}
template <class T>
T atomicAdd(T* p, T v) {
  const T old = *p;
  *p = old + v;
  return old;
}
template <class T>
T atomicOr(T* p, T v) {
  const T old = *p;
  *p = old | v;
  return old;
}
template <class T>
T atomicMin(T* p, T v) {
  const T old = *p;
  if (v < old) *p = v;
  return old;
}

// Ends each text: defines how the emulator finds a kernel, and whether its threads use barriers.
#define TT_EXPORT extern "C" __attribute__((visibility("default")))
#define TT_KERNEL_NAMED(name) \
  TT_EXPORT void name##_thread(const void* params) { name(*static_cast<const Params*>(params)); }
#define TT_KERNEL(name) TT_KERNEL_NAMED(name)
#define TT_BARRIERS_NAMED(name)         \
  TT_EXPORT const int name##_barriers; \
  const int name##_barriers = 1;
#define TT_KERNEL_WITH_BARRIERS(name) TT_KERNEL(name) TT_BARRIERS_NAMED(name)

#define TT_C_1(name)                       \
  extern "C" float name##f(float) noexcept; \
  extern "C" double name(double) noexcept;
#define TT_C_2(name)                               \
  extern "C" float name##f(float, float) noexcept; \
  extern "C" double name(double, double) noexcept;
TT_C_1(fabs)
TT_C_1(exp)
TT_C_1(exp2)
TT_C_1(expm1)
TT_C_1(log)
TT_C_1(log2)
TT_C_1(log10)
TT_C_1(log1p)
TT_C_1(sqrt)
TT_C_1(sin)
TT_C_1(cos)
TT_C_1(tan)
TT_C_1(asin)
TT_C_1(acos)
TT_C_1(atan)
TT_C_1(sinh)
TT_C_1(cosh)
TT_C_1(tanh)
TT_C_1(asinh)
TT_C_1(acosh)
TT_C_1(atanh)
TT_C_1(erf)
TT_C_1(erfc)
TT_C_1(floor)
TT_C_1(rint)
TT_C_1(trunc)
TT_C_1(lgamma)
TT_C_1(tgamma)
TT_C_2(pow)
TT_C_2(fmod)
TT_C_2(hypot)
TT_C_2(atan2)
TT_C_2(copysign)
TT_C_2(fmin)
TT_C_2(fmax)
TT_C_2(nextafter)
#undef TT_C_1
#undef TT_C_2
extern "C" double j0(double) noexcept;
extern "C" double j1(double) noexcept;
extern "C" double y0(double) noexcept;
extern "C" double y1(double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double fma(double, double, double) noexcept;
