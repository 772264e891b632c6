// Tensor's operators as type slots, the most frequent calls of a program.

#include "bindings.h"
#include "calls/described.h"
#include "calls/overrides.h"
#include "engine/ops/signature.h"

namespace teletensor::client {
namespace {

// The operator's id and its default attributes, looked up once.
struct Prepared {
  explicit Prepared(const char* name) : id(ops::OpRef(name)) {
    const ops::OpDef& def = ops::catalog().at(id);
    for (std::size_t p = static_cast<std::size_t>(def.operand_parameters);
         p < def.parameters.size(); ++p) {
      if (!ops::left_off(def.parameters[p])) attributes.push_back(def.parameters[p].fallback);
    }
    numbers = def.parameters[0].type == ops::Parameter::Type::kOperand;
  }
  OpId id;
  core::Attributes attributes;
  bool numbers;  // Whether the operator also takes numbers as operands; matmul takes tensors only.
};

// What an operator returns for operands that it does not take: NotImplemented, so that Python asks
// the other operand's type. Only a tensor of PyTorch gets a text that names its conversion.
PyObject* refused(const Prepared& op, PyObject* a, PyObject* b) {
  if (PyErr_Occurred()) return nullptr;
  PyObject* const other = is_tensor(a) ? b : a;
  if (!is_torch_tensor(other)) Py_RETURN_NOTIMPLEMENTED;
  PyErr_Format(PyExc_TypeError, "%s(): operands must be Tensors%s, not %s",
               ops::catalog().at(op.id).name.c_str(), op.numbers ? " or numbers" : "",
               described(other).c_str());
  return nullptr;
}

PyObject* binary(const Prepared& op, PyObject* a, PyObject* b) {
  Var arguments[2];
  const bool known = op.numbers || (is_tensor(a) && is_tensor(b));
  if (!known || !to_var(a, arguments[0]) || !to_var(b, arguments[1])) {
    return refused(op, a, b);
  }
  PySession& session = session_of(arguments[arguments[0].is_tensor() ? 0 : 1]);
  return call_op(session, op.id, arguments, {}, op.attributes);
}

PyObject* unary(const Prepared& op, PyObject* a) {
  PyTensor* tensor = tensor_of(a);
  if (tensor == nullptr) return nullptr;
  const Var argument = tensor->var();
  return call_op(*tensor->session, op.id, {&argument, 1}, {}, op.attributes);
}

PyObject* inplace(const Prepared& op, PyObject* a, PyObject* b) {
  Var arguments[2];
  if (!to_var(a, arguments[0]) || !to_var(b, arguments[1])) {
    if (PyErr_Occurred() || !overrides(b)) return refused(op, a, b);
    // Without this call, Python would use the operator that is not in place.
    return PyObject_CallMethod(a, (ops::catalog().at(op.id).name + "_").c_str(), "O", b);
  }
  return call_inplace(session_of(arguments[0]), op.id, a, arguments, {}, op.attributes);
}

template <const char* kName>
PyObject* binary_slot(PyObject* a, PyObject* b) {
  static const Prepared op(kName);
  return binary(op, a, b);
}
template <const char* kName>
PyObject* unary_slot(PyObject* a) {
  static const Prepared op(kName);
  return unary(op, a);
}
template <const char* kName>
PyObject* inplace_slot(PyObject* a, PyObject* b) {
  static const Prepared op(kName);
  return inplace(op, a, b);
}

constexpr char kAdd[] = "add", kSub[] = "sub", kMul[] = "mul", kDiv[] = "div",
               kFloorDivide[] = "floor_divide", kRemainder[] = "remainder", kMatmul[] = "matmul",
               kNeg[] = "neg", kAbs[] = "abs", kAnd[] = "bitwise_and", kOr[] = "bitwise_or",
               kXor[] = "bitwise_xor", kNot[] = "bitwise_not", kLeft[] = "bitwise_left_shift",
               kRight[] = "bitwise_right_shift", kPow[] = "pow", kEq[] = "eq", kNe[] = "ne",
               kLt[] = "lt", kLe[] = "le", kGt[] = "gt", kGe[] = "ge";

PyObject* power(PyObject* a, PyObject* b, PyObject*) { return binary_slot<kPow>(a, b); }
PyObject* inplace_power(PyObject* a, PyObject* b, PyObject*) { return inplace_slot<kPow>(a, b); }

PyObject* invert(PyObject* a) {
  PyTensor* tensor = tensor_of(a);
  if (tensor == nullptr) return nullptr;
  const core::DType dtype =
      tensor->pending != nullptr ? tensor->pending->dtype : tensor->handle->layout.dtype;
  if (core::is_inexact(dtype)) {  // Raises a TypeError, unlike the operator bitwise_not.
    PyErr_SetString(PyExc_TypeError,
                    "~ (operator.invert) is only implemented on integer and Boolean-type tensors");
    return nullptr;
  }
  return unary_slot<kNot>(a);
}

PyObject* compare(PyObject* a, PyObject* b, int how) {
  switch (how) {
    case Py_EQ:
      return binary_slot<kEq>(a, b);
    case Py_NE:
      return binary_slot<kNe>(a, b);
    case Py_LT:
      return binary_slot<kLt>(a, b);
    case Py_LE:
      return binary_slot<kLe>(a, b);
    case Py_GT:
      return binary_slot<kGt>(a, b);
    default:
      return binary_slot<kGe>(a, b);
  }
}

Py_hash_t identity_hash(PyObject* a) {
  return static_cast<Py_hash_t>(reinterpret_cast<std::uintptr_t>(a) >> 4);
}

}  // namespace

PyType_Slot tensor_slots[] = {
    {Py_nb_add, reinterpret_cast<void*>(binary_slot<kAdd>)},
    {Py_nb_subtract, reinterpret_cast<void*>(binary_slot<kSub>)},
    {Py_nb_multiply, reinterpret_cast<void*>(binary_slot<kMul>)},
    {Py_nb_true_divide, reinterpret_cast<void*>(binary_slot<kDiv>)},
    {Py_nb_floor_divide, reinterpret_cast<void*>(binary_slot<kFloorDivide>)},
    {Py_nb_remainder, reinterpret_cast<void*>(binary_slot<kRemainder>)},
    {Py_nb_matrix_multiply, reinterpret_cast<void*>(binary_slot<kMatmul>)},
    {Py_nb_power, reinterpret_cast<void*>(power)},
    {Py_nb_and, reinterpret_cast<void*>(binary_slot<kAnd>)},
    {Py_nb_or, reinterpret_cast<void*>(binary_slot<kOr>)},
    {Py_nb_xor, reinterpret_cast<void*>(binary_slot<kXor>)},
    {Py_nb_lshift, reinterpret_cast<void*>(binary_slot<kLeft>)},
    {Py_nb_rshift, reinterpret_cast<void*>(binary_slot<kRight>)},
    {Py_nb_negative, reinterpret_cast<void*>(unary_slot<kNeg>)},
    {Py_nb_absolute, reinterpret_cast<void*>(unary_slot<kAbs>)},
    {Py_nb_invert, reinterpret_cast<void*>(invert)},
    {Py_nb_inplace_add, reinterpret_cast<void*>(inplace_slot<kAdd>)},
    {Py_nb_inplace_subtract, reinterpret_cast<void*>(inplace_slot<kSub>)},
    {Py_nb_inplace_multiply, reinterpret_cast<void*>(inplace_slot<kMul>)},
    {Py_nb_inplace_true_divide, reinterpret_cast<void*>(inplace_slot<kDiv>)},
    {Py_nb_inplace_floor_divide, reinterpret_cast<void*>(inplace_slot<kFloorDivide>)},
    {Py_nb_inplace_remainder, reinterpret_cast<void*>(inplace_slot<kRemainder>)},
    {Py_nb_inplace_power, reinterpret_cast<void*>(inplace_power)},
    {Py_nb_inplace_and, reinterpret_cast<void*>(inplace_slot<kAnd>)},
    {Py_nb_inplace_or, reinterpret_cast<void*>(inplace_slot<kOr>)},
    {Py_nb_inplace_xor, reinterpret_cast<void*>(inplace_slot<kXor>)},
    {Py_nb_inplace_lshift, reinterpret_cast<void*>(inplace_slot<kLeft>)},
    {Py_nb_inplace_rshift, reinterpret_cast<void*>(inplace_slot<kRight>)},
    {Py_tp_richcompare, reinterpret_cast<void*>(compare)},
    {Py_tp_hash, reinterpret_cast<void*>(identity_hash)},
    {0, nullptr},
};

}  // namespace teletensor::client
