#include "session/row_gradients.h"

#include "bindings.h"

namespace teletensor::client {
namespace {

// Calls a function of the Python module that makes sparse tensors of rows.
nb::object call_gradient_function(const char* name, nb::handle a, nb::handle b) {
  const nb::object function = nb::module_::import_("teletensor.sparse._gradients").attr(name);
  const nb::object result = nb::steal(call_python(function.ptr(), a.ptr(), b.ptr()));
  if (!result.is_valid()) throw nb::python_error();
  return result;
}

nb::object shown(PySession& session, const Var& v) {
  if (!v.is_tensor()) return nb::none();
  PyObject* made = wrap(session, HandleRef(&autograd::handle_of(v)));
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

}  // namespace

Status PySession::add_rows(Handle& leaf, bool input, Var& gradient) {
  RowGradients* const rows = RowGradients::current();
  if (rows == nullptr) return {};
  const nb::object given = rows->take(leaf);
  if (!given.is_valid()) return {};
  try {
    const nb::object tensor = shown(*this, Var(this, HandleRef(&leaf)));
    if (gradient.is_tensor()) {
      const nb::object dense = shown(*this, gradient);
      const nb::object sum = call_gradient_function("with_rows", dense, given);
      gradient = checked_tensor(sum).var();
      return {};
    }
    const nb::object sparse = call_gradient_function("of_rows", tensor, given);
    if (input) {
      rows->set_result(leaf, sparse);
    } else {
      call_gradient_function("accumulate", tensor, sparse);
    }
  } catch (nb::python_error& error) {
    error.restore();
    return aborted();
  }
  return {};
}

void refuse_in_capture(const PyTensor& tensor) {
  if (tensor.session->commands().tracer() != nullptr) {
    raise_if(core::invalid("a captured function cannot read or set a sparse .grad"));
  }
}

nb::object with_sparse_grad(PyTensor& tensor) {
  refuse_in_capture(tensor);
  if (tensor.handle->grad == nullptr) return tensor.sparse_grad;
  PyObject* dense = wrap(*tensor.session, tensor.handle->grad);
  if (dense == nullptr) throw nb::python_error();
  const nb::object sum = nb::steal(dense);
  call_gradient_function("add_to", sum, tensor.sparse_grad);
  tensor.sparse_grad.reset();
  return sum;
}

nb::object checked_sparse_grad(PyTensor& tensor, nb::handle value) {
  const nb::object own = nb::borrow(tensor.self);
  return call_gradient_function("checked", own, value);
}

void bind_row_gradients(nb::module_& m) {
  m.def(
      "give_rows",
      [](const PyNode& node, nb::object rows) {
        RowGradients* const current = RowGradients::current();
        if (current == nullptr || !node.node || node.node->edges.size() == 0 ||
            !node.node->edges[0].leaf) {
          raise_if(core::invalid("a function gives rows to a leaf, in a backward"));
        }
        current->give(*node.node->edges[0].leaf, std::move(rows));
      },
      nb::arg("node"), nb::arg("rows"),
      "Adds rows to the gradient of the first operand of a node, which is a leaf.");
}

}  // namespace teletensor::client
