// Reads records what a captured function reads from Python objects, instruction by instruction.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capture/guards.h"
#include "capture/objects.h"

namespace teletensor::client {

// Runs a function and records, as guards, every place outside the function that it reads: globals,
// variables of enclosing functions, attributes of objects, and elements of dicts and lists. Objects
// that the function has created, and places that it has written before reading them, are not
// recorded. It inspects the operands of each instruction. If an instruction or a C function cannot
// handle a Symbol, it replaces the Symbol by the plain number.
// Objects of this class may be nested; the innermost one of a thread records.
class Reads {
 public:
  explicit Reads(nb::object guards);
  Reads(const Reads&) = delete;
  ~Reads();

  // Calls function(*args, **kwargs). Unless supported() is true, it sees no instructions.
  nb::object run(nb::handle function, nb::handle args, nb::handle kwargs);
  static bool supported();

  // Marks an object as coming from outside the function, so that reads of it are recorded.
  void know(PyObject* object);
  // Each function records one read.
  void item(PyObject* container, PyObject* key, bool counts = false, const char* owner = nullptr);
  void attribute(PyObject* object, PyObject* name, bool counts = false);
  void cell(PyObject* cell, PyObject* name, bool counts = false);
  // Records all elements of a list, dict, set or deque; with `deep`, also those of nested
  // containers.
  void whole(PyObject* container, bool deep);

  // Records that the function writes an item, so that reads of it after that are not recorded.
  void store_item(PyObject* container, PyObject* key);

  // Handles the call of a C function with these arguments.
  void called(PyObject* function, PyObject* args);
  bool knows(PyObject* object) const { return known_.contains(object); }

  int paused = 0;  // While it is above 0, nothing is recorded.

  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  friend int on_event(PyObject* self, PyFrameObject* frame, int what, PyObject* arg);

  // Properties of the frames of a code object.
  struct Code {
    Policy policy;
    nb::object object;
    nb::object bytes;
    nb::object names;         // Names of globals and attributes in the code.
    std::vector<int> depths;  // Stack depth for each instruction.
  };
  // Places that the function has written.
  struct Written {
    // Maps each written key to None, or to a tuple of its earlier value if the function increments
    // that value.
    nb::object keys = nb::steal(PyDict_New());
    bool replaced = false;  // Whether the function has written the whole container.
    nb::object before;      // A copy of the earlier container, if it was written as a whole.
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
  void mutate(PyObject* container, bool replaces);
  void class_attribute(PyTypeObject* type, PyObject* name, PyObject* found);
  void super_attribute(PyObject* of, PyObject* self_class, PyObject* name);
  void read_name(Step& step);
  void printed(PyObject* object);
  void got(PyObject* getter, PyObject* object);
  bool own(PyObject* container, PyObject* key, bool& counted, nb::object& before);
  void know_tensor(PyObject* tensor);
  bool tensor_attribute(PyObject* tensor, PyObject* name);
  void compare_identity(PyObject* object);

  // ---- Symbols
  bool is_symbol(PyObject* object) const;
  void plain(PyObject** slot, bool fixes = true);
  void plain_inside(PyObject** slot, int depth);

  nb::object guards_object_;
  Guards& guards_;
  std::unordered_set<PyObject*> known_;  // Objects from outside; counted references.
  // Counted references to cells that the function has created.
  std::unordered_set<PyObject*> own_cells_;
  std::unordered_map<PyObject*, Written> written_;
  // The `.grad` of each tensor from outside when the function first reached it; null if it had
  // none.
  std::unordered_map<PyObject*, HandleRef> first_grads_;
  std::unordered_map<PyObject*, Code> codes_;
  Py_tracefunc chained_ = nullptr;
  nb::object chained_object_;
};

void bind_reads(nb::module_& m);

}  // namespace teletensor::client
