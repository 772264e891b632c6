// Autocast: while a thread has it on, ops get their floating operands in another dtype, by a table
// of op names. Casts are ordinary recorded instructions.
#pragma once

#include "bindings.h"

namespace teletensor::client {

using Arguments = core::InlineVector<Var, 3>;

// Is it on in this thread? Cheap: asked at every call.
bool autocasting();
// What tells this thread's mode from others; "" while it is off.
std::string_view autocast_key();
// Casts what the op's policy says. A failure is the cast's own.
Status autocast(PySession& session, OpId id, Arguments& arguments);

void bind_autocast(nb::module_& m);

}  // namespace teletensor::client
