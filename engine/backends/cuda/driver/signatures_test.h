// Support for unit tests: compares our declarations of C functions with a library's header.
#pragma once

#include <type_traits>

namespace teletensor::backends::cuda {

// Compares types as far as a caller's machine code is concerned: an enum of the header equals our
// int, and a struct equals ours of the same size.
template <class A, class B>
constexpr bool same_argument() {
  if constexpr (std::is_same_v<A, B>) {
    return true;
  } else if constexpr (std::is_enum_v<A>) {
    return sizeof(A) == sizeof(B) && std::is_integral_v<B>;
  } else if constexpr (std::is_class_v<A> && std::is_class_v<B>) {
    return sizeof(A) == sizeof(B) && alignof(A) == alignof(B);
  } else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    return same_argument<std::remove_cv_t<std::remove_pointer_t<A>>,
                         std::remove_cv_t<std::remove_pointer_t<B>>>();
  } else {
    return false;
  }
}
template <class A, class B>
struct SameFunction : std::false_type {};
template <class R, class... A, class S, class... B>
struct SameFunction<R(A...), S(B...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) != sizeof...(B)) {
      return false;
    } else {
      return same_argument<R, S>() && (same_argument<A, B>() && ...);
    }
  }();
};

#define TT_SAME(member, name, arguments)                                                        \
  static_assert(SameFunction<std::remove_pointer_t<decltype(&::member)>, int arguments>::value, \
                name);

}  // namespace teletensor::backends::cuda
