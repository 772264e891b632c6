// Kernels of the Cholesky, LU, LDL and QR factorizations and of Householder products.

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/linalg/matrices.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::Status;

// ---------------------------------------------------------------- Cholesky

template <class T>
Status cholesky_of(KernelCall& call) {
  const Dims batch = batch_of(call.in[0], 2);
  const Matrices in(call.in[0], batch, 2), out(call.out[0], batch, 2), info(call.out[1], batch, 0);
  const bool upper = call.attributes.boolean(0), check = call.attributes.boolean(1);
  const std::int64_t n = in.rows();
  Sizes sizes(call.op.name);
  const int size = sizes.fit(n);
  sizes.product(n, n);
  TT_RETURN_IF_ERROR(sizes.status());
  Room plan;
  plan.take<T>(n * n);
  return each_matrix(
      call, core::numel(batch), matrix_cost(n, n, n) / 3, plan.bytes(),
      [&](std::int64_t i, Room room) {
        T* a = room.take<T>(n * n);
        in.load(i, a);
        const int failed =
            size == 0 ? 0 : lapack::potrf(upper ? 'U' : 'L', size, a, std::max(size, 1));
        if (check && failed > 0) {
          return linalg_error("linalg.cholesky", batch, i,
                              "The factorization could not be completed because the input is not "
                              "positive-definite (the leading minor of order " +
                                  std::to_string(failed) + " is not positive-definite).");
        }
        for (std::int64_t c = 0; c < n; ++c) {
          if (upper) {
            std::fill(a + c * n + c + 1, a + (c + 1) * n, T(0));
          } else {
            std::fill(a + c * n, a + c * n + c, T(0));
          }
        }
        out.store(i, a);
        info.store(i, &failed);
        return Status();
      });
}

Status cholesky(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype, [&](auto t) { return cholesky_of<decltype(t)>(call); });
}

// ---------------------------------------------------------------- LU

template <class T>
Status lu_factor_of(KernelCall& call) {
  const Dims batch = batch_of(call.in[0], 2);
  const Matrices in(call.in[0], batch, 2), out(call.out[0], batch, 2),
      pivots(call.out[1], batch, 1), info(call.out[2], batch, 0);
  const bool check = call.attributes.boolean(0);
  const std::int64_t m = in.rows(), n = in.columns(), k = std::min(m, n);
  Sizes sizes(call.op.name);
  const int rows = sizes.fit(m), columns = sizes.fit(n);
  sizes.product(m, n);
  TT_RETURN_IF_ERROR(sizes.status());
  Room plan;
  plan.take<T>(m * n);
  plan.take<int>(k);
  return each_matrix(
      call, core::numel(batch), matrix_cost(m, n, k) * 2 / 3, plan.bytes(),
      [&](std::int64_t i, Room room) {
        T* a = room.take<T>(m * n);
        int* p = room.take<int>(k);
        in.load(i, a);
        const int failed = k == 0 ? 0 : lapack::getrf(rows, columns, a, std::max(rows, 1), p);
        if (check && failed > 0) {
          const std::string at = std::to_string(failed);
          return linalg_error("torch.linalg.lu_factor", batch, i,
                              "U[" + at + "," + at +
                                  "] is zero and using it on lu_solve would result in a division "
                                  "by zero. If you still want to perform the factorization, "
                                  "consider calling linalg.lu(A, pivot) or "
                                  "linalg.lu_factor_ex(A, pivot)");
        }
        out.store(i, a);
        pivots.store(i, p);
        info.store(i, &failed);
        return Status();
      });
}

Status lu_factor(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype,
                          [&](auto t) { return lu_factor_of<decltype(t)>(call); });
}

// Applies the row exchanges to the sequence 0, 1, 2, ...
Status lu_permutation(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  const Dims batch = batch_of(call.in[0], 1);
  const Matrices pivots(call.in[0], batch, 1), out(call.out[0], batch, 1);
  const std::int64_t m = out.rows(), k = pivots.rows();
  const bool inverse = call.attributes.boolean(1);
  Room plan;
  plan.take<int>(k);
  plan.take<std::int64_t>(m);
  plan.take<std::int64_t>(m);
  return each_matrix(call, core::numel(batch), static_cast<double>(m), plan.bytes(),
                     [&](std::int64_t i, Room room) {
                       int* p = room.take<int>(k);
                       auto* order = room.take<std::int64_t>(m);
                       auto* back = room.take<std::int64_t>(m);
                       pivots.load(i, p);
                       for (std::int64_t j = 0; j < m; ++j) order[j] = j;
                       for (std::int64_t j = 0; j < k; ++j) {
                         if (p[j] < 1 || p[j] > m) {
                           return core::invalid("linalg.lu: pivot " + std::to_string(p[j]) +
                                                " is outside 1 to " + std::to_string(m));
                         }
                         std::swap(order[j], order[p[j] - 1]);
                       }
                       if (inverse) {
                         for (std::int64_t j = 0; j < m; ++j) back[order[j]] = j;
                       }
                       out.store(i, inverse ? back : order);
                       return Status();
                     });
}

