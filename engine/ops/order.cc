#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> order_ops() { return {}; }

}  // namespace teletensor::ops
