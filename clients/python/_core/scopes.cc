#include "scopes.h"

#include <algorithm>
#include <csignal>
#include <exception>

#include "bindings.h"

namespace teletensor::client {
namespace {

constexpr int kTries = 3;

thread_local int t_uninterrupted = 0;
thread_local bool t_postponed = false;  // Whether a Ctrl-C was postponed.

// The states that the nested `with` blocks of one object have saved, innermost last: an object may
// be entered again inside its own block.
template <class State>
class Stack {
 public:
  void push(State state) { states_.push_back(std::move(state)); }
  State pop() {
    if (states_.empty()) throw nb::value_error("a scope is left that was not entered");
    State state = std::move(states_.back());
    states_.pop_back();
    return state;
  }

 private:
  std::vector<State> states_;
};

struct GradScope {
  bool on;
  Stack<bool> before;
};

struct InferenceScope {
  bool on;
  Stack<std::pair<bool, bool>> before;
};

// Takes effect when it is constructed. If an exception interrupts the constructor call, nothing has
// changed.
class GradSwitch {
 public:
  explicit GradSwitch(bool on) : on_(on), before_(grad_mode()) { set_grad_mode(on); }
  ~GradSwitch() {
    if (!entered_ && PyErr_Occurred() != nullptr) set_grad_mode(before_);
  }
  GradSwitch(const GradSwitch&) = delete;
  GradSwitch& operator=(const GradSwitch&) = delete;

  void enter() {
    entered_ = true;
    set_grad_mode(on_);
  }
  void leave() { set_grad_mode(before_); }
  bool on() const { return on_; }

