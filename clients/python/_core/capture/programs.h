// Declarations of programs.cc for scripts.cc and the linker.
#pragma once

#include <set>

#include "bindings.h"
#include "engine/autograd/trace/tracer.h"
#include "engine/program/program.h"

namespace teletensor::client {

// The program of a Python Program object.
const program::Program& program_of(nb::handle object);
// A Program object of this session. Every parameter is an argument and every result an output.
nb::object program_object(PySession& session, program::Program program);

// The contents of a Trace object, with the backward of those of its outputs that are in `roots`.
autograd::Traced retraced(nb::handle trace, const std::set<program::HandleId>& roots);

// Ends the active trace and returns its program as a dict. With `keep`, it is a trace without a
// backward, for retraced().
nb::object end_trace(PySession& session, nb::handle outputs, std::uint64_t begun,
                     const std::string& name, const std::vector<std::string>& names, bool keep);
// The same, where the trace has taken `drawn` numbers of the generator with which it began.
nb::object end_trace_drawn(PySession& session, nb::handle outputs, std::uint64_t drawn,
                           const std::string& name, const std::vector<std::string>& names,
                           bool keep);

// Calls a Python Program object without numbers. `draw(n)` takes n numbers of a generator: it
// returns the seed and the first ordinal. Returns the outputs; nothing, without an effect, if the
// program is not valid for these arguments.
using Draw = std::function<std::pair<std::int64_t, std::int64_t>(std::uint64_t)>;
std::optional<Handles> call_program(nb::handle program, const std::vector<HandleRef>& arguments,
                                    const Draw& draw);
// Whether two Program objects have the same steps, numbers and results.
bool same_steps(nb::handle a, nb::handle b);
// Whether two Program objects have the same sources: the same arguments and the same views of the
// same memory.
bool same_sources(nb::handle a, nb::handle b);
// Runs function(stand-ins of the tensors), which returns a list of leaves, as a trace. Returns the
// leaves, the indices of the tensors that were also read from outside, and the result of
// end_trace(). It is a single native call, which no signal handler interrupts.
nb::tuple capture(PySession& session, nb::dict state, nb::object held, nb::list tensors,
                  nb::object function, const std::string& name,
                  const std::vector<std::string>& names);

// The class of numbers that a capture tracks. Null if it was not set.
PyTypeObject* symbol_type();

void bind_scripts(nb::module_& m);

}  // namespace teletensor::client
