#include "calls/keywords.h"

#include <algorithm>
#include <array>
#include <utility>

namespace teletensor::client {

bool stands_for(PyObject* name, PyObject* parameter) {
  static constexpr std::array<std::pair<const char*, const char*>, 8> kNames = {
      {{"axis", "dim"},
       {"axis", "dims"},
       {"axes", "dims"},
       {"keepdims", "keepdim"},
       {"x", "input"},
       {"a", "input"},
       {"x1", "input"},
       {"x2", "other"}}};
  return std::ranges::any_of(kNames, [&](const auto& pair) {
    return PyUnicode_CompareWithASCIIString(name, pair.first) == 0 &&
           PyUnicode_CompareWithASCIIString(parameter, pair.second) == 0;
  });
}

}  // namespace teletensor::client
