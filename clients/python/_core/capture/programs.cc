// Captures a function's commands as a program, and calls captured programs. The Python part is
// teletensor/jit.

#include "capture/programs.h"

#include <algorithm>

#include "bindings.h"
#include "calls/autocast.h"
#include "capture/expanded.h"
#include "capture/guards.h"
#include "capture/reads.h"
#include "engine/autograd/callable.h"
#include "engine/autograd/trace/tracer.h"
#include "engine/ops/verify.h"
#include "engine/passes/passes.h"
#include "engine/program/serialize.h"

namespace teletensor::client {
namespace {

using autograd::Callable;
using autograd::Traced;
using autograd::TracedOutput;

PyObject* g_symbol;  // The Python class of numbers that a capture tracks.
std::uint32_t g_tag = 0;

// A program in the daemon, with the sources of its parameters.
class PyProgram {
 public:
  struct Source {
    HandleRef fixed;       // The tensor of a fixed parameter. Null for an argument or a gradient.
    int argument = -1;     // Position among the arguments of a call.
    int gradient_of = -1;  // Index of the source whose .grad this is.
    bool has_grad = false, requires_grad = false;
    std::vector<autograd::HookId> hooks, post_hooks;
  };

  // Declared first, so that it is destroyed after the members that belong to the session.
  nb::object session_object;
  PySession* session = nullptr;
  std::shared_ptr<const Callable> callable;
  // The program as captured, without optimization passes.
  std::shared_ptr<const program::Program> captured;
  std::uint64_t number = 0;
  std::vector<Source> sources;
  std::vector<TracedOutput> outputs;
  bool check_grads = false, check_hooks = false;

  PyProgram() = default;
  PyProgram(const PyProgram&) = delete;
  ~PyProgram() {
    if (session != nullptr && number != 0) session->programs().table().release(number);
  }

  void bind(PySession& s, std::shared_ptr<const program::Program> program) {
    session = &s;
    session_object = nb::borrow(s.self);
    captured = program;
    callable = std::make_shared<const Callable>(std::move(program));
  }
  const program::Program& program() const { return callable->program(); }

  // Finds the handles for the parameters. Returns false if they do not match what the program was
  // created for.
  bool resolve(const std::vector<HandleRef>& arguments, std::vector<HandleRef>& inputs,
               bool guard) {
    inputs.resize(sources.size());
    const auto& views = program().body.parameters;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const Source& source = sources[i];
      if (source.argument >= 0) {
        if (static_cast<std::size_t>(source.argument) >= arguments.size()) return false;
        inputs[i] = arguments[static_cast<std::size_t>(source.argument)];
      } else if (source.gradient_of < 0) {
        inputs[i] = source.fixed;
      }
    }
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].argument < 0 && sources[i].gradient_of >= 0) {
        inputs[i] = inputs[static_cast<std::size_t>(sources[i].gradient_of)]->grad;
      }
      if (!inputs[i] || inputs[i]->id == 0) return false;
    }
    if (!guard) return true;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const Handle& h = *inputs[i];
      const program::ValueType& type = program().values[views[i].value];
      if (h.layout.dtype != type.dtype || !(h.layout.device == type.device) ||
          !(h.shape() == views[i].geometry.shape) ||
          !(h.geometry().strides == views[i].geometry.strides) ||
          (check_grads && (h.grad != nullptr) != sources[i].has_grad) ||
          h.requires_grad() != sources[i].requires_grad ||
          (check_hooks && (h.hooks != sources[i].hooks || h.post_hooks != sources[i].post_hooks))) {
        return false;
      }
      const std::uint32_t leader = callable->parameters()[i].leader;
      if (leader != i && (inputs[leader]->cell != h.cell ||
                          h.geometry().offset - views[i].geometry.offset !=
                              inputs[leader]->geometry().offset - views[leader].geometry.offset)) {
        return false;
      }
    }
    // Refuses arguments that share memory now, did not at the capture, and are written to.
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].argument < 0) continue;
      const std::uint32_t leader = callable->parameters()[i].leader;
      for (std::size_t j = 0; j < sources.size(); ++j) {
        const std::uint32_t other = callable->parameters()[j].leader;
        if (other == leader || inputs[i]->cell != inputs[j]->cell) continue;
        if (callable->parameters()[leader].rebind != Callable::kNone ||
            callable->parameters()[other].rebind != Callable::kNone) {
          return false;
        }
      }
    }
    return true;
  }

  void define() {
    if (number == 0) number = value_or_raise(session->programs().define(program()));
  }
};

