// Operator objects: every operator of the catalog as a Python callable with the names and defaults
// of its signature. Arguments are parsed here, without running Python code. methods.h turns
// operator objects into methods.

#include <Python.h>
// This header requires Python.h to be included first.
#include <structmember.h>

#include <algorithm>
#include <array>

#include "bindings.h"
#include "calls/described.h"
#include "calls/keywords.h"
#include "calls/overrides.h"
#include "engine/ops/signature.h"
#include "proto/wire/protocol.h"

namespace teletensor::client {
namespace {

using core::Attribute;
using ops::OpDef;
using ops::Parameter;

// The process's random number generator, which manual_seed sets and every random instruction uses.
std::int64_t g_seed = 67280421310721;  // PyTorch's default seed.
std::int64_t g_ordinal = 0;

struct OpObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  const OpDef* def;
  OpId id;
  bool inplace;
  bool real_valued;  // Whether the result is real also for complex tensors.
  int device;        // Index of the attribute that is the result's device. -1 means none.
  int factor;        // Index of the parameter that multiplies an operand. -1 means none.
  std::vector<PyObject*>* names;  // Interned parameter names.
};

bool type_error(const OpObject* op, const Parameter& p, const char* wants, PyObject* got) {
  if (PyErr_Occurred()) return false;
  PyErr_Format(PyExc_TypeError, "%s(): argument '%s' must be %s, not %s", op->def->name.c_str(),
               p.name.c_str(), wants, described(got).c_str());
  return false;
}

bool element_error(const OpObject* op, const Parameter& p, Py_ssize_t index, PyObject* got) {
  if (PyErr_Occurred()) return false;
  PyErr_Format(PyExc_TypeError, "%s(): element %zd of argument '%s' must be Tensor, not %s",
               op->def->name.c_str(), index, p.name.c_str(), described(got).c_str());
  return false;
}

bool to_int(PyObject* object, std::int64_t& value) {
  if (PyLong_Check(object)) {
    value = PyLong_AsLongLong(object);
    // An integer, or a 0-d integer tensor, whose value is waited for.
  } else if (PyIndex_Check(object)) {
    PyObject* index = PyNumber_Index(object);
    if (index == nullptr) return false;
    value = PyLong_AsLongLong(index);
    Py_DECREF(index);
  } else {
    return false;
  }
  return !(value == -1 && PyErr_Occurred());
}

bool to_attribute(const OpObject* op, const Parameter& p, PyObject* object, Attribute& out) {
  if (object == Py_None) {
    if (!p.optional) return type_error(op, p, "given", object);
    out = Attribute::none();
    return true;
  }
  std::int64_t integer = 0;
  switch (p.type) {
    case Parameter::Type::kBool: {
      if (!PyBool_Check(object) && !PyLong_Check(object)) {
        return type_error(op, p, "bool", object);
      }
      out = Attribute::of(PyObject_IsTrue(object) == 1);
      return true;
    }
    case Parameter::Type::kInt:
      if (!to_int(object, integer)) return type_error(op, p, "int", object);
      out = Attribute::of(integer);
      return true;
    case Parameter::Type::kFloat: {
      core::Number number;
      if (!PyFloat_CheckExact(object) && !PyLong_CheckExact(object) &&
          // A Symbol used as an attribute becomes a constant, which __float__ records.
          symbol_of(object, number)) {
        out = Attribute::of(PyFloat_AsDouble(object));
        return !PyErr_Occurred();
      }
      if (PyErr_Occurred()) return false;
      if (is_tensor(object)) {  // A 0-d tensor as a number: its value is waited for.
        const PyTensor* tensor = usable(object);
        if (tensor == nullptr) return false;
        // An attribute has no gradient, so a tensor that requires one is refused.
        if (requires_grad(*tensor)) return type_error(op, p, "a number", object);
        out = Attribute::of(PyFloat_AsDouble(object));
        return !PyErr_Occurred();
      }
      if (!number_of(object, number)) return type_error(op, p, "a number", object);
      if (number.is_complex()) return type_error(op, p, "a real number", object);
      out = Attribute::of(number.as_double());
      return true;
    }
    case Parameter::Type::kInts: {
      core::InlineVector<std::int64_t, 8> ints;
      if (to_int(object, integer)) {
        ints.push_back(integer);
      } else {
        if (PyErr_Occurred() || PyUnicode_Check(object) || is_tensor(object)) {
          return type_error(op, p, "a tuple of ints", object);
        }
        PyObject* sequence = PySequence_Fast(object, "");
        if (sequence == nullptr) {
          PyErr_Clear();
          return type_error(op, p, "a tuple of ints", object);
        }
        const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence);
        bool good = true;
        for (Py_ssize_t i = 0; i < size && good; ++i) {
          good = to_int(PySequence_Fast_GET_ITEM(sequence, i), integer);
          ints.push_back(integer);
        }
        Py_DECREF(sequence);
        if (!good) return type_error(op, p, "a tuple of ints", object);
      }
      out = Attribute::of(std::span<const std::int64_t>(ints.data(), ints.size()));
      return true;
    }
    case Parameter::Type::kString: {
      const char* text = PyUnicode_Check(object) ? PyUnicode_AsUTF8(object) : nullptr;
      if (text == nullptr) return type_error(op, p, "str", object);
      out = Attribute::of(text);
      return true;
    }
    case Parameter::Type::kDType: {
      const auto dtype = dtype_named_by(object);
      if (!dtype) return type_error(op, p, "a dtype", object);
      out = Attribute::of(*dtype);
      return true;
    }
    case Parameter::Type::kDevice: {
      const auto device = device_of(object);
      if (!device && PyUnicode_Check(object)) return refuse_device(object), false;
      if (!device) return type_error(op, p, "a device", object);
      out = Attribute::of(*device);
      return true;
    }
    default:
      return type_error(op, p, "an attribute", object);
  }
}

