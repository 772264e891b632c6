// Threads that are needed to receive the daemon's answers. A finalizer, which the garbage collector
// runs in whichever thread allocates, must not wait for an answer in such a thread: inside grpcio
// the thread holds locks that grpcio's other threads need before they deliver an answer, or it is
// itself the thread that delivers it.
#include <string_view>

#include "bindings.h"
#include "capture/objects.h"
#include "collection.h"

namespace teletensor::client {
namespace {

// A context variable that is set in the threads of this package that make calls. A thread that
// grpcio starts inherits the context of the thread that started it, so it is set there as well. It
// is not set in threads where the program itself uses grpcio.
PyObject* g_calls = nullptr;

bool makes_calls() {
  PyObject* value = nullptr;
  if (PyContextVar_Get(g_calls, nullptr, &value) != 0) throw nb::python_error();
  return nb::steal(value).is_valid();
}

bool in_module(nb::handle name, std::string_view module) {
  const std::string_view text = text_of(name.ptr());
  return text.starts_with(module) && (text.size() == module.size() || text[module.size()] == '.');
}

enum class Place : std::uint8_t {
  kElsewhere,
  kInsideCall,  // A thread inside a grpcio call, for a connection of this package.
  kKeeper,      // The thread that reads a session's stream and reconnects the session.
};

Place place_of(nb::handle frame) {
  for (nb::object at = nb::borrow(frame); !at.is_none(); at = nb::getattr(at, "f_back")) {
    const nb::object globals = nb::getattr(at, "f_globals");
    if (in_module(PyDict_GetItemString(globals.ptr(), "__name__"), "grpc")) {
      return makes_calls() ? Place::kInsideCall : Place::kElsewhere;
    }
    const nb::object name = nb::getattr(nb::getattr(at, "f_code"), "co_name");
    if (text_of(name.ptr()) != "_bootstrap_inner") continue;
    // A thread that is just starting has neither a frame of its own nor the context.
    const nb::object thread = nb::getattr(at, "f_locals")["self"];
    const nb::object target = nb::getattr(thread, "_target", nb::none());
    const nb::object module = nb::getattr(target, "__module__", nb::none());
    if (in_module(module, "grpc")) return Place::kInsideCall;
    if (in_module(module, "teletensor._connection.reattach")) return Place::kKeeper;
  }
  return Place::kElsewhere;
}

Place present_place() {
  const WithoutCollection paused;
  const nb::error_scope before;
  const nb::object frame =
      nb::steal(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  try {
    return frame.is_valid() ? place_of(frame) : Place::kElsewhere;
    // The internals of `threading` may differ in a later version of Python.
  } catch (const nb::python_error&) {
    return Place::kElsewhere;
  }
}

Status refusal() {
  return core::invalid(
      "a finalizer cannot wait for the daemon on a thread that is needed to receive the daemon's "
      "answers");
}

}  // namespace

Status check_may_wait() { return present_place() == Place::kElsewhere ? Status() : refusal(); }

void bind_threads(nb::module_& m) {
  g_calls = PyContextVar_New("teletensor.calls", nullptr);
  if (g_calls == nullptr) throw nb::python_error();
  m.def(
      "makes_calls",
      [] {
        const nb::object token = nb::steal(PyContextVar_Set(g_calls, Py_True));
        if (!token.is_valid()) throw nb::python_error();
      },
      "This thread makes calls, inside of which a finalizer does not wait.");
  m.def(
      "check_may_call",
      [] {
        if (present_place() == Place::kInsideCall) raise_if(refusal());
      },
      "RuntimeError where a finalizer would make a call inside another one.");
}

}  // namespace teletensor::client
