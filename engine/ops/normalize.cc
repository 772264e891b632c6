#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> normalize_ops() { return {}; }

}  // namespace teletensor::ops
