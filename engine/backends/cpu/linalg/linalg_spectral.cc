// Kernels of singular values and eigenvalues.

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/linalg/matrices.h"
#include "engine/backends/cpu/linalg/svd.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::Status;
using lapack::Real;

// ---------------------------------------------------------------- singular values

template <class T>
Status svd_of(KernelCall& call) {
  const bool vectors = call.out.size() == 3;
  const bool full = vectors && call.attributes.boolean(0);
  const Dims batch = batch_of(call.in[0], 2);
  const Matrices in(call.in[0], batch, 2), values(call.out[vectors ? 1 : 0], batch, 1);
  Svd<T> svd(call.op.name, in.rows(), in.columns(), !vectors ? 'N' : full ? 'A' : 'S');
  TT_RETURN_IF_ERROR(svd.status());
  Room plan;
  svd.cut(plan);
  return each_matrix(call, core::numel(batch), svd.cost(), plan.bytes(),
                     [&](std::int64_t i, Room room) {
                       const auto r = svd.cut(room);
                       in.load(i, r.a);
                       TT_RETURN_IF_ERROR(svd.run(r, "linalg.svd", batch, i));
                       values.store(i, r.s);
                       if (vectors) {
                         Matrices(call.out[0], batch, 2).store(i, r.u);
                         Matrices(call.out[2], batch, 2).store(i, r.vh);
                       }
                       return Status();
                     });
}

Status svd(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype, [&](auto t) { return svd_of<decltype(t)>(call); });
}

// ---------------------------------------------------------------- Hermitian eigenvalues

template <class T>
Status eigh_of(KernelCall& call) {
  const bool vectors = call.out.size() == 2;
  const Dims batch = batch_of(call.in[0], 2);
  const Matrices in(call.in[0], batch, 2), values(call.out[0], batch, 1);
  const bool upper = call.attributes.text(0) == "U" || call.attributes.text(0) == "u";
  Eigh<T> eigh(call.op.name, in.rows(), vectors, upper);
  TT_RETURN_IF_ERROR(eigh.status());
  Room plan;
  eigh.cut(plan);
  return each_matrix(call, core::numel(batch), eigh.cost(), plan.bytes(),
                     [&](std::int64_t i, Room room) {
                       const auto r = eigh.cut(room);
                       in.load(i, r.a);
                       TT_RETURN_IF_ERROR(eigh.run(r, "linalg.eigh", batch, i));
                       values.store(i, r.w);
                       if (vectors) Matrices(call.out[1], batch, 2).store(i, r.a);
                       return Status();
                     });
}

Status eigh(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype, [&](auto t) { return eigh_of<decltype(t)>(call); });
}

// ---------------------------------------------------------------- eigenvalues

template <class T>
Status eig_of(KernelCall& call) {
  using R = Real<T>;
  using C = std::complex<R>;
  const bool vectors = call.out.size() == 2;
  const Dims batch = batch_of(call.in[0], 2);
  const Matrices in(call.in[0], batch, 2), values(call.out[0], batch, 1);
  const std::int64_t n = in.rows();
  const char job = vectors ? 'V' : 'N';
  Sizes sizes(call.op.name);
  const int size = sizes.fit(n), ld = std::max(size, 1);
  sizes.product(n, 2 * n + 64);
  TT_RETURN_IF_ERROR(sizes.status());
  T answer = 0;
  if (n > 0) {
    R real_answer = 0;
    lapack::geev<T>(job, size, nullptr, ld, nullptr, nullptr, ld, &answer, -1, &real_answer);
  }
  const std::int64_t work_size = workspace(answer);
  const int lwork = sizes.fit(work_size);
  TT_RETURN_IF_ERROR(sizes.status());
  Room plan;
  const auto cut = [&](Room& room) {
    struct {
      T *a, *w, *v, *work;
      R* rwork;
      C *values, *vectors;
    } r{room.take<T>(n * n),
        room.take<T>(2 * n),
        room.take<T>(vectors ? n * n : 0),
        room.take<T>(work_size),
        room.take<R>(2 * n),
        room.take<C>(n),
        room.take<C>(vectors ? n * n : 0)};
    return r;
  };
  cut(plan);
  return each_matrix(
      call, core::numel(batch), matrix_cost(n, n, n) * 40, plan.bytes(),
      [&](std::int64_t i, Room room) {
        auto r = cut(room);
        in.load(i, r.a);
        if (!all_finite(r.a, n * n)) {
          return core::invalid("torch.linalg.eig: input tensor should not contain infs or NaNs.");
        }
        const int failed =
            n == 0 ? 0 : lapack::geev(job, size, r.a, ld, r.w, r.v, ld, r.work, lwork, r.rwork);
        if (failed > 0) {
          return linalg_error("linalg.eig", batch, i,
                              "The algorithm failed to converge because the input matrix is "
                              "ill-conditioned or has too many repeated eigenvalues (error code: " +
                                  std::to_string(failed) + ").");
        }
        if constexpr (lapack::is_complex<T>) {
          values.store(i, r.w);
          if (vectors) Matrices(call.out[1], batch, 2).store(i, r.v);
        } else {
          for (std::int64_t j = 0; j < n; ++j) r.values[j] = C(r.w[j], r.w[n + j]);
          values.store(i, r.values);
          if (!vectors) return Status();
          // A conjugate pair shares two columns: the real part and the imaginary part.
          for (std::int64_t j = 0; j < n; ++j) {
            const bool pair = r.w[n + j] != 0 && j + 1 < n;
            for (std::int64_t k = 0; k < n; ++k) {
              const R re = r.v[j * n + k], im = pair ? r.v[(j + 1) * n + k] : R(0);
              r.vectors[j * n + k] = C(re, im);
              if (pair) r.vectors[(j + 1) * n + k] = C(re, -im);
            }
            if (pair) ++j;
          }
          Matrices(call.out[1], batch, 2).store(i, r.vectors);
        }
        return Status();
      });
}

Status eig(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype, [&](auto t) { return eig_of<decltype(t)>(call); });
}

}  // namespace

void add_linalg_spectral_kernels(KernelTable& table) {
  table.add("linalg_svd", svd);
  table.add("linalg_svdvals", svd);
  table.add("linalg_eigh", eigh);
  table.add("linalg_eigvalsh", eigh);
  table.add("linalg_eig", eig);
  table.add("linalg_eigvals", eig);
}

}  // namespace teletensor::backends::cpu
