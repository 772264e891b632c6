// Kernels of matrix functions: pseudo-inverse and exponential.

#include <cmath>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/linalg/svd.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::Status;
using lapack::Real;

// ---------------------------------------------------------------- pseudo-inverse

// A tolerance: one number, or one per matrix.
class Tolerance {
 public:
  Tolerance(const TensorArg& arg, const Dims& batch) {
    if (arg.kind == TensorArg::Kind::kTensor) {
      each_ = Matrices(arg, batch, 0);
      load_ = load_block<double>(arg.dtype);
      size_ = static_cast<std::int64_t>(core::size_of(arg.dtype));
      first_ = arg.first<char>();
    } else {
      value_ = arg.number.as_double();
    }
  }
  double at(std::int64_t i) const {
    if (!first_) return value_;
    double value = 0;
    load_(first_ + each_.offset(i) * size_, 1, 1, &value);
    return value;
  }

 private:
  Matrices each_;
  LoadBlock<double> load_ = nullptr;
  const char* first_ = nullptr;
  std::int64_t size_ = 0;
  double value_ = 0;
};

// x <- v diag(1 / s) u^H over the values of s above the cut; s need not be ordered or positive.
template <class T, class V, class Values>
void invert(const V& columns_of_v, T* u, std::int64_t m, std::int64_t n, std::int64_t k,
            const Values* s, double atol, double rtol, T* x) {
  Values largest = 0;
  for (std::int64_t j = 0; j < k; ++j) largest = std::max(largest, std::abs(s[j]));
  const Values cut = std::max(static_cast<Values>(atol), static_cast<Values>(rtol) * largest);
  for (std::int64_t j = 0; j < k; ++j) {
    const T factor = std::abs(s[j]) > cut ? T(1) / T(s[j]) : T(0);
    for (std::int64_t r = 0; r < m; ++r) u[j * m + r] *= factor;
  }
  const auto size = [](std::int64_t v) { return static_cast<int>(std::max<std::int64_t>(v, 1)); };
  if (m == 0 || n == 0) return;
  if (k == 0) {
    std::fill(x, x + n * m, T(0));
    return;
  }
  lapack::gemm(columns_of_v.trans, CblasConjTrans, static_cast<int>(n), static_cast<int>(m),
               static_cast<int>(k), T(1), columns_of_v.data, columns_of_v.ld, u, size(m), T(0), x,
               size(n));
}

template <class T>
struct Columns {
  const T* data;
  CBLAS_TRANSPOSE trans;
  int ld;
};

template <class T>
Status pinv_of(KernelCall& call) {
  const Dims batch = batch_of(call.in[0], 2);
  const Matrices in(call.in[0], batch, 2), out(call.out[0], batch, 2);
  const Tolerance atol(call.in[1], batch), rtol(call.in[2], batch);
  const std::int64_t m = in.rows(), n = in.columns(), k = std::min(m, n);
  const std::int64_t count = core::numel(batch);
  Room plan;
  if (call.attributes.boolean(0)) {
    Eigh<T> eigh(call.op.name, n, true, false);
    TT_RETURN_IF_ERROR(eigh.status());
    eigh.cut(plan);
    plan.take<T>(n * n);
    plan.take<T>(n * n);
    return each_matrix(call, count, eigh.cost(), plan.bytes(), [&](std::int64_t i, Room room) {
      const auto r = eigh.cut(room);
      T* v = room.take<T>(n * n);
      T* x = room.take<T>(n * n);
      in.load(i, r.a);
      TT_RETURN_IF_ERROR(eigh.run(r, "linalg.eigh", batch, i));
      std::copy(r.a, r.a + n * n, v);
      invert(Columns<T>{v, CblasNoTrans, static_cast<int>(n)}, r.a, n, n, n, r.w, atol.at(i),
             rtol.at(i), x);
      out.store(i, x);
      return Status();
    });
  }
  Svd<T> svd(call.op.name, m, n, 'S');
  TT_RETURN_IF_ERROR(svd.status());
  svd.cut(plan);
  plan.take<T>(m * n);
  return each_matrix(call, count, svd.cost(), plan.bytes(), [&](std::int64_t i, Room room) {
    const auto r = svd.cut(room);
    T* x = room.take<T>(m * n);
    in.load(i, r.a);
    TT_RETURN_IF_ERROR(svd.run(r, "linalg.svd", batch, i));
    invert(Columns<T>{r.vh, CblasConjTrans, static_cast<int>(k)}, r.u, m, n, k, r.s, atol.at(i),
           rtol.at(i), x);
    out.store(i, x);
    return Status();
  });
}

Status pinv(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype, [&](auto t) { return pinv_of<decltype(t)>(call); });
}

// ---------------------------------------------------------------- exponential

// Source: N. J. Higham, "The scaling and squaring method for the matrix exponential revisited":
// numerator coefficients of the diagonal Pade approximants, and the norms up to which their
// backward error is a rounding error.
struct Pade {
  int degree;
  double double_norm, float_norm;
  double b[14];
};
constexpr Pade kPade[] = {
    {3, 1.495585217958292e-2, 4.258730016922831e-1, {120, 60, 12, 1}},
    {5, 2.539398330063230e-1, 1.880152677804762, {30240, 15120, 3360, 420, 30, 1}},
    {7,
     9.504178996162932e-1,
     3.925724783138660,
     {17297280, 8648640, 1995840, 277200, 25200, 1512, 56, 1}},
    {13,
     5.371920351148152,
     5.371920351148152,
     {64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000,
      10559470521600, 670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1}},
};

