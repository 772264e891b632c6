// Which instruction sets kernels are compiled for, with run-time dispatch by Highway: the baseline
// (as plain C++), AVX2 and AVX-512. Include before hwy/foreach_target.h. (No include guard: per
// file once.)
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif
// Before a loop: an iteration reads nothing that another one writes (equal places are no
// hindrance).
#ifndef TT_INDEPENDENT
#if defined(__clang__)
#define TT_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TT_INDEPENDENT _Pragma("GCC ivdep")
#endif
#endif
