// Executes a program's steps as separate calls. When these are recorded, they have derivatives of
// every order.
#pragma once

#include <vector>

#include "bindings.h"
#include "engine/program/program.h"

namespace teletensor::client {

class Expanded {
 public:
  // Prepares to execute only the steps that these results need.
  Expanded(const program::Program& program, const std::vector<std::uint32_t>& results);

  // Indices of the parameters that the results depend on.
  std::vector<std::uint32_t> parameters() const;

  struct Given {
    std::vector<HandleRef> inputs;  // The inputs by parameter.
    std::vector<core::Number> numbers;
    std::int64_t seed = 0, ordinal = 0;
  };
  // Refuses branches, loops, and writes into a part of a tensor.
  Status run(PySession& session, const Given& given, Handles& out);

 private:
  // A handle that has the contents of a value, and its geometry.
  struct Shown {
    HandleRef handle;
    core::Geometry geometry;
  };
  Status constant(PySession& session, const program::Literal& literal);
  Status call(PySession& session, const Given& given, const program::Step& step);
  core::Result<HandleRef> find(PySession& session, const program::View& view);
  static Status refuse(std::string_view why);

  const program::Program& program_;
  const std::vector<std::uint32_t>& results_;
  std::vector<bool> steps_, values_;       // The steps and values that the results need.
  std::vector<std::vector<Shown>> shown_;  // The handles of each value, with their geometries.
};

}  // namespace teletensor::client
