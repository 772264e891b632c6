// The node of a function whose backward is the client's own code (a Python autograd.Function).

#include "engine/ops/families.h"

namespace teletensor::ops {
namespace {

// The graph makes the results (names of the values' own memory) and never asks.
core::Status never(InferContext& c, std::vector<core::Geometry>&) {
  return c.fail("is made by the graph");
}

}  // namespace

std::vector<OpDef> client_ops() {
  return {
      {.signature = "client_node(Tensor[] inputs, Tensor[] values, Tensor[] saved) -> Tensor[]",
       .doc = "Names of the values, recorded as made from the inputs by a function of the client, "
              "which alone can run its backward; the tape keeps what is saved.",
       .view = never,
       .not_differentiable = "its derivative is the client's",
       .internal = true},
  };
}

}  // namespace teletensor::ops
