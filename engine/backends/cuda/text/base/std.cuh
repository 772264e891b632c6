// The parts of the C++ standard library that the functors' headers use. NVRTC has no standard
// library, and the emulator compiles without includes (emulate.cuh); there libm provides the
// device's functions.
#define TELETENSOR_DEVICE_TEXT 1

#ifdef __CUDACC_RTC__
#define __builtin_fabsf(x) ::fabsf(x)
#define __builtin_fabs(x) ::fabs(x)
#define __builtin_sqrtf(x) ::sqrtf(x)
#define __builtin_sqrt(x) ::sqrt(x)
#define __builtin_floorf(x) ::floorf(x)
#define __builtin_floor(x) ::floor(x)
#define __builtin_ceilf(x) ::ceilf(x)
#define __builtin_ceil(x) ::ceil(x)
#define __builtin_truncf(x) ::truncf(x)
#define __builtin_trunc(x) ::trunc(x)
#define __builtin_rintf(x) ::rintf(x)
#define __builtin_rint(x) ::rint(x)
#define __builtin_copysignf(x, y) ::copysignf(x, y)
#define __builtin_copysign(x, y) ::copysign(x, y)
#define __builtin_fma(x, y, z) ::fma(x, y, z)
#define __builtin_inf() __builtin_bit_cast(double, 0x7ff0000000000000ull)
#define __builtin_nan(text) __builtin_bit_cast(double, 0x7ff8000000000000ull)
#define TT_KERNEL(name)
#define TT_KERNEL_WITH_BARRIERS(name)
#endif

#ifndef INT64_MAX
#define INT64_MAX 0x7fffffffffffffffl
#define INT64_MIN (-INT64_MAX - 1)
#define UINT64_MAX 0xfffffffffffffffful
#endif

namespace std {

using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long;
using uint64_t = unsigned long;
using size_t = unsigned long;

struct string_view {
  constexpr string_view(const char*) {}
};

template <class A, class B>
inline constexpr bool is_same_v = false;
template <class A>
inline constexpr bool is_same_v<A, A> = true;
template <class T>
struct remove_const {
  using type = T;
};
template <class T>
struct remove_const<const T> {
  using type = T;
};
template <class T>
using remove_const_t = typename remove_const<T>::type;
template <bool kFirst, class A, class B>
struct conditional {
  using type = A;
};
template <class A, class B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool kFirst, class A, class B>
using conditional_t = typename conditional<kFirst, A, B>::type;
template <class T>
inline constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
template <class T>
inline constexpr bool is_integral_v =
    is_same_v<T, int8_t> || is_same_v<T, uint8_t> || is_same_v<T, int16_t> ||
    is_same_v<T, uint16_t> || is_same_v<T, int32_t> || is_same_v<T, uint32_t> ||
    is_same_v<T, int64_t> || is_same_v<T, uint64_t> || is_same_v<T, bool>;
template <class T>
inline constexpr bool is_signed_v = T(-1) < T(0);
template <class T>
struct make_unsigned {
  using type = conditional_t<
      sizeof(T) == 8, uint64_t,
      conditional_t<sizeof(T) == 4, uint32_t, conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;
};
template <class T>
using make_unsigned_t = typename make_unsigned<T>::type;

template <class To, class From>
constexpr To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}
template <class T>
constexpr T gcd(T a, T b) {
  using U = make_unsigned_t<T>;
  U x = a < T(0) ? U(0) - U(a) : U(a), y = b < T(0) ? U(0) - U(b) : U(b);
  while (y != 0) {
    const U rest = x % y;
    x = y;
    y = rest;
  }
  return T(x);
}

#define TT_STD_1(name)                                 \
  inline float name(float x) { return ::name##f(x); } \
  inline double name(double x) { return ::name(x); }
#define TT_STD_2(name)                                           \
  inline float name(float x, float y) { return ::name##f(x, y); } \
  inline double name(double x, double y) { return ::name(x, y); }
TT_STD_1(fabs)
TT_STD_1(exp)
TT_STD_1(expm1)
TT_STD_1(log)
TT_STD_1(log1p)
TT_STD_1(log10)
TT_STD_1(sqrt)
TT_STD_1(sin)
TT_STD_1(cos)
TT_STD_1(tan)
TT_STD_1(asin)
TT_STD_1(acos)
TT_STD_1(atan)
TT_STD_1(sinh)
TT_STD_1(cosh)
TT_STD_1(tanh)
TT_STD_1(asinh)
TT_STD_1(erf)
TT_STD_1(erfc)
TT_STD_1(floor)
TT_STD_1(rint)
TT_STD_1(trunc)
TT_STD_1(lgamma)
TT_STD_1(tgamma)
TT_STD_2(pow)
TT_STD_2(fmod)
TT_STD_2(hypot)
TT_STD_2(atan2)
TT_STD_2(copysign)
TT_STD_2(fmin)
TT_STD_2(fmax)
TT_STD_2(nextafter)
#undef TT_STD_1
#undef TT_STD_2
inline float fma(float x, float y, float z) { return ::fmaf(x, y, z); }
inline double fma(double x, double y, double z) { return ::fma(x, y, z); }
inline float abs(float x) { return ::fabsf(x); }
inline double abs(double x) { return ::fabs(x); }
inline int64_t abs(int64_t x) { return x < 0 ? -x : x; }
inline bool isinf(float x) { return (bit_cast<uint32_t>(x) & 0x7fffffffu) == 0x7f800000u; }
inline bool isinf(double x) {
  return (bit_cast<uint64_t>(x) & 0x7ffffffffffffffful) == 0x7ff0000000000000ul;
}
inline bool isnan(float x) { return x != x; }
inline bool isnan(double x) { return x != x; }

}  // namespace std

namespace teletensor::core {
enum class DType : std::uint8_t { kF16 = 7, kBF16 = 8, kF32 = 9, kF64 = 10 };  // core/dtype.h
// Functors are created on the host; here only the type in their constructors is needed.
struct Attributes {
  double real(int at) const;
  std::int64_t integer(int at) const;
  bool flag(int at) const;
  bool has(int at) const;
};
}  // namespace teletensor::core