bool to_operand(const OpObject* op, const Parameter& p, PyObject* object,
                core::InlineVector<Var, 3>& arguments,
                core::InlineVector<std::uint32_t, 2>& counts) {
  if (p.type == Parameter::Type::kTensorList) {
    PyObject* sequence = is_tensor(object) ? nullptr : PySequence_Fast(object, "");
    if (sequence == nullptr) {
      PyErr_Clear();
      return type_error(op, p, "a list of Tensors", object);
    }
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence);
    counts.push_back(static_cast<std::uint32_t>(size));
    // PyTorch raises ValueError here; other invalid lists give RuntimeErrors in infer.
    if (size == 0 && op->def->name == "cat") {
      Py_DECREF(sequence);
      PyErr_SetString(PyExc_ValueError, "cat(): expected a non-empty list of Tensors");
      return false;
    }
    const nb::object owned = nb::steal(sequence);
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyObject* const item = PySequence_Fast_GET_ITEM(sequence, i);
      PyTensor* tensor = tensor_of(item);
      if (tensor == nullptr) return element_error(op, p, i, item);
      arguments.push_back(tensor->var());
    }
    return true;
  }
  if (object == Py_None && (p.optional || p.type == Parameter::Type::kOptionalTensor)) {
    arguments.push_back({});
    return true;
  }
  Var& var = arguments.emplace_back();
  if (is_tensor(object)) {
    PyTensor* tensor = tensor_of(object);
    if (tensor != nullptr) var = tensor->var();
    return tensor != nullptr;
  }
  if (p.type == Parameter::Type::kOperand && to_var(object, var)) return true;
  return type_error(op, p, p.type == Parameter::Type::kOperand ? "Tensor or a number" : "Tensor",
                    object);
}

PyObject* call_of(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names);

