// Device kernels for optimizer steps: many tensors in one launch. Hyperparameters that are tensors
// are read on the device, and the step's constants are computed there.
#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/text/base/calls.h"

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using core::Geometry;
using core::Status;
using ops::scalar::kMaxHypers;
using ops::scalar::Rule;
using ops::scalar::Step;

// Stores the constants of the step in `p`: by value, or computed on the device by a launch. With
// `skips` the last hyperparameter says whether to skip the step.
Status make_step(KernelCall& call, Work& work, std::span<const TensorArg> hyper, Rule rule,
                 bool skips, calls::StepCall& p) {
  calls::HyperCall h = {};
  h.n = 1;
  h.rule = rule;
  for (std::size_t i = 0; i < call.attributes.size() && i < 3 && rule != Rule::kUnscale; ++i) {
    h.flags[i] = call.attributes.boolean(i);
  }
  bool skip = false;
  const std::size_t count = hyper.size() - (skips ? 1 : 0);
  double* room = nullptr;
  static const Geometry scalar{core::Dims()};
  for (std::size_t i = 0; i < hyper.size(); ++i) {
    const std::size_t place = i < count ? i : static_cast<std::size_t>(kMaxHypers);
    const TensorArg& arg = hyper[i];
    if (arg.kind == TensorArg::Kind::kNumber) {
      if (i < count) h.numbers[place] = arg.number.as_double();
      if (i == count) skip = arg.number.as_double() != 0;
      continue;
    }
    if (room == nullptr) {
      room = static_cast<double*>(call.scratch.allocate((kMaxHypers + 1) * sizeof(double)));
      if (room == nullptr) return out_of_scratch(call.op.name, (kMaxHypers + 1) * 8);
    }
    TensorArg from = arg, to;
    from.data = arg.first();
    from.geometry = &scalar;
    to.kind = TensorArg::Kind::kTensor;
    to.data = room + place;
    to.dtype = DType::kF64;
    to.geometry = &scalar;
    TT_RETURN_IF_ERROR(describe_copy(call, from, to, work));
    h.mask |= 1u << place;
  }
  p.made = nullptr;
  p.step = ops::scalar::make_step(rule, h.numbers, h.flags);
  if (skip) p.step.rule = Rule::kSkip;
  if (h.mask == 0 || skip) return {};
  h.tensors = room;
  h.to = static_cast<Step<double>*>(call.scratch.allocate(sizeof(Step<double>)));
  if (h.to == nullptr) return out_of_scratch(call.op.name, sizeof(Step<double>));
  p.made = h.to;
  return add_recipe(work, {Recipe::kHyper}, h);
}

// Adds launches for all tensors, with as many tensors in each as its parameters can hold.
class Steps {
 public:
  Steps(Work& work, Rule rule, const calls::StepCall& p) : work_(work), rule_(rule), p_(p) {
    p_.n = 0;
    p_.count = 0;
  }

  // in[i] is null if part i is absent; out[i] is null also if part i is not written.
  Status add(const TensorArg* const (&in)[5], const TensorArg* const (&out)[5]) {
    const TensorArg& param = *in[0];
    const Geometry& layout = *param.geometry;
    if (!layout.dense()) return not_on_device("a parameter with gaps");
    calls::StepTensor tensor = {};
    for (int i = 0; i < 5; ++i) {
      for (const TensorArg* arg : {in[i], out[i]}) {
        if (arg != nullptr &&
            (arg->dtype != param.dtype || !(arg->geometry->strides == layout.strides))) {
          return not_on_device("parts of other dtypes or layouts");
        }
      }
      if (in[i] != nullptr) tensor.in[i] = in[i]->first();
      if (out[i] != nullptr) tensor.out[i] = out[i]->first();
    }
    tensor.n = layout.numel();
    if (tensor.n == 0) return {};
    if (p_.count == calls::kStepTensors || (p_.count > 0 && param.dtype != dtype_)) {
      TT_RETURN_IF_ERROR(flush());
    }
    dtype_ = param.dtype;
    tensor.first_block = p_.n;
    p_.n += (tensor.n + 1023) / 1024;
    p_.tensors[p_.count++] = tensor;
    return {};
  }

