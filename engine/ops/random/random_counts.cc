// Random counts with one parameter per element: Poisson and binomial.

#include "engine/ops/families.h"
#include "engine/ops/functions.h"

namespace teletensor::ops {
namespace {

using core::Status;

void add_counts_like(InferContext& c) {
  const core::Geometry* const like[] = {&c.geometry(0)};
  c.add_result(c.dtype(0), core::elementwise_layout(c.shape(0), like));
}

Status infer_poisson(InferContext& c) {
  TT_RETURN_IF_ERROR(c.only_floating(c.dtype(0)));
  add_counts_like(c);
  return {};
}

Status infer_binomial(InferContext& c) {
  TT_RETURN_IF_ERROR(c.only_floating(c.dtype(0)));
  TT_RETURN_IF_ERROR(c.only_floating(c.dtype(1)));
  if (c.dtype(0) != c.dtype(1) || c.shape(0) != c.shape(1)) {
    return c.fail("count and prob must have one dtype and shape, they have " +
                  core::to_string(c.shape(0)) + " and " + core::to_string(c.shape(1)));
  }
  add_counts_like(c);
  return {};
}

}  // namespace

std::vector<OpDef> random_count_ops() {
  return {
      {.signature = "poisson(Tensor rate, int seed=0, int ordinal=0) -> Tensor",
       .doc = "Counts of a Poisson distribution with mean rate, for each element.",
       .infer = infer_poisson,
       .vjp = [](VjpContext& c) { c.give(0, zeros(c.builder(), c.operand_layout(0))); },
       .random = true},
      refusing({.signature = "binomial(Tensor count, Tensor prob, int seed=0, int ordinal=0) -> "
                             "Tensor",
                .doc = "How many of count trials succeed, each with probability prob, for each "
                       "element.",
                .infer = infer_binomial,
                .random = true}),
  };
}

}  // namespace teletensor::ops
