// Kernels of layer_norm, batch_norm and their derivatives; their sums are those of cpu/norms.cc, leaf
// by leaf.
namespace tt {

// A group of threads, one for each lane of the CPU's sums, its task, and functions for its sums.
// All threads of the block must call those functions the same number of times. kGroups groups share
// a task and its leaves.
template <class A, int kBatch = 4, int kGroups = 1>
struct Lanes {
  static constexpr int kWidth = 256 / sizeof(A);
  static constexpr int kThreads = kWidth * kGroups;  // threads per task
  A* acc;  // room for one value per thread of the block
  int lane;
  std::int64_t task;
  bool live;  // the group's task exists

  explicit Lanes(std::int64_t tasks) {
    __shared__ A room[256];
    acc = room;
    lane = threadIdx.x % kWidth;
    task = static_cast<std::int64_t>(blockIdx.x) * (256 / kThreads) + threadIdx.x / kThreads;
    live = task < tasks;
  }
  std::int64_t place() const { return live ? task : 0; }
  int thread() const { return threadIdx.x % kThreads; }  // index among the threads of the task
  bool first() const { return live && thread() == 0; }
  // The leaf, beginning at `start`, of a sum over `length` elements.
  template <class F>
  A leaf(std::int64_t start, std::int64_t length, F&& element) const {
    const int n = !live ? 0 : length - start < 2048 ? static_cast<int>(length - start) : 2048;
    const A mine = fold_strided<Sum<A>, kWidth, kBatch, A>(
        lane, n, [&](int e) { return element(start + e); });
    const A value = fold_lanes<Sum<A>, kWidth>(acc, mine, lane, n);
    __syncthreads();
    return value;
  }
  // The sum of all leaves, in order.
  template <class F>
  A sum(std::int64_t length, F&& element) const {
    A total = 0;
    for (std::int64_t start = 0; start < length; start += 2048 * kGroups) {
      if constexpr (kGroups == 1) {
        total += leaf(start, length, element);
      } else {
        __shared__ A leaves[256 / kWidth];
        const int group = threadIdx.x / kWidth, own = group % kGroups;
        const A value = leaf(start + own * 2048, length, element);
        if (lane == 0) leaves[group] = value;
        __syncthreads();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          if (start + g * 2048 < length) total += leaves[group - own + g];
        }
        __syncthreads();
      }
    }
    return total;
  }
};

template <class T, class A>
void layer_norm(const calls::LayerNormCall& p) {
  const Lanes<A> lanes(p.n);
  const std::int64_t row = lanes.place();
  const T* const x = static_cast<const T*>(p.x) + row * p.length;
  const A *const weight = static_cast<const A*>(p.weight), *const bias = static_cast<const A*>(p.bias);
  const A count = static_cast<A>(p.length);
  const auto at = [&](std::int64_t e) { return s::to_compute<A>(x[e]); };
  const A mean = lanes.sum(p.length, at) / count;
  const auto square = [&](std::int64_t e) {
    const A d = at(e) - mean;
    return d * d;
  };
  const A variance = lanes.sum(p.length, square) / count;
  const A scale = A(1) / s::sqrt(variance + static_cast<A>(p.eps));
  if (!lanes.live) return;
  if (lanes.lane == 0) {
    static_cast<A*>(p.means)[row] = mean;
    static_cast<A*>(p.scales)[row] = scale;
  }
  T* const y = static_cast<T*>(p.y) + row * p.length;
  for (std::int64_t e = lanes.lane; e < p.length; e += lanes.kWidth) {
    A v = (at(e) - mean) * scale;
    if (weight != nullptr) v = v * weight[e];
    if (bias != nullptr) v = v + bias[e];
    y[e] = s::from_compute<T>(v);
  }
}