 private:
  const bool on_, before_;
  bool entered_ = false;
};

struct LevelScope {
  Level level;
  Stack<std::uint64_t> ids;
};

struct DepthScope {
  std::size_t depth;
  Stack<std::size_t> before;
};

// Interrupts are postponed; gradient recording is turned off if requested.
struct Uninterrupted {
  bool recording;
  Stack<bool> before;
};

// An object that was pushed onto a list.
struct Pushed {
  nb::list list;
  nb::object object;
};

void remove_last(nb::list list, nb::handle object) {
  for (Py_ssize_t i = PyList_GET_SIZE(list.ptr()); i-- > 0;) {
    if (PyList_GET_ITEM(list.ptr(), i) != object.ptr()) continue;
    if (PyList_SetSlice(list.ptr(), i, i + 1, nullptr) != 0) throw nb::python_error();
    return;
  }
}

// A Python subclass defines the state: `_save()` returns a state, `_restore(state, kind)` restores
// it, and `_apply()` changes it. An exception of a signal handler may interrupt `_restore`; it is
// then called again, up to kTries times.
struct Scope {
  Stack<nb::object> states;
};

nb::object method(nb::handle self, const char* name) {
  PyObject* found = PyObject_GetAttrString(self.ptr(), name);
  if (found == nullptr) throw nb::python_error();
  return nb::steal(found);
}

// Rethrows the first exception of any call.
void restore(nb::handle self, nb::handle state, nb::handle kind) {
  const nb::object call = method(self, "_restore");
  std::exception_ptr first;
  for (int tries = 0; tries < kTries; ++tries) {
    PyObject* done = call_python(call.ptr(), state.ptr(), kind.ptr());
    if (done != nullptr) {
      Py_DECREF(done);
      break;
    }
    try {
      throw nb::python_error();
    } catch (nb::python_error&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

// If entering a scope was interrupted, it is left again with the saved state, or with the present
// one if nothing was saved.
nb::object enter_scope(nb::pointer_and_handle<Scope> self) {
  const nb::object save = method(self.h, "_save"), apply = method(self.h, "_apply");
  nb::object state = nb::steal(call_python(save.ptr()));
  if (state.is_valid()) {
    nb::object result = nb::steal(call_python(apply.ptr()));
    if (result.is_valid()) {
      self.p->states.push(std::move(state));
      return result;
    }
  }
  nb::python_error error;
  if (!state.is_valid()) state = nb::steal(call_python(save.ptr()));
  if (state.is_valid()) {
    try {
      restore(self.h, state, reinterpret_cast<PyObject*>(&PyBaseObject_Type));
    } catch (nb::python_error&) {  // Only the first exception is reported.
    }
  }
  PyErr_Clear();
  throw error;
}

}  // namespace

bool postpone_interrupt() {
  if (t_uninterrupted == 0) return false;
  t_postponed = !t_postponed;  // A second interrupt is delivered at once and stands for both.
  return t_postponed;
}

void bind_scopes(nb::module_& m) {
  const auto type = nb::arg("type").none();
  const auto value = nb::arg("value").none();
  const auto trace = nb::arg("trace").none();
  nb::class_<GradScope>(m, "GradScope",
                        "Within it, operations of this thread are recorded, or not.")
      .def(
          "__init__",
          [](GradScope* self, bool on) {
            new (self) GradScope{on, {}};
          },
          nb::arg("on"))
      .def("__enter__",
           [](GradScope& self) {
             self.before.push(grad_mode());
             set_grad_mode(self.on);
           })
      .def(
          "__exit__",
          [](GradScope& self, nb::handle, nb::handle, nb::handle) {
            set_grad_mode(self.before.pop());
          },
          type, value, trace);
  nb::class_<InferenceScope>(m, "InferenceScope", "Inference mode of this thread, on or off.")
      .def(
          "__init__",
          [](InferenceScope* self, bool on) {
            new (self) InferenceScope{on, {}};
          },
          nb::arg("on"))
      .def("__enter__",
           [](InferenceScope& self) {
             self.before.push({grad_mode(), inference_mode()});
             set_inference_mode(self.on);
             set_grad_mode(!self.on);
           })
      .def(
          "__exit__",
          [](InferenceScope& self, nb::handle, nb::handle, nb::handle) {
            const auto [grad, inference] = self.before.pop();
            set_grad_mode(grad);
            set_inference_mode(inference);
          },
          type, value, trace);
  nb::class_<GradSwitch>(m, "GradSwitch", "Recording, on or off from here on, or for a `with`.")
      .def(nb::init<bool>(), nb::arg("mode"))
      .def("__enter__", &GradSwitch::enter)
      .def(
          "__exit__", [](GradSwitch& self, nb::handle, nb::handle, nb::handle) { self.leave(); },
          type, value, trace)
      .def("_take_back", &GradSwitch::leave)
      .def_prop_ro("_mode", &GradSwitch::on);
  nb::class_<LevelScope>(m, "LevelScope",
                         "A level of vmap or forward mode; `with` gives its number.")
      .def("__enter__",
           [](LevelScope& self) {
             const std::uint64_t id = transforms::push(self.level);
             self.ids.push(id);
             return id;
           })
      .def(
          "__exit__",
          [](LevelScope& self, nb::handle, nb::handle, nb::handle) {
            transforms::pop(self.ids.pop());
          },
          type, value, trace);
  m.def(
      "vmap_level",
      [](std::int64_t size, int randomness) {
        return LevelScope{{.id = 0,
                           .forward = false,
                           .size = size,
                           .randomness = static_cast<Randomness>(randomness)},
                          {}};
      },
      nb::arg("size"), nb::arg("randomness"));
  m.def("forward_level", [] {
    return LevelScope{{.id = 0, .forward = true, .size = 0, .randomness = Randomness::kSame}, {}};
  });
  nb::class_<DepthScope>(m, "DepthScope", "Within it, calls run at this depth of the levels.")
      .def(
          "__init__",
          [](DepthScope* self, std::size_t depth) {
            new (self) DepthScope{depth, {}};
          },
          nb::arg("depth"))
      .def("__enter__",
           [](DepthScope& self) { self.before.push(std::exchange(transforms::depth, self.depth)); })
      .def(
          "__exit__",
          [](DepthScope& self, nb::handle, nb::handle, nb::handle) {
            transforms::depth = self.before.pop();
          },
          type, value, trace);
  nb::class_<Uninterrupted>(
      m, "Uninterrupted",
      "Ctrl-C is raised at its end; with recording=False also without gradients.")
      .def(
          "__init__",
          [](Uninterrupted* self, bool recording) {
            new (self) Uninterrupted{recording, {}};
          },
          nb::arg("recording") = true)
      .def("__enter__",
           [](Uninterrupted& self) {
             self.before.push(grad_mode());
             if (!self.recording) set_grad_mode(false);
             ++t_uninterrupted;
           })
      .def(
          "__exit__",
          [](Uninterrupted& self, nb::handle, nb::handle, nb::handle) {
            set_grad_mode(self.before.pop());
            // The signal handler runs, and raises, after this call has returned.
            if (--t_uninterrupted == 0 && std::exchange(t_postponed, false)) {
              PyErr_SetInterruptEx(SIGINT);
            }
          },
          type, value, trace);
  m.def("postpone_interrupt", &postpone_interrupt,
        "Is this thread in an Uninterrupted scope, which then raises Ctrl-C at its end?");
  nb::class_<Pushed>(m, "Pushed", "Within it, an object is the last one of a list.")
      .def(
          "__init__",
          [](Pushed* self, nb::list list, nb::object object) {
            new (self) Pushed{std::move(list), std::move(object)};
          },
          nb::arg("list"), nb::arg("object").none())
      .def("__enter__",
           [](Pushed& self) {
             self.list.append(self.object);
             return self.object;
           })
      .def(
          "__exit__",
          [](Pushed& self, nb::handle, nb::handle, nb::handle) {
            remove_last(self.list, self.object);
          },
          type, value, trace);
  nb::class_<Scope>(m, "Scope",
                    "For subclasses: _save() gives a state, _apply() changes it, and "
                    "_restore(state, kind) puts it back, however often it is called.")
      .def(nb::init<>())
      .def("__enter__", &enter_scope)
      .def(
          "__exit__",
          [](nb::pointer_and_handle<Scope> self, nb::handle kind, nb::handle, nb::handle) {
            const nb::object state = self.p->states.pop();
            restore(self.h, state, kind);
          },
          type, value, trace);
}

}  // namespace teletensor::client
