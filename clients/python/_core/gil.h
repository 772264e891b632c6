// Releases and acquires Python's global interpreter lock (GIL) in a scope.
// When the interpreter ends, CPython before 3.14 unwinds a thread that requests the GIL by
// pthread_exit; a destructor or a thread's outermost frame on the way then aborts the process
// ("terminate called without an active exception"). Here such a thread waits until the process
// ends, as in CPython since 3.14. This applies where this code requests the GIL, and where it calls
// Python code, which releases the GIL now and then.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace teletensor::client {

template <class Ask>
auto wait_for_process_end(Ask ask) {
  try {
    return ask();
  } catch (...) {
    while (true) pause();
  }
}

// Calls `callable` and returns its result, or null with an error set. In a thread that Python did
// not create, the interpreter may unwind the thread inside the call.
template <class... Arguments>
PyObject* call_python(PyObject* callable, Arguments*... arguments) {
  return wait_for_process_end([&] {
    if constexpr (sizeof...(arguments) == 0) {
      return PyObject_CallNoArgs(callable);
    } else if constexpr (sizeof...(arguments) == 1) {
      return PyObject_CallOneArg(callable, arguments...);
    } else {
      return PyObject_CallFunctionObjArgs(callable, arguments..., nullptr);
    }
  });
}

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    wait_for_process_end([this] { PyEval_RestoreThread(state_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

class WithGil {
 public:
  WithGil() : state_(wait_for_process_end([] { return PyGILState_Ensure(); })) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  const PyGILState_STATE state_;
};

// Takes the GIL and runs the pending signal handlers; returns true, with an error set, if one of
// them raised.
inline bool signalled() {
  const WithGil held;
  return PyErr_CheckSignals() != 0;
}

}  // namespace teletensor::client
