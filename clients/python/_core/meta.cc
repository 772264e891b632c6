// Tensors of the device meta, which have no data: the session that they belong to, and calls that
// have them and tensors of a daemon as operands.

#include "bindings.h"

namespace teletensor::client {
namespace {

// A tensor without data in the place of a tensor of a daemon. A gradient cannot leave the device
// meta: a backward pass that reaches the tensor raises an error.
core::Result<HandleRef> without_data(PySession& meta, const Var& argument, core::Device device) {
  Handle& h = autograd::handle_of(argument);
  if (h.id == 0) return outside_its_vmap();
  HandleRef made = meta.stand_in({h.layout.dtype, device, h.layout.geometry});
  if (grad_mode() && h.requires_grad()) {
    TT_RETURN_IF_ERROR(meta.set_requires_grad(*made, true));
    TT_RETURN_IF_ERROR(meta.register_hook(*made, kNoDataHook));
  }
  return made;
}

// Whether a call with tensors on the device meta takes this tensor of a daemon, as PyTorch does: a
// number on the CPU, an index on the CPU, or what is copied into a tensor on the device meta.
bool joins(OpId id, bool inplace, bool first, const Var& argument) {
  static const ops::OpRef copy("copy"), index("index"), index_put("index_put");
  if (inplace && id == copy) return true;
  if (argument.layout().device != core::Device()) return false;
  if (argument.layout().geometry.shape.size() == 0) return true;
  return !first && (id == index || id == index_put) && !core::is_inexact(argument.dtype());
}

}  // namespace

PySession& meta_session() {
  static PySession* session = [] {
    // The Python object lives as long as the process.
    return nb::cast<PySession*>(
        nb::module_::import_("teletensor._sessions.meta").attr("session").attr("_core"));
  }();
  return *session;
}

Status two_sessions(core::Device a, core::Device b) {
  if (is_meta(a) != is_meta(b)) {
    return core::invalid(
        "Expected all tensors to be on the same device, but found at least two devices, " +
        core::to_string(a) + " and " + core::to_string(b) + "!");
  }
  return core::invalid(
      "operands belong to two sessions; copy one into the other session: with "
      "session.as_current(): y = teletensor.tensor(x.numpy()); between ranks of a mesh: y = "
      "x.to(mesh[rank])");
}

Status join_meta(OpId id, bool inplace, Arguments& arguments) {
  static const ops::OpRef to_device("to_device"), copy("copy");
  const Var *meta = nullptr, *real = nullptr;
  for (const Var& argument : arguments) {
    if (!argument.is_tensor()) continue;
    const Var*& seen = is_meta(argument.layout().device) ? meta : real;
    if (seen == nullptr) seen = &argument;
    if (argument.builder() != seen->builder()) {
      return two_sessions(seen->layout().device, argument.layout().device);
    }
  }
  const bool moves = id == to_device, writes_real = inplace && &arguments[0] == real;
  if (id == copy && writes_real) return no_data();
  constexpr core::Device kPlace{core::DeviceKind::kMeta, 0};
  PySession& session = meta_session();
  for (Var& argument : arguments) {
    if (!argument.is_tensor() || argument.builder() == &session) continue;
    const core::Device own = argument.layout().device;
    if (!moves && (writes_real || !joins(id, inplace, &argument == &arguments[0], argument))) {
      const bool first = meta == nullptr || &argument < meta;
      return two_sessions(first ? own : kPlace, first ? kPlace : own);
    }
    auto made = without_data(session, argument, moves ? own : kPlace);
    if (!made.ok()) return made.status();
    argument = Var(&session, std::move(*made));
  }
  return {};
}

}  // namespace teletensor::client
