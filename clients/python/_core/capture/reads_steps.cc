// The instructions of a captured function. CPython calls the trace function with an opcode event
// before each instruction; the operands are on the frame's stack (frames.h, depths.h).

#include <nanobind/eval.h>

#include <array>
#include <cstring>

#include "capture/depths.h"
#include "capture/frames.h"
#include "capture/objects.h"
#include "capture/programs.h"
#include "capture/reads.h"
#include "collection.h"

namespace teletensor::client {

#ifdef TELETENSOR_FRAMES
namespace {

thread_local Reads* g_reads = nullptr;  // The innermost Reads object of this thread.

enum class Action : std::uint8_t {
  kNone,
  kExtended,
  kGlobal,
  kName,
  kSuper,
  kVariable,
  kAttribute,
  kMethod,
  kImport,
  kItem,
  kSlice,
  kContains,
  kIdentity,
  kIterate,
  kNext,
  kUnpack,
  kMatch,
  kMatchClass,
  kMerge,
  kArithmetic,
  kCompare,
  kTruth,
  kInvert,
  kFormat,
  kFormatBy,
  kCall,
  kCallNamed,
  kCallContainers,
  kStoreAttribute,
  kStoreItem,
  kStoreGlobal,
  kStoreVariable,
  kDeleteAttribute,
  kDeleteItem,
};

struct Named {
  const char* name;
  Action action;
};

constexpr Named kActions[] = {
    {"EXTENDED_ARG", Action::kExtended},
    {"LOAD_GLOBAL", Action::kGlobal},
    {"LOAD_NAME", Action::kName},
    {"LOAD_SUPER_ATTR", Action::kSuper},
    {"LOAD_DEREF", Action::kVariable},
    {"LOAD_CLASSDEREF", Action::kVariable},
    {"LOAD_ATTR", Action::kAttribute},
    {"LOAD_METHOD", Action::kMethod},
    {"IMPORT_FROM", Action::kImport},
    {"BINARY_SUBSCR", Action::kItem},
    {"BINARY_SLICE", Action::kSlice},
    {"CONTAINS_OP", Action::kContains},
    {"IS_OP", Action::kIdentity},
    {"GET_ITER", Action::kIterate},
    {"GET_YIELD_FROM_ITER", Action::kIterate},
    {"FOR_ITER", Action::kNext},
    {"UNPACK_SEQUENCE", Action::kUnpack},
    {"UNPACK_EX", Action::kUnpack},
    {"MATCH_CLASS", Action::kMatchClass},
    {"MATCH_KEYS", Action::kMatch},
    {"MATCH_MAPPING", Action::kMatch},
    {"MATCH_SEQUENCE", Action::kMatch},
    {"GET_LEN", Action::kMatch},
    {"LIST_EXTEND", Action::kMerge},
    {"SET_UPDATE", Action::kMerge},
    {"DICT_UPDATE", Action::kMerge},
    {"DICT_MERGE", Action::kMerge},
    {"BINARY_OP", Action::kArithmetic},
    {"COMPARE_OP", Action::kCompare},
    {"UNARY_NOT", Action::kTruth},
    {"TO_BOOL", Action::kTruth},
    {"POP_JUMP_IF_TRUE", Action::kTruth},
    {"POP_JUMP_IF_FALSE", Action::kTruth},
    {"POP_JUMP_FORWARD_IF_TRUE", Action::kTruth},
    {"POP_JUMP_FORWARD_IF_FALSE", Action::kTruth},
    {"POP_JUMP_BACKWARD_IF_TRUE", Action::kTruth},
    {"POP_JUMP_BACKWARD_IF_FALSE", Action::kTruth},
    {"JUMP_IF_TRUE_OR_POP", Action::kTruth},
    {"JUMP_IF_FALSE_OR_POP", Action::kTruth},
    {"UNARY_INVERT", Action::kInvert},
    {"FORMAT_VALUE", Action::kFormat},
    {"FORMAT_SIMPLE", Action::kFormat},
    {"FORMAT_WITH_SPEC", Action::kFormatBy},
    {"CONVERT_VALUE", Action::kFormat},
#if PY_VERSION_HEX < 0x030C0000
    {"PRECALL", Action::kCall},  // PRECALL comes before CALL, with the same operands.
#else
    {"CALL", Action::kCall},
#endif
    {"CALL_KW", Action::kCallNamed},
    {"CALL_FUNCTION_EX", Action::kCallContainers},
    {"STORE_ATTR", Action::kStoreAttribute},
    {"STORE_SUBSCR", Action::kStoreItem},
    {"STORE_GLOBAL", Action::kStoreGlobal},
    {"STORE_DEREF", Action::kStoreVariable},
    {"DELETE_ATTR", Action::kDeleteAttribute},
    {"DELETE_SUBSCR", Action::kDeleteItem},
};

struct Opcodes {
  std::array<Action, 256> actions{};
  int copy = -1, cache = -1, binary = -1, store_global = -1, store_variable = -1;
  // Opcodes of instructions that load objects which no other code refers to.
  int simple[3] = {-1, -1, -1};
};

const Opcodes& opcodes() {
  static const Opcodes known = [] {
    Opcodes made;
    const nb::dict map = nb::cast<nb::dict>(nb::module_::import_("opcode").attr("opmap"));
    const auto number = [&](const char* name) {
      const nb::object value = map.attr("get")(name, -1);
      const int number = nb::cast<int>(value);
      return number < 256 ? number : -1;
    };
    for (const Named& each : kActions) {
      if (const int op = number(each.name); op >= 0) {
        made.actions[static_cast<std::size_t>(op)] = each.action;
      }
    }
    made.copy = number("COPY");
    made.cache = number("CACHE");
    made.binary = number("BINARY_OP");
    made.store_global = number("STORE_GLOBAL");
    made.store_variable = number("STORE_DEREF");
    made.simple[0] = number("LOAD_CONST");
    made.simple[1] = number("LOAD_FAST");
    made.simple[2] = number("LOAD_FAST_BORROW");
    return made;
  }();
  return known;
}

#if PY_VERSION_HEX >= 0x030D0000
nb::handle ignores_events() {
  static PyObject* const made = nb::eval("lambda *_: None", nb::dict(), nb::dict()).release().ptr();
  return made;
}
#endif

std::string_view text_in(const nb::object& bytes) {
  return {PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

}  // namespace

struct Reads::Step {
  FrameData* data;
  const Code* code;
  int arg, at, next;  // The argument, and the offsets of this and the next instruction.
  std::string_view bytes;
  PyObject** end;  // End of the evaluation stack.

  // The operand at `depth` from the top, counted from 1.
  PyObject** peek(int depth) const { return end - depth; }
  int op(int offset) const {
    return offset >= 0 && offset < static_cast<int>(bytes.size())
               ? static_cast<unsigned char>(bytes[static_cast<std::size_t>(offset)])
               : -1;
  }
  int behind(int offset) const {  // Returns the offset of the next instruction.
    do {
      offset += 2;
    } while (op(offset) == opcodes().cache && opcodes().cache >= 0);
    return offset;
  }
  PyObject* name(int i) const { return PyTuple_GET_ITEM(code->names.ptr(), i); }
  // Returns true for `x.n += 1` and `x[k] += 1`, where the operands were copied for the store.
  bool copied(int depth) const {
    for (int i = 1; i <= depth; ++i) {
      if (op(at - 2 * i) != opcodes().copy || op(at - 2 * i + 1) != depth) return false;
    }
    return true;
  }
  // Returns true for `n += 1` with a global or a variable of an enclosing function.
  bool stored_again(int store, int index) const {
    int offset = behind(next - 2);
    const int loads = op(offset);
    if (std::find(std::begin(opcodes().simple), std::end(opcodes().simple), loads) ==
        std::end(opcodes().simple)) {
      return false;
    }
    offset = behind(offset);
    if (op(offset) != opcodes().binary || op(offset + 1) < 13) return false;
    offset = behind(offset);
    return op(offset) == store && op(offset + 1) == (index & 0xff);
  }
};

void Reads::call_with_containers(Step& step) {
  const bool named = (step.arg & 1) != 0;
  PyObject** const containers[] = {step.peek(named ? 2 : 1), named ? step.peek(1) : nullptr};
#if PY_VERSION_HEX >= 0x030D0000
  // `self` or null is above the function on the stack.
  PyObject** const function = step.peek(named ? 4 : 3);
#else
  PyObject** const function = step.peek(named ? 3 : 2);
#endif
  for (PyObject** each : containers) {
    if (each != nullptr && *each != nullptr && knows(*each)) {
      take(*each);
      whole(*each, false);
    }
  }
  if (*function == nullptr || (runs_python(*function) && !is_opaque(*function))) return;
  if (!takes_symbols(*function, nullptr)) {
    for (PyObject** each : containers) {
      if (each != nullptr) plain_inside(each, 5);
    }
  }
  PyObject* const args = *containers[0];
  if (PyTuple_CheckExact(args) && step.code->policy != Policy::kPlain) called(*function, args);
}
void Reads::read_global(Step& step) {
  PyObject* const name = step.name(step.arg >> 1);
  PyObject* const globals = step.data->globals;
  if (!PyDict_Check(globals)) return;
  PyObject* const now = PyDict_GetItemWithError(globals, name);
  if (step.code->policy == Policy::kLibrary) return;
  if (step.code->policy == Policy::kPackage) {
    // Constants, functions and classes of the package do not change; registries and switches do.
    if (now == nullptr || is_atom(now) || is_op(now) || is_python_function(now) ||
        is_native_iterator(now) || PyTuple_Check(now)) {
      return;
    }
  }
  item(globals, name, now != nullptr && step.stored_again(opcodes().store_global, step.arg >> 1),
       "the globals");
  if (now == nullptr && PyDict_Check(step.data->builtins)) item(step.data->builtins, name);
}

// A name in the body of a class, or in text that eval() or exec() runs.
void Reads::read_name(Step& step) {
  PyObject* const name = step.name(step.arg);
  PyObject *const locals = step.data->locals, *const globals = step.data->globals;
  if (step.code->policy != Policy::kProgram || locals == nullptr || !PyDict_Check(globals)) return;
  if (locals != globals && PyMapping_HasKey(locals, name) == 1) return;
  item(globals, name, false, "the globals");
  if (PyDict_GetItemWithError(globals, name) == nullptr && PyDict_Check(step.data->builtins)) {
    item(step.data->builtins, name);
  }
}

void Reads::read_variable(Step& step) {
  auto* const code = reinterpret_cast<PyCodeObject*>(step.code->object.ptr());
  const int first = code->co_nlocalsplus - code->co_nfreevars;
  PyObject* const cell = step.data->values[step.arg];
  if (step.arg < first || cell == nullptr || !PyCell_Check(cell)) return;
  PyObject* const name = PyTuple_GET_ITEM(code->co_localsplusnames, step.arg);
  this->cell(cell, name, step.stored_again(opcodes().store_variable, step.arg));
}

const Reads::Code& Reads::code_of(PyFrameObject* frame) {
  PyObject* const code = reinterpret_cast<PyObject*>(PyFrame_GetCode(frame));
  const nb::object held = nb::steal(code);
  const auto [at, is_new] = codes_.try_emplace(code);
  Code& made = at->second;
  if (!is_new) return made;
  made.object = held;
  made.bytes = nb::steal(PyCode_GetCode(reinterpret_cast<PyCodeObject*>(code)));
  made.names = nb::getattr(held, "co_names");
  if (!made.bytes.is_valid()) throw nb::python_error();
  static PyObject* const name = PyUnicode_InternFromString("__name__");
  PyObject* const globals = data_of(frame).globals;
  PyObject* const module = PyDict_Check(globals) ? PyDict_GetItemWithError(globals, name) : nullptr;
  made.policy = policy_of(text_of(module));
  if (made.policy != Policy::kSkipped) {
    made.depths = stack_depths(reinterpret_cast<PyCodeObject*>(code), text_in(made.bytes));
  }
  return made;
}

void Reads::enter(PyFrameObject* frame) {
  const Code& code = code_of(frame);
  if (code.policy == Policy::kSkipped) return;
  const nb::handle handle(reinterpret_cast<PyObject*>(frame));
#if PY_VERSION_HEX >= 0x030D0000
  // Opcode events are sent only to frames with a trace function. Only a debugger would call it.
  if (nb::getattr(handle, "f_trace").is_none()) nb::setattr(handle, "f_trace", ignores_events());
#endif
  nb::setattr(handle, "f_trace_opcodes", nb::bool_(true));
  if (chained_ == nullptr) nb::setattr(handle, "f_trace_lines", nb::bool_(false));
  FrameData& data = data_of(frame);
  auto* const object = reinterpret_cast<PyCodeObject*>(code.object.ptr());
  for (int i = 0; i < object->co_nlocalsplus - object->co_nfreevars; ++i) {
    PyObject* const value = data.values[i];
    if (value != nullptr && PyCell_Check(value) && own_cells_.insert(value).second) {
      Py_INCREF(value);
    }
  }
}

void Reads::step(PyFrameObject* frame) {
  const Code& code = code_of(frame);
  if (code.policy == Policy::kSkipped) return;
  Step step{&data_of(frame), &code, 0, PyFrame_GetLasti(frame), 0, text_in(code.bytes), nullptr};
  Action action = Action::kNone;
  int offset = step.at;
  do {
    const int op = step.op(offset);
    if (op < 0) return;
    action = opcodes().actions[static_cast<std::size_t>(op)];
    step.arg = step.arg << 8 | step.op(offset + 1);
    offset += 2;
  } while (action == Action::kExtended);
  if (action == Action::kNone) return;
  step.next = offset;
  const int depth = code.depths[static_cast<std::size_t>(step.at) / 2];
  if (depth < 0) return;
  const auto* const object = reinterpret_cast<PyCodeObject*>(code.object.ptr());
  step.end = &step.data->values[object->co_nlocalsplus + depth];
  const auto top = [&](int depth) { return *step.peek(depth); };
  const auto read_whole = [&](PyObject* object, bool deep) {
    if (object != nullptr && knows(object)) whole(object, deep);
  };
  const auto is_operand = [&](PyObject* object) {
    return is_plain_number(object) || is_symbol(object) || is_tensor(object);
  };
#if PY_VERSION_HEX < 0x030D0000
  const bool has_spec = (step.arg & 4) != 0;  // A flag in the argument of FORMAT_VALUE.
#else
  const bool has_spec = false;
#endif
  // Reads are not recorded for kPlain, but Symbols are handled everywhere.
  const bool reads = code.policy != Policy::kPlain;
  switch (action) {
    case Action::kNone:
    case Action::kExtended:
      return;
    case Action::kGlobal:
      return reads ? read_global(step) : void();
    case Action::kName:
      return reads ? read_name(step) : void();
    case Action::kSuper:
      if (reads && top(3) == reinterpret_cast<PyObject*>(&PySuper_Type)) {
        PyObject* const self = top(1);
        super_attribute(top(2),
                        PyType_Check(self) ? self : reinterpret_cast<PyObject*>(Py_TYPE(self)),
                        step.name(step.arg >> 2));
      }
      return;
    case Action::kVariable:
      return reads ? read_variable(step) : void();
    case Action::kAttribute:
    case Action::kMethod: {
      plain(step.peek(1));
#if PY_VERSION_HEX < 0x030C0000
      PyObject* const name = step.name(step.arg);
#else
      PyObject* const name = step.name(step.arg >> 1);
#endif
      if (reads) attribute(top(1), name, action == Action::kAttribute && step.copied(1));
      return;
    }
    case Action::kImport:
      return reads ? attribute(top(1), step.name(step.arg)) : void();
    case Action::kItem:
      if (!is_tensor(top(2))) plain(step.peek(1));
      if (reads && knows(top(2))) {
        if (PyTuple_Check(top(2))) return;
        item(top(2), top(1), step.copied(2));
      }
      return;
    case Action::kSlice:
      if (!is_tensor(top(3))) {
        plain(step.peek(1));
        plain(step.peek(2));
      }
      return reads ? read_whole(top(3), false) : void();
    case Action::kContains:
      if (!reads || !knows(top(1))) return;
      return PyDict_Check(top(1)) ? item(top(1), top(2)) : whole(top(1), false);
    case Action::kIdentity:
      if (!reads || top(1) == Py_None || top(2) == Py_None) return;
      compare_identity(top(1));
      return compare_identity(top(2));
    case Action::kIterate:
      if (!reads) return;
      take(top(1));
      return read_whole(top(1), false);
    case Action::kNext:
      return reads ? take(top(1)) : void();
    case Action::kUnpack:
    case Action::kMerge:
      if (!reads) return;
      take(top(1));
      return read_whole(top(1), false);
    case Action::kMatch:
    case Action::kMatchClass: {
      PyObject** const subject = step.peek(action == Action::kMatch ? 1 : 3);
      plain(subject);
      return reads ? read_whole(*subject, true) : void();
    }
    case Action::kArithmetic: {
      // The operators &, <<, @, |, >>, ^, and their in-place forms.
      const int kind = step.arg % 13;
      const bool foreign =
          kind == 1 || kind == 3 || kind == 4 || kind == 7 || kind == 9 || kind == 12;
      if (foreign || !is_operand(top(1)) || !is_operand(top(2))) {
        plain(step.peek(1));
        plain(step.peek(2));
      }
      if (!reads) return;
      read_whole(top(1), true);
      return read_whole(top(2), true);
    }
    case Action::kCompare: {
      const auto compares = [&](PyObject* object) {
        return is_operand(object) || object == Py_None || PyUnicode_CheckExact(object);
      };
      if (!compares(top(1)) || !compares(top(2))) {
        plain(step.peek(1));
        plain(step.peek(2));
      }
      if (!reads) return;
      read_whole(top(1), true);
      return read_whole(top(2), true);
    }
    case Action::kTruth:
      if (reads && knows(top(1)) && is_container(top(1))) {
        if (written_.contains(top(1))) return whole(top(1), false);
        guards_.length(top(1), PyObject_Size(top(1)));
      }
      return;
    case Action::kInvert:
      return plain(step.peek(1));
    case Action::kFormat:
    case Action::kFormatBy:
      plain_inside(step.peek(1), 3);
      if (action == Action::kFormatBy || has_spec) plain_inside(step.peek(2), 3);
      return reads ? printed(top(1)) : void();
    case Action::kCall: {
      const int count = step.arg;
#if PY_VERSION_HEX < 0x030D0000
      PyObject** const under = step.peek(count + 2);
      PyObject** const over = step.peek(count + 1);
      if (*under != nullptr) return call(code.policy, under, over, step.peek(count), count);
      return call(code.policy, over, nullptr, step.peek(count), count);
#else
      PyObject** const self = step.peek(count + 1);
      return call(code.policy, step.peek(count + 2), *self == nullptr ? nullptr : self,
                  step.peek(count), count);
#endif
    }
    case Action::kCallNamed: {
      const int count = step.arg;
      PyObject** const self = step.peek(count + 2);
      return call(code.policy, step.peek(count + 3), *self == nullptr ? nullptr : self,
                  step.peek(count + 1), count);
    }
    case Action::kCallContainers:
      return call_with_containers(step);
    case Action::kStoreAttribute:
      if (knows(top(1)) || PyModule_Check(top(1)) || PyType_Check(top(1)))
        plain_inside(step.peek(2), 3);
      return reads ? store_attribute(top(1), step.name(step.arg)) : void();
    case Action::kStoreItem:
      if (!is_tensor(top(2))) plain(step.peek(1));
      if (knows(top(2))) plain_inside(step.peek(3), 3);
      return reads ? store_item(top(2), top(1)) : void();
    case Action::kStoreGlobal: {
      plain_inside(step.peek(1), 3);
      if (!reads || paused > 0) return;
      PyObject* const name = step.name(step.arg);
      if (!guards_.knows(step.data->globals, name)) {
        PyDict_SetDefault(written_[step.data->globals].keys.ptr(), name, Py_None);
      }
      return;
    }
    case Action::kStoreVariable: {
      PyObject* const cell = step.data->values[step.arg];
      if (cell == nullptr || !PyCell_Check(cell) || own_cells_.contains(cell)) return;
      plain_inside(step.peek(1), 3);
      if (reads && paused == 0) PyDict_SetDefault(written_[cell].keys.ptr(), Py_None, Py_None);
      return;
    }
    case Action::kDeleteAttribute:
      return reads ? store_attribute(top(1), step.name(step.arg)) : void();
    case Action::kDeleteItem:
      return reads ? store_item(top(2), top(1)) : void();
  }
}

int on_event(PyObject*, PyFrameObject* frame, int what, PyObject* arg) {
  Reads* const reads = g_reads;
  if (reads == nullptr) return 0;
  if (what != PyTrace_OPCODE && reads->chained_ != nullptr) {
    const int result = reads->chained_(reads->chained_object_.ptr(), frame, what, arg);
    if (result != 0) return result;
  }
  try {
    if (what == PyTrace_CALL) {
      reads->enter(frame);
    } else if (what == PyTrace_OPCODE) {
      reads->step(frame);
    }
  } catch (nb::python_error& error) {
    error.restore();
    return -1;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return -1;
  }
  return 0;
}

nb::object Reads::run(nb::handle function, nb::handle args, nb::handle kwargs) {
  // Reads by finalizers and by functions in gc.callbacks are not reads of the captured function.
  const WithoutCollection no_collection;
  PyThreadState* const thread = PyThreadState_Get();
  Reads* const outer = g_reads;
  // A trace function of the program (a debugger or a coverage tool) continues to receive events.
  const Py_tracefunc before = thread->c_tracefunc;
  const nb::object of_before = nb::borrow(thread->c_traceobj);
  chained_ = outer != nullptr ? outer->chained_ : before;
  chained_object_ = outer != nullptr ? outer->chained_object_ : of_before;
  (void)opcodes();
  load_opcodes();
#if PY_VERSION_HEX >= 0x030D0000
  (void)ignores_events();
#endif
  g_reads = this;
#if PY_VERSION_HEX >= 0x030C0000
  // Opcode events are sent only if a frame has requested them before.
  if (PyFrameObject* const frame = PyEval_GetFrame()) {
    nb::setattr(nb::handle(reinterpret_cast<PyObject*>(frame)), "f_trace_opcodes", nb::bool_(true));
  }
#endif
  PyEval_SetTrace(on_event, nullptr);
  PyObject* const result = PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr());
  if (thread->c_tracefunc == on_event) {
    const nb::error_scope scope;
    PyEval_SetTrace(before, of_before.ptr());
  } else {
    guards_.spoil();  // A debugger was started meanwhile, so the remaining reads were not seen.
  }
  g_reads = outer;
  chained_ = nullptr;
  chained_object_.reset();
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

#else

nb::object Reads::run(nb::handle function, nb::handle args, nb::handle kwargs) {
  PyObject* const result = PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr());
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

#endif

}  // namespace teletensor::client
