// Kernels of inverses, linear systems, determinants and least squares.

#include <cmath>
#include <vector>

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/linalg/matrices.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::Status;
using lapack::Real;

// ---------------------------------------------------------------- inverse

template <class T>
Status inv_of(KernelCall& call) {
  const Dims batch = batch_of(call.in[0], 2);
  const Matrices in(call.in[0], batch, 2), out(call.out[0], batch, 2), info(call.out[1], batch, 0);
  const bool check = call.attributes.boolean(0);
  const std::int64_t n = in.rows();
  Sizes sizes(call.op.name);
  const int size = sizes.fit(n), work_size = sizes.product(n, 64);
  sizes.product(n, n);
  TT_RETURN_IF_ERROR(sizes.status());
  Room plan;
  plan.take<T>(n * n);
  plan.take<int>(n);
  plan.take<T>(work_size);
  return each_matrix(call, core::numel(batch), matrix_cost(n, n, n) * 2, plan.bytes(),
                     [&](std::int64_t i, Room room) {
                       T* a = room.take<T>(n * n);
                       int* p = room.take<int>(n);
                       T* work = room.take<T>(work_size);
                       in.load(i, a);
                       int failed = n == 0 ? 0 : lapack::getrf(size, size, a, size, p);
                       if (check && failed > 0) {
                         return linalg_error(
                             "linalg.inv", batch, i,
                             "The diagonal element " + std::to_string(failed) +
                                 " is zero, the inversion could not be completed because the "
                                 "input matrix is singular.");
                       }
                       if (failed > 0) {
                         std::fill(a, a + n * n, T(std::numeric_limits<Real<T>>::quiet_NaN()));
                       } else if (n > 0) {
                         lapack::getri(size, a, size, p, work, work_size);
                       }
                       out.store(i, a);
                       info.store(i, &failed);
                       return Status();
                     });
}

Status inv(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype, [&](auto t) { return inv_of<decltype(t)>(call); });
}

// ---------------------------------------------------------------- systems

// The system A X = B; if A is on the right, A^T X^T = B^T.
struct System {
  System(KernelCall& call, bool left)
      : batch(batch_of(call.out[0], 2)),
        a(call.in[0], batch, 2),
        b(call.in[1], batch, 2),
        out(call.out[0], batch, 2) {
    if (!left) {
      a = a.transposed();
      b = b.transposed();
      out = out.transposed();
    }
  }
  Dims batch;
  Matrices a, b, out;
};

template <class T>
Status solve_of(KernelCall& call) {
  const bool left = call.attributes.boolean(0), check = call.attributes.boolean(1);
  const System s(call, left);
  const Dims own = batch_of(call.in[0], 2);
  const Matrices info(call.out[1], own, 0);
  const std::int64_t n = s.a.rows(), k = s.b.columns(), count = core::numel(s.batch);
  const std::int64_t factors = core::numel(own);
  Sizes sizes(call.op.name);
  const int size = sizes.fit(n), columns = sizes.fit(k);
  sizes.product(n, n);
  sizes.product(n, k);
  TT_RETURN_IF_ERROR(sizes.status());
  Room plan;
  plan.take<T>(n * n);
  plan.take<T>(n * k);
  plan.take<int>(n);
  const auto factor = [&](const Matrices& from, std::int64_t i, T* a, int* p) {
    from.load(i, a);
    return n == 0 ? 0 : lapack::getrf(size, size, a, size, p);
  };
  const auto refused = [&](std::int64_t i) {
    return linalg_error("torch.linalg.solve", own, i,
                        "The solver failed because the input matrix is singular.");
  };
  // Each matrix is factored once to get its info; if several systems share it (a broadcast), it is
  // factored again for each of them.
  const bool shared = count != factors;
  if (shared || call.out[0].geometry->numel() == 0) {
    Matrices alone(call.in[0], own, 2);
    TT_RETURN_IF_ERROR(each_matrix(call, factors, matrix_cost(n, n, n) * 2 / 3, plan.bytes(),
                                   [&](std::int64_t i, Room room) {
                                     T* a = room.take<T>(n * n);
                                     room.take<T>(n * k);
                                     const int failed = factor(alone, i, a, room.take<int>(n));
                                     if (check && failed > 0) return refused(i);
                                     info.store(i, &failed);
                                     return Status();
                                   }));
  }
  if (call.out[0].geometry->numel() == 0) return {};
  return each_matrix(call, count, matrix_cost(n, n, n + 2 * k) * 2 / 3, plan.bytes(),
                     [&](std::int64_t i, Room room) {
                       T* a = room.take<T>(n * n);
                       T* x = room.take<T>(n * k);
                       int* p = room.take<int>(n);
                       const int failed = factor(s.a, i, a, p);
                       if (!shared) {
                         if (check && failed > 0) return refused(i);
                         info.store(i, &failed);
                       }
                       s.b.load(i, x);
                       lapack::getrs('N', size, columns, a, size, p, x, size);
                       s.out.store(i, x);
                       return Status();
                     });
}

