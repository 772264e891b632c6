// The optimizers' steps: one pass over each parameter and its state.

#include <atomic>
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
constexpr int kParts = kStepParts;

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
template <class A>
void run_blocks(KernelCall& call, const Part (&parts)[kParts], double cost, const Step<A>& step) {
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
      step_block<A>(step, end - begin, in, out);
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
      step_block<A>(step, n, in, out);
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

// Where a call's hyperparameters begin: behind its lists.
std::span<const TensorArg> hyperparameters(const KernelCall& call) {
  std::size_t lists = 0;
  for (const std::uint32_t count : call.counts) lists += count;
  return call.in.subspan(lists);
}

// The lists of a call are a step's parts, in order; an empty list is a part that is absent. All but
// the gradients are written.
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
      run_blocks<A>(call, parts, cost, step.template as<A>());
    });
  }
  return {};
}

Status sgd_step(KernelCall& call) {
  const auto hyper = hyperparameters(call);
  Step<double> s;
  s.rule = Rule::kSgd;
  s.lr = scalar(hyper[0]);
  s.momentum = scalar(hyper[1]);
  s.damped = 1 - scalar(hyper[2]);
  s.weight_decay = scalar(hyper[3]);
  s.nesterov = call.attributes.boolean(0);
  s.maximize = call.attributes.boolean(1);
  s.first = call.attributes.boolean(2);
  return run_step(call, s, 0.5);
}

// What the relatives of Adam share: lr, beta1, beta2, eps, weight_decay lead their hyperparameters.
Step<double> adam_like(Rule rule, std::span<const TensorArg> hyper, bool decoupled, bool maximize) {
  Step<double> s;
  s.rule = rule;
  s.maximize = maximize;
  s.lr = scalar(hyper[0]);
  s.weight1 = 1 - scalar(hyper[1]);
  s.beta2 = scalar(hyper[2]);
  s.weight2 = 1 - s.beta2;
  s.eps = scalar(hyper[3]);
  const double decay = scalar(hyper[4]);
  (decoupled ? s.shrink : s.weight_decay) = decoupled ? 1 - s.lr * decay : decay;
  return s;
}

Status adam_step(KernelCall& call) {
  const auto hyper = hyperparameters(call);
  Step<double> s =
      adam_like(Rule::kAdam, hyper, call.attributes.boolean(1), call.attributes.boolean(2));
  const double t = scalar(hyper[5]);
  s.lr /= 1 - std::pow(scalar(hyper[1]), t);
  s.divide2 = std::sqrt(1 - std::pow(s.beta2, t));
  return run_step(call, s, 1.0);
}

Status adamax_step(KernelCall& call) {
  const auto hyper = hyperparameters(call);
  Step<double> s = adam_like(Rule::kAdamax, hyper, false, call.attributes.boolean(0));
  s.lr /= 1 - std::pow(scalar(hyper[1]), scalar(hyper[5]));
  return run_step(call, s, 1.0);
}

Status nadam_step(KernelCall& call) {
  const auto hyper = hyperparameters(call);
  Step<double> s =
      adam_like(Rule::kNadam, hyper, call.attributes.boolean(0), call.attributes.boolean(1));
  const double mu = scalar(hyper[5]), mu_next = scalar(hyper[6]), product = scalar(hyper[7]);
  s.divide2 = 1 - std::pow(s.beta2, scalar(hyper[8]));
  s.grad_lr = s.lr * (1 - mu) / (1 - product);
  s.lr = s.lr * mu_next / (1 - product * mu_next);
  return run_step(call, s, 1.0);
}

