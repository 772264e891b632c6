// Python's lock let go, and taken, in a scope.
//
// When the interpreter ends, CPython (before 3.14) unwinds a thread that asks for the lock, by
// pthread_exit, and a destructor or a thread's own frame on the way aborts the process ("terminate
// called without an active exception"). Here such a thread stays where it is, as CPython's do since
// 3.14, until the process is gone: where we ask for the lock, and where we call Python code, which
// lets others have it now and then.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace teletensor::client {

template <class Ask>
auto stay_at_the_end(Ask ask) {
  try {
    return ask();
  } catch (...) {
    while (true) pause();
  }
}

// What `callable` returns; null with an error set. In a thread that is no more than a guest of the
// interpreter's, Python code may be where it is unwound.
template <class... Arguments>
PyObject* call_python(PyObject* callable, Arguments*... arguments) {
  return stay_at_the_end([&] {
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
    stay_at_the_end([this] { PyEval_RestoreThread(state_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

class WithGil {
 public:
  WithGil() : state_(stay_at_the_end([] { return PyGILState_Ensure(); })) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  const PyGILState_STATE state_;
};

}  // namespace teletensor::client
