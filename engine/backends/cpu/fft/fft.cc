// Kernels of Fourier transforms: they transform several lines of a tensor at once with an FftPlan.

#include <cmath>
#include <deque>
#include <mutex>

#include "engine/backends/cpu/access/lines.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/fft/fft_lines.h"
#include "engine/backends/cpu/fft/fft_plan.h"
#include "engine/backends/scratch_bytes.h"
#include "engine/core/mutex.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Status;

// ---------------------------------------------------------------- plans

// A plan with its tables, and exp(-2 pi i k / (2 n)) for real signals of length 2 n.
template <class T>
struct Tables {
  explicit Tables(std::int64_t n) : memory(static_cast<std::size_t>(FftPlan<T>::table_size(n))) {}
  std::vector<T> memory;
  std::unique_ptr<FftPlan<T>> plan;
};

// A cache of the plans of recent lengths. Large plans are not cached: their tables are scratch
// memory of the call.
template <class T>
class Plans {
 public:
  // Maximum size in bytes of a plan in the cache.
  static constexpr std::size_t kLargest = std::size_t{24} << 20;
  static constexpr std::size_t kKept = std::size_t{64} << 20;

  std::shared_ptr<const FftPlan<T>> find(std::int64_t n) {
    const core::MutexLock lock(mutex_);
    for (auto at = recent_.begin(); at != recent_.end(); ++at) {
      if ((*at)->plan->n() != n) continue;
      std::shared_ptr<Tables<T>> found = *at;
      recent_.erase(at);
      recent_.push_front(found);
      return {found, found->plan.get()};
    }
    return nullptr;
  }

  std::shared_ptr<const FftPlan<T>> make(std::int64_t n) {
    auto made = std::make_shared<Tables<T>>(n);
    made->plan = std::make_unique<FftPlan<T>>(n, made->memory.data());
    const core::MutexLock lock(mutex_);
    recent_.push_front(made);
    bytes_ += made->memory.size() * sizeof(T);
    while (bytes_ > kKept || recent_.size() > 256) {
      bytes_ -= recent_.back()->memory.size() * sizeof(T);
      recent_.pop_back();
    }
    return {made, made->plan.get()};
  }

 private:
  core::Mutex mutex_;
  std::deque<std::shared_ptr<Tables<T>>> recent_ TT_ANNOTATION(guarded_by(mutex_));
  std::size_t bytes_ TT_ANNOTATION(guarded_by(mutex_)) = 0;
};

template <class T>
Plans<T>& plans() {
  static Plans<T>* const instance = new Plans<T>();
  return *instance;
}

// Sets `plan` to a plan for length n; fails if there is not enough memory.
template <class T>
Status plan_for(KernelCall& call, std::int64_t n, std::shared_ptr<const FftPlan<T>>& plan) {
  if (n > FftPlan<T>::kLargest) return core::invalid(call.op.name + ": too many data points");
  plan = plans<T>().find(n);
  if (plan) return {};
  const std::size_t bytes = scratch_bytes(FftPlan<T>::table_size(n), sizeof(T));
  if (bytes <= Plans<T>::kLargest) {
    plan = plans<T>().make(n);
    return {};
  }
  T* const tables = static_cast<T*>(call.scratch.allocate(bytes));
  if (!tables) return out_of_scratch(call.op.name, bytes);
  plan = std::make_shared<const FftPlan<T>>(n, tables);
  return {};
}

// ---------------------------------------------------------------- lines

enum class Kind { kComplex, kToHalf, kFromHalf };

// A transform along one dimension, from one tensor to another (which may be the same memory for
// kComplex).
template <class T>
struct Job {
  Kind kind;
  bool forward;
  T scale;
  std::int64_t n;  // length of the signal
  int dim;
  const T* from;  // the first element; a complex element is a pair
  const Geometry* of_from;
  T* to;
  const Geometry* of_to;
};

// A real signal of even length is transformed as a complex signal of half the length, with some
// additional work.
bool packed(Kind kind, std::int64_t n) { return kind != Kind::kComplex && n % 2 == 0; }

