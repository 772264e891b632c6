#include "engine/backends/cpu/fft/fft_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backends/cpu/fft/fft_simd.cc"
#include "engine/backends/cpu/access/targets.h"
#include "hwy/foreach_target.h"  // compiles the part below once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace teletensor::backends::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// ---------------------------------------------------------------- butterflies, in place

template <class D, class V>
HWY_INLINE void two(D, V& ar, V& ai, V& br, V& bi) {
  const V r = ar, i = ai;
  ar = hn::Add(r, br);
  ai = hn::Add(i, bi);
  br = hn::Sub(r, br);
  bi = hn::Sub(i, bi);
}

// A transform of size 4 in place. The results are in their natural order, 0 to 3.
template <class D, class V>
HWY_INLINE void four(D d, V& r0, V& i0, V& r1, V& i1, V& r2, V& i2, V& r3, V& i3) {
  two(d, r0, i0, r2, i2);
  two(d, r1, i1, r3, i3);
  two(d, r0, i0, r1, i1);  // results 0 and 2
  const V a = hn::Add(r2, i3), b = hn::Sub(i2, r3), c = hn::Sub(r2, i3), e = hn::Add(i2, r3);
  r2 = r1, i2 = i1;
  r1 = a, i1 = b;
  r3 = c, i3 = e;
}

// Odd radices: the pairs k and R - k share their products.
template <int R, class D, class V, class T>
HWY_INLINE void odd(D d, V* r, V* i, const T* roots) {
  constexpr int kHalf = (R - 1) / 2;
  V sr[kHalf], si[kHalf], dr[kHalf], di[kHalf];
  V total_r = r[0], total_i = i[0];
  for (int k = 0; k < kHalf; ++k) {
    sr[k] = hn::Add(r[k + 1], r[R - 1 - k]);
    si[k] = hn::Add(i[k + 1], i[R - 1 - k]);
    dr[k] = hn::Sub(r[k + 1], r[R - 1 - k]);
    di[k] = hn::Sub(i[k + 1], i[R - 1 - k]);
    total_r = hn::Add(total_r, sr[k]);
    total_i = hn::Add(total_i, si[k]);
  }
  V out_r[R], out_i[R];
  for (int j = 1; j <= kHalf; ++j) {
    V cr = r[0], ci = i[0], pr = hn::Zero(d), pi = hn::Zero(d);
    for (int k = 0; k < kHalf; ++k) {
      const int at = j * (k + 1) % R;
      const V c = hn::Set(d, roots[at]), s = hn::Set(d, roots[R + at]);
      cr = hn::MulAdd(c, sr[k], cr);
      ci = hn::MulAdd(c, si[k], ci);
      pr = hn::MulAdd(s, di[k], pr);
      pi = hn::MulAdd(s, dr[k], pi);
    }
    out_r[j] = hn::Add(cr, pr);
    out_i[j] = hn::Sub(ci, pi);
    out_r[R - j] = hn::Sub(cr, pr);
    out_i[R - j] = hn::Add(ci, pi);
  }
  r[0] = total_r, i[0] = total_i;
  for (int j = 1; j < R; ++j) r[j] = out_r[j], i[j] = out_i[j];
}

template <int R, class D, class V, class T>
HWY_INLINE void butterfly(D d, V* r, V* i, const T* roots) {
  if constexpr (R == 2) {
    two(d, r[0], i[0], r[1], i[1]);
  } else if constexpr (R == 4) {
    four(d, r[0], i[0], r[1], i[1], r[2], i[2], r[3], i[3]);
  } else if constexpr (R == 8) {
    four(d, r[0], i[0], r[2], i[2], r[4], i[4], r[6], i[6]);
    four(d, r[1], i[1], r[3], i[3], r[5], i[5], r[7], i[7]);
    const V half = hn::Set(d, static_cast<T>(0.70710678118654752440));
    const V r3 = hn::Mul(hn::Add(r[3], i[3]), half), i3 = hn::Mul(hn::Sub(i[3], r[3]), half);
    const V r7 = hn::Mul(hn::Sub(i[7], r[7]), half);
    const V i7 = hn::Neg(hn::Mul(hn::Add(r[7], i[7]), half));
    const V r5 = i[5], i5 = hn::Neg(r[5]);
    const V er[4] = {r[0], r[2], r[4], r[6]}, ei[4] = {i[0], i[2], i[4], i[6]};
    const V wr[4] = {r[1], r3, r5, r7}, wi[4] = {i[1], i3, i5, i7};
    for (int k = 0; k < 4; ++k) {
      r[k] = hn::Add(er[k], wr[k]);
      i[k] = hn::Add(ei[k], wi[k]);
      r[k + 4] = hn::Sub(er[k], wr[k]);
      i[k + 4] = hn::Sub(ei[k], wi[k]);
    }
  } else {
    odd<R>(d, r, i, roots);
  }
}

template <class V>
HWY_INLINE void rotate(V& r, V& i, V wr, V wi) {
  const V a = r;
  r = hn::MulSub(a, wr, hn::Mul(i, wi));
  i = hn::MulAdd(a, wi, hn::Mul(i, wr));
}

// ---------------------------------------------------------------- passes