// Performs a call without out=, and stores its result in the tensor that out= names
// (_calls/out.py). Returns null without an error if there is no out=.
PyObject* call_with_out(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names) {
  const Py_ssize_t keywords = PyTuple_GET_SIZE(names);
  Py_ssize_t at = 0;
  while (at < keywords &&
         PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, at), "out") != 0) {
    ++at;
  }
  if (at == keywords) return nullptr;
  const auto given = PyVectorcall_NARGS(flags);
  std::vector<PyObject*> values(args, args + given + keywords);
  PyObject* const out = values[static_cast<std::size_t>(given + at)];
  values.erase(values.begin() + given + at);
  PyObject* fewer = PyTuple_New(keywords - 1);
  if (fewer == nullptr) return nullptr;
  for (Py_ssize_t i = 0, to = 0; i < keywords; ++i) {
    if (i != at) PyTuple_SET_ITEM(fewer, to++, Py_NewRef(PyTuple_GET_ITEM(names, i)));
  }
  PyObject* result = call_of(callable, values.data(), static_cast<size_t>(given), fewer);
  Py_DECREF(fewer);
  if (result == nullptr || out == Py_None) return result;
  PyObject* stored = wait_for_process_end([&]() -> PyObject* {
    PyObject* module = PyImport_ImportModule("teletensor._calls.out");
    if (module == nullptr) return nullptr;
    const auto* op = reinterpret_cast<OpObject*>(callable);
    PyObject* done =
        PyObject_CallMethod(module, "store", "sOO", op->def->name.c_str(), out, result);
    Py_DECREF(module);
    return done;
  });
  Py_DECREF(result);
  return stored;
}

// Handles a call without a tensor argument. For a function of tensors, such as tt.add(2, 3), the
// first number becomes a tensor; functions that create tensors, such as tt.full, receive numbers.
// Returns false with an error set on failure.
bool first_as_tensor(PySession& session, const OpDef& def, std::span<Var> arguments) {
  const auto makes_tensors = [](const Parameter& p) { return p.type == Parameter::Type::kDevice; };
  if (arguments.empty() || !arguments[0].is_number() ||
      std::ranges::any_of(def.parameters, makes_tensors)) {
    return true;
  }
  static const ops::OpRef full("full");
  const core::Attributes scalar{Attribute::of(core::Dims()), Attribute::none(), Attribute::none()};
  PyObject* tensor = call_op(session, full, arguments.first(1), {}, scalar);
  if (tensor == nullptr) return false;
  arguments[0] = tensor_of(tensor)->var();
  Py_DECREF(tensor);
  return true;
}

// The number of parameters that a caller may pass. For random operators, seed and ordinal, the last
// two, are set by this client.
std::size_t fillable(const OpDef& def) { return def.parameters.size() - (def.random ? 2 : 0); }

// Finds the value that a call passes for each parameter; null if it passes none.
bool match(const OpObject& op, PyObject* const* args, std::size_t given, PyObject* names,
           std::span<PyObject*> values) {
  const char* const called = op.def->name.c_str();
  if (given > values.size()) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %zu arguments, %zu were given", called,
                 fillable(*op.def), given);
    return false;
  }
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i < given ? args[i] : nullptr;
  const Py_ssize_t keywords = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t k = 0; k < keywords; ++k) {
    PyObject* name = PyTuple_GET_ITEM(names, k);
    std::size_t i = 0;
    while (i < values.size() && (*op.names)[i] != name) ++i;
    // Handles names that are not interned, and PyTorch's and NumPy's names.
    if (i == values.size()) {
      i = 0;
      while (i < values.size() && PyUnicode_Compare((*op.names)[i], name) != 0) ++i;
    }
    if (i == values.size()) {
      i = 0;
      while (i < values.size() && !stands_for(op.def->name, name, (*op.names)[i])) ++i;
    }
    if (i == values.size() && names_input(name)) i = 0;
    if (i == values.size()) {
      PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", called, name);
      return false;
    }
    if (values[i] != nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", called, name);
      return false;
    }
    values[i] = args[given + static_cast<std::size_t>(k)];
  }
  return true;
}

struct ReadCall {
  core::InlineVector<Var, 3> arguments;
  core::InlineVector<std::uint32_t, 2> counts;
  core::Attributes attributes;
};

// Uses the default of a parameter that the call does not pass. Returns false with an error set if
// there is none.
bool read_missing(const OpDef& def, std::size_t i, ReadCall& call) {
  const Parameter& p = def.parameters[i];
  const Attribute& fallback = p.fallback;
  if (!p.is_operand()) {
    if (const std::size_t own = fillable(def); i >= own) {
      call.attributes.push_back(Attribute::of(i == own ? g_seed : g_ordinal++));
      return true;
    }
    if (p.has_default || p.optional) {
      if (!ops::left_off(p)) call.attributes.push_back(fallback);
      return true;
    }
  } else if (p.type == Parameter::Type::kTensorList && p.has_default) {
    call.counts.push_back(0);
    return true;
  } else if (p.optional || p.type == Parameter::Type::kOptionalTensor) {
    call.arguments.push_back({});
    return true;
  } else if (p.has_default) {  // The parameter is an operand with a number as its default.
    call.arguments.push_back(
        fallback.kind == Attribute::Kind::kFloat  ? core::Number::of_float(fallback.real)
        : fallback.kind == Attribute::Kind::kBool ? core::Number::of_bool(fallback.integer)
                                                  : core::Number::of_int(fallback.integer));
    return true;
  }
  PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s'", def.name.c_str(),
               p.name.c_str());
  return false;
}

