// The instruction sets that kernels are compiled for; Highway selects one at run time. They are the
// baseline (as plain C++), AVX2 and AVX-512. Include this before hwy/foreach_target.h. It needs no
// include guard, because it only defines macros that are not defined yet.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif
// Placed before a loop: tells the compiler that no iteration reads an element that another
// iteration writes (reading and writing the same element within an iteration is allowed).
#ifndef TT_INDEPENDENT
#if defined(__clang__)
#define TT_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TT_INDEPENDENT _Pragma("GCC ivdep")
#endif
#endif