// Computes butterfly p for the columns [q, s), as many as fill whole vectors. Returns the first
// column that is left over for a caller with shorter vectors.
template <int R, class D, class T>
HWY_INLINE std::int64_t along_lines(D d, const FftPass<T>& pass, std::int64_t s, std::int64_t p,
                                    std::int64_t q, const T* HWY_RESTRICT xr,
                                    const T* HWY_RESTRICT xi, T* HWY_RESTRICT yr,
                                    T* HWY_RESTRICT yi) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t m = pass.m;
  for (; q + lanes <= s; q += lanes) {
    V r[R], i[R];
    for (int k = 0; k < R; ++k) {
      r[k] = hn::LoadU(d, xr + (k * m + p) * s + q);
      i[k] = hn::LoadU(d, xi + (k * m + p) * s + q);
    }
    butterfly<R>(d, r, i, pass.roots);
    for (int j = 0; j < R; ++j) {
      if (j > 0 && p > 0) {
        const T* w = pass.twiddles + (j - 1) * 2 * m + p;
        rotate(r[j], i[j], hn::Set(d, w[0]), hn::Set(d, w[m]));
      }
      hn::StoreU(r[j], d, yr + (p * R + j) * s + q);
      hn::StoreU(i[j], d, yi + (p * R + j) * s + q);
    }
  }
  return q;
}

// Computes the butterflies from p on for a single column (s = 1), as many as fill whole vectors.
// Returns the first butterfly that is left over for a caller with shorter vectors.
template <int R, class D, class T>
HWY_INLINE std::int64_t along_butterflies(D d, const FftPass<T>& pass, std::int64_t p,
                                          const T* HWY_RESTRICT xr, const T* HWY_RESTRICT xi,
                                          T* HWY_RESTRICT yr, T* HWY_RESTRICT yi) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t m = pass.m;
  for (; p + lanes <= m; p += lanes) {
    V r[R], i[R];
    for (int k = 0; k < R; ++k) {
      r[k] = hn::LoadU(d, xr + k * m + p);
      i[k] = hn::LoadU(d, xi + k * m + p);
    }
    butterfly<R>(d, r, i, pass.roots);
    if (m > 1) {
      for (int j = 1; j < R; ++j) {
        const T* w = pass.twiddles + (j - 1) * 2 * m + p;
        rotate(r[j], i[j], hn::LoadU(d, w), hn::LoadU(d, w + m));
      }
    }
    if constexpr (R == 4) {
      hn::StoreInterleaved4(r[0], r[1], r[2], r[3], d, yr + R * p);
      hn::StoreInterleaved4(i[0], i[1], i[2], i[3], d, yi + R * p);
    } else {
      HWY_ALIGN T tr[R * hn::MaxLanes(d)];
      HWY_ALIGN T ti[R * hn::MaxLanes(d)];
      for (int j = 0; j < R; ++j) {
        hn::StoreU(r[j], d, tr + j * lanes);
        hn::StoreU(i[j], d, ti + j * lanes);
      }
      for (std::int64_t l = 0; l < lanes; ++l) {
        for (int j = 0; j < R; ++j) {
          yr[R * (p + l) + j] = tr[j * lanes + l];
          yi[R * (p + l) + j] = ti[j * lanes + l];
        }
      }
    }
  }
  return p;
}

template <int R, class T>
void run(const FftPass<T>& pass, std::int64_t s, const T* xr, const T* xi, T* yr, T* yi) {
  const hn::ScalableTag<T> wide;
  const hn::CappedTag<T, 4> few;
  const hn::CappedTag<T, 1> one;
  if (s == 1) {
    const std::int64_t p = along_butterflies<R>(wide, pass, 0, xr, xi, yr, yi);
    along_butterflies<R>(one, pass, p, xr, xi, yr, yi);
    return;
  }
  for (std::int64_t p = 0; p < pass.m; ++p) {
    std::int64_t q = along_lines<R>(wide, pass, s, p, 0, xr, xi, yr, yi);
    q = along_lines<R>(few, pass, s, p, q, xr, xi, yr, yi);
    along_lines<R>(one, pass, s, p, q, xr, xi, yr, yi);
  }
}

template <class T>
void dispatch(const FftPass<T>& pass, std::int64_t s, const T* xr, const T* xi, T* yr, T* yi) {
  switch (pass.radix) {
    case 2:
      return run<2>(pass, s, xr, xi, yr, yi);
    case 3:
      return run<3>(pass, s, xr, xi, yr, yi);
    case 4:
      return run<4>(pass, s, xr, xi, yr, yi);
    case 5:
      return run<5>(pass, s, xr, xi, yr, yi);
    case 7:
      return run<7>(pass, s, xr, xi, yr, yi);
    case 8:
      return run<8>(pass, s, xr, xi, yr, yi);
    case 11:
      return run<11>(pass, s, xr, xi, yr, yi);
    default:
      return run<13>(pass, s, xr, xi, yr, yi);
  }
}

void fft_pass_f32(const FftPass<float>& pass, std::int64_t s, const float* xr, const float* xi,
                  float* yr, float* yi) {
  dispatch(pass, s, xr, xi, yr, yi);
}
void fft_pass_f64(const FftPass<double>& pass, std::int64_t s, const double* xr, const double* xi,
                  double* yr, double* yi) {
  dispatch(pass, s, xr, xi, yr, yi);
}

}  // namespace HWY_NAMESPACE
}  // namespace teletensor::backends::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace teletensor::backends::cpu {

HWY_EXPORT(fft_pass_f32);
HWY_EXPORT(fft_pass_f64);

template <>
void fft_pass(const FftPass<float>& pass, std::int64_t s, const float* xr, const float* xi,
              float* yr, float* yi) {
  HWY_DYNAMIC_DISPATCH(fft_pass_f32)(pass, s, xr, xi, yr, yi);
}
template <>
void fft_pass(const FftPass<double>& pass, std::int64_t s, const double* xr, const double* xi,
              double* yr, double* yi) {
  HWY_DYNAMIC_DISPATCH(fft_pass_f64)(pass, s, xr, xi, yr, yi);
}

}  // namespace teletensor::backends::cpu
#endif