// ---------------------------------------------------------------- LDL

template <class T>
Status ldl_factor_of(KernelCall& call) {
  const Dims batch = batch_of(call.in[0], 2);
  const Matrices in(call.in[0], batch, 2), out(call.out[0], batch, 2),
      pivots(call.out[1], batch, 1), info(call.out[2], batch, 0);
  const bool hermitian = call.attributes.boolean(0), check = call.attributes.boolean(1);
  const std::int64_t n = in.rows();
  Sizes sizes(call.op.name);
  const int size = sizes.fit(n), work_size = sizes.product(n, 64);
  sizes.product(n, n);
  TT_RETURN_IF_ERROR(sizes.status());
  Room plan;
  plan.take<T>(n * n);
  plan.take<int>(n);
  plan.take<T>(work_size);
  return each_matrix(
      call, core::numel(batch), matrix_cost(n, n, n) / 3, plan.bytes(),
      [&](std::int64_t i, Room room) {
        T* a = room.take<T>(n * n);
        int* p = room.take<int>(n);
        T* work = room.take<T>(work_size);
        in.load(i, a);
        const int failed =
            n == 0 ? 0 : lapack::sytrf(hermitian, size, a, std::max(size, 1), p, work, work_size);
        if (check && failed > 0) {
          return linalg_error("torch.linalg.ldl_factor", batch, i,
                              "D[" + std::to_string(failed) + "," + std::to_string(failed) +
                                  "] is zero and using it on ldl_solve would result in a "
                                  "division by zero");
        }
        for (std::int64_t c = 0; c < n; ++c) std::fill(a + c * n, a + c * n + c, T(0));
        out.store(i, a);
        pivots.store(i, p);
        info.store(i, &failed);
        return Status();
      });
}

Status ldl_factor(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype,
                          [&](auto t) { return ldl_factor_of<decltype(t)>(call); });
}

// Checks the pivots, which LAPACK does not: row numbers, where negative ones come in equal adjacent
// pairs (2 x 2 blocks).
bool ldl_pivots_hold(const int* p, int n) {
  for (int j = 0; j < n; ++j) {
    if (p[j] == 0 || p[j] > n || p[j] < -n) return false;
    if (p[j] > 0) continue;
    if (j + 1 == n || p[j + 1] != p[j]) return false;
    ++j;
  }
  return true;
}

template <class T>
Status ldl_solve_of(KernelCall& call) {
  const Dims batch = batch_of(call.out[0], 2);
  const Matrices ld(call.in[0], batch, 2), pivots(call.in[1], batch, 1), b(call.in[2], batch, 2),
      out(call.out[0], batch, 2);
  const bool hermitian = call.attributes.boolean(0);
  const std::int64_t n = ld.rows(), k = b.columns();
  Sizes sizes(call.op.name);
  const int size = sizes.fit(n), columns = sizes.fit(k);
  sizes.product(n, n);
  sizes.product(n, k);
  TT_RETURN_IF_ERROR(sizes.status());
  Room plan;
  plan.take<T>(n * n);
  plan.take<T>(n * k);
  plan.take<int>(n);
  return each_matrix(
      call, core::numel(batch), matrix_cost(n, n, k), plan.bytes(), [&](std::int64_t i, Room room) {
        T* a = room.take<T>(n * n);
        T* x = room.take<T>(n * k);
        int* p = room.take<int>(n);
        ld.load(i, a);
        b.load(i, x);
        pivots.load(i, p);
        if (!ldl_pivots_hold(p, size)) {
          return core::invalid("linalg.ldl_solve: pivots are not those of a factorization");
        }
        lapack::sytrs(hermitian, size, columns, a, size, p, x, size);
        out.store(i, x);
        return Status();
      });
}

Status ldl_solve(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype,
                          [&](auto t) { return ldl_solve_of<decltype(t)>(call); });
}

// ---------------------------------------------------------------- QR