// dx = scale * (h - mean(h) - xhat * mean(h * xhat)), where h = g * weight.
template <class T, class A>
void layer_norm_input(const calls::LayerNormCall& p) {
  const Lanes<A> lanes(p.n);
  const std::int64_t row = lanes.place(), first = row * p.length;
  const T *const x = static_cast<const T*>(p.x) + first, *const g = static_cast<const T*>(p.g) + first;
  const A* const weight = static_cast<const A*>(p.weight);
  const A mean = static_cast<const A*>(p.means)[row],
          scale = static_cast<const A*>(p.scales)[row];
  const auto h = [&](std::int64_t e) {
    const A one = s::to_compute<A>(g[e]);
    return weight != nullptr ? one * weight[e] : one;
  };
  A mean_h = lanes.sum(p.length, h);
  A mean_hx = lanes.sum(p.length, [&](std::int64_t e) {
    return h(e) * ((s::to_compute<A>(x[e]) - mean) * scale);
  });
  mean_h /= static_cast<A>(p.length);
  mean_hx /= static_cast<A>(p.length);
  if (!lanes.live) return;
  const A slope = scale * mean_hx;
  T* const y = static_cast<T*>(p.y) + first;
  for (std::int64_t e = lanes.lane; e < p.length; e += lanes.kWidth) {
    y[e] = s::from_compute<T>(scale * ((h(e) - mean_h) - (s::to_compute<A>(x[e]) - mean) * slope));
  }
}

// Sums over the rows of a group, in order; one thread per group and column.
template <class T, class A>
void layer_norm_sums(const calls::LayerNormCall& p, std::int64_t at) {
  std::int64_t group = at;
  const std::int64_t column = coordinate(group, p.length);
  const std::int64_t first = group * p.group,
                     last = first + p.group < p.rows ? first + p.group : p.rows;
  A weight = 0, bias = 0;
  for (std::int64_t r = first; r < last; ++r) {
    const A one = s::to_compute<A>(static_cast<const T*>(p.g)[r * p.length + column]);
    const A x = s::to_compute<A>(static_cast<const T*>(p.x)[r * p.length + column]);
    weight += one * ((x - static_cast<const A*>(p.means)[r]) * static_cast<const A*>(p.scales)[r]);
    bias += one;
  }
  A* const to = static_cast<A*>(p.sums) + group * 2 * p.length + column;
  to[0] = weight;
  to[p.length] = bias;
}
// Adds the sums of the groups in order; n is 2 * length, with the gradient of the weight first.
template <class T, class A>
void layer_norm_weights(const calls::LayerNormCall& p, std::int64_t at) {
  const A* const sums = static_cast<const A*>(p.sums);
  A total = sums[at];
  for (std::int64_t i = 1; i < p.groups; ++i) total += sums[i * 2 * p.length + at];
  T* const to = static_cast<T*>(at < p.length ? p.dweight : p.dbias);
  to[at < p.length ? at : at - p.length] = s::from_compute<T>(total);
}

enum ChannelSum { kSumOfX, kSumOfSquares, kSumOfGradients };

// The value of a leaf of a channel. A leaf belongs to one image, or covers all images if they are
// small.
template <class T, class A, int kWhat>
void channel_leaves(const calls::ChannelCall& p) {
  const Lanes<A> lanes(p.n);
  std::int64_t channel = lanes.place();
  const std::int64_t leaf = coordinate(channel, p.leaves);
  const std::int64_t length = p.gathered ? p.batch * p.area : p.area;
  std::int64_t image = leaf;
  const std::int64_t start = coordinate(image, (length + 2047) / 2048) * 2048;
  const auto place = [&](std::int64_t e) {
    std::int64_t run = image, in_run = e;
    if (p.gathered) {
      run = in_run;
      in_run = coordinate(run, p.area);
    }
    return (run * p.channels + channel) * p.area + in_run;
  };
  const auto x = [&](std::int64_t e) {
    return s::to_compute<A>(static_cast<const T*>(p.x)[place(e)]);
  };
  A* const to = static_cast<A*>(p.partial) + lanes.task;
  const auto store = [&](std::int64_t part, auto&& element) {
    const A sum = lanes.leaf(start, length, element);
    if (lanes.first()) to[part * p.n] = sum;
  };
  if constexpr (kWhat == kSumOfX) {
    store(0, x);
  } else {
    const A mean = static_cast<const A*>(p.means)[channel];
    if constexpr (kWhat == kSumOfSquares) {
      store(0, [&](std::int64_t e) {
        const A d = x(e) - mean;
        return d * d;
      });
    } else {
      const auto g = [&](std::int64_t e) {
        return s::to_compute<A>(static_cast<const T*>(p.g)[place(e)]);
      };
      store(0, g);
      store(1, [&](std::int64_t e) { return g(e) * (x(e) - mean); });
    }
  }
}

