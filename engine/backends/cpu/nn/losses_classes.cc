// Kernels of cross_entropy and nll_loss and their derivatives, one line of classes at a time.
#include <cmath>
#include <string>

#include "engine/backends/cpu/access/rows.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/nn/rowwise_simd.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {
namespace {

using core::Status;

constexpr std::int64_t kSmall = 512;  // up to so many classes or lines no scratch memory is needed

// The operands and attributes that the ops have in common. Their positions differ between the ops,
// so each kernel fills this in.
struct Setting {
  const TensorArg* gradient = nullptr;
  const TensorArg* input = nullptr;  // null for nll_loss_backward
  const TensorArg* target = nullptr;
  const TensorArg* weight = nullptr;
  core::Dims shape;  // the shape of the input
  std::int64_t ignore = -100;
  std::string_view reduction;
  double smoothing = 0;
};

template <class A>
class Classes {
 public:
  Classes(KernelCall& call, const Setting& s)
      : call_(call),
        s_(s),
        lines_(s.shape, s.shape.size() == 1 ? 0 : 1),
        probabilities_(core::is_floating(s.target->dtype)) {
    if (!probabilities_) load_target_ = load_block<std::int64_t>(s.target->dtype);
    target_size_ = static_cast<std::int64_t>(core::size_of(s.target->dtype));
    if (s.target->dtype == core::DType::kI64 && s.target->geometry->contiguous()) {
      targets_ = s.target->first<const std::int64_t>();
    }
    if (s.input != nullptr && s.input->dtype == kDTypeOf<A>) x_ = s.input->first<const A>();
  }

  // Reads the weights and checks every target, before anything is stored.
  Status prepare() {
    const std::int64_t classes = lines_.length();
    if (s_.weight->kind == TensorArg::Kind::kTensor) {
      const Row<A> row(*s_.weight, 0, s_.weight->geometry->strides[0]);
      A* room = weights_small_;
      if (!row.direct() && classes > kSmall) {
        const std::size_t bytes = scratch_bytes(classes, sizeof(A));
        room = static_cast<A*>(call_.scratch.allocate(bytes));
        if (!room) return out_of_scratch(call_.op.name, bytes);
      }
      weights_ = row.read(0, classes, room);
    }
    for (std::int64_t c = 0; s_.smoothing > 0 && c < classes; ++c) weight_sum_ += weight(c);
    double divisor = 0;
    if (probabilities_) {
      divisor = static_cast<double>(lines_.count());
    } else {
      for (std::int64_t i = 0; i < lines_.count(); ++i) {
        if (i % (1 << 20) == (1 << 20) - 1 && call_.parallel.cancelled()) {
          return Status(core::Code::kCancelled, call_.op.name + ": interrupted");
        }
        const std::int64_t t = target(i);
        if (t == s_.ignore) continue;
        if (t < 0 || t >= classes) {
          return Status(core::Code::kOutOfRange, call_.op.name + ": target " + std::to_string(t) +
                                                     " is out of range for " +
                                                     std::to_string(classes) + " classes");
        }
        divisor += static_cast<double>(weight(t));
      }
    }
    if (s_.reduction == "mean") divisor_ = static_cast<A>(divisor);
    return {};
  }

  const Lines& lines() const { return lines_; }
  bool none() const { return s_.reduction == "none"; }
  A divisor() const { return divisor_; }

  // Minus the sum over classes of T[c] * (logarithm of softmax), where T is the target
  // distribution.
  A cross_entropy(std::int64_t i) const {
    if (ignored(i)) return 0;
    A buffer[kLeaf];
    const Row<A> x = input(i);
    const Soft soft = softmax(x, buffer);
    const A logarithm = std::log(soft.total);
    const auto log_p = [&](A value) { return (value - soft.largest) - logarithm; };
    A loss = 0;
    if (!probabilities_) {
      const std::int64_t t = target(i);
      const A at = log_p(*x.read(t, 1, buffer));
      loss = -(static_cast<A>(1 - s_.smoothing) * weight(t) * at);
      if (s_.smoothing == 0) return loss;
    }
    // The part of T that is smoothed, or all of it if the target is a distribution.
    A ts[kLeaf];
    const A even = static_cast<A>(s_.smoothing / static_cast<double>(lines_.length()));
    const A keep = static_cast<A>(1 - s_.smoothing);
    const Row<A> p = probabilities_ ? distribution(i) : Row<A>();
    each_block(lines_.length(), [&](std::int64_t start, std::int64_t n) {
      const A* in = x.read(start, n, buffer);
      const A* share = p.read(start, n, ts);
      for (std::int64_t c = 0; c < n; ++c) {
        const A part = share ? share[c] * keep + even : even;
        ts[c] = weight(start + c) * part * log_p(in[c]);
      }
      loss -= fold_of<A>(FoldKind::kSum).leaf(ts, n);
    });
    return loss;
  }

