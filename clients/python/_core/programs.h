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

// What the trace under way has become, as a dict; it ends. `keep`: a trace without a backward, for
// retraced().
nb::object end_trace(PySession& session, nb::handle outputs, std::uint64_t begun,
                     const std::string& name, const std::vector<std::string>& names, bool keep);
// Runs function(stand-ins of the tensors), which returns a list of leaves, as a trace: (the leaves,
// places of the tensors that were read from outside as well, what end_trace gives). In one call,
// which no signal leaves in between.
nb::tuple capture(PySession& session, nb::dict state, nb::object held, nb::list tensors,
                  nb::object function, const std::string& name,
                  const std::vector<std::string>& names);

// The class of numbers that a capture follows, or nullptr.
PyTypeObject* symbol_type();

void bind_scripts(nb::module_& m);

}  // namespace teletensor::client
