#include "engine/backends/cpu/linalg/lapack.h"

#include <cstdlib>
#include <cstring>
#include <mutex>

// Functions that OpenBLAS exports without declaring them in a header. The first two select the
// table of kernels; the third ends the threads that the library started when it was loaded.
extern "C" {
void gotoblas_dynamic_quit();
void gotoblas_dynamic_init();
[[gnu::weak]] void blas_thread_shutdown_();
}

namespace teletensor::backends::cpu::lapack {
namespace {

// OpenBLAS treats a processor that is newer than the library as its oldest one, which halves the
// speed. If the user has chosen a processor type, or the library has detected a better one, nothing
// is changed.
void choose_core() {
#if defined(__x86_64__)
  if (std::getenv("OPENBLAS_CORETYPE") || std::strcmp(openblas_get_corename(), "Prescott") != 0 ||
      !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    return;
  }
  setenv("OPENBLAS_CORETYPE", "HASWELL", 1);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  unsetenv("OPENBLAS_CORETYPE");
#endif
}

}  // namespace

void prepare() {
  static std::once_flag once;
  std::call_once(once, [] {
    openblas_set_num_threads(1);
    if (blas_thread_shutdown_ != nullptr) blas_thread_shutdown_();
    choose_core();
  });
}

std::unique_lock<std::mutex> turn() {
  static std::mutex mutex;
  static const bool serial = openblas_get_parallel() == OPENBLAS_SEQUENTIAL;
  return serial ? std::unique_lock(mutex) : std::unique_lock<std::mutex>();
}

}  // namespace teletensor::backends::cpu::lapack

// Replaces OpenBLAS's own function, which prints "On entry to ... parameter number ...". Every
// caller here checks `info`.
extern "C" void xerbla_(const char*, const int*, std::size_t) {}
