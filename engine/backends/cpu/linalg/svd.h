// Singular value and Hermitian eigenvalue decompositions of one matrix, with their workspaces.
#pragma once

#include <string>

#include "engine/backends/cpu/linalg/matrices.h"

namespace teletensor::backends::cpu {

// The singular value decomposition of m x n matrices. `job`: 'A' for all columns of U and rows of
// V^H, 'S' for min(m, n) of them, 'N' for none.
template <class T>
class Svd {
 public:
  using R = lapack::Real<T>;
  struct Arrays {
    T *a, *u, *vh, *work;
    R *s, *rwork;
    int* iwork;
  };

  Svd(std::string_view op, std::int64_t m, std::int64_t n, char job)
      : m_(m), n_(n), k_(std::min(m, n)), job_(job), sizes_(op) {
    const std::int64_t large = std::max(m, n);
    if (job != 'N') {
      u_columns_ = job == 'A' ? m : k_;
      vh_rows_ = job == 'A' ? n : k_;
    }
    rows_ = sizes_.fit(m);
    columns_ = sizes_.fit(n);
    sizes_.product(m, std::max(n, u_columns_));
    sizes_.product(vh_rows_, n);
    // LAPACK computes the minimum size of the workspace in int32: 4 min^2 + 7 min, and products
    // with max. These must not overflow.
    sizes_.product(k_, 5 * k_ + 7);
    sizes_.product(2 * large + 2 * k_ + 1, k_);
    if (!sizes_.status().ok() || k_ == 0) return;
    T answer = 0;
    lapack::gesdd<T>(job, rows_, columns_, nullptr, rows_, nullptr, nullptr, rows_, nullptr, ldvh(),
                     &answer, -1, nullptr, nullptr);
    work_ = sizes_.fit(workspace(answer));
    if (lapack::is_complex<T>) {
      rwork_ =
          job == 'N' ? 7 * k_ : std::max(5 * k_ * k_ + 5 * k_, 2 * large * k_ + 2 * k_ * k_ + k_);
    }
  }

  // An error if the sizes are too large for LAPACK; then the object must not be used.
  core::Status status() const { return sizes_.status(); }
  // Estimated nanoseconds for one matrix.
  double cost() const { return matrix_cost(m_, n_, k_) * (job_ == 'N' ? 4 : 16); }

  // Takes the arrays for one matrix from `room`; they are reused for the next one.
  Arrays cut(Room& room) const {
    return {room.template take<T>(m_ * n_),
            room.template take<T>(m_ * u_columns_),
            room.template take<T>(vh_rows_ * n_),
            room.template take<T>(work_),
            room.template take<R>(k_),
            room.template take<R>(rwork_),
            room.template take<int>(8 * k_)};
  }
  // Decomposes the column-major matrix in r.a, which is overwritten. `name`, `batch` and `i`, its
  // index in the batch, are for the error if the algorithm does not converge.
  core::Status run(const Arrays& r, std::string_view name, const core::Dims& batch,
                   std::int64_t i) const {
    if (k_ == 0) {
      identity(r.u, m_, u_columns_);
      identity(r.vh, vh_rows_, n_);
      return {};
    }
    if (!all_finite(r.a, m_ * n_)) {
      return linalg_error(name, batch, i,
                          "The algorithm failed to converge because the input matrix contained "
                          "non-finite values.");
    }
    const int failed = lapack::gesdd(job_, rows_, columns_, r.a, rows_, r.s, r.u, rows_, r.vh,
                                     ldvh(), r.work, work_, r.rwork, r.iwork);
    if (failed == 0) return {};
    return linalg_error(name, batch, i,
                        "The algorithm failed to converge because the input matrix is "
                        "ill-conditioned or has too many repeated singular values (error code: " +
                            std::to_string(failed) + ").");
  }

 private:
  int ldvh() const { return static_cast<int>(std::max<std::int64_t>(vh_rows_, 1)); }
  static void identity(T* x, std::int64_t rows, std::int64_t columns) {
    std::fill(x, x + rows * columns, T(0));
    for (std::int64_t j = 0; j < std::min(rows, columns); ++j) x[j * rows + j] = T(1);
  }

  std::int64_t m_, n_, k_, u_columns_ = 0, vh_rows_ = 0, rwork_ = 0;
  char job_;
  Sizes sizes_;
  int rows_ = 0, columns_ = 0, work_ = 0;
};

template <class T>
class Eigh {
 public:
  using R = lapack::Real<T>;
  struct Arrays {
    T *a, *work;
    R *w, *rwork;
    int* iwork;
  };

  Eigh(std::string_view op, std::int64_t n, bool vectors, bool upper)
      : n_(n), job_(vectors ? 'V' : 'N'), triangle_(upper ? 'U' : 'L'), sizes_(op) {
    size_ = sizes_.fit(n);
    sizes_.product(n, 2 * n + 6);  // slightly more than the minimum size of the workspace
    sizes_.product(n + 1, 2 * n + 1);
    if (!sizes_.status().ok() || n == 0) return;
    T work = 0;
    R rwork = 0;
    lapack::syevd<T>(job_, triangle_, size_, nullptr, size_, nullptr, &work, -1, &rwork, -1,
                     &iwork_, -1);
    work_ = sizes_.fit(workspace(work));
    rwork_ = lapack::is_complex<T> ? sizes_.fit(workspace(rwork)) : 0;
  }

  core::Status status() const { return sizes_.status(); }
  double cost() const { return matrix_cost(n_, n_, n_) * (job_ == 'N' ? 4 : 12); }

  Arrays cut(Room& room) const {
    return {room.template take<T>(n_ * n_), room.template take<T>(work_), room.template take<R>(n_),
            room.template take<R>(rwork_), room.template take<int>(iwork_)};
  }
  // The matrix is in r.a, which receives the eigenvectors.
  core::Status run(const Arrays& r, std::string_view name, const core::Dims& batch,
                   std::int64_t i) const {
    if (n_ == 0) return {};
    int failed = 1;
    if (triangle_finite(r.a)) {
      failed = lapack::syevd(job_, triangle_, size_, r.a, size_, r.w, r.work, work_, r.rwork,
                             rwork_, r.iwork, iwork_);
    }
    if (failed == 0) return {};
    return linalg_error(name, batch, i,
                        "The algorithm failed to converge because the input matrix is "
                        "ill-conditioned or has too many repeated eigenvalues (error code: " +
                            std::to_string(failed) + ").");
  }

 private:
  bool triangle_finite(const T* a) const {
    for (std::int64_t c = 0; c < n_; ++c) {
      const T* column = a + c * n_;
      if (!(triangle_ == 'U' ? all_finite(column, c + 1) : all_finite(column + c, n_ - c))) {
        return false;
      }
    }
    return true;
  }

  std::int64_t n_;
  char job_, triangle_;
  Sizes sizes_;
  int size_ = 0, work_ = 0, rwork_ = 0, iwork_ = 0;
};

}  // namespace teletensor::backends::cpu
