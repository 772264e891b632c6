// Losses, computed as in cpu/losses.cc and cpu/losses_classes.cc, with the same leaves of sums.
namespace tt {

template <int kKind, class A>
A loss_at(const calls::LossCall& p, std::int64_t i) {
  const A *const x = static_cast<const A*>(p.x), *const t = static_cast<const A*>(p.target);
  const A *const w = static_cast<const A*>(p.weight), *const pw = static_cast<const A*>(p.positive);
  constexpr s::Loss kLoss = static_cast<s::Loss>(kKind);
  const A loss = s::loss<kLoss>(x[i], t[i], pw != nullptr ? pw[i] : A(1), p.settings);
  return w != nullptr ? loss * w[i] : loss;
}

// The loss of each element.
template <class T, class A, int kKind>
void losses(const calls::LossCall& p, std::int64_t at) {
  if (p.flag != nullptr && *p.flag != 0) return;
  static_cast<T*>(p.y)[at] = s::from_compute<T>(loss_at<kKind, A>(p, at));
}
// Stores the sums of the leaves of p.count elements.
template <class A, int kBatch, class F>
void store_leaves(const calls::LossCall& p, F&& element) {
  const Lanes<A, kBatch> lanes(p.n);
  const A sum = lanes.leaf(lanes.place() * 2048, p.count, element);
  if (lanes.first()) static_cast<A*>(p.leaves)[lanes.task] = sum;
}
template <class T, class A, int kKind>
void loss_leaves(const calls::LossCall& p) {
  store_leaves<A, 1>(p, [&](std::int64_t e) { return loss_at<kKind, A>(p, e); });
}
// Stores the sums of the leaves of numbers that are already in memory.
template <class T, class A>
void array_leaves(const calls::LossCall& p) {
  store_leaves<A, 4>(p, [&](std::int64_t e) { return static_cast<const A*>(p.x)[e]; });
}
// Sums parts of 256 leaves, each in order, into the first leaf of the part.
template <class T, class A>
void part_sums(const calls::LossCall& p, std::int64_t part) {
  A* const leaves = static_cast<A*>(p.leaves);
  const std::int64_t first = part * p.part;
  const std::int64_t last = first + p.part < p.count ? first + p.part : p.count;
  A total = 0;
  for (std::int64_t i = first; i < last; ++i) total += leaves[i];
  leaves[first] = total;
}
// Sums the remaining values in order and divides by the divisor.
template <class T, class A>
void loss_total(const calls::LossCall& p, std::int64_t) {
  if (p.flag != nullptr && *p.flag != 0) return;
  const A* const leaves = static_cast<const A*>(p.leaves);
  A total = 0;
  for (std::int64_t i = 0; i < p.count; i += p.part) total += leaves[i];
  if (p.mean) total /= static_cast<A>(p.divisor_there != nullptr ? *p.divisor_there : p.divisor);
  *static_cast<T*>(p.y) = s::from_compute<T>(total);
}
// Refuses values outside of [0, 1].
template <class A>
void check_unit(const calls::LossCall& p, std::int64_t at) {
  const A x = static_cast<const A*>(p.x)[at];
  if (!(x >= A(0) && x <= A(1))) *p.refuse = 1;
}

template <class T, class A>
void mse_gradient(const calls::LossCall& p, std::int64_t at) {
  const A *const x = static_cast<const A*>(p.x), *const t = static_cast<const A*>(p.target),
          *const g = static_cast<const A*>(p.gradient);
  const A d = x[at] - t[at];
  A y;
  if (p.none) {
    y = d * A(2) * g[at];
  } else {
    const A factor = p.mean ? A(2) / static_cast<A>(p.count) * *g : A(2) * *g;
    y = d * factor;
  }
  static_cast<T*>(p.y)[at] = s::from_compute<T>(y);
}

// ---------------------------------------------------------------- classes

template <class A>
struct ClassLine {
  const calls::ClassCall& p;
  // Index of the line, and of its first element; elements are `step` apart.
  std::int64_t line, first;
  std::int64_t target;
  const A* weights;
  ClassLine(const calls::ClassCall& call, std::int64_t at) : p(call), line(at) {
    std::int64_t before = at;
    const std::int64_t inner = coordinate(before, p.step);
    first = before * p.classes * p.step + inner;
    target = p.target[at];
    weights = static_cast<const A*>(p.weight);
  }
  bool ignored() const { return target == p.ignore; }
  A weight(std::int64_t c) const { return weights != nullptr ? weights[c] : A(1); }
};

// Refuses targets that are not classes.
inline void check_classes(const calls::ClassCall& p, std::int64_t at) {
  const std::int64_t t = p.target[at];
  if (t != p.ignore && (t < 0 || t >= p.classes)) *p.refuse = 1;
}

// Sums the weights of all targets, and those of all classes, in one block. The sums are doubles, so
// that counts are exact.
template <class A>
void class_divisor(const calls::ClassCall& p) {
  __shared__ double shared[256];
  const int t = threadIdx.x;
  double mine = 0;
  if (*p.refuse == 0) {
    for (std::int64_t i = t; i < p.lines; i += 256) {
      const ClassLine<A> line(p, i);
      if (!line.ignored()) mine += static_cast<double>(line.weight(line.target));
    }
  }
  const double total = fold_row<Sum<double>, 256>(shared, mine);
  if (t != 0) return;
  p.divisor[0] = total;
  A all = 0;
  if (p.smoothing > 0) {
    for (std::int64_t c = 0; c < p.classes; ++c) {
      all += p.weight != nullptr ? static_cast<const A*>(p.weight)[c] : A(1);
    }
  }
  p.divisor[1] = static_cast<double>(all);
}

// A line and its softmax, computed by kGroups groups of lanes. With more than one group the classes
// of a line are adjacent in memory.
template <class T, class A, int kGroups>
struct SoftLine {
  // The number of loads that a thread issues at once.
  static constexpr int kBatch = (kGroups > 1 ? 64 : 32) / sizeof(A);
  using Own = Lanes<A, kBatch, kGroups>;
  Own lanes;
  bool inside;  // the thread's line exists
  ClassLine<A> line;
  const T* from;
  A largest, total;

