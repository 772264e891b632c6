// Helpers for the kernels' texts: vectors of elements, and division by constants of the launch.
namespace tt {

namespace s = teletensor::ops::scalar;
using s::BFloat16;
using s::Bool;
using s::Half;
using teletensor::core::Complex128;
using teletensor::core::Complex64;

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth < 16 ? sizeof(T) * kWidth : 16) Vec {
  T v[kWidth];
};

// Reads elements p[0] to p[m - 1] and sets the rest to zero. If m is kWidth, it uses loads of up to
// 16 bytes.
template <int kWidth, class T>
Vec<T, kWidth> read(const T* p, int m) {
  if (m == kWidth) return *reinterpret_cast<const Vec<T, kWidth>*>(p);
  Vec<T, kWidth> x = {};
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    if (e < m) x.v[e] = p[e];
  }
  return x;
}
template <int kWidth, class T>
void write(T* p, const Vec<T, kWidth>& x, int m) {
  if (m == kWidth) {
    *reinterpret_cast<Vec<T, kWidth>*>(p) = x;
    return;
  }
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    if (e < m) p[e] = x.v[e];
  }
}
// Reads a vector element by element from elements that are `stride` apart.
template <int kWidth, class T, class I>
Vec<T, kWidth> pick(const T* p, I stride, int m) {
  Vec<T, kWidth> x = {};
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    if (e < m) x.v[e] = p[e * stride];
  }
  return x;
}
template <int kWidth, class T, class I>
void place(T* p, I stride, const Vec<T, kWidth>& x, int m) {
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    if (e < m) p[e * stride] = x.v[e];
  }
}
template <int kWidth, class T>
Vec<T, kWidth> repeat(const T* p) {
  Vec<T, kWidth> x;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) x.v[e] = *p;
  return x;
}

// Computes n / size for n < 2^31 by a multiplication (Granlund and Montgomery, 1994).
struct Div32 {
  unsigned size, magic, shift, unused;
  unsigned operator()(unsigned n) const { return (__umulhi(n, magic) + n) >> shift; }
};
struct Div64 {
  std::int64_t size, unused;
  std::int64_t operator()(std::int64_t n) const { return n / size; }
};

// Rounds x to dtype D; the result has the compute type of D.
template <class D, class A>
A rounded(A x) {
  return s::to_compute<A>(s::from_compute<D>(x));
}

}  // namespace tt
