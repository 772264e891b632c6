#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> matmul_ops() { return {}; }

}  // namespace teletensor::ops
