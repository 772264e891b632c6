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

template <class A>
void sgd_one(KernelCall& call, const Part (&parts)[3], std::span<const TensorArg> hyper) {
  SgdStep<A> s;
  s.lr = static_cast<A>(scalar(hyper[0]));
  s.momentum = static_cast<A>(scalar(hyper[1]));
  s.damped = static_cast<A>(1 - scalar(hyper[2]));
  s.weight_decay = static_cast<A>(scalar(hyper[3]));
  s.nesterov = call.attributes.boolean(0);
  s.maximize = call.attributes.boolean(1);
  s.first = call.attributes.boolean(2);
  s.buffered = parts[2].in != nullptr;
  run_blocks<A>(call, parts, 0.5, [&s](std::int64_t n, const A* const* in, A* const* out) {
    sgd_block<A>(s, n, in[0], in[1], in[2], out[0], out[2]);
  });
}

Status sgd_step(KernelCall& call) {
  const std::size_t count = call.counts[0];
  const bool buffered = call.counts[2] != 0;
  const auto hyper = call.in.subspan(2 * count + call.counts[2]);
  for (std::size_t i = 0; i < count; ++i) {
    const Part parts[3] = {
        {&call.in[i], &call.out[i]},
        {&call.in[count + i], nullptr},
        {buffered ? &call.in[2 * count + i] : nullptr, buffered ? &call.out[count + i] : nullptr}};
    with_float_type(call.in[i].dtype, [&](auto a) { sgd_one<decltype(a)>(call, parts, hyper); });
  }
  return {};
}

template <class A>
void adam_one(KernelCall& call, const Part (&parts)[5], std::span<const TensorArg> hyper) {
  const double lr = scalar(hyper[0]), beta1 = scalar(hyper[1]), beta2 = scalar(hyper[2]),
               eps = scalar(hyper[3]), weight_decay = scalar(hyper[4]), t = scalar(hyper[5]);
  const bool decoupled = call.attributes.boolean(1);
  AdamStep<A> s;
  s.shrink = decoupled ? static_cast<A>(1 - lr * weight_decay) : A(1);
  s.weight_decay = decoupled ? A(0) : static_cast<A>(weight_decay);
  s.weight1 = static_cast<A>(1 - beta1);
  s.rest1 = A(1) - s.weight1;
  s.beta2 = static_cast<A>(beta2);
  s.weight2 = static_cast<A>(1 - beta2);
  s.step_size = static_cast<A>(lr / (1 - std::pow(beta1, t)));
  s.root2 = static_cast<A>(std::sqrt(1 - std::pow(beta2, t)));
  s.eps = static_cast<A>(eps);
  s.amsgrad = call.attributes.boolean(0);
  s.maximize = call.attributes.boolean(2);
  run_blocks<A>(call, parts, 1.0, [&s](std::int64_t n, const A* const* in, A* const* out) {
    adam_block<A>(s, n, {in[0], in[2], in[3], in[4]}, in[1], {out[0], out[2], out[3], out[4]});
  });
}

Status adam_step(KernelCall& call) {
  const std::size_t count = call.counts[0];
  const bool amsgrad = call.attributes.boolean(0);
  const auto hyper = call.in.subspan(4 * count + call.counts[4]);
  for (std::size_t i = 0; i < count; ++i) {
    const Part parts[5] = {{&call.in[i], &call.out[i]},
                           {&call.in[count + i], nullptr},
                           {&call.in[2 * count + i], &call.out[count + i]},
                           {&call.in[3 * count + i], &call.out[2 * count + i]},
                           {amsgrad ? &call.in[4 * count + i] : nullptr,
                            amsgrad ? &call.out[3 * count + i] : nullptr}};
    with_float_type(call.in[i].dtype, [&](auto a) { adam_one<decltype(a)>(call, parts, hyper); });
  }
  return {};
}

}  // namespace

void add_optimizer_kernels(KernelTable& table) {
  table.add("sgd_step", sgd_step);
  table.add("adam_step", adam_step);
}

}  // namespace teletensor::backends::cpu
