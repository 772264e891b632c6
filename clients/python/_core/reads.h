// Reads: what a function under capture reads from Python, noted instruction by instruction.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "guards.h"
#include "objects.h"

namespace teletensor::client {

// Runs a function and notes, as guards, every place outside of it that it reads: globals, variables
// of enclosing functions, attributes of objects, items of dicts and lists. What the function made
// itself, or stored at a place before it read it, is none of them. It finds this by looking at each
// instruction's operands, and it puts the plain number in the place of a Symbol where an
// instruction or a C function would not know what to do with one.
//
// They may run inside each other: the innermost one of a thread notes.
class Reads {
 public:
  explicit Reads(nb::object guards);
  Reads(const Reads&) = delete;
  ~Reads();

  // Calls function(*args, **kwargs). Without supported() it sees no instruction.
  nb::object run(nb::handle function, nb::handle args, nb::handle kwargs);
  static bool supported();

  // An object from outside: what is read of it is noted.
  void know(PyObject* object);
  // Each notes a read.
  void item(PyObject* container, PyObject* key, bool counts = false, const char* owner = nullptr);
  void attribute(PyObject* object, PyObject* name, bool counts = false);
  void cell(PyObject* cell, PyObject* name, bool counts = false);
  // All of a list, dict, set or deque; with `deep` of those inside, too.
  void whole(PyObject* container, bool deep);

  // A function in C that is called with these.
  void called(PyObject* function, PyObject* args);
  bool knows(PyObject* object) const { return known_.contains(object); }

  int paused = 0;  // above 0 nothing is noted

  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  friend int on_event(PyObject* self, PyFrameObject* frame, int what, PyObject* arg);

  // What the frames of a code object are.
  struct Code {
    Policy policy;
    nb::object object;
    nb::object bytes;
    nb::object names;         // of globals and attributes
    std::vector<int> depths;  // of the stack, by instruction
  };
  // Places that the function itself has written to.
  struct Written {
    nb::object keys = nb::steal(PyDict_New());  // key: a tuple of what stood there, or None
    bool replaced = false;                      // all of it is the function's own
    nb::object before;                          // a copy, where it was written to as a whole
  };

  const Code& code_of(PyFrameObject* frame);
  void enter(PyFrameObject* frame);
  void step(PyFrameObject* frame);
  struct Step;
  void read_global(Step& step);
  void read_variable(Step& step);
  void call(Policy policy, PyObject** callable, PyObject** self, PyObject** args, Py_ssize_t count);
  void call_with_containers(Step& step);
  void call_native(PyObject* callable, PyObject* self, PyObject** args, Py_ssize_t count);
  void method(std::string_view name, PyObject* self, PyObject** args, Py_ssize_t count);
  void take(PyObject* iterator);
  void store_attribute(PyObject* object, PyObject* name);
  void store_item(PyObject* container, PyObject* key);
  void mutate(PyObject* container, bool replaces);
  void class_attribute(PyTypeObject* type, PyObject* name, PyObject* found);
  bool own(PyObject* container, PyObject* key, bool& counted, nb::object& before);

  // Symbols
  bool is_symbol(PyObject* object) const;
  void plain(PyObject** slot, bool fixes = true);
  void plain_inside(PyObject** slot, int depth);

  nb::object guards_object_;
  Guards& guards_;
  std::unordered_set<PyObject*> known_;      // counted
  std::unordered_set<PyObject*> own_cells_;  // counted: made by the function
  std::unordered_map<PyObject*, Written> written_;
  std::unordered_map<PyObject*, Code> codes_;
  Py_tracefunc chained_ = nullptr;
  nb::object chained_object_;
};

void bind_reads(nb::module_& m);

}  // namespace teletensor::client
