// Scripts: joins pieces of straight-line code, branches and loops to one program. The compiler is
// teletensor/_script; its tensors are stand-ins of a session that is not connected to a daemon.

#include <algorithm>

#include "capture/linker.h"
#include "engine/ops/verify.h"
#include "engine/passes/passes.h"

namespace teletensor::client {
namespace {

using program::Program;
using program::ValueId;

const Handle& handle_of_tensor(nb::handle object) {
  PyTensor* t = tensor_of(object.ptr());
  if (t == nullptr) throw nb::type_error("script: a Tensor is expected");
  return *t->handle;
}

Linker linked(const std::string& name, const Pieces& pieces, nb::list inputs, nb::list outputs,
              Linker::Tape* tape) {
  Linker linker(name);
  for (nb::handle each : inputs) linker.input(handle_of_tensor(each));
  linker.run(pieces, tape);
  for (nb::handle each : outputs) linker.output(handle_of_tensor(each));
  linker.rebinds();
  return linker;
}

// Returns the program, and its backward if outputs have gradients that come from inputs, in the
// format of end_trace().
nb::dict link(PySession& session, const std::string& name, nb::list nodes, nb::list inputs,
              nb::list outputs, bool gradients) {
  Pieces pieces = pieces_of(nodes);
  std::set<const Handle*> wanted;
  if (gradients) {
    for (nb::handle each : outputs) {
      PyTensor* t = tensor_of(each.ptr());
      if (t != nullptr && t->handle->requires_grad()) {
        wanted.insert(t->handle.get());
      }
    }
    live(pieces, wanted);
  }
  Linker::Tape tape;
  Linker forward = linked(name, pieces, inputs, outputs, gradients ? &tape : nullptr);
  nb::dict out;
  std::vector<ValueId> saved;
  if (gradients) {
    Linker backward(name + ".backward", &forward);
    Linker::Gradients seeds;
    nb::list differentiated, received, kept;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Handle& h = handle_of_tensor(outputs[i]);
      if (!wanted.contains(&h) || seeds.contains(&h)) continue;
      seeds.emplace(&h, backward.seed(h));
      differentiated.append(i);
    }
    backward.reverse(tape, seeds);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto found = seeds.find(&handle_of_tensor(inputs[i]));
      if (found == seeds.end()) continue;
      backward.result(found->second);
      received.append(i);
    }
    saved = backward.saved();
    if (received.size() > 0) {
      const auto& parameters = forward.program().body.parameters;
      std::size_t results = forward.program().body.results.size();
      for (const ValueId v : saved) {
        const auto at = std::find_if(parameters.begin(), parameters.end(),
                                     [&](const program::View& p) { return p.value == v; });
        const bool is_input = at != parameters.end();
        kept.append(nb::make_tuple(
            is_input, is_input ? static_cast<std::size_t>(at - parameters.begin()) : results++));
        if (!is_input) forward.result(forward.whole(v));
      }
      Program program = backward.take();
      raise_if(ops::verify(program, ops::catalog()));
      out["backward"] = program_object(session, std::move(program));
      out["saved"] = kept;
      out["differentiated"] = differentiated;
      out["wanted"] = received;
    }
  }
  Program program = passes::dce(forward.take());
  raise_if(ops::verify(program, ops::catalog()));
  out["program"] = program_object(session, std::move(program));
  out["outputs"] = outputs.size();
  return out;
}

}  // namespace

void bind_scripts(nb::module_& m) {
  m.def("link_program", &link, nb::arg("session"), nb::arg("name"), nb::arg("nodes"),
        nb::arg("inputs"), nb::arg("outputs"), nb::arg("gradients"),
        "One program of pieces, branches and loops over stand-ins, and with `gradients` its "
        "backward.");
  m.def(
      "like",
      [](PySession& session, nb::handle object, bool requires_grad) {
        core::Layout layout = handle_of_tensor(object).layout;
        layout.geometry.offset = 0;
        const HandleRef h = session.stand_in(layout);
        h->flag = requires_grad;
        PyObject* made = wrap(session, h);
        if (made == nullptr) throw nb::python_error();
        return nb::steal(made);
      },
      nb::arg("session"), nb::arg("tensor"), nb::arg("requires_grad") = false,
      "A stand-in of the same layout.");
  m.def(
      "one_storage",
      [](nb::handle a, nb::handle b) {
        return handle_of_tensor(a).cell == handle_of_tensor(b).cell;
      },
      "Returns true if the two tensors share memory.");
  m.def("tracing", [](PySession& session) { return session.commands().tracer() != nullptr; });
  m.def("alive_in_trace", [](PySession& session) {
    nb::list out;
    if (session.commands().tracer() == nullptr) return out;
    for (const auto& [id, h] : session.commands().tracer()->alive()) {
      if (h->owner == nullptr) continue;
      PyObject* object = wrap(session, HandleRef(h));
      if (object == nullptr) throw nb::python_error();
      out.append(nb::steal(object));
    }
    return out;
  });
}

}  // namespace teletensor::client
