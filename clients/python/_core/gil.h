// Python's lock let go, and taken, in a scope.
//
// When the interpreter ends, CPython (before 3.14) unwinds a thread that asks for the lock, by
// pthread_exit, and a destructor or a thread's own frame on the way aborts the process. Here such a
// thread stays where it is, as CPython's do since 3.14, until the process is gone.
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
