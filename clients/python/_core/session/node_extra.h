// Defines what this client keeps for nodes of the tape, and for checkpointed calls.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string>
#include <vector>

#include "engine/autograd/objects.h"
#include "engine/core/ref.h"
#include "session/saved_hooks.h"

namespace teletensor::client {

namespace nb = nanobind;

// A checkpointed call: the function to run again, and the nodes that its second run has recorded.
class Frame final : public core::Counted {
 public:
  nb::object function;
  std::size_t count = 0;  // Number of nodes of the first run that saved values.
  std::vector<core::Ref<autograd::Node>> nodes;
  std::size_t left = 0;  // Number of entries of `nodes` that a backward has not used yet.
  nb::object outputs;    // Outputs of the second run; they keep its nodes alive in the daemon.
};

// Data that this client keeps for a tape node.
class NodeExtra final : public core::Counted {
 public:
  nb::object runner;  // For a node of a Function: called with the node and the gradients.
  std::string name;
  core::Ref<Frame> frame;
  std::size_t index = 0;  // Index of the node in its checkpoint frame.
  std::string site;       // In anomaly mode: the source line that recorded the node.
  // The saved_tensors_hooks for each saved value of the node, until the value is packed.
  std::vector<SavedHooks::Packing> packing;
  // A result of pack().
  struct Packed {
    int slot;
    nb::object value, unpack;
    bool requires_grad;
  };
  std::vector<Packed> packed;
};
// Returns the node's data, which is created at the first call.
NodeExtra& extra_of(autograd::Node& node);

}  // namespace teletensor::client