nb::object tensor_object(PySession& session, const HandleRef& h) {
  PyObject* object = wrap(session, h);
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

core::Status fits_a_file(const program::Program& program) {
  for (const program::Step& step : program.body.steps) {
    if (step.kind != program::Step::Kind::kOp || !ops::catalog().at(step.op).collective) continue;
    return core::invalid("a program that calls " + ops::catalog().at(step.op).name +
                         " cannot be in a file: its group is one of this session");
  }
  return {};
}

// Computes a step in the daemon; `read` returns the bytes of a Tensor.
passes::Evaluate evaluator(PySession& session, nb::handle read) {
  return [&session, read](const program::Step& step, const program::Program& p,
                          std::span<const std::string_view> operands,
                          std::vector<std::string>& results) {
    std::vector<Var> arguments;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const program::StepOperand& operand = step.operands[i];
      arguments.emplace_back();
      if (operand.kind == program::Operand::Kind::kNumber) {
        arguments.back() = Var(operand.number);
      } else if (operand.kind == program::Operand::Kind::kTensor) {
        const program::ValueType& type = p.values[operand.view.value];
        const auto made = session.constant(type.dtype, type.device, operand.view.geometry.shape,
                                           std::string(operands[i]));
        if (!made.ok()) return false;
        arguments.back() = Var(&session, *made);
      }
    }
    Handles made;
    if (!session
             .apply(step.op, arguments, {step.counts.data(), step.counts.size()}, step.attributes,
                    made)
             .ok() ||
        made.size() != step.results.size()) {
      return false;
    }
    for (std::size_t r = 0; r < made.size(); ++r) {
      const program::View& view = step.results[r].view;
      if (made[r]->layout.dtype != p.values[view.value].dtype ||
          !(made[r]->geometry() == view.geometry)) {
        return false;
      }
      const auto bytes = nb::cast<nb::bytes>(read(tensor_object(session, made[r])));
      results.emplace_back(bytes.c_str(), bytes.size());
    }
    return true;
  };
}

std::vector<HandleRef> handles_of(nb::handle sequence, PySession* session) {
  std::vector<HandleRef> out;
  for (nb::handle each : sequence) {
    PyTensor* t = tensor_of(each.ptr());
    if (t == nullptr) {
      if (PyErr_Occurred()) throw nb::python_error();
      PyErr_SetString(PyExc_TypeError, "the arguments of a program must be Tensors");
      throw nb::python_error();
    }
    if (session != nullptr && t->session != session) {
      PyErr_SetString(PyExc_RuntimeError, "the program belongs to another session");
      throw nb::python_error();
    }
    t->used = true;
    out.push_back(t->handle);
  }
  return out;
}

// Converts the numbers of a call to the kinds that the program expects.
std::vector<core::Number> numbers_of(const program::Program& program, nb::handle numbers) {
  std::vector<core::Number> out;
  const auto& expected = program.numbers;
  for (nb::handle each : numbers) {
    core::Number n;
    if (!number_of(each.ptr(), n)) {
      if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "the numbers of a program must be numbers");
      throw nb::python_error();
    }
    n.argument = 0;
    if (!expected.empty() &&
        expected[out.size() % expected.size()].kind == core::Number::Kind::kFloat &&
        n.kind != core::Number::Kind::kFloat && !n.is_complex()) {
      n = core::Number::of_float(n.as_double());
    }
    out.push_back(n);
  }
  return out;
}