Status radam_step(KernelCall& call) {
  const auto hyper = hyperparameters(call);
  Step<double> s =
      adam_like(Rule::kRadam, hyper, call.attributes.boolean(0), call.attributes.boolean(1));
  const double t = scalar(hyper[5]), power2 = std::pow(s.beta2, t);
  s.divide1 = 1 - std::pow(scalar(hyper[1]), t);
  s.divide2 = std::sqrt(1 - power2);
  // Lengths of the simple moving average: in the limit, and that which approximates step t.
  const double limit = 2 / (1 - s.beta2) - 1;
  const double length = limit - 2 * t * power2 / (1 - power2);
  s.rectified = length > 5;
  if (s.rectified) {
    s.rectify =
        std::sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length));
  }
  return run_step(call, s, 1.0);
}

Status adagrad_step(KernelCall& call) {
  const auto hyper = hyperparameters(call);
  Step<double> s;
  s.rule = Rule::kAdagrad;
  s.lr = scalar(hyper[0]) / (1 + (scalar(hyper[4]) - 1) * scalar(hyper[1]));
  s.eps = scalar(hyper[2]);
  s.weight_decay = scalar(hyper[3]);
  s.maximize = call.attributes.boolean(0);
  return run_step(call, s, 1.0);
}

Status adadelta_step(KernelCall& call) {
  const auto hyper = hyperparameters(call);
  Step<double> s;
  s.rule = Rule::kAdadelta;
  s.lr = scalar(hyper[0]);
  s.beta2 = scalar(hyper[1]);
  s.weight2 = 1 - s.beta2;
  s.eps = scalar(hyper[2]);
  s.weight_decay = scalar(hyper[3]);
  s.maximize = call.attributes.boolean(0);
  return run_step(call, s, 1.5);
}

Status rmsprop_step(KernelCall& call) {
  const auto hyper = hyperparameters(call);
  Step<double> s;
  s.rule = Rule::kRmsprop;
  s.lr = scalar(hyper[0]);
  s.beta2 = scalar(hyper[1]);
  s.weight1 = s.weight2 = 1 - s.beta2;
  s.eps = scalar(hyper[2]);
  s.weight_decay = scalar(hyper[3]);
  s.momentum = scalar(hyper[4]);
  s.maximize = call.attributes.boolean(0);
  return run_step(call, s, 1.0);
}

Status rprop_step(KernelCall& call) {
  const auto hyper = hyperparameters(call);
  Step<double> s;
  s.rule = Rule::kRprop;
  s.shorter = scalar(hyper[0]);
  s.longer = scalar(hyper[1]);
  s.low = scalar(hyper[2]);
  s.high = scalar(hyper[3]);
  s.maximize = call.attributes.boolean(0);
  return run_step(call, s, 1.0);
}

Status asgd_step(KernelCall& call) {
  const auto hyper = hyperparameters(call);
  Step<double> s;
  s.rule = Rule::kAsgd;
  s.lr = scalar(hyper[0]);
  s.shrink = 1 - scalar(hyper[1]) * s.lr;
  s.mu = scalar(hyper[2]);
  s.weight_decay = scalar(hyper[3]);
  s.maximize = call.attributes.boolean(0);
  return run_step(call, s, 0.5);
}

// The same loops: a gradient in the place of the param.
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
      step.found = &found;
      run_blocks<A>(call, parts, 0.5, step);
    });
  }
  const double value = found ? 1 : 0;
  store_block<double>(call.out[count].dtype)(&value, 1, call.out[count].first(), 1);
  return {};
}

}  // namespace

void add_optimizer_kernels(KernelTable& table) {
  table.add("sgd_step", sgd_step);
  table.add("adam_step", adam_step);
  table.add("adamax_step", adamax_step);
  table.add("nadam_step", nadam_step);
  table.add("radam_step", radam_step);
  table.add("adagrad_step", adagrad_step);
  table.add("adadelta_step", adadelta_step);
  table.add("rmsprop_step", rmsprop_step);
  table.add("rprop_step", rprop_step);
  table.add("asgd_step", asgd_step);
  table.add("amp_unscale", amp_unscale);
}

}  // namespace teletensor::backends::cpu
