// TF32: while the process's switches are on, matrix products and convolutions of float32 tensors on
// a GPU receive the attribute that allows rounding their factors to TF32. An attribute that the
// call sets itself has precedence.
#pragma once

#include "bindings.h"

namespace teletensor::client {

// Returns true if the call receives the attribute. Cheap, because every call asks.
bool takes_tf32(OpId id, std::span<const Var> arguments, const core::Attributes& attributes);
// Returns the attributes with TF32 allowed.
core::Attributes with_tf32(OpId id, const core::Attributes& attributes);

void bind_tf32(nb::module_& m);

}  // namespace teletensor::client
