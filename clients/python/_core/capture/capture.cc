// Captures a function in one native call, so that no signal handler runs while a trace is half set
// up.
#include <algorithm>
#include <stdexcept>

#include "capture/programs.h"

namespace teletensor::client {
namespace {

PyObject* stand_in(PyTensor& t) {
  const HandleRef h = t.handle;
  h->owner = nullptr;
  t.used = false;
  PyObject* const made = wrap(*t.session, h);
  if (made == nullptr) h->owner = t.self;
  return made;
}

// A capture, from the first command that belongs to the trace to the last. Its destructor resets
// everything, however the function ends.
class Capturing {
 public:
  // `state` is a dictionary that the package's Python code reads.
  Capturing(PySession& session, nb::dict state, nb::handle held)
      : session_(session), state_(state) {
    if (!nb::object(state_["current"]).is_none()) {
      throw std::runtime_error("another thread is capturing a function");
    }
    const auto [seed, ordinal] = rng_state();
    raise_if(session.programs().begin_trace(static_cast<std::uint64_t>(seed),
                                            static_cast<std::uint64_t>(ordinal)));
    ordinal_ = static_cast<std::uint64_t>(ordinal);
    state_["thread"] = nb::cast(PyThread_get_thread_ident());
    state_["current"] = nb::borrow(held);
  }
  ~Capturing() {
    end_stand_ins();
    function_ends();
    (void)session_.commands().end_trace();
  }
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;

  std::uint64_t ordinal() const { return ordinal_; }

  // The objects that the function receives as arguments. They are stand-ins, so that a read of the
  // same tensors from outside is noticed. A tensor with attributes is passed itself; the program is
  // then valid for that tensor only.
  nb::list arguments(nb::list tensors) {
    nb::list given;
    int place = 0;
    for (nb::handle each : tensors) {
      PyTensor* const t = tensor_of(each.ptr());
      if (t == nullptr && PyErr_Occurred()) throw nb::python_error();
      if (t == nullptr) throw nb::type_error("an argument of a trace must be a Tensor");
      const auto known = std::find_if(own_.begin(), own_.end(),
                                      [&](const StandIn& own) { return own.real.is(each); });
      if (known != own_.end()) {
        given.append(known->made);
      } else if (Py_TYPE(each.ptr()) == tensor_type && !has_attributes(each.ptr())) {
        PyObject* const made = stand_in(*t);
        if (made == nullptr) throw nb::python_error();
        own_.push_back({nb::borrow(each), t, nb::steal(made)});
        given.append(own_.back().made);
      } else {
        given.append(each);
      }
      session_.commands().tracer()->argument(*t->handle, place++);
    }
    return given;
  }

  void function_ends() { state_["current"] = nb::none(); }
  // Copies attributes that the function has set on stand-ins to the real tensors.
  void pass_on_attributes() {
    for (const StandIn& own : own_) {
      if (!has_attributes(own.made.ptr())) continue;
      own.real.attr("__dict__").attr("update")(own.made.attr("__dict__"));
    }
  }
  // The function's result, with the real tensors in place of their stand-ins.
  nb::list real(nb::list leaves) const {
    nb::list out;
    for (nb::handle each : leaves) {
      const auto known = std::find_if(own_.begin(), own_.end(),
                                      [&](const StandIn& own) { return own.made.is(each); });
      out.append(known == own_.end() ? nb::borrow(each) : known->real);
    }
    return out;
  }

  // Indices of the arguments that code outside the captured function has read or may have read.
  nb::list read_outside(nb::list tensors) {
    nb::list places;
    for (std::size_t i = 0; i < nb::len(tensors); ++i) {
      const auto known = std::find_if(own_.begin(), own_.end(),
                                      [&](const StandIn& own) { return own.real.is(tensors[i]); });
      if (known == own_.end() || known->tensor->used) places.append(i);
    }
    return places;
  }
  void end_stand_ins() {
    for (const StandIn& own : own_) own.tensor->handle->owner = own.tensor->self;
  }

 private:
  struct StandIn {
    nb::object real;
    PyTensor* tensor;
    nb::object made;
  };
  PySession& session_;
  nb::dict state_;
  std::uint64_t ordinal_ = 0;
  std::vector<StandIn> own_;
};

}  // namespace

nb::tuple capture(PySession& session, nb::dict state, nb::object held, nb::list tensors,
                  nb::object function, const std::string& name,
                  const std::vector<std::string>& names) {
  Capturing capturing(session, state, held);
  nb::object result = nb::steal(call_python(function.ptr(), capturing.arguments(tensors).ptr()));
  capturing.function_ends();
  if (!result.is_valid()) throw nb::python_error();
  capturing.pass_on_attributes();
  const nb::list leaves = capturing.real(nb::cast<nb::list>(result));
  result.reset();
  nb::list places = capturing.read_outside(tensors);
  capturing.end_stand_ins();
  nb::list outputs;
  for (nb::handle each : leaves) {
    const PyTensor* const t = tensor_of(each.ptr());
    if (t == nullptr && PyErr_Occurred()) throw nb::python_error();
    if (t == nullptr) continue;
    if (t->session != &session) {
      throw std::runtime_error("a captured function must stay in one session");
    }
    outputs.append(each);
  }
  nb::object traced = end_trace(session, outputs, capturing.ordinal(), name, names, false);
  return nb::make_tuple(leaves, std::move(places), std::move(traced));
}

}  // namespace teletensor::client