bool read(const OpObject* op, std::span<PyObject* const> values, ReadCall& call) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Parameter& p = op->def->parameters[i];
    if (values[i] == nullptr) {
      if (!read_missing(*op->def, i, call)) return false;
    } else if (p.is_operand()) {
      if (!to_operand(op, p, values[i], call.arguments, call.counts)) return false;
    } else {
      Attribute attribute;
      if (!to_attribute(op, p, values[i], attribute)) return false;
      call.attributes.push_back(std::move(attribute));
    }
  }
  return true;
}

// The session of the device meta for an op that makes tensors there; otherwise that of the first
// tensor, or the current session. Null with an error set on failure.
PySession* session_of(const OpObject& op, std::span<Var> arguments,
                      const core::Attributes& attributes) {
  try {
    if (op.device >= 0 && static_cast<std::size_t>(op.device) < attributes.size()) {
      const Attribute& device = attributes.at(static_cast<std::size_t>(op.device));
      if (device.kind == Attribute::Kind::kDevice &&
          is_meta(attributes.device(static_cast<std::size_t>(op.device)))) {
        return &meta_session();
      }
    }
    for (const Var& argument : arguments) {
      if (argument.is_tensor()) return &client::session_of(argument);
    }
    PySession& session = current_session();
    return first_as_tensor(session, *op.def, arguments) ? &session : nullptr;
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
}

bool any_operand(std::span<const Var> operands, bool (*of_dtype)(core::DType),
                 bool (*of_number)(const core::Number&)) {
  return std::ranges::any_of(operands, [&](const Var& v) {
    return v.is_tensor() ? of_dtype(v.dtype()) : v.is_number() && of_number(v.number());
  });
}

// Checks that the result type can represent a factor. Returns false with an error set if not. Other
// numbers than alpha are cast, as in PyTorch.
bool factor_fits(const Parameter& p, PyObject* factor, std::span<const Var> operands) {
  const auto is_complex = [](const core::Number& n) { return n.is_complex(); };
  const auto is_fraction = [](const core::Number& n) {
    return n.is_complex() || n.kind == core::Number::Kind::kFloat;
  };
  const auto is_number = [](const core::Number& n) { return n.kind != core::Number::Kind::kBool; };
  const bool alpha = p.name == "alpha";
  const char* wrong = nullptr;
  if (alpha && PyBool_Check(factor)) {
    const auto not_bool = [](core::DType dtype) { return dtype != core::DType::kBool; };
    if (any_operand(operands, not_bool, is_number)) {
      wrong = "Boolean alpha only supported for Boolean results.";
    }
  } else if (alpha && PyFloat_Check(factor)) {
    const auto inexact = [](core::DType dtype) { return core::is_inexact(dtype); };
    if (!any_operand(operands, inexact, is_fraction)) {
      wrong = "For integral input tensors, argument alpha must not be a floating point number.";
    }
  } else if (PyComplex_Check(factor)) {
    const auto complex = [](core::DType dtype) { return core::is_complex(dtype); };
    if (!any_operand(operands, complex, is_complex)) {
      wrong = "For non-complex input tensors, alpha or value must not be a complex number.";
    }
  }
  if (wrong != nullptr) PyErr_SetString(PyExc_RuntimeError, wrong);
  return wrong == nullptr;
}

// A complex factor cannot be an attribute, so the operand is multiplied by it first
// (_functions/complex.py).
PyObject* call_scaled(const OpObject& op, std::span<PyObject* const> values) {
  PyObject* module = PyImport_ImportModule("teletensor._functions.complex");
  if (module == nullptr) return nullptr;
  PyObject* function = PyObject_GetAttrString(module, "scaled");
  Py_DECREF(module);
  if (function == nullptr) return nullptr;
  PyObject* name = PyUnicode_FromString(op.def->name.c_str());
  std::vector<PyObject*> all{name, op.inplace ? Py_True : Py_False};
  for (PyObject* value : values) {
    if (value != nullptr) all.push_back(value);
  }
  PyObject* done = PyObject_Vectorcall(function, all.data(), all.size(), nullptr);
  Py_DECREF(name);
  Py_DECREF(function);
  return done;
}

PyObject* call_of(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names) {
  auto* op = reinterpret_cast<OpObject*>(callable);
  if (names != nullptr && !op->inplace) [[unlikely]] {
    PyObject* done = call_with_out(callable, args, flags, names);
    if (done != nullptr || PyErr_Occurred()) return done;
  }
  core::InlineVector<PyObject*, 16> values;
  values.resize(op->def->parameters.size());
  const std::span<PyObject*> matched{values.data(), values.size()};
  if (!match(*op, args, static_cast<std::size_t>(PyVectorcall_NARGS(flags)), names, matched)) {
    return nullptr;
  }
  PyObject* const factor = op->factor < 0 ? nullptr : matched[static_cast<std::size_t>(op->factor)];
  const bool scaled = factor != nullptr && PyComplex_Check(factor);
  if (scaled) matched[static_cast<std::size_t>(op->factor)] = nullptr;
  ReadCall call;
  if (!read(op, matched, call)) return nullptr;
  const std::span<Var> arguments{call.arguments.data(), call.arguments.size()};
  if (factor != nullptr && !factor_fits(op->def->parameters.back(), factor, arguments)) {
    return nullptr;
  }
  if (scaled) {
    matched[static_cast<std::size_t>(op->factor)] = factor;
    return call_scaled(*op, matched);
  }
  const std::span<const std::uint32_t> counts{call.counts.data(), call.counts.size()};
  PySession* session = session_of(*op, arguments, call.attributes);
  if (session == nullptr) return nullptr;
  // Tensors without data take no random numbers.
  if (session->stream().is_meta() && op->def->random && matched.back() == nullptr) --g_ordinal;
  if (!op->inplace) return call_op(*session, op->id, arguments, counts, call.attributes);
  if (values[0] == nullptr || !is_tensor(values[0])) {
    PyErr_Format(PyExc_TypeError, "%s_() needs a Tensor to write to", op->def->name.c_str());
    return nullptr;
  }
  if (op->real_valued && core::is_complex(arguments[0].dtype())) {
    PyErr_Format(PyExc_RuntimeError, "In-place %s is not supported for complex tensors.",
                 op->def->name.c_str());
    return nullptr;
  }
  return call_inplace(*session, op->id, values[0], arguments, counts, call.attributes);
}

PyObject* op_call(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names) {
  PyObject* const done = call_of(callable, args, flags, names);
  return done != nullptr ? done : overridden(callable, args, flags, names);
}

PyObject* op_repr(PyObject* self) {
  const auto* op = reinterpret_cast<OpObject*>(self);
  return PyUnicode_FromFormat("<op %s%s>", op->def->name.c_str(), op->inplace ? "_" : "");
}

PyObject* op_name(PyObject* self, void*) {
  const auto* op = reinterpret_cast<OpObject*>(self);
  return PyUnicode_FromString((op->def->name + (op->inplace ? "_" : "")).c_str());
}
PyObject* op_doc(PyObject* self, void*) {
  const auto* op = reinterpret_cast<OpObject*>(self);
  return PyUnicode_FromString(
      (std::string(op->def->signature) + "\n\n" + std::string(op->def->doc)).c_str());
}
// Makes an operator look like PyTorch's functions to the `inspect` module.
PyObject* op_class(PyObject*, void*) { return Py_NewRef(&PyCFunction_Type); }
PyObject* op_signature(PyObject* self, void*) {
  const auto* op = reinterpret_cast<OpObject*>(self);
  return PyUnicode_FromStringAndSize(op->def->signature.data(),
                                     static_cast<Py_ssize_t>(op->def->signature.size()));
}

// Copies and pickles are references to the operator, which is found by its name.
PyObject* op_reduce(PyObject* self, PyObject*) {
  PyObject* module = PyImport_ImportModule("teletensor._names.ops");
  if (module == nullptr) return nullptr;
  PyObject* find = PyObject_GetAttrString(module, "named");
  Py_DECREF(module);
  if (find == nullptr) return nullptr;
  PyObject* name = op_name(self, nullptr);
  return name ? Py_BuildValue("N(N)", find, name) : nullptr;
}
PyMethodDef op_methods[] = {{"__reduce__", op_reduce, METH_NOARGS, nullptr},
                            {nullptr, nullptr, 0, nullptr}};

PyGetSetDef op_properties[] = {{"__name__", op_name, nullptr, nullptr, nullptr},
                               {"__doc__", op_doc, nullptr, nullptr, nullptr},
                               {"__class__", op_class, nullptr, nullptr, nullptr},
                               {"signature", op_signature, nullptr, nullptr, nullptr},
                               {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject* op_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(OpObject, vectorcall), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_repr, reinterpret_cast<void*>(op_repr)},
                                {Py_tp_getset, op_properties},
                                {Py_tp_methods, op_methods},
                                {Py_tp_members, members},
                                {0, nullptr}};
  static PyType_Spec spec = {"teletensor._core.Op", sizeof(OpObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL |
                                 Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                             slots};
  static auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type;
}

// The returned object lives as long as the process.
nb::object make_op(const OpDef& def, bool inplace) {
  auto* op = PyObject_New(OpObject, op_type());
  op->vectorcall = op_call;
  op->def = &def;
  op->id = ops::catalog().id(def);
  op->inplace = inplace;
  op->real_valued = def.name == "abs";
  const auto makes_on = [](const Parameter& p) { return p.type == Parameter::Type::kDevice; };
  const auto place = std::ranges::find_if(def.parameters, makes_on);
  op->device = place == def.parameters.end()
                   ? -1
                   : static_cast<int>(place - def.parameters.begin()) - def.operand_parameters;
  static constexpr std::array kScaled{"add", "sub", "addcmul", "addcdiv"};
  op->factor = std::ranges::find(kScaled, def.name) == kScaled.end()
                   ? -1
                   : static_cast<int>(def.parameters.size()) - 1;
  op->names = new std::vector<PyObject*>();
  for (const Parameter& p : def.parameters) {
    op->names->push_back(PyUnicode_InternFromString(p.name.c_str()));
  }
  return nb::steal(reinterpret_cast<PyObject*>(op));
}

nb::dict describe(const OpDef& def) {
  nb::dict out;
  out["name"] = def.name;
  out["signature"] = std::string(def.signature);
  out["doc"] = std::string(def.doc);
  out["revision"] = def.revision;
  out["view"] = def.view != nullptr;
  out["differentiable"] =
      def.not_differentiable.empty() && (def.vjp != nullptr || def.view != nullptr);
  out["not_differentiable"] = std::string(def.not_differentiable);
  out["internal"] = def.internal;
  out["random"] = def.random;
  out["mutates"] = !def.mutates.empty();
  out["inplace"] =
      def.infer != nullptr && def.mutates.empty() && def.results == 1 && def.operand_parameters > 0;
  nb::list parameters;
  for (const Parameter& p : def.parameters) {
    nb::dict each;
    each["name"] = p.name;
    static constexpr const char* kTypes[] = {"Tensor", "Tensor?", "Tensor[]", "Operand",
                                             "bool",   "int",     "float",    "int[]",
                                             "str",    "dtype",   "device"};
    each["type"] = kTypes[static_cast<int>(p.type)];
    each["optional"] = p.optional;
    each["has_default"] = p.has_default;
    parameters.append(each);
  }
  out["parameters"] = parameters;
  return out;
}

}  // namespace

