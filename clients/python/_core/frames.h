// Accesses the values of a Python frame: its variables and its evaluation stack (depths.h computes
// the depth). The layouts are those of CPython's internal/pycore_frame.h.
#pragma once

#include <nanobind/nanobind.h>

namespace teletensor::client {

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
#define TELETENSOR_FRAMES 1

struct FrameData {
#if PY_VERSION_HEX < 0x030C0000
  PyObject *function, *globals, *builtins, *locals, *code, *object;
  void* previous;
  void* instruction;
  int stacktop;
  bool is_entry;
  char owner;
#else
  PyObject* code;
  void* previous;
  PyObject *function, *globals, *builtins, *locals, *object;
  void* instruction;
  int stacktop;
  std::uint16_t return_offset;
  char owner;
#endif
  PyObject* values[1];  // Local variables, cells and free variables; then the stack.
};

struct FrameObject {
  PyObject_HEAD PyFrameObject* back;
  FrameData* data;
};

inline FrameData& data_of(PyFrameObject* frame) {
  return *reinterpret_cast<FrameObject*>(frame)->data;
}
#endif

}  // namespace teletensor::client
