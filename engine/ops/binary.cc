#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> binary_ops() { return {}; }

}  // namespace teletensor::ops