program::Call command_of(PyProgram& p, nb::handle numbers, std::uint32_t times,
                         std::vector<std::uint32_t> sliced) {
  program::Call command;
  command.program = p.number;
  command.numbers = numbers_of(p.program(), numbers);
  command.times = times;
  command.sliced = std::move(sliced);
  const auto [seed, ordinal] = take_ordinals(p.program().random_steps * std::max(times, 1u));
  command.seed = seed;
  command.ordinal = ordinal;
  return command;
}

// Runs the program. Returns its results as Tensors, followed by those inputs that are outputs.
nb::tuple call(PyProgram& p, nb::handle arguments, nb::handle numbers, std::uint32_t times,
               std::vector<std::uint32_t> sliced, bool whole) {
  autograd::Tracer* const tracer = p.session->commands().tracer();
  const program::Program& program = p.program();
  if (tracer != nullptr && (times > 0 || !program.numbers.empty() || !program.rebinds.empty() ||
                            !program.gradients.empty() || !program.aliases.empty())) {
    raise_if(core::invalid("a program cannot be called inside a function that is being captured"));
  }
  std::vector<HandleRef> inputs;
  if (!p.resolve(handles_of(arguments, p.session), inputs, false)) {
    raise_if(
        core::invalid("call of a program: an argument or a gradient that it needs is missing"));
  }
  p.define();
  if (tracer != nullptr) {
    tracer->define(p.number, p.callable->shared());
    for (const HandleRef& h : inputs) tracer->know(*h);
  }
  Handles results;
  const Status status = p.session->programs().call(
      *p.callable, command_of(p, numbers, times, std::move(sliced)), inputs, results);
  if (PyErr_Occurred()) throw nb::python_error();
  raise_if(status);
  const std::size_t size = whole ? results.size() : p.outputs.size();
  const nb::tuple out = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(size)));
  if (!out.is_valid()) throw nb::python_error();
  for (std::size_t i = 0; i < size; ++i) {
    const bool is_input = !whole && p.outputs[i].is_input;
    const std::size_t at = whole ? i : p.outputs[i].index;
    const HandleRef& h = is_input ? inputs[at] : results[at];
    PyTuple_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i),
                     tensor_object(*p.session, h).release().ptr());
  }
  return out;
}

// A finished trace, from which backward programs for other outputs can be made.
struct PyTrace {
  nb::object session_object;
  PySession* session;
  std::unique_ptr<autograd::Tracer> tracer;
  std::vector<HandleRef> outputs;
  std::uint64_t drawn;

  Traced finish(const std::set<program::HandleId>* roots) const {
    std::vector<Handle*> handles;
    for (const HandleRef& h : outputs) handles.push_back(h.get());
    const auto site = [this](std::uint64_t seq) { return session->site_of(seq); };
    return value_or_raise(tracer->finish(handles, drawn, site, roots));
  }
};

}  // namespace

nb::object end_trace(PySession& session, nb::handle outputs, std::uint64_t begun,
                     const std::string& name, const std::vector<std::string>& names, bool kept) {
  const auto [seed, ordinal] = rng_state();
  return end_trace_drawn(session, outputs, static_cast<std::uint64_t>(ordinal) - begun, name, names,
                         kept);
}

