#include "calls/tf32.h"

#include <algorithm>
#include <atomic>

namespace teletensor::client {
namespace {

enum Switch : std::uint8_t { kNone, kMatmul, kConvolution };

// PyTorch's defaults: off for matrix products, on for convolutions.
std::atomic<bool> g_on[] = {false, false, true};

// The switch of each operator, by id.
const std::vector<Switch>& switches() {
  static const std::vector<Switch> made = [] {
    std::vector<Switch> of(ops::catalog().size(), kNone);
    for (std::size_t id = 0; id < of.size(); ++id) {
      const ops::OpDef& op = ops::catalog().at(static_cast<OpId>(id));
      if (op.parameters.empty() || op.parameters.back().name != "tf32") continue;
      of[id] = op.name.starts_with("convolution") ? kConvolution : kMatmul;
    }
    return of;
  }();
  return made;
}

std::size_t place(OpId id) {
  const ops::OpDef& op = ops::catalog().at(id);
  return op.parameters.size() - static_cast<std::size_t>(op.operand_parameters) - 1;
}

// Not inlined, because most operators have no switch.
[[gnu::noinline]] bool is_on(Switch by, OpId id, std::span<const Var> arguments,
                             const core::Attributes& attributes) {
  if (!g_on[by].load(std::memory_order_relaxed) || attributes.has(place(id))) return false;
  return std::any_of(arguments.begin(), arguments.end(), [](const Var& var) {
    return var.is_tensor() && var.dtype() == core::DType::kF32 &&
           var.layout().device.kind == core::DeviceKind::kCuda;
  });
}

}  // namespace

bool takes_tf32(OpId id, std::span<const Var> arguments, const core::Attributes& attributes) {
  const Switch by = switches()[id];
  return by != kNone && is_on(by, id, arguments, attributes);
}

core::Attributes with_tf32(OpId id, const core::Attributes& attributes) {
  core::Attributes with;
  for (std::size_t i = 0; i < place(id); ++i) with.push_back(attributes.at(i));
  with.push_back(core::Attribute::of(true));
  return with;
}

void bind_tf32(nb::module_& m) {
  m.def("set_tf32_in_products", [](bool on) { g_on[kMatmul] = on; });
  m.def("set_tf32_in_convolutions", [](bool on) { g_on[kConvolution] = on; });
}

}  // namespace teletensor::client