template <class T>
class Exponential {
 public:
  using R = Real<T>;
  explicit Exponential(int n) : n_(n), count_(std::int64_t{n} * n) {}

  // a, power, square, u, v and a temporary: 6 matrices.
  static constexpr int kMatrices = 6;

  // The matrix is in the first n * n elements of `room`; returns the address of the result.
  T* run(T* room, int* pivots) const {
    T *a = room, *square = room + count_, *power = room + 2 * count_, *u = room + 3 * count_,
      *v = room + 4 * count_, *other = room + 5 * count_;
    const R norm = one_norm(a);
    if (!(norm <= std::numeric_limits<R>::max())) {
      std::fill(a, a + count_, T(std::numeric_limits<R>::quiet_NaN()));
      return a;
    }
    const Pade& pade = degree_for(norm);
    int halvings = 0;
    const double bound = limit(pade);
    if (norm > bound) {
      std::frexp(static_cast<double>(norm) / bound, &halvings);
      const R scale = static_cast<R>(std::ldexp(1.0, -halvings));
      for (std::int64_t i = 0; i < count_; ++i) a[i] *= scale;
    }
    // u: the odd powers without their last factor a; v: the even powers.
    multiply(a, a, square);
    identity(power);
    std::fill(u, u + count_, T(0));
    std::fill(v, v + count_, T(0));
    for (int d = 0; d <= pade.degree; d += 2) {
      if (d > 0) {
        multiply(power, square, other);
        std::swap(power, other);
      }
      add(power, pade.b[d], v);
      add(power, pade.b[d + 1], u);
    }
    multiply(a, u, other);
    std::swap(u, other);
    // Solves (v - u) x = v + u.
    for (std::int64_t i = 0; i < count_; ++i) {
      const T odd = u[i], even = v[i];
      u[i] = even - odd;
      v[i] = even + odd;
    }
    lapack::getrf(n_, n_, u, n_, pivots);
    lapack::getrs('N', n_, n_, u, n_, pivots, v, n_);
    T* spare = power;
    for (int i = 0; i < halvings; ++i) {
      multiply(v, v, spare);
      std::swap(v, spare);
    }
    return v;
  }

 private:
  double limit(const Pade& pade) const {
    return std::is_same_v<R, float> ? pade.float_norm : pade.double_norm;
  }
  const Pade& degree_for(R norm) const {
    for (const Pade& pade : kPade) {
      if (norm <= limit(pade)) return pade;
    }
    return std::is_same_v<R, float> ? kPade[2] : kPade[3];
  }
  R one_norm(const T* a) const {
    R largest = 0;
    for (int c = 0; c < n_; ++c) {
      R sum = 0;
      for (int r = 0; r < n_; ++r) sum += std::abs(a[std::int64_t{c} * n_ + r]);
      if (!(sum <= largest)) largest = sum;  // NaN stays NaN
      if (sum != sum) return sum;
    }
    return largest;
  }
  void multiply(const T* x, const T* y, T* to) const {
    lapack::gemm(CblasNoTrans, CblasNoTrans, n_, n_, n_, T(1), x, n_, y, n_, T(0), to, n_);
  }
  void identity(T* x) const {
    std::fill(x, x + count_, T(0));
    for (int j = 0; j < n_; ++j) x[std::int64_t{j} * n_ + j] = T(1);
  }
  void add(const T* x, double factor, T* to) const {
    const R f = static_cast<R>(factor);
    for (std::int64_t i = 0; i < count_; ++i) to[i] += f * x[i];
  }

  int n_;
  std::int64_t count_;
};

template <class T>
Status exp_of(KernelCall& call) {
  const Dims batch = batch_of(call.in[0], 2);
  const Matrices in(call.in[0], batch, 2), out(call.out[0], batch, 2);
  const std::int64_t n = in.rows();
  Sizes sizes(call.op.name);
  const int size = sizes.fit(n);
  sizes.product(n, n);
  TT_RETURN_IF_ERROR(sizes.status());
  const Exponential<T> exponential(size);
  constexpr int kMatrices = Exponential<T>::kMatrices;
  Room plan;
  plan.take<T>(kMatrices * n * n);
  plan.take<int>(n);
  return each_matrix(call, core::numel(batch), matrix_cost(n, n, n) * 15, plan.bytes(),
                     [&](std::int64_t i, Room room) {
                       T* a = room.take<T>(kMatrices * n * n);
                       int* pivots = room.take<int>(n);
                       in.load(i, a);
                       out.store(i, exponential.run(a, pivots));
                       return Status();
                     });
}

Status matrix_exp(KernelCall& call) {
  if (nothing_to_do(call)) return {};
  return with_matrix_type(call.in[0].dtype, [&](auto t) { return exp_of<decltype(t)>(call); });
}

}  // namespace

void add_linalg_function_kernels(KernelTable& table) {
  table.add("linalg_pinv", pinv);
  table.add("linalg_matrix_exp", matrix_exp);
}

}  // namespace teletensor::backends::cpu