Status solve(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype, [&](auto t) { return solve_of<decltype(t)>(call); });
}

template <class T>
Status triangular_of(KernelCall& call) {
  bool upper = call.attributes.boolean(0);
  const bool left = call.attributes.boolean(1), unit = call.attributes.boolean(2);
  if (!left) upper = !upper;
  const System s(call, left);
  const std::int64_t n = s.a.rows(), k = s.b.columns();
  Sizes sizes(call.op.name);
  const int size = sizes.fit(n), columns = sizes.fit(k);
  sizes.product(n, n);
  sizes.product(n, k);
  TT_RETURN_IF_ERROR(sizes.status());
  Room plan;
  plan.take<T>(n * n);
  plan.take<T>(n * k);
  return each_matrix(call, core::numel(s.batch), matrix_cost(n, n, k), plan.bytes(),
                     [&](std::int64_t i, Room room) {
                       T* a = room.take<T>(n * n);
                       T* x = room.take<T>(n * k);
                       s.a.load(i, a);
                       s.b.load(i, x);
                       lapack::trsm(true, upper, CblasNoTrans, unit, size, columns, a, size, x,
                                    size);
                       s.out.store(i, x);
                       return Status();
                     });
}

Status triangular(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype,
                          [&](auto t) { return triangular_of<decltype(t)>(call); });
}

// ---------------------------------------------------------------- determinants

// Returns -1 for an odd number of row exchanges.
template <class T>
T sign_of(const int* pivots, std::int64_t n) {
  bool odd = false;
  for (std::int64_t j = 0; j < n; ++j) odd ^= pivots[j] != j + 1;
  return T(odd ? -1 : 1);
}

// Calls f(i, lu, pivots) with the LU factors of every matrix.
template <class T, class F>
Status each_lu(KernelCall& call, std::int64_t extra_matrices, F&& f) {
  const Dims batch = batch_of(call.in[0], 2);
  const Matrices in(call.in[0], batch, 2);
  const std::int64_t n = in.rows();
  Sizes sizes(call.op.name);
  const int size = sizes.fit(n);
  sizes.product(n, n);
  TT_RETURN_IF_ERROR(sizes.status());
  Room plan;
  plan.take<T>(n * n);
  plan.take<int>(n);
  plan.take<T>(extra_matrices * n * n);
  return each_matrix(call, core::numel(batch), matrix_cost(n, n, n), plan.bytes(),
                     [&](std::int64_t i, Room room) {
                       T* a = room.take<T>(n * n);
                       int* p = room.take<int>(n);
                       in.load(i, a);
                       if (n > 0) lapack::getrf(size, size, a, size, p);
                       f(i, size, a, p, room.take<T>(extra_matrices * n * n));
                       return Status();
                     });
}

template <class T>
T product_of_diagonal(const T* lu, const int* p, std::int64_t n) {
  T det = sign_of<T>(p, n);
  for (std::int64_t j = 0; j < n; ++j) det *= lu[j * n + j];
  return det;
}

