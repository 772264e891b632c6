// Accesses the values of a Python frame: its variables and its evaluation stack (depths.h computes
// the depth). The layouts are those of CPython's internal/pycore_frame.h. Reading them makes no
// frame object, unlike CPython's public functions.
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

// Returns `frame`, or the nearest of its callers that runs Python code; null if there is none. From
// 3.12 on the interpreter has frames of its own between them.
inline FrameData* python_frame(FrameData* frame) {
#if PY_VERSION_HEX >= 0x030C0000
  constexpr char kOwnedByInterpreter = 3;  // FRAME_OWNED_BY_CSTACK
  while (frame != nullptr && frame->owner == kOwnedByInterpreter) {
    frame = static_cast<FrameData*>(frame->previous);
  }
#endif
  return frame;
}
inline FrameData* caller_of(const FrameData& frame) {
  return python_frame(static_cast<FrameData*>(frame.previous));
}
// The innermost frame of Python code of the calling thread.
inline FrameData* present_frame() {
#if PY_VERSION_HEX < 0x030D0000
  void* const frame = PyThreadState_Get()->cframe->current_frame;
#else
  void* const frame = PyThreadState_Get()->current_frame;
#endif
  return python_frame(static_cast<FrameData*>(frame));
}
inline PyCodeObject* code_of(const FrameData& frame) {
  return reinterpret_cast<PyCodeObject*>(frame.code);
}
// The offset of the present instruction in bytes, as PyFrame_GetLasti returns it.
inline int instruction_of(const FrameData& frame) {
  const auto* const begin = reinterpret_cast<const char*>(code_of(frame)->co_code_adaptive);
  return static_cast<int>(static_cast<const char*>(frame.instruction) - begin);
}
#endif

}  // namespace teletensor::client
