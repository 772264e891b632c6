// A program's steps as calls of their own: recorded, they have derivatives of every order.
#pragma once

#include <vector>

#include "bindings.h"
#include "engine/program/program.h"

namespace teletensor::client {

class Expanded {
 public:
  // Of these of its results alone.
  Expanded(const program::Program& program, const std::vector<std::uint32_t>& results);

  // Which parameters they are made of.
  std::vector<std::uint32_t> parameters() const;

  struct Given {
    std::vector<HandleRef> inputs;  // by parameter
    std::vector<core::Number> numbers;
    std::int64_t seed = 0, ordinal = 0;
  };
  // Refuses branches and loops, and writes into a part of a tensor.
  Status run(PySession& session, const Given& given, Handles& out);

 private:
  // A handle that shows a value, and where.
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
  std::vector<bool> steps_, values_;       // what is needed
  std::vector<std::vector<Shown>> shown_;  // by value
};

}  // namespace teletensor::client