bool number_of(PyObject* object, core::Number& number) {
  if (PyFloat_Check(object)) {
    number = core::Number::of_float(PyFloat_AS_DOUBLE(object));
    return true;
  }
  if (PyBool_Check(object)) {
    number = core::Number::of_bool(object == Py_True);
    return true;
  }
  if (PyComplex_Check(object)) {
    number =
        core::Number::of_complex(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object));
    return true;
  }
  if (PyLong_Check(object)) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow > 0) {
      const unsigned long long bits = PyLong_AsUnsignedLongLong(object);
      if (!PyErr_Occurred()) {
        number = core::Number::of_uint(bits);
        return true;
      }
      PyErr_Clear();
    }
    if (overflow != 0) {
      PyErr_SetString(PyExc_OverflowError, "a Python int does not fit 64 bits");
      return false;
    }
    number = core::Number::of_int(value);
    return true;
  }
  if (is_tensor(object) || PySequence_Check(object) || is_torch_tensor(object)) return false;
  if (PyObject_HasAttrString(object, "__complex__") && !PyIndex_Check(object) &&
      (Py_TYPE(object)->tp_as_number == nullptr ||
       std::string_view(Py_TYPE(object)->tp_name).find("complex") != std::string_view::npos)) {
    const Py_complex value = PyComplex_AsCComplex(object);  // Converts NumPy's complex64.
    if (value.real == -1.0 && PyErr_Occurred()) return false;
    number = core::Number::of_complex(value.real, value.imag);
    return true;
  }
  if (PyIndex_Check(object)) {  // Converts NumPy's integer scalars.
    PyObject* index = PyNumber_Index(object);
    if (index == nullptr) return false;
    const bool fits = number_of(index, number);
    Py_DECREF(index);
    return fits;
  }
  if (Py_TYPE(object)->tp_as_number && Py_TYPE(object)->tp_as_number->nb_float) {
    const double value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred()) return false;
    number = core::Number::of_float(value);
    return true;
  }
  return false;
}

