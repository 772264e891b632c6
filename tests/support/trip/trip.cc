// Raises a signal at a chosen point of a Python program, the same in every run (support/trip.py).
//
// This library counts the events that Python traces: lines, calls and instructions of the files in
// one folder. At the event with the chosen number the signal is marked as pending, without running
// a handler: as for a signal from outside, that happens when the interpreter next checks for
// signals, or in a native call that does. It is loaded into the interpreter and uses its functions;
// no header of Python is needed.
#include <string_view>
#include <unordered_map>

extern "C" {
using PyTrace = int (*)(void*, void*, int, void*);
void PyEval_SetTrace(PyTrace, void*);
int PyErr_SetInterruptEx(int);
void* PyFrame_GetCode(void*);
void* PyObject_GetAttrString(void*, const char*);
int PyObject_SetAttrString(void*, const char*, void*);
void* PyBool_FromLong(long);
const char* PyUnicode_AsUTF8(void*);
void Py_DecRef(void*);
void PyErr_Clear();
}

namespace {

enum What { kCall = 0, kLine = 2, kOpcode = 7 };

struct {
  std::string_view folder;
  std::unordered_map<void*, bool> codes;
  long count, at;
  int signal;
} g;

bool counts(void* frame) {
  void* const code = PyFrame_GetCode(frame);
  const auto known = g.codes.find(code);
  if (known != g.codes.end()) {
    Py_DecRef(code);
    return known->second;
  }
  void* const name = PyObject_GetAttrString(code, "co_filename");
  const char* const text = name != nullptr ? PyUnicode_AsUTF8(name) : nullptr;
  const bool found =
      text != nullptr && std::string_view(text).substr(0, g.folder.size()) == g.folder;
  if (text == nullptr) PyErr_Clear();
  if (name != nullptr) Py_DecRef(name);
  g.codes.emplace(code, found);  // the reference keeps the address from being reused
  return found;
}

int trace(void*, void* frame, int what, void*) {
  if (what != kCall && what != kLine && what != kOpcode) return 0;
  if (!counts(frame)) return 0;
  if (what == kCall) {
    void* const yes = PyBool_FromLong(1);
    if (PyObject_SetAttrString(frame, "f_trace_opcodes", yes) != 0) PyErr_Clear();
    Py_DecRef(yes);
  }
  if (++g.count == g.at) PyErr_SetInterruptEx(g.signal);
  return 0;
}

}  // namespace

// Starts to count in this thread, in files below `folder`; the string must stay valid.
extern "C" void trip_start(const char* folder, long at, int signal) {
  g.folder = folder;
  g.count = 0;
  g.at = at;
  g.signal = signal;
  PyEval_SetTrace(trace, nullptr);
}

// Stops counting; returns the number of events.
extern "C" long trip_stop() {
  PyEval_SetTrace(nullptr, nullptr);
  return g.count;
}
