// Autocast: while it is on in a thread, operators receive their floating-point operands in another
// dtype, by a table of operator names. The casts are ordinary recorded instructions.
#pragma once

#include "bindings.h"

namespace teletensor::client {

// Returns true if autocast is on in this thread. Cheap, because every operator call asks.
bool autocasting();
// A key that identifies this thread's autocast mode. Empty while autocast is off.
std::string_view autocast_key();
// Casts the arguments as the operator's policy requires. An error is that of a cast.
Status autocast(PySession& session, OpId id, Arguments& arguments);

void bind_autocast(nb::module_& m);

}  // namespace teletensor::client
