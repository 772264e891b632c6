// Kernels of singular values and eigenvalues.

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/matrices.h"
#include "engine/backends/cpu/svd.h"

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

}  // namespace

void add_linalg_spectral_kernels(KernelTable& table) {
  table.add("linalg_svd", svd);
  table.add("linalg_svdvals", svd);
  table.add("linalg_eigh", eigh);
  table.add("linalg_eigvalsh", eigh);
}

}  // namespace teletensor::backends::cpu
