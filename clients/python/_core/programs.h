// What scripts.cc needs of programs.cc.
#pragma once

#include "bindings.h"
#include "engine/program/program.h"

namespace teletensor::client {

// The program of a Python Program object.
const program::Program& program_of(nb::handle object);
// A Program object of this session; every parameter is an argument, every result an output.
nb::object program_object(PySession& session, program::Program program);

void bind_scripts(nb::module_& m);

}  // namespace teletensor::client
