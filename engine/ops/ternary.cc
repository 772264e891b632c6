#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> ternary_ops() { return {}; }

}  // namespace teletensor::ops
