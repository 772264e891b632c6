// TF32: while the process's switches are on, products and convolutions of float32 tensors on a GPU
// get the attribute that lets it round their factors. What a call says itself goes before.
#pragma once

#include "bindings.h"

namespace teletensor::client {

// Does the call get it? Cheap: asked at every call.
bool takes_tf32(OpId id, std::span<const Var> arguments, const core::Attributes& attributes);
// The attributes with it.
core::Attributes with_tf32(OpId id, const core::Attributes& attributes);

void bind_tf32(nb::module_& m);

}  // namespace teletensor::client
