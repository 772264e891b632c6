#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> loss_ops() { return {}; }

}  // namespace teletensor::ops
