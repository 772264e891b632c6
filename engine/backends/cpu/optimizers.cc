// sgd_step and adam_step: one pass over each parameter and its state.

#include <cmath>

#include "engine/backends/cpu/block_io.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/optimizer_simd.h"
#include "engine/backends/cpu/strided.h"

namespace teletensor::backends::cpu {
namespace {

using core::DType;
using core::Geometry;
using core::Status;

constexpr std::int64_t kBlock = 256;

double scalar(const TensorArg& arg) {
  if (arg.kind == TensorArg::Kind::kNumber) return arg.number.as_double();
  double value = 0;
  load_block<double>(arg.dtype)(arg.first<const void>(), 1, 1, &value);
  return value;
}

// One memory that a step reads and, perhaps, writes.
struct Part {
  const TensorArg* in = nullptr;
  const TensorArg* out = nullptr;
};

// Everything has the step's own type and the first one's layout, so that blocks need no copies.
template <class A>
bool direct(std::span<const Part> parts) {
  const Geometry& layout = *parts[0].in->geometry;
  if (!layout.dense()) return false;
  for (const Part& part : parts) {
    for (const TensorArg* arg : {part.in, part.out}) {
      if (arg && (arg->dtype != kDTypeOf<A> || !(arg->geometry->strides == layout.strides))) {
        return false;
      }
    }
  }
  return true;
}

// Calls step(n, inputs, outputs) for blocks of all parts; outputs[i] is null where a part has none.
template <class A, int kParts, class F>
void run_blocks(KernelCall& call, const Part (&parts)[kParts], double cost, F step) {
  const Geometry& layout = *parts[0].in->geometry;
  if (direct<A>(parts)) {
    split(call.parallel, layout.numel(), cost, 64, [&](std::int64_t begin, std::int64_t end) {
      const A* in[kParts];
      A* out[kParts];
      for (int i = 0; i < kParts; ++i) {
        const TensorArg *from = parts[i].in, *to = parts[i].out;
        in[i] = from ? from->first<const A>() + begin : nullptr;
        out[i] = to ? to->first<A>() + begin : nullptr;
      }
      step(end - begin, in, out);
    });
    return;
  }
  const LinearOrder order(layout);
  Walk from[kParts], to[kParts];
  LoadBlock<A> load[kParts];
  StoreBlock<A> store[kParts];
  for (int i = 0; i < kParts; ++i) {
    if (parts[i].in) {
      from[i] = Walk(*parts[i].in->geometry, order, layout.rank());
      load[i] = load_block<A>(parts[i].in->dtype);
    }
    if (parts[i].out) {
      to[i] = Walk(*parts[i].out->geometry, order, layout.rank());
      store[i] = store_block<A>(parts[i].out->dtype);
    }
  }
  split(call.parallel, order.count, cost * 4, kBlock, [&](std::int64_t begin, std::int64_t end) {
    A memory[kParts][kBlock];
    const A* in[kParts];
    A* out[kParts];
    for (std::int64_t at = begin; at < end; at += kBlock) {
      const std::int64_t n = std::min(kBlock, end - at);
      for (int i = 0; i < kParts; ++i) {
        in[i] = parts[i].in ? memory[i] : nullptr;
        out[i] = parts[i].out ? memory[i] : nullptr;
        if (!parts[i].in) continue;
        const TensorArg& arg = *parts[i].in;
        const auto element = static_cast<std::int64_t>(core::size_of(arg.dtype));
        A* block = memory[i];
        from[i].runs(at, n, [&](std::int64_t offset, std::int64_t stride, std::int64_t count) {
          load[i](arg.first<const char>() + offset * element, stride, count, block);
          block += count;
        });
      }
      step(n, in, out);
      for (int i = 0; i < kParts; ++i) {
        if (!parts[i].out) continue;
        const TensorArg& arg = *parts[i].out;
        const auto element = static_cast<std::int64_t>(core::size_of(arg.dtype));
        const A* block = memory[i];
        to[i].runs(at, n, [&](std::int64_t offset, std::int64_t stride, std::int64_t count) {
          store[i](block, count, arg.first<char>() + offset * element, stride);
          block += count;
        });
      }
    }
  });
}

// Hyperparameters are read once, in double, and rounded to each parameter's compute type.
template <class A>
SgdStep<A> rounded(const SgdStep<double>& s) {
  return {static_cast<A>(s.lr),
          static_cast<A>(s.momentum),
          static_cast<A>(s.damped),
          static_cast<A>(s.weight_decay),
          s.buffered,
          s.first,
          s.nesterov,
          s.maximize};
}

Status sgd_step(KernelCall& call) {
  const std::size_t count = call.counts[0];
  const auto hyper = call.in.subspan(2 * count + call.counts[2]);
  const core::Attributes& flags = call.attributes;
  const SgdStep<double> step{scalar(hyper[0]), scalar(hyper[1]),    1 - scalar(hyper[2]),
                             scalar(hyper[3]), call.counts[2] != 0, flags.boolean(2),
                             flags.boolean(0), flags.boolean(1)};
  for (std::size_t i = 0; i < count; ++i) {
    const bool buffered = step.buffered;
    const Part parts[3] = {
        {&call.in[i], &call.out[i]},
        {&call.in[count + i], nullptr},
        {buffered ? &call.in[2 * count + i] : nullptr, buffered ? &call.out[count + i] : nullptr}};
    with_float_type(call.in[i].dtype, [&](auto a) {
      using A = decltype(a);
      const SgdStep<A> s = rounded<A>(step);
      run_blocks<A>(call, parts, 0.5, [&s](std::int64_t n, const A* const* in, A* const* out) {
        sgd_block<A>(s, n, in[0], in[1], in[2], out[0], out[2]);
      });
    });
  }
  return {};
}

template <class A>
AdamStep<A> rounded(const AdamStep<double>& s) {
  const A weight1 = static_cast<A>(s.weight1);
  return {static_cast<A>(s.shrink),
          static_cast<A>(s.weight_decay),
          weight1,
          A(1) - weight1,
          static_cast<A>(s.beta2),
          static_cast<A>(s.weight2),
          static_cast<A>(s.step_size),
          static_cast<A>(s.root2),
          static_cast<A>(s.eps),
          s.amsgrad,
          s.maximize};
}

Status adam_step(KernelCall& call) {
  const std::size_t count = call.counts[0];
  const auto hyper = call.in.subspan(4 * count + call.counts[4]);
  const double lr = scalar(hyper[0]), beta1 = scalar(hyper[1]), beta2 = scalar(hyper[2]),
               eps = scalar(hyper[3]), weight_decay = scalar(hyper[4]), t = scalar(hyper[5]);
  const bool amsgrad = call.attributes.boolean(0), decoupled = call.attributes.boolean(1);
  const AdamStep<double> step{decoupled ? 1 - lr * weight_decay : 1,
                              decoupled ? 0 : weight_decay,
                              1 - beta1,
                              0,
                              beta2,
                              1 - beta2,
                              lr / (1 - std::pow(beta1, t)),
                              std::sqrt(1 - std::pow(beta2, t)),
                              eps,
                              amsgrad,
                              call.attributes.boolean(2)};
  for (std::size_t i = 0; i < count; ++i) {
    const Part parts[5] = {{&call.in[i], &call.out[i]},
                           {&call.in[count + i], nullptr},
                           {&call.in[2 * count + i], &call.out[count + i]},
                           {&call.in[3 * count + i], &call.out[2 * count + i]},
                           {amsgrad ? &call.in[4 * count + i] : nullptr,
                            amsgrad ? &call.out[3 * count + i] : nullptr}};
    with_float_type(call.in[i].dtype, [&](auto a) {
      using A = decltype(a);
      const AdamStep<A> s = rounded<A>(step);
      run_blocks<A>(call, parts, 1.0, [&s](std::int64_t n, const A* const* in, A* const* out) {
        adam_block<A>(s, n, {in[0], in[2], in[3], in[4]}, in[1], {out[0], out[2], out[3], out[4]});
      });
    });
  }
  return {};
}

}  // namespace

void add_optimizer_kernels(KernelTable& table) {
  table.add("sgd_step", sgd_step);
  table.add("adam_step", adam_step);
}

}  // namespace teletensor::backends::cpu