  // factor * (S * softmax - T), where S is the sum of T.
  void cross_entropy_gradient(std::int64_t i, const Row<A>& out) const {
    A buffer[kLeaf], ts[kLeaf];
    const A factor = this->factor(i);
    if (ignored(i)) return fill_zero(out, buffer);
    const Row<A> x = input(i), p = probabilities_ ? distribution(i) : Row<A>();
    const Soft soft = softmax(x, buffer);
    const A scale = factor * target_sum(i) / soft.total;
    const A even = static_cast<A>(s_.smoothing / static_cast<double>(lines_.length()));
    const A keep = static_cast<A>(1 - s_.smoothing);
    const std::int64_t hot = probabilities_ ? -1 : target(i);
    each_block(lines_.length(), [&](std::int64_t start, std::int64_t n) {
      A* y = out.room(start, buffer);
      apply_map<A>(Map::kExpDifference, x.read(start, n, buffer), n, &soft.largest, 0, 0, y);
      row_steps<A>().scale(y, n, scale, y);
      if (hot >= start && hot < start + n) y[hot - start] -= factor * keep * weight(hot);
      if (const A* share = p.read(start, n, ts)) {
        for (std::int64_t c = 0; c < n; ++c) {
          y[c] -= factor * weight(start + c) * (share[c] * keep + even);
        }
      } else if (even != 0) {
        for (std::int64_t c = 0; c < n; ++c) y[c] -= factor * weight(start + c) * even;
      }
      out.write(start, n, y);
    });
  }

  // The factor of the softmax in the gradient of a line.
  A softmax_factor(std::int64_t i) const { return ignored(i) ? A(0) : factor(i) * target_sum(i); }

  // Computes the negative log-likelihood losses of all lines.
  void nll(A* losses) const {
    const std::int64_t count = lines_.count(), ignore = s_.ignore;
    const core::Geometry& g = *s_.input->geometry;
    if (x_ && targets_ && g.rank() == 2) {
      const std::int64_t line = g.strides[0], step = g.strides[1];
      const std::int64_t* const targets = targets_;
      const A *const x = x_, *const weights = weights_;
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t t = targets[i];
        const A value = t == ignore ? A(0) : x[i * line + t * step];
        losses[i] = t == ignore ? A(0) : -((weights ? weights[t] : A(1)) * value);
      }
      return;
    }
    lines_.run(call_.parallel, 3, [&](std::int64_t i) {
      const std::int64_t t = target(i);
      A value;
      losses[i] = t == ignore ? A(0) : -(weight(t) * *input(i).read(t, 1, &value));
    });
  }

  void nll_gradient(std::int64_t i, const Row<A>& out) const {
    A buffer[kLeaf];
    fill_zero(out, buffer);
    if (ignored(i)) return;
    const std::int64_t t = target(i);
    A* y = out.room(t, buffer);
    *y = -(factor(i) * weight(t));
    out.write(t, 1, y);
  }

 private:
  struct Soft {
    A largest, total;  // largest: maximum of x; total: sum of exp(x - largest)
  };
  Soft softmax(const Row<A>& x, A* buffer) const {
    const Fold<A>& max = fold_of<A>(FoldKind::kMax);
    Soft soft{max.identity, 0};
    each_block(lines_.length(), [&](std::int64_t start, std::int64_t n) {
      soft.largest = max.pair(soft.largest, max.leaf(x.read(start, n, buffer), n));
    });
    each_block(lines_.length(), [&](std::int64_t start, std::int64_t n) {
      apply_map<A>(Map::kExpDifference, x.read(start, n, buffer), n, &soft.largest, 0, 0, buffer);
      soft.total += fold_of<A>(FoldKind::kSum).leaf(buffer, n);
    });
    return soft;
  }

