#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> unary_ops() { return {}; }

}  // namespace teletensor::ops