// Adds a channel's leaves in order and computes the results that follow from the sum.
template <class T, class A, int kWhat>
void channel_sums(const calls::ChannelCall& p, std::int64_t c) {
  const A* const from = static_cast<const A*>(p.partial) + c * p.leaves;
  const double count = static_cast<double>(p.batch * p.area);
  double total = 0, products = 0;
  for (std::int64_t i = 0; i < p.leaves; ++i) {
    total += static_cast<double>(from[i]);
    if (kWhat == kSumOfGradients) products += static_cast<double>(from[p.n * p.leaves + i]);
  }
  A *const means = static_cast<A*>(p.means), *const scales = static_cast<A*>(p.scales);
  if constexpr (kWhat == kSumOfX) {
    means[c] = static_cast<A>(total / count);
  } else if constexpr (kWhat == kSumOfSquares) {
    const double variance = total / count;
    scales[c] = static_cast<A>(1 / std::sqrt(variance + p.eps));
    static_cast<A*>(p.variances)[c] = static_cast<A>(variance);
  } else {
    products *= static_cast<double>(scales[c]);
    static_cast<T*>(p.dweight)[c] = s::from_compute<T>(static_cast<A>(products));
    static_cast<T*>(p.dbias)[c] = s::from_compute<T>(static_cast<A>(total));
    A* const to = static_cast<A*>(p.terms) + 2 * c;
    to[0] = static_cast<A>(total / count);
    to[1] = static_cast<A>(products / count);
  }
}

template <class T, class A>
void channel_apply(const calls::ChannelCall& p, std::int64_t at) {
  std::int64_t c = over(at, p.area);
  c = coordinate(c, p.channels);
  const A *const weight = static_cast<const A*>(p.weight), *const bias = static_cast<const A*>(p.bias);
  const A factor = static_cast<const A*>(p.scales)[c] * (weight != nullptr ? weight[c] : A(1));
  const A shift = -(bias != nullptr ? bias[c] : A(0));
  const A x = s::to_compute<A>(static_cast<const T*>(p.x)[at]);
  static_cast<T*>(p.y)[at] =
      s::from_compute<T>((x - static_cast<const A*>(p.means)[c]) * factor - shift);
}

template <class T, class A>
void channel_gradient(const calls::ChannelCall& p, std::int64_t at) {
  std::int64_t c = over(at, p.area);
  c = coordinate(c, p.channels);
  const A* const weight = static_cast<const A*>(p.weight);
  const A scale = static_cast<const A*>(p.scales)[c];
  const A* const terms = static_cast<const A*>(p.terms) + 2 * c;
  const A factor = (weight != nullptr ? weight[c] : A(1)) * scale, slope = scale * terms[1];
  const A x = s::to_compute<A>(static_cast<const T*>(p.x)[at]);
  const A g = s::to_compute<A>(static_cast<const T*>(p.g)[at]);
  static_cast<T*>(p.y)[at] = s::from_compute<T>(
      factor * ((g - terms[0]) - (x - static_cast<const A*>(p.means)[c]) * slope));
}

}  // namespace tt