  Status flush() {
    if (p_.count == 0) return {};
    RecipeGraph graph{Recipe::kStep, {dtype_, float_of(dtype_)}};
    graph.option = static_cast<std::uint8_t>(rule_);
    TT_RETURN_IF_ERROR(add_recipe(work_, graph, p_));
    p_.n = 0;
    p_.count = 0;
    return {};
  }

 private:
  Work& work_;
  const Rule rule_;
  calls::StepCall p_;
  DType dtype_ = DType::kF32;
};

// The lists of a call are the parts of a step, in order. An empty list is an absent part. All parts
// except the gradients are written.
template <Rule kRule>
Status step(KernelCall& call, Work& work) {
  std::size_t lists = 0;
  for (const std::uint32_t count : call.counts) lists += count;
  calls::StepCall p = {};
  TT_RETURN_IF_ERROR(make_step(call, work, call.in.subspan(lists), kRule, true, p));
  Steps steps(work, kRule, p);
  for (std::size_t i = 0; i < call.counts[0]; ++i) {
    const TensorArg *in[5] = {}, *out[5] = {};
    std::size_t from = i, to = i;
    for (std::size_t list = 0; list < call.counts.size(); ++list) {
      const std::size_t count = call.counts[list];
      if (count == 0) continue;
      in[list] = &call.in[from];
      if (list != 1) {
        out[list] = &call.out[to];
        to += count;
      }
      from += count;
    }
    TT_RETURN_IF_ERROR(steps.add(in, out));
  }
  return steps.flush();
}

Status amp_unscale(KernelCall& call, Work& work) {
  const std::size_t count = call.counts[0];
  calls::StepCall p = {};
  TT_RETURN_IF_ERROR(
      make_step(call, work, call.in.subspan(count + 1, 1), Rule::kUnscale, false, p));
  RowMajorCall memory(call, work);
  static const Geometry scalar{core::Dims()};
  TensorArg found;
  found.kind = TensorArg::Kind::kTensor;
  found.data = memory.room(1, sizeof(float));
  found.dtype = DType::kF32;
  found.geometry = &scalar;
  TT_RETURN_IF_ERROR(memory.status());
  TensorArg before = call.in[count];
  before.data = before.first();
  before.geometry = &scalar;
  TT_RETURN_IF_ERROR(describe_copy(call, before, found, work));
  p.found = static_cast<float*>(found.data);
  Steps steps(work, Rule::kUnscale, p);
  for (std::size_t i = 0; i < count; ++i) {
    const TensorArg* const in[5] = {&call.in[i]};
    const TensorArg* const out[5] = {&call.out[i]};
    TT_RETURN_IF_ERROR(steps.add(in, out));
  }
  TT_RETURN_IF_ERROR(steps.flush());
  const TensorArg& after = call.out[count];
  return add_recipe(work, {Recipe::kFound, {after.dtype}},
                    calls::FoundCall{1, p.found, after.first()});
}

}  // namespace

void add_step_kernels(DeviceTable& table) {
  constexpr Skeleton kCell = Skeleton::kCell;
  table.add("sgd_step", kCell, step<Rule::kSgd>);
  table.add("adam_step", kCell, step<Rule::kAdam>);
  table.add("adamax_step", kCell, step<Rule::kAdamax>);
  table.add("nadam_step", kCell, step<Rule::kNadam>);
  table.add("radam_step", kCell, step<Rule::kRadam>);
  table.add("adagrad_step", kCell, step<Rule::kAdagrad>);
  table.add("adadelta_step", kCell, step<Rule::kAdadelta>);
  table.add("rmsprop_step", kCell, step<Rule::kRmsprop>);
  table.add("rprop_step", kCell, step<Rule::kRprop>);
  table.add("asgd_step", kCell, step<Rule::kAsgd>);
  table.add("amp_unscale", kCell, amp_unscale);
}

}  // namespace teletensor::backends::cuda