template <class T>
class LineBlock {
 public:
  LineBlock(const Job<T>& job, const FftPlan<T>& plan, const Lines& lines, const T* twist)
      : job_(job), plan_(plan), lines_(lines), twist_(twist) {}

  // Transforms the lines [first, first + count); `room` has 4 * plan.size() * count numbers.
  void run(std::int64_t first, std::int64_t count, T* room) const {
    const std::int64_t size = plan_.size() * count;
    SplitLines<T> x{room, room + size, room + 2 * size, room + 3 * size};
    load(first, count, x);
    const bool inverse = job_.kind == Kind::kComplex ? !job_.forward : job_.kind == Kind::kFromHalf;
    if (inverse) exchange(x);
    plan_.run(x, count);
    if (inverse) exchange(x);
    store(first, count, x);
  }

 private:
  static void exchange(SplitLines<T>& x) {
    std::swap(x.re, x.im);
    std::swap(x.spare_re, x.spare_im);
  }

  // The lines as pairs: of complex numbers, or of the adjacent numbers of a real signal.
  template <class N>
  PairLines<N> pairs(N* base, const Geometry& g, bool real, std::int64_t first,
                     std::int64_t count) const {
    const std::int64_t step = lines_.stride(g), size = real ? 1 : 2;
    PairLines<N> pairs{base, count, 2 * step, real ? step : 1, {}};
    for (std::int64_t l = 0; l < count; ++l) pairs.at[l] = size * lines_.offset(g, first + l);
    return pairs;
  }

  void load(std::int64_t first, std::int64_t count, const SplitLines<T>& x) const {
    const bool real = job_.kind == Kind::kToHalf;
    const auto from = pairs(job_.from, *job_.of_from, real, first, count);
    const std::int64_t n = job_.n, half = n / 2;
    if (job_.kind == Kind::kComplex) {
      load_pairs(from, n, x.re, x.im);
    } else if (n % 2 == 1) {
      for (std::int64_t l = 0; l < count; ++l) load_odd(from.base + from.at[l], l, count, x);
    } else {
      load_pairs(from, half, x.re, x.im);
      if (real) return;
      T last[kMaxLines];
      for (std::int64_t l = 0; l < count; ++l) last[l] = from.base[from.at[l] + half * from.step];
      join_spectrum(x.re, x.im, half, count, twist_, last);
    }
  }

  void store(std::int64_t first, std::int64_t count, const SplitLines<T>& x) const {
    const bool real = job_.kind == Kind::kFromHalf;
    const auto to = pairs(job_.to, *job_.of_to, real, first, count);
    const std::int64_t n = job_.n, half = n / 2;
    if (job_.kind == Kind::kToHalf && n % 2 == 0) {
      T last[kMaxLines];
      split_spectrum(x.re, x.im, half, count, twist_, last);
      for (std::int64_t l = 0; l < count; ++l) {
        T* const end = to.base + to.at[l] + half * to.step;
        end[0] = last[l] * job_.scale;
        end[1] = 0;
      }
    }
    if (real && n % 2 == 1) {
      for (std::int64_t l = 0; l < count; ++l) {
        T* const line = to.base + to.at[l];
        for (std::int64_t k = 0; k < n; ++k) line[k * to.apart] = x.re[k * count + l] * job_.scale;
      }
      return;
    }
    const std::int64_t all = job_.kind == Kind::kComplex ? n : n % 2 == 1 ? half + 1 : half;
    store_pairs(x.re, x.im, all, job_.scale, to);
  }