  A weight(std::int64_t c) const { return weights_ ? weights_[c] : A(1); }
  std::int64_t target(std::int64_t i) const {
    if (targets_) return targets_[i];
    std::int64_t t;
    const core::Geometry& g = *s_.target->geometry;
    load_target_(s_.target->first<char>() + lines_.offset(g, i) * target_size_, 1, 1, &t);
    return t;
  }
  bool ignored(std::int64_t i) const { return !probabilities_ && target(i) == s_.ignore; }
  Row<A> input(std::int64_t i) const {
    const core::Geometry& g = *s_.input->geometry;
    return Row<A>(*s_.input, lines_.offset(g, i), lines_.stride(g));
  }
  Row<A> distribution(std::int64_t i) const {
    const core::Geometry& g = *s_.target->geometry;
    return Row<A>(*s_.target, lines_.offset(g, i), lines_.stride(g));
  }
  // The sum of the target distribution of a line, with the weights.
  A target_sum(std::int64_t i) const {
    const A keep = static_cast<A>(1 - s_.smoothing);
    const A even = static_cast<A>(s_.smoothing / static_cast<double>(lines_.length()));
    if (!probabilities_) return keep * weight(target(i)) + even * weight_sum_;
    A ts[kLeaf];
    A total = 0;
    const Row<A> p = distribution(i);
    each_block(lines_.length(), [&](std::int64_t start, std::int64_t n) {
      const A* share = p.read(start, n, ts);
      for (std::int64_t c = 0; c < n; ++c) ts[c] = weight(start + c) * (share[c] * keep + even);
      total += fold_of<A>(FoldKind::kSum).leaf(ts, n);
    });
    return total;
  }
  // The gradient of one line's loss.
  A factor(std::int64_t i) const {
    const core::Geometry& g = *s_.gradient->geometry;
    const std::int64_t size = static_cast<std::int64_t>(core::size_of(s_.gradient->dtype));
    A value;
    load_block<A>(s_.gradient->dtype)(
        s_.gradient->first<char>() + (none() ? lines_.offset(g, i) : 0) * size, 1, 1, &value);
    return value / divisor_;
  }
  void fill_zero(const Row<A>& out, A* buffer) const {
    each_block(lines_.length(), [&](std::int64_t start, std::int64_t n) {
      A* y = out.room(start, buffer);
      std::fill_n(y, n, A(0));
      out.write(start, n, y);
    });
  }

  KernelCall& call_;
  const Setting& s_;
  const Lines lines_;
  const bool probabilities_;
  LoadBlock<std::int64_t> load_target_ = nullptr;
  std::int64_t target_size_ = 0;
  // The targets of all lines, if they are a contiguous int64 tensor.
  const std::int64_t* targets_ = nullptr;
  const A* x_ = nullptr;  // the input's first element, if the input has type A
  const A* weights_ = nullptr;
  A weight_sum_ = 0, divisor_ = 1;
  A weights_small_[kSmall];
};

// `fill` writes the losses of the lines; they are then stored or summed.
template <class A, class F>
Status reduce_lines(KernelCall& call, const Classes<A>& classes, F&& fill) {
  const std::int64_t count = classes.lines().count();
  const TensorArg& out = call.out[0];
  A small[kSmall];
  A* losses = small;
  if (classes.none() && out.dtype == kDTypeOf<A>) {
    losses = out.first<A>();
  } else if (count > kSmall) {
    const std::size_t bytes = scratch_bytes(count, sizeof(A));
    losses = static_cast<A*>(call.scratch.allocate(bytes));
    if (!losses) return out_of_scratch(call.op.name, bytes);
  }
  fill(losses);
  if (classes.none()) {
    if (out.dtype != kDTypeOf<A>) store_block<A>(out.dtype)(losses, count, out.first(), 1);
    return {};
  }
  A total = 0;
  each_block(count, [&](std::int64_t start, std::int64_t n) {
    total += fold_of<A>(FoldKind::kSum).leaf(losses + start, n);
  });
  total /= classes.divisor();
  store_block<A>(out.dtype)(&total, 1, out.first(), 1);
  return {};
}

