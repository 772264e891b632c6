// LAPACK and BLAS for column-major matrices: one function template for float, double and their
// complex forms.
//
// Sizes are LAPACK's int32 (Matrices checks them). Each call stays on its thread, because only the
// daemon's lanes run in parallel. Each function returns LAPACK's `info`: 0, or a value that its
// documentation explains. Real forms ignore `rwork`.
#pragma once

#include <complex>
#include <mutex>
#include <type_traits>
#define lapack_complex_float std::complex<float>
#define lapack_complex_double std::complex<double>
#include <cblas.h>
#include <lapack.h>

namespace teletensor::backends::cpu::lapack {

template <class T>
struct RealOf {
  using type = T;
};
template <class T>
struct RealOf<std::complex<T>> {
  using type = T;
};
template <class T>
using Real = typename RealOf<T>::type;
template <class T>
inline constexpr bool is_complex = !std::is_same_v<T, Real<T>>;

// Must be called before the other functions. Turns off OpenBLAS's own threads and selects kernels
// for this processor.
void prepare();

// To be held during calls. It locks if the loaded OpenBLAS is a build without threads, whose
// buffers are not protected (two concurrent calls would give wrong values); otherwise it does
// nothing.
std::unique_lock<std::mutex> turn();

// The routine for element type T: the one for float (s), double (d), or their complex forms (c, z),
// in LAPACK's order.
template <class T, class S, class D, class C, class Z>
constexpr auto choose(S s, D d, C c, Z z) {
  if constexpr (std::is_same_v<T, float>) return s;
  if constexpr (std::is_same_v<T, double>) return d;
  if constexpr (std::is_same_v<T, std::complex<float>>) return c;
  if constexpr (std::is_same_v<T, std::complex<double>>) return z;
}

// ---------------------------------------------------------------- BLAS

// Complex routines take scalars by address.
template <class T>
auto scalar(const T& value) {
  if constexpr (is_complex<T>) {
    return static_cast<const void*>(&value);
  } else {
    return value;
  }
}

// b <- op(a)^-1 b (left) or b op(a)^-1; b is m x n.
template <class T>
void trsm(bool left, bool upper, CBLAS_TRANSPOSE trans, bool unit, int m, int n, const T* a,
          int lda, T* b, int ldb) {
  const T one(1);
  choose<T>(cblas_strsm, cblas_dtrsm, cblas_ctrsm, cblas_ztrsm)(
      CblasColMajor, left ? CblasLeft : CblasRight, upper ? CblasUpper : CblasLower, trans,
      unit ? CblasUnit : CblasNonUnit, m, n, scalar(one), a, lda, b, ldb);
}

// c <- alpha op(a) op(b) + beta c; c is m x n.
template <class T>
void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, T alpha, const T* a, int lda,
          const T* b, int ldb, T beta, T* c, int ldc) {
  choose<T>(cblas_sgemm, cblas_dgemm, cblas_cgemm, cblas_zgemm)(
      CblasColMajor, ta, tb, m, n, k, scalar(alpha), a, lda, b, ldb, scalar(beta), c, ldc);
}

// ---------------------------------------------------------------- triangular factors
// A routine with `work` returns the optimal size in work[0] if lwork is -1, and computes nothing
// (workspace() in matrices.h). Pivots are counted from 1.

// The Cholesky factor of a positive definite matrix, in the triangle `uplo` ('L' or 'U') of `a`;
// the other triangle is not changed. info > 0: the leading minor of this order is not positive.
template <class T>
int potrf(char uplo, int n, T* a, int lda) {
  int info = 0;
  choose<T>(LAPACK_spotrf_base, LAPACK_dpotrf_base, LAPACK_cpotrf_base, LAPACK_zpotrf_base)(
      &uplo, &n, a, &lda, &info, 1);
  return info;
}

// The LU factorization with partial pivoting, in `a`. info > 0: this diagonal element of U is zero;
// the factors are complete nevertheless.
template <class T>
int getrf(int m, int n, T* a, int lda, int* pivots) {
  int info = 0;
  choose<T>(LAPACK_sgetrf, LAPACK_dgetrf, LAPACK_cgetrf, LAPACK_zgetrf)(&m, &n, a, &lda, pivots,
                                                                        &info);
  return info;
}

// Solves with the factors of getrf(); b is overwritten by the solution.
template <class T>
int getrs(char trans, int n, int columns, const T* lu, int lda, const int* pivots, T* b, int ldb) {
  int info = 0;
  choose<T>(LAPACK_sgetrs_base, LAPACK_dgetrs_base, LAPACK_cgetrs_base, LAPACK_zgetrs_base)(
      &trans, &n, &columns, lu, &lda, pivots, b, &ldb, &info, 1);
  return info;
}