  // Loads a line of a signal of odd length: real numbers, or half of a spectrum.
  void load_odd(const T* from, std::int64_t l, std::int64_t count, const SplitLines<T>& x) const {
    const std::int64_t n = job_.n, step = lines_.stride(*job_.of_from);
    T* const re = x.re + l;
    T* const im = x.im + l;
    if (job_.kind == Kind::kToHalf) {
      for (std::int64_t k = 0; k < n; ++k) {
        re[k * count] = from[k * step];
        im[k * count] = 0;
      }
      return;
    }
    re[0] = from[0];
    im[0] = 0;
    for (std::int64_t k = 1; k <= n / 2; ++k) {
      re[k * count] = re[(n - k) * count] = from[2 * k * step];
      im[k * count] = from[2 * k * step + 1];
      im[(n - k) * count] = -from[2 * k * step + 1];
    }
  }

  const Job<T>& job_;
  const FftPlan<T>& plan_;
  const Lines& lines_;
  const T* twist_;  // exp(-2 pi i k / n) for k < n / 2
};

template <class T>
Status run_job(KernelCall& call, const Job<T>& job) {
  const Dims& shape = job.kind == Kind::kToHalf ? job.of_from->shape : job.of_to->shape;
  const Lines lines(shape, job.dim);
  if (lines.count() == 0) return {};
  const std::int64_t n = packed(job.kind, job.n) ? job.n / 2 : job.n;
  std::shared_ptr<const FftPlan<T>> plan;
  TT_RETURN_IF_ERROR(plan_for<T>(call, n, plan));
  T* twist = nullptr;
  if (packed(job.kind, job.n)) {
    const std::size_t bytes = scratch_bytes(n, 2 * sizeof(T));
    twist = static_cast<T*>(call.scratch.allocate(bytes));
    if (!twist) return out_of_scratch(call.op.name, bytes);
    for (std::int64_t k = 0; k < n; ++k) {
      const std::complex<double> root = root_of_unity(k, job.n);
      twist[2 * k] = static_cast<T>(root.real());
      twist[2 * k + 1] = static_cast<T>(root.imag());
    }
  }
  // Enough lines at once to fill vectors, as long as the work arrays fit into the second-level
  // cache.
  const std::int64_t cache = (std::int64_t{256} << 10) / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t fit = std::max<std::int64_t>(cache / (4 * plan->size()), 1);
  const std::int64_t width = std::min<std::int64_t>({lines.count(), fit >= 8 ? kMaxLines : 1});
  const std::int64_t blocks = (lines.count() + width - 1) / width;
  const double cost = 3 * static_cast<double>(plan->size()) * static_cast<double>(width) *
                      std::log2(static_cast<double>(plan->size()) + 2) * 0.2;
  std::int64_t parts = 1;
  if (static_cast<double>(blocks) * cost > 300e3) {
    parts = std::min<std::int64_t>(
        {blocks, 16, static_cast<std::int64_t>(static_cast<double>(blocks) * cost / 150e3) + 1});
  }
  const std::size_t room_bytes = scratch_bytes(plan->size(), width, 4 * sizeof(T));
  const auto allocate = [&] {
    return static_cast<T*>(call.scratch.allocate(scratch_bytes(room_bytes, parts)));
  };
  T* rooms = allocate();
  if (!rooms && parts > 1) {
    parts = 1;
    rooms = allocate();
  }
  const std::int64_t room_size = 4 * plan->size() * width;
  if (!rooms) {
    return out_of_scratch(call.op.name, room_bytes);
  }
  const LineBlock<T> block(job, *plan, lines, twist);
  const auto run = [&](std::int64_t part) {
    const std::int64_t end = (part + 1) * blocks / parts;
    for (std::int64_t b = part * blocks / parts; b < end && !call.parallel.cancelled(); ++b) {
      const std::int64_t first = b * width;
      block.run(first, std::min(width, lines.count() - first), rooms + part * room_size);
    }
  };
  if (parts == 1) {
    run(0);
  } else {
    call.parallel.run(parts, run);
  }
  return {};
}

// ---------------------------------------------------------------- transforms

double scale_of(std::int64_t normalization, double count) {
  return normalization == 0 ? 1 : normalization == 1 ? 1 / std::sqrt(count) : 1 / count;
}

