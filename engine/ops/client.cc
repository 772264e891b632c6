// The op of a node whose backward is the client's own code (a Python autograd.Function).

#include "engine/ops/families.h"

namespace teletensor::ops {
namespace {

// The graph creates the results itself (handles on the memory of the values), so it never calls
// this.
core::Status never(InferContext& c, std::vector<core::Geometry>&) {
  return c.fail("can be created only by the autograd graph");
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