template <class T>
Status qr_of(KernelCall& call) {
  const bool raw = call.op.name == "geqrf";
  const bool only_r = !raw && call.attributes.text(0) == "r";
  const Dims batch = batch_of(call.in[0], 2);
  const Matrices in(call.in[0], batch, 2);
  const std::int64_t m = in.rows(), n = in.columns(), k = std::min(m, n);
  const std::int64_t q_columns = raw || only_r ? 0 : call.out[0].geometry->shape.back();
  const std::int64_t wide = std::max(n, q_columns);
  Sizes sizes(call.op.name);
  const int rows = sizes.fit(m), columns = sizes.fit(n), reflectors = sizes.fit(k),
            of_q = sizes.fit(q_columns), lda = std::max(rows, 1);
  sizes.product(m, wide);
  TT_RETURN_IF_ERROR(sizes.status());
  std::int64_t work_size = 1;
  if (k > 0) {
    T size = 0;
    lapack::geqrf<T>(rows, columns, nullptr, lda, nullptr, &size, -1);
    work_size = std::max(work_size, workspace(size));
    if (q_columns > 0) {
      lapack::orgqr<T>(rows, of_q, reflectors, nullptr, lda, nullptr, &size, -1);
      work_size = std::max(work_size, workspace(size));
    }
  }
  const int lwork = sizes.fit(work_size);
  TT_RETURN_IF_ERROR(sizes.status());
  Room plan;
  plan.take<T>(m * wide);
  plan.take<T>(k * n);
  plan.take<T>(k);
  plan.take<T>(work_size);
  return each_matrix(call, core::numel(batch), matrix_cost(m, wide, k) * 3, plan.bytes(),
                     [&](std::int64_t i, Room room) {
                       T* a = room.take<T>(m * wide);
                       T* upper = room.take<T>(k * n);
                       T* tau = room.take<T>(k);
                       T* work = room.take<T>(work_size);
                       in.load(i, a);
                       if (k > 0) lapack::geqrf(rows, columns, a, lda, tau, work, lwork);
                       if (raw) {
                         Matrices(call.out[0], batch, 2).store(i, a);
                         Matrices(call.out[1], batch, 1).store(i, tau);
                         return Status();
                       }
                       const Matrices r(call.out[1], batch, 2);  // k or m rows
                       std::fill(upper, upper + k * n, T(0));
                       for (std::int64_t c = 0; c < n; ++c) {
                         std::copy(a + c * m, a + c * m + std::min(c + 1, k), upper + c * k);
                       }
                       if (r.rows() == k) {
                         r.store(i, upper);
                       } else {  // mode "complete": the rows below are zero
                         T* first = call.out[1].template first<T>() + r.offset(i);
                         const Dims& strides = call.out[1].geometry->strides;
                         const std::int64_t down = strides[strides.size() - 2],
                                            right = strides.back();
                         for (std::int64_t c = 0; c < n; ++c) {
                           for (std::int64_t row = 0; row < m; ++row) {
                             first[row * down + c * right] = row < k ? upper[c * k + row] : T(0);
                           }
                         }
                       }
                       if (only_r) return Status();
                       if (k > 0) {
                         lapack::orgqr(rows, of_q, reflectors, a, lda, tau, work, lwork);
                       } else {  // starts with the identity
                         std::fill(a, a + m * q_columns, T(0));
                         for (std::int64_t j = 0; j < std::min(m, q_columns); ++j)
                           a[j * m + j] = T(1);
                       }
                       Matrices(call.out[0], batch, 2).store(i, a);
                       return Status();
                     });
}

Status qr(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype, [&](auto t) { return qr_of<decltype(t)>(call); });
}

template <class T>
Status householder_of(KernelCall& call) {
  const Dims batch = batch_of(call.in[0], 2);
  const Matrices in(call.in[0], batch, 2), scales(call.in[1], batch, 1), out(call.out[0], batch, 2);
  const std::int64_t m = in.rows(), n = in.columns(), k = scales.rows();
  Sizes sizes(call.op.name);
  const int rows = sizes.fit(m), columns = sizes.fit(n), reflectors = sizes.fit(k);
  sizes.product(m, n);
  TT_RETURN_IF_ERROR(sizes.status());
  T size = 0;
  lapack::orgqr<T>(rows, columns, reflectors, nullptr, std::max(rows, 1), nullptr, &size, -1);
  const std::int64_t work_size = std::max<std::int64_t>(workspace(size), n);
  const int lwork = sizes.fit(work_size);
  TT_RETURN_IF_ERROR(sizes.status());
  Room plan;
  plan.take<T>(m * n);
  plan.take<T>(k);
  plan.take<T>(work_size);
  return each_matrix(call, core::numel(batch), matrix_cost(m, n, n) * 2, plan.bytes(),
                     [&](std::int64_t i, Room room) {
                       T* a = room.take<T>(m * n);
                       T* tau = room.take<T>(k);
                       T* work = room.take<T>(work_size);
                       in.load(i, a);
                       scales.load(i, tau);
                       lapack::orgqr(rows, columns, reflectors, a, std::max(rows, 1), tau, work,
                                     lwork);
                       out.store(i, a);
                       return Status();
                     });
}

Status householder(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype,
                          [&](auto t) { return householder_of<decltype(t)>(call); });
}

}  // namespace

void add_linalg_factor_kernels(KernelTable& table) {
  table.add("linalg_cholesky_ex", cholesky);
  table.add("linalg_lu_factor_ex", lu_factor);
  table.add("linalg_lu_permutation", lu_permutation);
  table.add("linalg_ldl_factor_ex", ldl_factor);
  table.add("linalg_ldl_solve", ldl_solve);
  table.add("linalg_qr", qr);
  table.add("geqrf", qr);
  table.add("linalg_householder_product", householder);
}

}  // namespace teletensor::backends::cpu
