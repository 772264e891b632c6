// The table of forward-mode and vmap rules (transforms.cc).
#pragma once

#include <string_view>
#include <vector>

#include "engine/ops/op.h"

namespace teletensor::ops {

using InlineVars = core::InlineVector<Var, 4>;

// Sets the rules of the table on the ops whose OpDef has none. Called by the catalog. Returns the
// name of a row for which there is no op, or an empty text.
std::string_view add_transform_rules(std::vector<OpDef>& all);

}  // namespace teletensor::ops
