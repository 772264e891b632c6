#include "engine/backends/cpu/loops/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backends/cpu/loops/loops_special.cc"
// Each of these headers needs the headers above it.
// clang-format off
#include "engine/backends/cpu/access/targets.h"
#include "hwy/foreach_target.h"  // compiles the part below once per instruction set
#include "engine/backends/cpu/loops/loops-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace teletensor::backends::cpu {
namespace HWY_NAMESPACE {

void bind_list_special() { bind(Rare()); }

}  // namespace HWY_NAMESPACE
}  // namespace teletensor::backends::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace teletensor::backends::cpu {

namespace {
HWY_EXPORT(bind_list_special);
}
void bind_special() { HWY_DYNAMIC_DISPATCH(bind_list_special)(); }

}  // namespace teletensor::backends::cpu
#endif
