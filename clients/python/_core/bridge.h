// Declares what torch_steps.cc and bridge.cc use of one another.
#pragma once

#include <span>
#include <vector>

#include "bindings.h"
#include "clients/torch/call.h"

namespace teletensor::client {

PySession& torch_session();  // of the PyTorch device; the current one from the first call on
core::Device torch_device();
void sweep_torch();  // lets go of the storages that torch has dropped

// Calls a captured step. Returns false, without an effect, if it is not valid for these arguments.
bool run_step(torch::Host& host, void* step, std::span<const tt_tensor> arguments,
              std::vector<tt_result>& results);
void bind_torch_steps(nb::module_& m);

}  // namespace teletensor::client