nb::object end_trace_drawn(PySession& session, nb::handle outputs, std::uint64_t drawn,
                           const std::string& name, const std::vector<std::string>& names,
                           bool kept) {
  std::unique_ptr<autograd::Tracer> ended = session.commands().end_trace();
  if (!ended) throw nb::value_error("nothing is being captured");
  std::vector<HandleRef> keep = handles_of(outputs, &session);
  // Adds a tensor from outside that no step has read to the trace.
  for (const HandleRef& h : keep) ended->know(*h);
  auto trace =
      std::make_unique<PyTrace>(nb::borrow(session.self), &session, std::move(ended), keep, drawn);
  const autograd::Tracer* const tracer = trace->tracer.get();
  const std::set<program::HandleId> none;
  Traced traced = trace->finish(kept ? &none : nullptr);
  auto named = std::make_shared<program::Program>(*traced.program);
  named->name = name;
  for (std::size_t i = 0; i < traced.inputs.size(); ++i) {
    const int place = traced.inputs[i].argument;
    if (place >= 0 && static_cast<std::size_t>(place) < names.size()) {
      named->parameter_names[i] = names[static_cast<std::size_t>(place)];
    }
  }
  auto program = std::make_unique<PyProgram>();
  program->bind(session, std::move(named));
  for (const Traced::Input& input : traced.inputs) {
    PyProgram::Source source;
    source.argument = input.argument;
    source.gradient_of = input.gradient_of;
    if (input.argument < 0 && input.gradient_of < 0) source.fixed = input.handle;
    source.has_grad = input.has_grad;
    source.requires_grad = input.requires_grad;
    source.hooks = input.handle->hooks;
    source.post_hooks = input.handle->post_hooks;
    program->sources.push_back(std::move(source));
  }
  program->outputs = traced.outputs;
  program->check_grads = traced.grads_matter;
  program->check_hooks = traced.hooks_matter;
  nb::dict out;
  // Counts tensors that were created inside and are still referenced outside.
  std::vector<const Handle*> known;
  for (const HandleRef& h : keep) known.push_back(h.get());
  for (const PyProgram::Source& source : program->sources) {
    if (source.fixed && source.fixed->grad) known.push_back(source.fixed->grad.get());
  }
  for (const Traced::Input& input : traced.inputs) {
    if (input.handle->grad) known.push_back(input.handle->grad.get());
  }
  std::size_t escaped = 0;
  for (const auto& [id, h] : tracer->alive()) {
    escaped += h->owner != nullptr && std::find(known.begin(), known.end(), h) == known.end();
  }
  // A gradient existed before and was removed, so the next call needs another program.
  bool grads_gone = false;
  for (const Traced::Input& input : traced.inputs) {
    grads_gone = grads_gone || (input.requires_grad && input.has_grad && !input.handle->grad);
  }
  // Whether the program can run again from the state that it leaves. A gradient that it creates
  // would be accumulated in the next round, so it cannot.
  bool loops = true;
  for (const program::Gradient& g : traced.program->gradients) {
    loops = loops && traced.inputs[g.parameter].has_grad;
  }
  for (const TracedOutput& output : traced.outputs) loops = loops && !output.is_input;
  out["loops"] = loops;
  out["escaped"] = escaped;
  out["settled"] = escaped == 0 && !grads_gone;
  out["tags"] = traced.tags;
  out["fixed_tags"] = traced.fixed_tags;
  nb::list requires_grad;
  for (const TracedOutput& output : traced.outputs) requires_grad.append(output.requires_grad);
  out["requires_grad"] = requires_grad;
  if (traced.backward) {
    auto backward = std::make_unique<PyProgram>();
    backward->bind(session, traced.backward);
    for (std::size_t i = 0; i < traced.backward->body.parameters.size(); ++i) {
      PyProgram::Source source;
      source.argument = static_cast<int>(i);
      backward->sources.push_back(source);
    }
    out["backward"] = nb::cast(backward.release(), nb::rv_policy::take_ownership);
    nb::list saved;
    for (const Traced::Saved& each : traced.saved) {
      saved.append(nb::make_tuple(each.is_input, each.index));
    }
    out["saved"] = saved;
    out["differentiated"] = traced.differentiated;
    out["wanted"] = traced.wanted;
  }
  out["program"] = nb::cast(program.release(), nb::rv_policy::take_ownership);
  if (kept) out["trace"] = nb::cast(trace.release(), nb::rv_policy::take_ownership);
  return out;
}

