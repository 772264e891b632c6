// The table of tangents and batches (transforms.cc).
#pragma once

#include <string_view>
#include <vector>

#include "engine/ops/op.h"

namespace teletensor::ops {

using InlineVars = core::InlineVector<Var, 4>;

// Fills in what the table says of each op, where its OpDef says nothing. Called by the catalog.
// Returns the name of a row without an op, else nothing.
std::string_view add_transform_rules(std::vector<OpDef>& all);

}  // namespace teletensor::ops
