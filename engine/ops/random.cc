#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> random_ops() { return {}; }

}  // namespace teletensor::ops
