// What scripts.cc and the linker need of programs.cc.
#pragma once

#include <set>

#include "bindings.h"
#include "engine/autograd/tracer.h"
#include "engine/program/program.h"

namespace teletensor::client {

// The program of a Python Program object.
const program::Program& program_of(nb::handle object);
// A Program object of this session; every parameter is an argument, every result an output.
nb::object program_object(PySession& session, program::Program program);

// What a Trace object holds, with the backward of those of its outputs.
autograd::Traced retraced(nb::handle trace, const std::set<program::HandleId>& roots);

// The class of numbers that a capture follows, or nullptr.
PyTypeObject* symbol_type();

void bind_scripts(nb::module_& m);

}  // namespace teletensor::client