std::pair<std::int64_t, std::int64_t> rng_state() { return {g_seed, g_ordinal}; }
std::pair<std::int64_t, std::int64_t> take_ordinals(std::uint64_t count) {
  const std::int64_t first = g_ordinal;
  g_ordinal += static_cast<std::int64_t>(count);
  return {g_seed, first};
}

bool to_var(PyObject* object, Var& var) {
  if (is_tensor(object)) {
    PyTensor* tensor = usable(object);
    if (tensor != nullptr) var = tensor->var();
    return tensor != nullptr;
  }
  core::Number number;
  if (!PyFloat_CheckExact(object) && !PyLong_CheckExact(object)) {
    if (symbol_of(object, number)) {
      var = Var(number);
      return true;
    }
    if (PyErr_Occurred()) return false;
  }
  if (!number_of(object, number)) return false;
  var = Var(number);
  return true;
}

bool is_op(PyObject* object) { return Py_TYPE(object) == op_type(); }

void bind_ops(nb::module_& m) {
  nb::dict functions;
  nb::list catalog;
  const ops::Catalog& all = ops::catalog();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const OpDef& def = all.at(static_cast<OpId>(i));
    functions[def.name.c_str()] = make_op(def, false);
    const bool first_is_tensor =
        def.operand_parameters > 0 && def.parameters[0].type != Parameter::Type::kTensorList;
    if (def.infer != nullptr && def.mutates.empty() && def.results == 1 && first_is_tensor) {
      functions[(def.name + "_").c_str()] = make_op(def, true);
    }
    catalog.append(describe(def));
  }
  m.attr("ops") = functions;
  m.attr("catalog_entries") = catalog;
  m.def(
      "catalog", [catalog] { return catalog; }, "Every op: name, signature, doc, facts.");
  m.attr("PROTOCOL") = wire::kProtocol;
  m.attr("PROTOCOL_MIN") = wire::kProtocolMin;
  m.def("op_table", [] {
    std::vector<std::pair<std::string, int>> out;
    const ops::Catalog& all = ops::catalog();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const OpDef& def = all.at(static_cast<OpId>(i));
      out.emplace_back(def.name, def.revision);
    }
    return out;
  });
  m.def("manual_seed", [](std::int64_t seed) {
    g_seed = seed;
    g_ordinal = 0;
  });
  m.def("rng_state", [] { return std::make_pair(g_seed, g_ordinal); });
  m.def("set_rng_state", [](std::int64_t seed, std::int64_t ordinal) {
    g_seed = seed;
    g_ordinal = ordinal;
  });
}

}  // namespace teletensor::client