template <class A>
Row<A> out_row(const TensorArg& out, const Lines& lines, std::int64_t i) {
  return Row<A>(out, lines.offset(*out.geometry, i), lines.stride(*out.geometry));
}

// Prepares the data and calls use(classes) with the type of `dtype`.
template <class F>
Status with_classes(KernelCall& call, core::DType dtype, const Setting& setting, F&& use) {
  return with_float_type(dtype, [&](auto a) -> Status {
    using A = decltype(a);
    Classes<A> classes(call, setting);
    TT_RETURN_IF_ERROR(classes.prepare());
    return use(classes, a);
  });
}

Status cross_entropy(KernelCall& call) {
  const core::Attributes& a = call.attributes;
  const Setting s{.input = &call.in[0],
                  .target = &call.in[1],
                  .weight = &call.in[2],
                  .shape = call.in[0].geometry->shape,
                  .ignore = a.integer(0),
                  .reduction = a.text(1),
                  .smoothing = a.real(2)};
  return with_classes(call, call.in[0].dtype, s, [&](const auto& classes, auto) {
    return reduce_lines(call, classes, [&](auto* losses) {
      classes.lines().run(call.parallel, 3,
                          [&](std::int64_t i) { losses[i] = classes.cross_entropy(i); });
    });
  });
}

Status nll_loss(KernelCall& call) {
  const core::Attributes& a = call.attributes;
  const Setting s{.input = &call.in[0],
                  .target = &call.in[1],
                  .weight = &call.in[2],
                  .shape = call.in[0].geometry->shape,
                  .ignore = a.integer(0),
                  .reduction = a.text(1)};
  return with_classes(call, call.in[0].dtype, s, [&](const auto& classes, auto) {
    return reduce_lines(call, classes, [&](auto* losses) { classes.nll(losses); });
  });
}

Setting gradient_setting(const KernelCall& call) {
  const core::Attributes& a = call.attributes;
  return {.gradient = &call.in[0],
          .input = &call.in[1],
          .target = &call.in[2],
          .weight = &call.in[3],
          .shape = call.in[1].geometry->shape,
          .ignore = a.integer(0),
          .reduction = a.text(1),
          .smoothing = a.real(2)};
}

Status cross_entropy_backward(KernelCall& call) {
  if (call.out[0].geometry->numel() == 0) return {};
  const Setting s = gradient_setting(call);
  return with_classes(call, call.out[0].dtype, s, [&](const auto& classes, auto a) -> Status {
    classes.lines().run(call.parallel, 3, [&](std::int64_t i) {
      classes.cross_entropy_gradient(i, out_row<decltype(a)>(call.out[0], classes.lines(), i));
    });
    return {};
  });
}

Status cross_entropy_factors(KernelCall& call) {
  const Setting s = gradient_setting(call);
  return with_classes(call, call.out[0].dtype, s, [&](const auto& classes, auto a) -> Status {
    for (std::int64_t i = 0; i < classes.lines().count(); ++i) {
      decltype(a) buffer;
      const auto out = out_row<decltype(a)>(call.out[0], classes.lines(), i);
      decltype(a)* value = out.room(0, &buffer);
      *value = classes.softmax_factor(i);
      out.write(0, 1, value);
    }
    return {};
  });
}

Status nll_loss_backward(KernelCall& call) {
  if (call.out[0].geometry->numel() == 0) return {};
  const core::Attributes& a = call.attributes;
  const Setting s{.gradient = &call.in[0],
                  .target = &call.in[1],
                  .weight = &call.in[2],
                  .shape = call.out[0].geometry->shape,
                  .ignore = a.integer(1),
                  .reduction = a.text(2)};
  return with_classes(call, call.out[0].dtype, s, [&](const auto& classes, auto t) -> Status {
    classes.lines().run(call.parallel, 1, [&](std::int64_t i) {
      classes.nll_gradient(i, out_row<decltype(t)>(call.out[0], classes.lines(), i));
    });
    return {};
  });
}

}  // namespace

void add_class_loss_kernels(KernelTable& table) {
  table.add("cross_entropy", cross_entropy);
  table.add("cross_entropy_backward", cross_entropy_backward);
  table.add("cross_entropy_factors", cross_entropy_factors);
  table.add("nll_loss", nll_loss);
  table.add("nll_loss_backward", nll_loss_backward);
}

}  // namespace teletensor::backends::cpu
