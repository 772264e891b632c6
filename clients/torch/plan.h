// Plan: a row as it serves one operator of torch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "clients/torch/call.h"

namespace teletensor::torch {

// The source of one parameter of the op.
struct Term {
  enum class Kind : std::uint8_t { kArgument, kDefault, kNumber, kText, kNone };
  Kind kind = Kind::kNone;
  std::size_t argument = 0;  // its place in torch's schema
  double number = 0;
  std::string text;
};

struct Plan {
  const Row* row = nullptr;
  const ops::OpDef* op = nullptr;  // null if the row has a function only
  ops::OpId id = 0;
  std::vector<Term> terms;         // one a parameter of the op, without seed and ordinal
  std::string name;                // of torch's operator
  std::vector<std::string> names;  // of its arguments
  int generator = -1;              // its place among them
  bool in_place = false;
};

// Nothing where the row does not serve this operator.
std::unique_ptr<Plan> plan_of(const Row& row, const tt_schema& schema);

}  // namespace teletensor::torch
