// Kernels of the optimizers' steps: one pass over each parameter and its state.

#include <atomic>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/nn/optimizer_simd.h"

namespace teletensor::backends::cpu {
namespace {

using core::DType;
using core::Geometry;
using core::Status;

constexpr std::int64_t kBlock = 256;
constexpr int kParts = kStepParts;

double scalar(const TensorArg& arg) {
  if (arg.kind == TensorArg::Kind::kNumber) return arg.number.as_double();
  double value = 0;
  load_block<double>(arg.dtype)(arg.first<const void>(), 1, 1, &value);
  return value;
}

// A tensor that a step reads and, possibly, writes.
struct Part {
  const TensorArg* in = nullptr;
  const TensorArg* out = nullptr;
};

// Returns true if all parts have the step's own type and the layout of the first part, so that
// blocks need no copies.
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

// Calls step(n, inputs, outputs) for blocks of all parts; outputs[i] is null if part i is not
// written.
template <class A>
void run_blocks(KernelCall& call, const Part (&parts)[kParts], double cost, const Step<A>& step,
                std::atomic<bool>* found = nullptr) {
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
      step_block<A>(step, end - begin, in, out, found);
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
      step_block<A>(step, n, in, out, found);
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

// The hyperparameters of a call, which follow its lists.
std::span<const TensorArg> hyperparameters(const KernelCall& call) {
  std::size_t lists = 0;
  for (const std::uint32_t count : call.counts) lists += count;
  return call.in.subspan(lists);
}

// The lists of a call are the parts of a step, in order. An empty list is an absent part. All parts
// except the gradients are written.
Status run_step(KernelCall& call, Step<double> step, double cost) {
  if (scalar(call.in.back()) != 0) step.rule = Rule::kSkip;
  for (std::size_t i = 0; i < call.counts[0]; ++i) {
    Part parts[kParts];
    std::size_t in = i, out = i;
    for (std::size_t list = 0; list < call.counts.size(); ++list) {
      const std::size_t count = call.counts[list];
      if (count == 0) continue;
      parts[list].in = &call.in[in];
      if (list != 1) {
        parts[list].out = &call.out[out];
        out += count;
      }
      in += count;
    }
    with_float_type(call.in[i].dtype, [&](auto a) {
      using A = decltype(a);
      run_blocks<A>(call, parts, cost, ops::scalar::converted<A>(step));
    });
  }
  return {};
}

// A rough cost in nanoseconds per element.
double cost_of(Rule rule) {
  return rule == Rule::kSgd || rule == Rule::kAsgd ? 0.5 : rule == Rule::kAdadelta ? 1.5 : 1.0;
}

template <Rule kRule>
Status step_kernel(KernelCall& call) {
  const auto hyper = hyperparameters(call);
  double numbers[ops::scalar::kMaxHypers] = {};
  for (std::size_t i = 0; i + 1 < hyper.size(); ++i) numbers[i] = scalar(hyper[i]);
  bool flags[3] = {};
  for (std::size_t i = 0; i < call.attributes.size(); ++i) flags[i] = call.attributes.boolean(i);
  return run_step(call, ops::scalar::make_step(kRule, numbers, flags), cost_of(kRule));
}

// Uses the same loops, with the gradient in the place of the param.
Status amp_unscale(KernelCall& call) {
  const std::size_t count = call.counts[0];
  const double scale = scalar(call.in[count + 1]);
  std::atomic<bool> found = scalar(call.in[count]) != 0;
  for (std::size_t i = 0; i < count; ++i) {
    Part parts[kParts];
    parts[0] = {&call.in[i], &call.out[i]};
    with_float_type(call.in[i].dtype, [&](auto a) {
      using A = decltype(a);
      Step<A> step;
      step.rule = Rule::kUnscale;
      step.lr = static_cast<A>(scale);
      run_blocks<A>(call, parts, 0.5, step, &found);
    });
  }
  const double value = found ? 1 : 0;
  store_block<double>(call.out[count].dtype)(&value, 1, call.out[count].first(), 1);
  return {};
}

}  // namespace

void add_optimizer_kernels(KernelTable& table) {
  table.add("sgd_step", step_kernel<Rule::kSgd>);
  table.add("adam_step", step_kernel<Rule::kAdam>);
  table.add("adamax_step", step_kernel<Rule::kAdamax>);
  table.add("nadam_step", step_kernel<Rule::kNadam>);
  table.add("radam_step", step_kernel<Rule::kRadam>);
  table.add("adagrad_step", step_kernel<Rule::kAdagrad>);
  table.add("adadelta_step", step_kernel<Rule::kAdadelta>);
  table.add("rmsprop_step", step_kernel<Rule::kRmsprop>);
  table.add("rprop_step", step_kernel<Rule::kRprop>);
  table.add("asgd_step", step_kernel<Rule::kAsgd>);
  table.add("amp_unscale", amp_unscale);
}

}  // namespace teletensor::backends::cpu
