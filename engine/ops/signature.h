// Textual signatures -> parameters.
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
  int results = 1;  // -1: as many as infer or view says
};

// Grammar: name "(" [parameter {"," parameter}] ")" "->" results
//   parameter: type ["?"] name ["=" default]; defaults: None True False 1 -2.5 inf 'text' [1, 2]
//              and dtype names
//   results:   "Tensor" | "Tensor[]" | "(" Tensor [name] {"," Tensor [name]} ")"
// Refuses what does not match, attributes before operands, and defaults of another kind, and what
// stands behind a parameter that calls may leave off.
core::Result<Signature> parse_signature(std::string_view text);

// A flag that an op has got later ("bool? name=None", the last one): calls that do not give it
// leave it off, as those of before do. Readers ask Attributes::has() first.
inline bool left_off(const Parameter& parameter) {
  return parameter.type == Parameter::Type::kBool && parameter.optional;
}

// Does `value` fit an attribute parameter (an integer fits a float)? Numbers of dtypes and devices
// are checked too, so readers of attributes need no check of their own.
bool fits(const Parameter& parameter, const core::Attribute& value);

}  // namespace teletensor::ops
