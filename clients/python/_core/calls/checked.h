// Declares Python functions that check the types of their arguments.
#pragma once

#include "bindings.h"

namespace teletensor::client {

void bind_checked(nb::module_& m);

}  // namespace teletensor::client