template <class T>
Status det_of(KernelCall& call) {
  const Matrices out(call.out[0], batch_of(call.in[0], 2), 0);
  return each_lu<T>(call, 0, [&](std::int64_t i, int n, const T* lu, const int* p, T*) {
    const T det = product_of_diagonal(lu, p, n);
    out.store(i, &det);
  });
}

template <class T>
Status slogdet_of(KernelCall& call) {
  const Dims batch = batch_of(call.in[0], 2);
  const Matrices sign(call.out[0], batch, 0), log(call.out[1], batch, 0);
  return each_lu<T>(call, 0, [&](std::int64_t i, int n, const T* lu, const int* p, T*) {
    T s = sign_of<T>(p, n);
    Real<T> sum = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      const T d = lu[j * n + j];
      const Real<T> size = std::abs(d);
      s *= size == 0 ? T(0) : d / size;
      sum += std::log(size);
    }
    sign.store(i, &s);
    log.store(i, &sum);
  });
}

// det(A) A^-T. The determinant is smooth, so if the diagonal of U has a zero, replacing it by a
// rounding error changes the result only by a similarly small amount.
template <class T>
Status cofactor_of(KernelCall& call) {
  const Matrices out(call.out[0], batch_of(call.in[0], 2), 2);
  return each_lu<T>(call, 1, [&](std::int64_t i, int n, T* lu, const int* p, T* x) {
    for (std::int64_t j = 0; j < n; ++j) {
      if (lu[j * n + j] == T(0)) lu[j * n + j] = std::numeric_limits<Real<T>>::epsilon();
    }
    const T det = product_of_diagonal(lu, p, n);
    std::fill(x, x + std::int64_t{n} * n, T(0));
    for (std::int64_t j = 0; j < n; ++j) x[j * n + j] = det;
    if (n > 0) lapack::getrs('T', n, n, lu, n, p, x, n);
    out.store(i, x);
  });
}

Status det(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype, [&](auto t) { return det_of<decltype(t)>(call); });
}
Status slogdet(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype, [&](auto t) { return slogdet_of<decltype(t)>(call); });
}
Status cofactor(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype, [&](auto t) { return cofactor_of<decltype(t)>(call); });
}

// ---------------------------------------------------------------- least squares

enum class Driver { kGels, kGelsy, kGelsd, kGelss };

template <class T>
struct LeastSquares {
  Driver driver;
  int m, n, columns, ldb;
  Real<T> rcond;
  // Returns info. With a null `work` and lwork = -1 it only queries the size of the workspace.
  int run(T* a, T* b, Real<T>* s, int* rank, T* work, int lwork, Real<T>* rwork, int* iwork) const {
    const int lda = std::max(m, 1);
    switch (driver) {
      case Driver::kGels:
        *rank = std::min(m, n);
        return lapack::gels(m, n, columns, a, lda, b, ldb, work, lwork);
      case Driver::kGelsy:
        return lapack::gelsy(m, n, columns, a, lda, b, ldb, iwork, rcond, rank, work, lwork, rwork);
      case Driver::kGelsd:
        return lapack::gelsd(m, n, columns, a, lda, b, ldb, s, rcond, rank, work, lwork, rwork,
                             iwork);
      case Driver::kGelss:
        return lapack::gelss(m, n, columns, a, lda, b, ldb, s, rcond, rank, work, lwork, rwork);
    }
    return 0;
  }
};

Driver driver_of(std::string_view name) {
  if (name == "gels") return Driver::kGels;
  if (name == "gelsy") return Driver::kGelsy;
  return name == "gelsd" ? Driver::kGelsd : Driver::kGelss;
}