Traced retraced(nb::handle trace, const std::set<program::HandleId>& roots) {
  return nb::cast<PyTrace*>(trace)->finish(&roots);
}

const program::Program& program_of(nb::handle object) {
  return nb::cast<PyProgram*>(object)->program();
}

nb::object program_object(PySession& session, program::Program program) {
  auto made = std::make_unique<PyProgram>();
  made->bind(session, std::make_shared<const program::Program>(std::move(program)));
  for (std::size_t i = 0; i < made->program().body.parameters.size(); ++i) {
    PyProgram::Source source;
    source.argument = static_cast<int>(i);
    made->sources.push_back(source);
  }
  for (std::size_t i = 0; i < made->program().body.results.size(); ++i) {
    made->outputs.push_back({false, static_cast<std::uint32_t>(i), false});
  }
  return nb::cast(made.release(), nb::rv_policy::take_ownership);
}

std::optional<Handles> call_program(nb::handle program, const std::vector<HandleRef>& arguments,
                                    const Draw& draw) {
  auto& p = *nb::cast<PyProgram*>(program);
  std::vector<HandleRef> inputs;
  if (!p.resolve(arguments, inputs, true)) return std::nullopt;
  p.define();
  program::Call command;
  command.program = p.number;
  if (const std::uint64_t draws = p.program().random_steps; draws > 0) {
    std::tie(command.seed, command.ordinal) = draw(draws);
  }
  Handles results, outputs;
  const Status status =
      p.session->programs().call(*p.callable, std::move(command), inputs, results);
  if (PyErr_Occurred()) throw nb::python_error();
  raise_if(status);
  for (const TracedOutput& output : p.outputs) {
    outputs.push_back(output.is_input ? inputs[output.index] : results[output.index]);
  }
  return outputs;
}

bool same_steps(nb::handle a, nb::handle b) {
  const auto bytes = [](nb::handle each) {
    return program::serialize(nb::cast<PyProgram*>(each)->program(), ops::op_names(ops::catalog()));
  };
  return bytes(a) == bytes(b);
}

bool same_sources(nb::handle a, nb::handle b) {
  const auto& left = nb::cast<PyProgram*>(a)->sources;
  const auto& right = nb::cast<PyProgram*>(b)->sources;
  return std::ranges::equal(left, right, [](const auto& x, const auto& y) {
    if (x.argument != y.argument || x.gradient_of != y.gradient_of) return false;
    if (!x.fixed || !y.fixed) return !x.fixed == !y.fixed;
    return x.fixed->cell == y.fixed->cell && x.fixed->layout.dtype == y.fixed->layout.dtype &&
           x.fixed->geometry() == y.fixed->geometry();
  });
}

PyTypeObject* symbol_type() { return reinterpret_cast<PyTypeObject*>(g_symbol); }

bool symbol_of(PyObject* object, core::Number& number) {
  if (g_symbol == nullptr || PyObject_IsInstance(object, g_symbol) != 1) return false;
  PyObject* value = PyObject_GetAttrString(object, "value");
  PyObject* tag = value ? PyObject_GetAttrString(object, "tag") : nullptr;
  const bool good = tag != nullptr && number_of(value, number);
  if (good) number.argument = static_cast<std::uint32_t>(PyLong_AsUnsignedLong(tag));
  Py_XDECREF(value);
  Py_XDECREF(tag);
  return good;
}

