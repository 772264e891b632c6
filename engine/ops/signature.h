// Parses the textual signatures of ops.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/ops/op.h"

namespace teletensor::ops {

struct Signature {
  std::string name;
  std::vector<Parameter> parameters;
  int operand_parameters = 0;
  int results = 1;  // -1: as many as infer or view returns
};

// Parses a signature. Grammar: name "(" [parameter {"," parameter}] ")" "->" results
//   parameter: type ["?"] name ["=" default]; defaults: None True False 1 -2.5 inf 'text' [1, 2]
//              and dtype names
//   results:   "Tensor" | "Tensor[]" | "(" Tensor [name] {"," Tensor [name]} ")"
// Refuses texts that do not match, attributes before operands, defaults of the wrong kind, and
// parameters after one that calls may leave out.
core::Result<Signature> parse_signature(std::string_view text);

// Returns true for a flag that was added to an op later ("bool? name=None" as the last parameter).
// Calls that do not give it leave it out, as the calls of older clients do. Code that reads it asks
// Attributes::has() first.
inline bool left_off(const Parameter& parameter) {
  return parameter.type == Parameter::Type::kBool && parameter.optional;
}

// Returns true if `value` fits an attribute parameter (an integer fits a float). The numbers of
// dtypes and devices are checked too, so code that reads attributes needs no check of its own.
bool fits(const Parameter& parameter, const core::Attribute& value);

}  // namespace teletensor::ops
