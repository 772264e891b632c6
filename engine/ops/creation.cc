#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> creation_ops() { return {}; }

}  // namespace teletensor::ops