void bind_programs(nb::module_& m) {
  bind_guards(m);
  bind_reads(m);
  bind_scripts(m);
  nb::class_<PyProgram>(m, "Program", nb::is_weak_referenceable(),
                        "A captured program: what the daemon runs when the function is called.")
      .def(
          "ready",
          [](PyProgram& p, nb::handle arguments) {
            std::vector<HandleRef> inputs;
            return p.resolve(handles_of(arguments, p.session), inputs, true);
          },
          nb::arg("arguments"),
          "Returns true if the program is valid for these arguments and for its other inputs.")
      .def("call", &call, nb::arg("arguments"), nb::arg("numbers"), nb::arg("times") = 0,
           nb::arg("sliced") = std::vector<std::uint32_t>(), nb::arg("whole") = false,
           "Runs it: the outputs, or with `whole` all results. Nothing waits.")
      .def(
          "parameters_of",
          [](PyProgram& p, const std::vector<std::uint32_t>& results) {
            return Expanded(p.program(), results).parameters();
          },
          nb::arg("results"), "The parameters that these of its results depend on.")
      .def(
          "expand",
          [](PyProgram& p, nb::handle inputs, nb::handle numbers,
             std::pair<std::int64_t, std::int64_t> drawn,
             const std::vector<std::uint32_t>& wanted) {
            const Expanded::Given given{handles_of(inputs, p.session),
                                        numbers_of(p.program(), numbers), drawn.first,
                                        drawn.second};
            if (given.inputs.size() != p.program().body.parameters.size() ||
                given.numbers.size() != p.program().numbers.size()) {
              raise_if(core::invalid(
                  "program: the number of inputs differs from the number of parameters"));
            }
            Handles made;
            raise_if(Expanded(p.program(), wanted).run(*p.session, given, made));
            nb::list out;
            for (const HandleRef& h : made) out.append(tensor_object(*p.session, h));
            return out;
          },
          nb::arg("inputs"), nb::arg("numbers"), nb::arg("drawn"), nb::arg("results"),
          "These of its results, by calls of its steps one by one. `inputs` by parameter; "
          "`drawn`: the generator's state (seed, ordinal) when it ran.")
      .def(
          "inputs",
          [](PyProgram& p, nb::handle arguments) {
            std::vector<HandleRef> inputs;
            if (!p.resolve(handles_of(arguments, p.session), inputs, false)) {
              raise_if(core::invalid("a program's argument is missing"));
            }
            nb::list out;
            for (const HandleRef& h : inputs) out.append(tensor_object(*p.session, h));
            return out;
          },
          nb::arg("arguments"), "What its parameters would be, by parameter.")
      .def(
          "fixed",
          [](PyProgram& p) {
            nb::list out;
            for (const PyProgram::Source& s : p.sources) {
              out.append(s.fixed ? tensor_object(*p.session, s.fixed) : nb::none());
            }
            return out;
          },
          "The tensors that are parameters without being arguments; None for the others.")
      .def(
          "dense",
          [](PyProgram& p, std::size_t i) {
            const program::View& view = p.program().body.parameters.at(i);
            return p.callable->parameters()[i].leader == i && view.geometry.offset == 0 &&
                   view.geometry.dense() &&
                   p.program().values[view.value].elements == view.geometry.numel();
          },
          nb::arg("parameter"), "Returns true if the parameter is a whole storage of its own.")
      .def(
          "laid",
          [](PyProgram& p, std::size_t i, nb::handle object) {
            PyTensor* t = tensor_of(object.ptr());
            if (t == nullptr || i >= p.program().body.parameters.size()) {
              throw nb::type_error("expected the Tensor of a parameter");
            }
            const program::View& view = p.program().body.parameters[i];
            if (!(t->handle->shape() == view.geometry.shape) ||
                t->handle->layout.dtype != p.program().values[view.value].dtype) {
              raise_if(
                  core::invalid("program: a weight of another shape or dtype than its "
                                "parameter"));
            }
            if (t->handle->geometry().strides == view.geometry.strides) return nb::borrow(object);
            static const ops::OpRef relayout("relayout");
            const Var argument = t->var();
            Handles results;
            raise_if(p.session->apply(relayout, {&argument, 1}, {},
                                      {core::Attribute::of(view.geometry.strides)}, results));
            return tensor_object(*p.session, results[0]);
          },
          nb::arg("parameter"), nb::arg("tensor"), "The tensor with the parameter's strides.")
      .def(
          "bind",
          [](PyProgram& p, nb::list sources,
             const std::vector<std::pair<bool, std::uint32_t>>& outputs) {
            if (sources.size() != p.program().body.parameters.size()) {
              raise_if(core::invalid(
                  "program: the number of inputs differs from the number of parameters"));
            }
            std::vector<PyProgram::Source> bound;
            for (nb::handle each : sources) {
              const auto three = nb::cast<nb::tuple>(each);
              PyProgram::Source& source = bound.emplace_back();
              source.argument = nb::cast<int>(three[0]);
              source.gradient_of = nb::cast<int>(three[1]);
              if (PyTensor* t = three[2].is_none() ? nullptr : tensor_of(three[2].ptr())) {
                source.fixed = t->handle;
              }
              if (source.argument < 0 && !source.fixed &&
                  (source.gradient_of < 0 ||
                   static_cast<std::size_t>(source.gradient_of) >= sources.size())) {
                raise_if(core::invalid("program: an input has no source"));
              }
            }
            std::vector<TracedOutput> named;
            for (const auto& [is_input, index] : outputs) {
              if (index >= (is_input ? bound.size() : p.program().body.results.size())) {
                raise_if(core::invalid("program: an output does not exist"));
              }
              named.push_back({is_input, index, false});
            }
            p.sources = std::move(bound);
            p.outputs = std::move(named);
          },
          nb::arg("sources"), nb::arg("outputs"))
      .def_prop_ro("sources",
                   [](PyProgram& p) {
                     nb::list out;
                     for (const PyProgram::Source& s : p.sources) {
                       out.append(nb::make_tuple(s.argument, s.gradient_of));
                     }
                     return out;
                   })
      .def_prop_ro("outputs",
                   [](PyProgram& p) {
                     nb::list out;
                     for (const TracedOutput& o : p.outputs) {
                       out.append(nb::make_tuple(o.is_input, o.index));
                     }
                     return out;
                   })
      .def(
          "text", [](PyProgram& p) { return passes::to_string(*p.captured); },
          "What was captured: one line a step, with the lines of source.")
      .def(
          "optimize",
          [](PyProgram& p, nb::handle read) {
            auto better = std::make_shared<const program::Program>(
                passes::optimize(*p.captured, ops::catalog(),
                                 read.is_none() ? nullptr : evaluator(*p.session, read)));
            const bool good = ops::verify(*better, ops::catalog()).ok();
            if (good && p.number == 0) p.callable = std::make_shared<const Callable>(better);
            return good;
          },
          nb::arg("read").none(),
          "Runs the passes, before its first call. `read` gives a Tensor's bytes; None folds "
          "nothing.")
      .def(
          "passes",
          [](PyProgram& p, nb::handle read) {
            nb::list out;
            const ops::Catalog& catalog = ops::catalog();
            const auto add = [&](std::string_view name, const std::string& before,
                                 const std::string& after) {
              out.append(nb::make_tuple(std::string(name), before, after));
            };
            const program::Program last =
                passes::optimize(*p.captured, catalog, evaluator(*p.session, read),
                                 [&](std::string_view name, const program::Program& before,
                                     const program::Program& after) {
                                   add(name, passes::to_string(before), passes::to_string(after));
                                 });
            add("fuse", passes::to_string(last), passes::to_string(last, catalog, true));
            return out;
          },
          nb::arg("read"), "(name, before, after) of each pass.")
      .def_prop_ro("steps", [](PyProgram& p) { return p.program().body.steps.size(); })
      .def_prop_ro("numbers", [](PyProgram& p) { return p.program().numbers.size(); })
      .def_prop_ro("rebinds", [](PyProgram& p) { return p.program().rebinds.size(); })
      .def_prop_ro(
          "rebound",
          [](PyProgram& p) {
            std::vector<std::uint32_t> out;
            for (const auto& r : p.program().rebinds) out.push_back(r.parameter);
            return out;
          },
          "The parameters that it writes to in place.")
      .def_prop_ro("results", [](PyProgram& p) { return p.program().body.results.size(); })
      .def_prop_ro("random_steps", [](PyProgram& p) { return p.program().random_steps; })
      .def(
          "serialize",
          [](PyProgram& p) {
            raise_if(fits_a_file(p.program()));
            const std::string bytes =
                program::serialize(p.program(), ops::op_names(ops::catalog()));
            return nb::bytes(bytes.data(), bytes.size());
          },
          "The program as bytes in the file format.");
  m.def(
      "load_program",
      [](PySession& session, nb::bytes bytes) {
        auto read = value_or_raise(program::deserialize(
            std::string_view(bytes.c_str(), bytes.size()), ops::op_finder(ops::catalog())));
        raise_if(ops::verify(read, ops::catalog()));
        raise_if(fits_a_file(read));
        return program_object(session, std::move(read));
      },
      nb::arg("session"), nb::arg("contents"),
      "The program in these bytes. Every parameter is an argument.");
  m.def(
      "capture", &capture, nb::arg("session"), nb::arg("state"), nb::arg("held"),
      nb::arg("tensors"), nb::arg("function"), nb::arg("name"), nb::arg("names"),
      "Runs function(tensors), which returns a list, as a trace: (the list, places of the tensors "
      "that it has also read from outside, what end_trace gives).");
  m.def(
      "begin_trace",
      [](PySession& session) {
        const auto [seed, ordinal] = rng_state();
        raise_if(session.programs().begin_trace(static_cast<std::uint64_t>(seed),
                                                static_cast<std::uint64_t>(ordinal)));
        return ordinal;
      },
      nb::arg("session"));
  nb::class_<PyTrace>(m, "Trace", "What was captured, for the programs of its gradients.");
  m.def("end_trace", &end_trace, nb::arg("session"), nb::arg("outputs"), nb::arg("ordinal"),
        nb::arg("name") = "", nb::arg("names") = std::vector<std::string>(),
        nb::arg("keep") = false);
  m.def(
      "abandon_trace", [](PySession& session) { (void)session.commands().end_trace(); },
      nb::arg("session"));
  m.def("new_tag", [] { return ++g_tag; });
  m.def("set_symbol_type", [](nb::object type) { g_symbol = type.release().ptr(); });
  // The signature of the arguments: all properties of the tensors that influence which program is
  // needed.
  m.def(
      "signature",
      [](nb::handle tensors) {
        std::string key;
        std::vector<const Handle*> seen;
        for (nb::handle each : tensors) {
          PyTensor& t = checked_tensor(each);
          Handle& h = *t.handle;
          const char head[] = {static_cast<char>(h.layout.dtype),
                               static_cast<char>(h.layout.device.kind),
                               static_cast<char>(h.layout.device.index),
                               static_cast<char>(h.shape().size()),
                               static_cast<char>(h.requires_grad()),
                               static_cast<char>(has_attributes(each.ptr()))};
          key.append(head, sizeof head);
          // A tensor that is passed in two positions is one parameter.
          const auto first =
              static_cast<std::uint32_t>(std::find(seen.begin(), seen.end(), &h) - seen.begin());
          key.append(reinterpret_cast<const char*>(&first), sizeof first);
          seen.push_back(&h);
          for (int d = 0; d < h.shape().size(); ++d) {
            const std::int64_t pair[] = {h.shape()[d], h.geometry().strides[d]};
            key.append(reinterpret_cast<const char*>(pair), sizeof pair);
          }
        }
        const char modes[] = {static_cast<char>(grad_mode()), static_cast<char>(inference_mode()),
                              static_cast<char>(default_dtype())};
        key.append(modes, sizeof modes);
        key.append(autocast_key());
        return nb::bytes(key.data(), key.size());
      },
      nb::arg("tensors"));
}

}  // namespace teletensor::client