  explicit SoftLine(const calls::ClassCall& p)
      : lanes(p.n),
        inside(lanes.live && *p.refuse == 0),
        line(p, lanes.place()),
        from(static_cast<const T*>(p.x) + line.first) {
    lanes.live = inside && !line.ignored();
    A most = Largest<A>::identity();
    if (lanes.live) {
      each([&](std::int64_t, A value) { most = Largest<A>::one(most, value); });
    }
    largest = fold_row<Largest<A>, Own::kThreads>(lanes.acc, most);
    total = lanes.sum(p.classes, [&](std::int64_t c) { return s::exp(x(c) - largest); });
  }
  std::int64_t place(std::int64_t c) const { return kGroups > 1 ? c : c * line.p.step; }
  A x(std::int64_t c) const { return s::to_compute<A>(from[place(c)]); }
  // Calls use(c, x(c)) for the classes of this thread.
  template <class Use>
  void each(Use&& use) const {
    each_in_batches<Own::kThreads, kBatch>(lanes.thread(), line.p.classes,
                                           [&](std::int64_t c) { return x(c); }, use);
  }
};

template <class T, class A, int kGroups>
void cross_entropy_lines(const calls::ClassCall& p) {
  const SoftLine<T, A, kGroups> soft(p);
  const auto& lanes = soft.lanes;
  const ClassLine<A>& line = soft.line;
  const A logarithm = s::log(soft.total), keep = static_cast<A>(1 - p.smoothing);
  const auto log_p = [&](std::int64_t c) { return (soft.x(c) - soft.largest) - logarithm; };
  A loss = 0;
  if (lanes.live) loss = -(keep * line.weight(line.target) * log_p(line.target));
  if (p.smoothing != 0) {
    const A even = static_cast<A>(p.smoothing / static_cast<double>(p.classes));
    for (std::int64_t start = 0; start < p.classes; start += 2048) {
      loss -= lanes.leaf(start, p.classes, [&](std::int64_t c) {
        return line.weight(c) * even * log_p(c);
      });
    }
  }
  if (soft.inside && lanes.thread() == 0) {
    static_cast<A*>(p.losses)[lanes.task] = lanes.live ? loss : A(0);
  }
}

template <class A>
A class_factor(const calls::ClassCall& p, std::int64_t line) {
  const A* const g = static_cast<const A*>(p.gradient);
  const A divisor = p.mean ? static_cast<A>(p.divisor[0]) : A(1);
  return g[p.none ? line : 0] / divisor;
}

// factor * (S * softmax - T), where T is the target distribution and S is its sum.
template <class T, class A, int kGroups>
void cross_entropy_gradient(const calls::ClassCall& p) {
  const SoftLine<T, A, kGroups> soft(p);
  if (!soft.inside) return;
  const bool live = soft.lanes.live;
  const ClassLine<A>& line = soft.line;
  const A factor = class_factor<A>(p, line.line), keep = static_cast<A>(1 - p.smoothing);
  const A even = static_cast<A>(p.smoothing / static_cast<double>(p.classes));
  const A sum = live ? keep * line.weight(line.target) + even * static_cast<A>(p.divisor[1]) : A(0);
  const A scale = factor * sum / soft.total;
  T* const to = static_cast<T*>(p.y) + line.first;
  soft.each([&](std::int64_t c, A x) {
    A y = 0;
    if (live) {
      y = s::exp(x - soft.largest) * scale;
      if (c == line.target) y -= factor * keep * line.weight(c);
      if (even != A(0)) y -= factor * line.weight(c) * even;
    }
    to[soft.place(c)] = s::from_compute<T>(y);
  });
}

template <class T, class A>
void nll_lines(const calls::ClassCall& p, std::int64_t at) {
  if (*p.refuse != 0) return;
  const ClassLine<A> line(p, at);
  A loss = 0;
  if (!line.ignored()) {
    const A x = s::to_compute<A>(static_cast<const T*>(p.x)[line.first + line.target * p.step]);
    loss = -(line.weight(line.target) * x);
  }
  static_cast<A*>(p.losses)[at] = loss;
}

// One thread per element.
template <class T, class A>
void nll_gradient(const calls::ClassCall& p, std::int64_t at) {
  if (*p.refuse != 0) return;
  std::int64_t before = at;
  const std::int64_t inner = coordinate(before, p.step), c = coordinate(before, p.classes);
  const ClassLine<A> line(p, before * p.step + inner);
  A y = 0;
  if (!line.ignored() && c == line.target) y = -(class_factor<A>(p, line.line) * line.weight(c));
  static_cast<T*>(p.y)[at] = s::from_compute<T>(y);
}

}  // namespace tt
