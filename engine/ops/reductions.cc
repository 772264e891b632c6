#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> reduction_ops() { return {}; }

}  // namespace teletensor::ops
