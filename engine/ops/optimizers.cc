#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> optimizer_ops() { return {}; }

}  // namespace teletensor::ops
