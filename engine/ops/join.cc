#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> join_ops() { return {}; }

}  // namespace teletensor::ops
