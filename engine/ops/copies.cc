#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> copy_ops() { return {}; }

}  // namespace teletensor::ops