// The product of the signal's sizes along the dimensions.
double signal_size(const Geometry& g, std::span<const std::int64_t> dims) {
  double count = 1;
  for (std::int64_t d : dims) {
    count *= static_cast<double>(g.shape[static_cast<int>(d < 0 ? d + g.rank() : d)]);
  }
  return count;
}

int dim_of(std::int64_t d, const Geometry& g) { return static_cast<int>(d < 0 ? d + g.rank() : d); }

// Complex transforms along `dims`: the first from `from` to `to`, the following ones within `to`.
template <class T>
Status complex_dims(KernelCall& call, std::span<const std::int64_t> dims, bool forward, T scale,
                    const T* from, const Geometry& of_from, T* to, const Geometry& of_to) {
  const Geometry* source = &of_from;
  for (std::int64_t d : dims) {
    const int dim = dim_of(d, of_to);
    TT_RETURN_IF_ERROR(run_job<T>(
        call, {Kind::kComplex, forward, scale, of_to.shape[dim], dim, from, source, to, &of_to}));
    from = to;
    source = &of_to;
    scale = 1;
  }
  return {};
}

template <class T>
Status c2c_of(KernelCall& call) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  const auto dims = call.attributes.ints(0);
  const double scale = scale_of(call.attributes.integer(1), signal_size(*out.geometry, dims));
  return complex_dims<T>(call, dims, call.attributes.boolean(2), static_cast<T>(scale),
                         in.first<const T>(), *in.geometry, out.first<T>(), *out.geometry);
}

template <class T>
Status r2c_of(KernelCall& call) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  const auto dims = call.attributes.ints(0);
  const int last = dim_of(dims.back(), *in.geometry);
  const double scale = scale_of(call.attributes.integer(1), signal_size(*in.geometry, dims));
  TT_RETURN_IF_ERROR(
      run_job<T>(call, {Kind::kToHalf, true, static_cast<T>(scale), in.geometry->shape[last], last,
                        in.first<const T>(), in.geometry, out.first<T>(), out.geometry}));
  return complex_dims<T>(call, dims.first(dims.size() - 1), true, T(1), out.first<T>(),
                         *out.geometry, out.first<T>(), *out.geometry);
}

template <class T>
Status c2r_of(KernelCall& call) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  const auto dims = call.attributes.ints(0);
  const int last = dim_of(dims.back(), *in.geometry);
  const double scale = scale_of(call.attributes.integer(1), signal_size(*out.geometry, dims));
  const T* from = in.first<const T>();
  const Geometry* of_from = in.geometry;
  const Geometry between(in.geometry->shape);
  if (dims.size() > 1) {
    const std::size_t bytes = scratch_bytes(between.numel(), 2 * sizeof(T));
    T* const room = static_cast<T*>(call.scratch.allocate(bytes));
    if (!room) return out_of_scratch(call.op.name, bytes);
    TT_RETURN_IF_ERROR(complex_dims<T>(call, dims.first(dims.size() - 1), false, T(1), from,
                                       *of_from, room, between));
    from = room;
    of_from = &between;
  }
  return run_job<T>(call, {Kind::kFromHalf, false, static_cast<T>(scale), out.geometry->shape[last],
                           last, from, of_from, out.first<T>(), out.geometry});
}

template <class F>
Status with_precision(KernelCall& call, F&& f) {
  if (call.out[0].geometry->numel() == 0) return {};
  if (core::real_of(call.in[0].dtype) == DType::kF32) return f(float{});
  return f(double{});
}

Status c2c(KernelCall& call) {
  return with_precision(call, [&](auto t) { return c2c_of<decltype(t)>(call); });
}
Status r2c(KernelCall& call) {
  return with_precision(call, [&](auto t) { return r2c_of<decltype(t)>(call); });
}
Status c2r(KernelCall& call) {
  return with_precision(call, [&](auto t) { return c2r_of<decltype(t)>(call); });
}

}  // namespace

void add_fft_kernels(KernelTable& table) {
  table.add("fft_c2c", c2c);
  table.add("fft_r2c", r2c);
  table.add("fft_c2r", c2r);
}

}  // namespace teletensor::backends::cpu
