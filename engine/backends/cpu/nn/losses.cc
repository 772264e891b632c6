// Kernels of losses that compare two tensors of the same shape element by element: mse, l1,
// smooth_l1, huber, bce, kl_div.
#include "engine/ops/scalar/losses.h"

#include <cmath>
#include <string>

#include "engine/backends/cpu/access/rows.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/nn/rowwise_simd.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {
namespace {

using core::Status;
using ops::scalar::Loss;
using ops::scalar::LossSettings;

constexpr std::int64_t kPart = std::int64_t{1} << 19;  // elements in one parallel part
constexpr std::int64_t kSplitAbove = std::int64_t{1} << 20;

bool is_mean(std::string_view reduction) { return reduction == "mean"; }
bool is_none(std::string_view reduction) { return reduction == "none"; }

// The two (or four) operands in row-major order; weights are expanded to the input's shape.
struct Operands {
  Operands(KernelCall& call, Status& status)
      : weight_view(view(call, 2)),
        positive_view(view(call, 3)),
        input(call, call.in[0], status),
        target(call, call.in[1], status),
        weight(call, weight_arg(call), status),
        positive(call, positive_arg(call), status) {}

  static core::Geometry view(const KernelCall& call, std::size_t i) {
    if (call.in.size() <= i || call.in[i].kind != TensorArg::Kind::kTensor) return {};
    // infer has checked that it can be expanded
    return *call.in[i].geometry->expand(call.in[0].geometry->shape);
  }
  TensorArg weight_arg(const KernelCall& call) const { return expanded(call, 2, weight_view); }
  TensorArg positive_arg(const KernelCall& call) const { return expanded(call, 3, positive_view); }
  static TensorArg expanded(const KernelCall& call, std::size_t i, const core::Geometry& view) {
    if (call.in.size() <= i) return {};
    TensorArg arg = call.in[i];
    if (arg.kind == TensorArg::Kind::kTensor) arg.geometry = &view;
    return arg;
  }

