#include "engine/ops/families.h"

namespace teletensor::ops {

std::vector<OpDef> index_ops() { return {}; }

}  // namespace teletensor::ops