// The inverse of a matrix from the factors of getrf(), in their place. info > 0: it is singular.
template <class T>
int getri(int n, T* lu, int lda, const int* pivots, T* work, int lwork) {
  int info = 0;
  choose<T>(LAPACK_sgetri, LAPACK_dgetri, LAPACK_cgetri, LAPACK_zgetri)(&n, lu, &lda, pivots, work,
                                                                        &lwork, &info);
  return info;
}

// The Bunch-Kaufman factorization of a symmetric or (with `hermitian`, complex) Hermitian matrix,
// of which the lower triangle is read. info > 0: a diagonal block of D is singular.
template <class T>
int sytrf(bool hermitian, int n, T* a, int lda, int* pivots, T* work, int lwork) {
  int info = 0;
  const char uplo = 'L';
  if constexpr (is_complex<T>) {
    if (hermitian) {
      choose<T>(0, 0, LAPACK_chetrf_base, LAPACK_zhetrf_base)(&uplo, &n, a, &lda, pivots, work,
                                                              &lwork, &info, 1);
      return info;
    }
  }
  choose<T>(LAPACK_ssytrf_base, LAPACK_dsytrf_base, LAPACK_csytrf_base, LAPACK_zsytrf_base)(
      &uplo, &n, a, &lda, pivots, work, &lwork, &info, 1);
  return info;
}

// Solves with the factors of sytrf(); b is overwritten by the solution.
template <class T>
int sytrs(bool hermitian, int n, int columns, const T* a, int lda, const int* pivots, T* b,
          int ldb) {
  int info = 0;
  const char uplo = 'L';
  if constexpr (is_complex<T>) {
    if (hermitian) {
      choose<T>(0, 0, LAPACK_chetrs_base, LAPACK_zhetrs_base)(&uplo, &n, &columns, a, &lda, pivots,
                                                              b, &ldb, &info, 1);
      return info;
    }
  }
  choose<T>(LAPACK_ssytrs_base, LAPACK_dsytrs_base, LAPACK_csytrs_base, LAPACK_zsytrs_base)(
      &uplo, &n, &columns, a, &lda, pivots, b, &ldb, &info, 1);
  return info;
}

// ---------------------------------------------------------------- orthogonal factors

// The QR factorization: R is in the upper triangle of `a`, and Q as reflectors below it and in
// `tau`.
template <class T>
int geqrf(int m, int n, T* a, int lda, T* tau, T* work, int lwork) {
  int info = 0;
  choose<T>(LAPACK_sgeqrf, LAPACK_dgeqrf, LAPACK_cgeqrf, LAPACK_zgeqrf)(&m, &n, a, &lda, tau, work,
                                                                        &lwork, &info);
  return info;
}

// The first n columns of the product of k reflectors of geqrf(), in the place of the reflectors.
template <class T>
int orgqr(int m, int n, int k, T* a, int lda, const T* tau, T* work, int lwork) {
  int info = 0;
  choose<T>(LAPACK_sorgqr, LAPACK_dorgqr, LAPACK_cungqr, LAPACK_zungqr)(&m, &n, &k, a, &lda, tau,
                                                                        work, &lwork, &info);
  return info;
}

// ---------------------------------------------------------------- spectra

// The singular values in descending order, and the vectors that `job` requests (see Svd); `a` is
// destroyed. info > 0: the algorithm did not converge.
template <class T>
int gesdd(char job, int m, int n, T* a, int lda, Real<T>* s, T* u, int ldu, T* vh, int ldvh,
          T* work, int lwork, Real<T>* rwork, int* iwork) {
  int info = 0;
  if constexpr (is_complex<T>) {
    choose<T>(0, 0, LAPACK_cgesdd_base, LAPACK_zgesdd_base)(
        &job, &m, &n, a, &lda, s, u, &ldu, vh, &ldvh, work, &lwork, rwork, iwork, &info, 1);
  } else {
    (void)rwork;
    choose<T>(LAPACK_sgesdd_base, LAPACK_dgesdd_base, 0, 0)(&job, &m, &n, a, &lda, s, u, &ldu, vh,
                                                            &ldvh, work, &lwork, iwork, &info, 1);
  }
  return info;
}

// The eigenvalues of a symmetric or Hermitian matrix in ascending order, and with job 'V' its
// eigenvectors in `a`. info > 0: the algorithm did not converge.
template <class T>
int syevd(char job, char uplo, int n, T* a, int lda, Real<T>* w, T* work, int lwork, Real<T>* rwork,
          int lrwork, int* iwork, int liwork) {
  int info = 0;
  if constexpr (is_complex<T>) {
    choose<T>(0, 0, LAPACK_cheevd_base, LAPACK_zheevd_base)(
        &job, &uplo, &n, a, &lda, w, work, &lwork, rwork, &lrwork, iwork, &liwork, &info, 1, 1);
  } else {
    (void)rwork, (void)lrwork;
    choose<T>(LAPACK_ssyevd_base, LAPACK_dsyevd_base, 0, 0)(&job, &uplo, &n, a, &lda, w, work,
                                                            &lwork, iwork, &liwork, &info, 1, 1);
  }
  return info;
}