template <class T>
Status lstsq_of(KernelCall& call) {
  const Dims batch = batch_of(call.out[0], 2);
  const Matrices a_in(call.in[0], batch, 2), b_in(call.in[1], batch, 2), out(call.out[0], batch, 2),
      ranks(call.out[1], batch, 0), values(call.out[2], batch, 1);
  const std::int64_t m = a_in.rows(), n = a_in.columns(), k = b_in.columns();
  const std::int64_t small = std::min(m, n), tall = std::max<std::int64_t>({m, n, 1});
  Sizes sizes(call.op.name);
  LeastSquares<T> solver{driver_of(call.attributes.text(1)),
                         sizes.fit(m),
                         sizes.fit(n),
                         sizes.fit(k),
                         sizes.fit(tall),
                         static_cast<Real<T>>(call.attributes.real(0))};
  sizes.product(m, n);
  sizes.product(tall, k);
  TT_RETURN_IF_ERROR(sizes.status());
  T work_answer = 0;
  Real<T> rwork_answer = 0;
  std::vector<int> iwork_answer(static_cast<std::size_t>(std::max<std::int64_t>(n, 1)), 0);
  int rank = 0;
  solver.run(nullptr, nullptr, nullptr, &rank, &work_answer, -1, &rwork_answer,
             iwork_answer.data());
  const std::int64_t work_size = workspace(work_answer);
  const int lwork = sizes.fit(work_size);
  const std::int64_t rwork_size =
      solver.driver == Driver::kGelsd ? workspace(rwork_answer) : std::max(5 * small, 2 * n);
  const std::int64_t iwork_size =
      solver.driver == Driver::kGelsd ? std::max<std::int64_t>(iwork_answer[0], n) + 1 : n;
  TT_RETURN_IF_ERROR(sizes.status());
  Room plan;
  const auto cut = [&](Room& room) {
    struct {
      T *a, *b, *work;
      Real<T>*s, *rwork;
      int* iwork;
    } r{room.take<T>(m * n),       room.take<T>(tall * k),         room.take<T>(work_size),
        room.take<Real<T>>(small), room.take<Real<T>>(rwork_size), room.take<int>(iwork_size)};
    return r;
  };
  cut(plan);
  return each_matrix(
      call, core::numel(batch), matrix_cost(m, n, small + k) * 8, plan.bytes(),
      [&](std::int64_t i, Room room) {
        auto r = cut(room);
        a_in.load(i, r.a);
        std::fill(r.b, r.b + tall * k, T(0));
        b_in.load(i, r.b, tall);
        std::fill(r.iwork, r.iwork + iwork_size, 0);
        std::fill(r.s, r.s + small, Real<T>(0));
        int of_rank = 0, failed = 0;
        if (small > 0 && k > 0) {
          if (!all_finite(r.a, m * n) || !all_finite(r.b, tall * k)) {
            std::fill(r.b, r.b + tall * k, T(std::numeric_limits<Real<T>>::quiet_NaN()));
          } else {
            failed = solver.run(r.a, r.b, r.s, &of_rank, r.work, lwork, r.rwork, r.iwork);
          }
        } else {
          std::fill(r.b, r.b + tall * k, T(0));
        }
        if (failed > 0) {
          return linalg_error("torch.linalg.lstsq", batch, i,
                              "The least squares solution could not be computed because " +
                                  std::string(solver.driver == Driver::kGels
                                                  ? "the input matrix does not have full rank"
                                                  : "the algorithm failed to converge") +
                                  " (error code: " + std::to_string(failed) + ").");
        }
        out.store(i, r.b, tall);
        const std::int64_t full_rank = of_rank;
        ranks.store(i, &full_rank);
        values.store(i, r.s);
        return Status();
      });
}

Status lstsq(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype, [&](auto t) { return lstsq_of<decltype(t)>(call); });
}

}  // namespace

void add_linalg_solve_kernels(KernelTable& table) {
  table.add("linalg_inv_ex", inv);
  table.add("linalg_solve_ex", solve);
  table.add("linalg_solve_triangular", triangular);
  table.add("linalg_det", det);
  table.add("linalg_slogdet", slogdet);
  table.add("linalg_cofactor", cofactor);
  table.add("linalg_lstsq", lstsq);
}

}  // namespace teletensor::backends::cpu
