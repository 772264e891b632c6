#include "calls/keywords.h"

#include <algorithm>
#include <array>

namespace teletensor::client {
namespace {

bool is(PyObject* text, const char* other) {
  return PyUnicode_CompareWithASCIIString(text, other) == 0;
}

struct Further {
  const char* name;
  const char* parameter;
  std::string_view function = {};  // The function that has it. Empty means all.
};

constexpr auto kNames = std::to_array<Further>({
    // NumPy's names.
    {"axis", "dim"},
    {"axis", "dims"},
    {"axes", "dims"},
    {"keepdims", "keepdim"},
    {"x", "input"},
    {"a", "input"},
    {"x1", "input"},
    {"x2", "other"},
    // Names of PyTorch's further forms of a function.
    {"axis0", "dim0"},
    {"axis1", "dim1"},
    {"indices", "indices_or_sections"},
    {"sections", "indices_or_sections"},
    {"tensor_indices_or_sections", "indices_or_sections"},
    {"other", "dim", "max"},
    {"x2", "dim", "max"},
    {"other", "dim", "min"},
    {"x2", "dim", "min"},
    {"other", "src", "copy_"},
    {"from", "from_", "random_"},
    {"from", "a", "uniform_"},
    {"to", "b", "uniform_"},
    {"L", "input", "cholesky_inverse"},
    {"input", "B", "cholesky_solve"},
    {"input2", "L", "cholesky_solve"},
    {"input", "b", "lu_solve"},
    {"input", "b", "triangular_solve"},
    {"element", "elements", "isin"},
    {"test_element", "test_elements", "isin"},
    {"train", "training"},
    {"other", "tensor", "to"},
    {"tensor", "tensor1", "result_type"},
    {"scalar1", "tensor1", "result_type"},
    {"other", "tensor2", "result_type"},
    {"scalar", "tensor2", "result_type"},
    {"scalar2", "tensor2", "result_type"},
    // PyTorch's names of operands that the catalog calls x and y, or a and b.
    {"other", "y", "matmul"},
    {"x2", "y", "matmul"},
    {"mat2", "y", "bmm"},
    {"mat2", "y", "mm"},
    {"vec", "y", "mv"},
    {"tensor", "y", "dot"},
    {"vec2", "y", "outer"},
    {"mat1", "a", "addmm"},
    {"mat2", "b", "addmm"},
});

}  // namespace

bool stands_for(std::string_view function, PyObject* name, PyObject* parameter) {
  return std::ranges::any_of(kNames, [&](const Further& each) {
    return (each.function.empty() || each.function == function) && is(name, each.name) &&
           is(parameter, each.parameter);
  });
}

bool names_input(PyObject* name) {
  static constexpr std::array kInput{"input", "x", "a", "x1"};
  return std::ranges::any_of(kInput, [name](const char* each) { return is(name, each); });
}

}  // namespace teletensor::client