// Right eigenvectors are stored in `v`. For real matrices, `w` has n real parts and then n
// imaginary parts; the two columns of a conjugate pair have its real part and its imaginary part;
// rwork has 2 n elements.
template <class T>
int geev(char job, int n, T* a, int lda, T* w, T* v, int ldv, T* work, int lwork, Real<T>* rwork) {
  int info = 0, one = 1;
  const char none = 'N';
  if constexpr (is_complex<T>) {
    choose<T>(0, 0, LAPACK_cgeev_base, LAPACK_zgeev_base)(
        &none, &job, &n, a, &lda, w, nullptr, &one, v, &ldv, work, &lwork, rwork, &info, 1, 1);
  } else {
    (void)rwork;
    choose<T>(LAPACK_sgeev_base, LAPACK_dgeev_base, 0, 0)(
        &none, &job, &n, a, &lda, w, w + n, nullptr, &one, v, &ldv, work, &lwork, &info, 1, 1);
  }
  return info;
}

// ---------------------------------------------------------------- least squares

// In all of them `b` has max(m, n) rows: the right sides, and then the solutions.
// Uses a QR or LQ factorization; the matrix must have full rank. info > 0: it has not.
template <class T>
int gels(int m, int n, int columns, T* a, int lda, T* b, int ldb, T* work, int lwork) {
  int info = 0;
  const char none = 'N';
  choose<T>(LAPACK_sgels_base, LAPACK_dgels_base, LAPACK_cgels_base, LAPACK_zgels_base)(
      &none, &m, &n, &columns, a, &lda, b, &ldb, work, &lwork, &info, 1);
  return info;
}

// Uses a QR factorization with column pivoting. *rank is the order of the largest leading
// triangular factor whose estimated condition number is below 1 / rcond.
template <class T>
int gelsy(int m, int n, int columns, T* a, int lda, T* b, int ldb, int* jpvt, Real<T> rcond,
          int* rank, T* work, int lwork, Real<T>* rwork) {
  int info = 0;
  if constexpr (is_complex<T>) {
    choose<T>(0, 0, LAPACK_cgelsy, LAPACK_zgelsy)(&m, &n, &columns, a, &lda, b, &ldb, jpvt, &rcond,
                                                  rank, work, &lwork, rwork, &info);
  } else {
    (void)rwork;
    choose<T>(LAPACK_sgelsy, LAPACK_dgelsy, 0, 0)(&m, &n, &columns, a, &lda, b, &ldb, jpvt, &rcond,
                                                  rank, work, &lwork, &info);
  }
  return info;
}

// Uses singular values: gelsd (divide and conquer) or gelss.
template <class T>
int gelsd(int m, int n, int columns, T* a, int lda, T* b, int ldb, Real<T>* s, Real<T> rcond,
          int* rank, T* work, int lwork, Real<T>* rwork, int* iwork) {
  int info = 0;
  if constexpr (is_complex<T>) {
    choose<T>(0, 0, LAPACK_cgelsd, LAPACK_zgelsd)(&m, &n, &columns, a, &lda, b, &ldb, s, &rcond,
                                                  rank, work, &lwork, rwork, iwork, &info);
  } else {
    (void)rwork;
    choose<T>(LAPACK_sgelsd, LAPACK_dgelsd, 0, 0)(&m, &n, &columns, a, &lda, b, &ldb, s, &rcond,
                                                  rank, work, &lwork, iwork, &info);
  }
  return info;
}

template <class T>
int gelss(int m, int n, int columns, T* a, int lda, T* b, int ldb, Real<T>* s, Real<T> rcond,
          int* rank, T* work, int lwork, Real<T>* rwork) {
  int info = 0;
  if constexpr (is_complex<T>) {
    choose<T>(0, 0, LAPACK_cgelss, LAPACK_zgelss)(&m, &n, &columns, a, &lda, b, &ldb, s, &rcond,
                                                  rank, work, &lwork, rwork, &info);
  } else {
    (void)rwork;
    choose<T>(LAPACK_sgelss, LAPACK_dgelss, 0, 0)(&m, &n, &columns, a, &lda, b, &ldb, s, &rcond,
                                                  rank, work, &lwork, &info);
  }
  return info;
}

}  // namespace teletensor::backends::cpu::lapack