  const core::Geometry weight_view, positive_view;
  const RowMajor input, target, weight, positive;
};

template <class A>
Row<A> row_of(const RowMajor& operand) {
  return operand.absent() ? Row<A>() : Row<A>(operand.arg(), 0, 1);
}

// Runs `block(start, n, to)` over all elements, which writes their losses to `to`; then stores or
// sums the losses.
template <class A, class F>
Status reduce_blocks(KernelCall& call, std::int64_t n, std::string_view reduction, F&& block) {
  const TensorArg& out = call.out[0];
  const std::int64_t parts = n > kSplitAbove ? (n + kPart - 1) / kPart : 1;
  const std::int64_t part_size = parts == 1 ? n : kPart;
  const bool none = is_none(reduction);
  A one = 0;
  A* totals = &one;
  if (parts > 1) {
    const std::size_t bytes = scratch_bytes(parts, sizeof(A));
    totals = static_cast<A*>(call.scratch.allocate(bytes));
    if (!totals) return out_of_scratch(call.op.name, bytes);
  }
  const auto run = [&](std::int64_t p) {
    const Fold<A>& sum = fold_of<A>(FoldKind::kSum);
    const std::int64_t first = p * part_size;
    const Row<A> to(out, 0, 1);
    A buffer[kRoom];
    A total = 0;
    each_block(std::min(part_size, n - first), [&](std::int64_t start, std::int64_t size) {
      A* losses = none ? to.room(first + start, buffer) : buffer;
      block(first + start, size, losses);
      if (none) {
        to.write(first + start, size, losses);
      } else {
        total += sum.leaf(losses, size);
      }
    });
    totals[p] = total;
  };
  if (parts == 1) {
    run(0);
  } else {
    call.parallel.run(parts, run);
  }
  if (none) return {};
  A total = 0;
  for (std::int64_t p = 0; p < parts; ++p) total += totals[p];
  if (is_mean(reduction)) total /= static_cast<A>(n);
  store_block<A>(out.dtype)(&total, 1, out.first(), 1);
  return {};
}

Status mse(KernelCall& call) {
  Status status;
  const RowMajor input(call, call.in[0], status), target(call, call.in[1], status);
  TT_RETURN_IF_ERROR(status);
  return with_float_type(call.out[0].dtype, [&](auto a) {
    using A = decltype(a);
    const Row<A> x = row_of<A>(input), t = row_of<A>(target);
    return reduce_blocks<A>(call, call.in[0].geometry->numel(), call.attributes.text(0),
                            [&](std::int64_t start, std::int64_t n, A* to) {
                              A xs[kRoom], ts[kRoom];
                              row_steps<A>().difference(x.read(start, n, xs), t.read(start, n, ts),
                                                        n, to);
                              row_steps<A>().product(to, to, n, to);
                            });
  });
}

Status mse_backward(KernelCall& call) {
  Status status;
  const RowMajor gradient(call, call.in[0], status), input(call, call.in[1], status),
      target(call, call.in[2], status);
  TT_RETURN_IF_ERROR(status);
  const std::string_view reduction = call.attributes.text(0);
  const std::int64_t count = call.in[1].geometry->numel();
  const Lines lines(core::Dims{(count + kLeaf - 1) / kLeaf, kLeaf}, 1);
  with_float_type(call.out[0].dtype, [&](auto a) {
    using A = decltype(a);
    const Row<A> g = row_of<A>(gradient), x = row_of<A>(input), t = row_of<A>(target),
                 out(call.out[0], 0, 1);
    const bool none = is_none(reduction);
    A first = 0;
    if (!none) first = *g.read(0, 1, &first);
    const A factor = is_mean(reduction) ? A(2) / static_cast<A>(count) * first : A(2) * first;
    lines.run(call.parallel, 1, [&](std::int64_t block) {
      const std::int64_t start = block * kLeaf, n = std::min(kLeaf, count - start);
      A xs[kRoom], ts[kRoom];
      A* y = out.room(start, xs);
      row_steps<A>().difference(x.read(start, n, xs), t.read(start, n, ts), n, y);
      row_steps<A>().scale(y, n, none ? A(2) : factor, y);
      if (none) row_steps<A>().product(y, g.read(start, n, ts), n, y);
      out.write(start, n, y);
    });
  });
  return {};
}

// Refuses elements outside of [0, 1] in the operand `x` of this name.
template <class A>
Status check_probabilities(const KernelCall& call, const std::string& name, const Row<A>& x,
                           std::int64_t count) {
  bool good = true;
  A buffer[kRoom];
  each_block(count, [&](std::int64_t start, std::int64_t n) {
    const A* values = x.read(start, n, buffer);
    for (std::int64_t i = 0; i < n; ++i) good &= values[i] >= 0 && values[i] <= 1;
  });
  if (good) return {};
  return core::invalid(call.op.name + ": all elements of " + name +
                       " must lie between 0 and 1, shape " +
                       core::to_string(call.in[0].geometry->shape));
}

template <Loss kLoss>
Status pointwise(KernelCall& call) {
  Status status;
  const Operands operands(call, status);
  TT_RETURN_IF_ERROR(status);
  LossSettings settings;
  if (kLoss == Loss::kSmoothL1 || kLoss == Loss::kHuber) settings.width = call.attributes.real(1);
  if (kLoss == Loss::kKlDiv) settings.log_target = call.attributes.boolean(1);
  return with_float_type(call.out[0].dtype, [&](auto a) -> Status {
    using A = decltype(a);
    const Row<A> x = row_of<A>(operands.input), t = row_of<A>(operands.target),
                 w = row_of<A>(operands.weight), pw = row_of<A>(operands.positive);
    const std::int64_t count = call.in[0].geometry->numel();
    if (kLoss == Loss::kBce) {
      TT_RETURN_IF_ERROR(check_probabilities(call, "input", x, count));
      TT_RETURN_IF_ERROR(check_probabilities(call, "target", t, count));
    }
    return reduce_blocks<A>(
        call, count, call.attributes.text(0), [&](std::int64_t start, std::int64_t n, A* to) {
          A xs[kRoom], ts[kRoom], ps[kRoom];
          const A* in = x.read(start, n, xs);
          const A* target = t.read(start, n, ts);
          const A* positive = pw.read(start, n, ps);
          for (std::int64_t i = 0; i < n; ++i) {
            to[i] = loss<kLoss>(in[i], target[i], positive ? positive[i] : A(1), settings);
          }
          if (!w.absent()) row_steps<A>().product(to, w.read(start, n, ps), n, to);
        });
  });
}

}  // namespace

void add_class_loss_kernels(KernelTable& table);  // losses_classes.cc

void add_loss_kernels(KernelTable& table) {
  table.add("mse_loss", mse);
  table.add("mse_loss_backward", mse_backward);
  table.add("l1_loss", pointwise<Loss::kL1>);
  table.add("smooth_l1_loss", pointwise<Loss::kSmoothL1>);
  table.add("huber_loss", pointwise<Loss::kHuber>);
  table.add("binary_cross_entropy", pointwise<Loss::kBce>);
  table.add("binary_cross_entropy_with_logits", pointwise<Loss::kBceLogits>);
  table.add("kl_div", pointwise<Loss::kKlDiv>);
  add_class_loss_kernels(table);
}

}  // namespace teletensor::backends::cpu
