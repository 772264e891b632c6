// Device kernels for elementwise ops: every op for which the CPU has a functor.
#include <algorithm>

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/plans/loop_plan.h"

namespace teletensor::backends::cuda {
namespace {

using core::Status;

constexpr std::string_view kOnlyElementwise[] = {"imag",    "sgn",   "angle",
                                                 "complex", "polar", "conj"};

}  // namespace

Status describe_elementwise(KernelCall& call, Work& work) {
  LoopStep step;
  step.op = &call.op;
  step.in = call.in;
  step.out = call.out[0];
  step.counts = call.counts;
  step.attributes = &call.attributes;
  LoopGraph graph;
  Launch launch;
  const LoopChecks checks{call, work};
  TT_RETURN_IF_ERROR(pack_loop({&step, 1}, call.parallel, call.scratch, graph, launch.params,
                               launch.shape, &checks));
  if (launch.params.empty()) return {};
  launch.key = graph.key();
  work.launches.push_back(std::move(launch));
  return {};
}

Status describe_copy(KernelCall& call, const TensorArg& from, const TensorArg& to, Work& work) {
  static const ops::OpDef& cast = *ops::catalog().find("clone");
  LoopStep step;
  step.op = &cast;
  step.in = {&from, 1};
  step.out = to;
  step.attributes = &call.attributes;
  return describe_loop({&step, 1}, call.parallel, call.scratch, work);
}

namespace {

// The outer product, as the product of a column and a row.
Status outer(KernelCall& call, Work& work) {
  static const ops::OpDef& mul = *ops::catalog().find("mul");
  const core::Geometry& x = *call.in[0].geometry;
  const core::Geometry column({x.shape[0], 1}, {x.strides[0], 1}, x.offset);
  TensorArg in[2] = {call.in[0], call.in[1]};
  in[0].geometry = &column;
  LoopStep step;
  step.op = &mul;
  step.in = in;
  step.out = call.out[0];
  step.attributes = &call.attributes;
  return describe_loop({&step, 1}, call.parallel, call.scratch, work);
}

}  // namespace

bool elementwise_only(std::string_view op) {
  return std::find(std::begin(kOnlyElementwise), std::end(kOnlyElementwise), op) !=
         std::end(kOnlyElementwise);
}

void add_loop_kernels(DeviceTable& table, const ops::Catalog& catalog) {
  for (ops::OpId id = 0; id < catalog.size(); ++id) {
    const ops::OpDef& op = catalog.at(id);
    if (op.name == "conj") continue;  // for real numbers conj is a copy
    if (host_kernel(op) != nullptr) table.add(op.name, Skeleton::kLoop, describe_elementwise);
  }
  table.add("outer", Skeleton::kMatmul, outer);
}

}  // namespace teletensor::backends::cuda
