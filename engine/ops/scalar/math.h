// Mathematical functions of scalar.h for float and double, in a form that lets the compiler
// vectorise loops over arrays: with g++ on x86-64 and glibc 2.35 or later it replaces them by
// libmvec's vector variants (error at most 4 ulp, special values as in libm). Elsewhere they are
// libm's functions, or the device's.
#pragma once

#include <cmath>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__) && \
    !defined(TELETENSOR_NO_LIBMVEC)
#if __GLIBC_PREREQ(2, 35)
#define TT_VECTOR_FORM __attribute__((simd("notinbranch"), const))
#endif
#endif
#ifndef TT_VECTOR_FORM
#define TT_VECTOR_FORM
#endif

#if defined(TELETENSOR_DEVICE_TEXT)  // uses the device's own functions
#define TT_MATH_1(name)                               \
  namespace teletensor::ops::scalar {                 \
  inline float name(float x) { return ::name##f(x); } \
  inline double name(double x) { return ::name(x); }  \
  }
#define TT_MATH_2(name)                                           \
  namespace teletensor::ops::scalar {                             \
  inline float name(float x, float y) { return ::name##f(x, y); } \
  inline double name(double x, double y) { return ::name(x, y); } \
  }
#else
// Declares libm's functions under other names, so that the attribute does not affect the
// declarations in <cmath>.
#define TT_MATH_1(name)                                                   \
  extern "C" TT_VECTOR_FORM float tt_##name##f(float) __asm__(#name "f"); \
  extern "C" TT_VECTOR_FORM double tt_##name(double) __asm__(#name);      \
  namespace teletensor::ops::scalar {                                     \
  inline float name(float x) { return tt_##name##f(x); }                  \
  inline double name(double x) { return tt_##name(x); }                   \
  }
#define TT_MATH_2(name)                                                          \
  extern "C" TT_VECTOR_FORM float tt_##name##f(float, float) __asm__(#name "f"); \
  extern "C" TT_VECTOR_FORM double tt_##name(double, double) __asm__(#name);     \
  namespace teletensor::ops::scalar {                                            \
  inline float name(float x, float y) { return tt_##name##f(x, y); }             \
  inline double name(double x, double y) { return tt_##name(x, y); }             \
  }
#endif

TT_MATH_1(exp)
TT_MATH_1(exp2)
TT_MATH_1(expm1)
TT_MATH_1(log)
TT_MATH_1(log2)
TT_MATH_1(log10)
TT_MATH_1(log1p)
TT_MATH_1(sin)
TT_MATH_1(cos)
TT_MATH_1(tan)
TT_MATH_1(asin)
TT_MATH_1(acos)
TT_MATH_1(atan)
TT_MATH_1(sinh)
TT_MATH_1(cosh)
TT_MATH_1(tanh)
TT_MATH_1(asinh)
TT_MATH_1(acosh)
TT_MATH_1(atanh)
TT_MATH_1(erf)
TT_MATH_1(erfc)
TT_MATH_2(pow)
TT_MATH_2(atan2)
TT_MATH_2(hypot)

#undef TT_MATH_1
#undef TT_MATH_2
#undef TT_VECTOR_FORM

namespace teletensor::ops::scalar {

inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline double sqrt(double x) { return __builtin_sqrt(x); }
inline float floor(float x) { return __builtin_floorf(x); }
inline double floor(double x) { return __builtin_floor(x); }
inline float ceil(float x) { return __builtin_ceilf(x); }
inline double ceil(double x) { return __builtin_ceil(x); }
inline float trunc(float x) { return __builtin_truncf(x); }
inline double trunc(double x) { return __builtin_trunc(x); }
inline float rint(float x) { return __builtin_rintf(x); }
inline double rint(double x) { return __builtin_rint(x); }
inline float copysign(float x, float y) { return __builtin_copysignf(x, y); }
inline double copysign(double x, double y) { return __builtin_copysign(x, y); }

// a - quotient * b, exact if the result is representable.
inline float remaining(float a, float quotient, float b) {
  return static_cast<float>(static_cast<double>(a) -
                            static_cast<double>(quotient) * static_cast<double>(b));
}
inline double remaining(double a, double quotient, double b) {
  return __builtin_fma(-quotient, b, a);
}

// Returns true if fmod_near is exact for these arguments: the quotient is an integer that the type
// represents exactly, and b is finite.
template <class T>
bool fmod_is_near(T a, T b) {
  return (abs(a / b) < T(sizeof(T) == 4 ? 0x1p23 : 0x1p52)) & (abs(b) < T(0x1p100));
}
// a - trunc(a / b) * b. The quotient, rounded to nearest, can be too large by at most one.
template <class T>
T fmod_near(T a, T b) {
  const T rest = remaining(a, trunc(a / b), b);
  const T back = rest + copysign(b, a);
  const bool right = ((rest < T(0)) == (a < T(0))) | (rest == T(0));
  return copysign(right ? rest : back, a);
}
template <class T>
T fmod(T a, T b) {
  return fmod_is_near(a, b) ? fmod_near(a, b) : std::fmod(a, b);
}

// erf as the quotient of an odd and an even polynomial (the minimax pair of Eigen's float erf). Its
// absolute error of 3e-7 is small enough for gelu, and it takes a fifth of libm's time.
inline float fast_erf(float x) {
  const float limited = x > 4.0f ? 4.0f : (x < -4.0f ? -4.0f : x);
  const float z = limited * limited;
  float p = -2.72614225801306e-10f;
  p = p * z + 2.77068142495902e-08f;
  p = p * z - 2.10102402082508e-06f;
  p = p * z - 5.69250639462346e-05f;
  p = p * z - 7.34990630326855e-04f;
  p = p * z - 2.95459980854025e-03f;
  p = p * z - 1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * z - 2.13374055278905e-04f;
  q = q * z - 1.68282697438203e-03f;
  q = q * z - 7.37332916720468e-03f;
  q = q * z - 1.42647390514189e-02f;
  return limited * p / q;
}
inline double fast_erf(double x) { return erf(x); }

}  // namespace teletensor::ops::scalar
