// The type of an object in the text of a TypeError.
#pragma once

#include <string>

#include "bindings.h"

namespace teletensor::client {

// Returns true for a tensor of PyTorch.
bool is_torch_tensor(PyObject* object);

// The name of the object's type. For a tensor of PyTorch and an array of NumPy it has the package
// and says which function makes a teletensor.Tensor of it.
std::string described(PyObject* object);

void bind_described(nb::module_& m);

}  // namespace teletensor::client
