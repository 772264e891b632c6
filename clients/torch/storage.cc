#include "clients/torch/storage.h"

#include <algorithm>

#include "engine/ops/functions.h"

namespace teletensor::torch {

using core::Attribute;
using core::Dims;
using core::Geometry;

namespace {

constexpr std::size_t kViews = 8;  // remembered for one storage

struct Numbered {
  std::int32_t scalar_type;
  DType dtype;
};
constexpr Numbered kNumbered[] = {
    {0, DType::kU8},   {1, DType::kI8},    {2, DType::kI16},   {3, DType::kI32},
    {4, DType::kI64},  {5, DType::kF16},   {6, DType::kF32},   {7, DType::kF64},
    {9, DType::kC64},  {10, DType::kC128}, {11, DType::kBool}, {15, DType::kBF16},
    {27, DType::kU16}, {28, DType::kU32},  {29, DType::kU64},
};

// Does the handle show what the tensor shows?
bool shows(const autograd::Handle& h, DType dtype, const tt_tensor& tensor) {
  const Geometry& g = h.geometry();
  if (h.layout.dtype != dtype || g.shape.size() != tensor.rank || g.offset != tensor.offset) {
    return false;
  }
  for (int i = 0; i < tensor.rank; ++i) {
    if (g.shape[i] != tensor.sizes[i]) return false;
    if (tensor.sizes[i] > 1 && g.strides[i] != tensor.strides[i]) return false;
  }
  return true;
}

Var elements(Session& session, core::Device device, std::int64_t count, DType dtype) {
  static const ops::OpRef empty("empty");
  return session.call(
      empty, {}, {Attribute::of(Dims{count}), Attribute::of(dtype), Attribute::of(device)}, {})[0];
}

Var strided(Session& session, const Var& base, const Dims& sizes, const Dims& strides,
            std::int64_t offset) {
  static const ops::OpRef as_strided("as_strided");
  const Var arguments[] = {base};
  return session.call(as_strided, arguments,
                      {Attribute::of(sizes), Attribute::of(strides), Attribute::of(offset)}, {})[0];
}

std::int64_t count_of(std::uint64_t bytes, DType dtype) {
  return static_cast<std::int64_t>(bytes / core::size_of(dtype));
}

// All of the storage as elements of this dtype, in one dimension.
Var flat(Session& session, tt_storage& storage, DType dtype) {
  static const ops::OpRef bitcast("bitcast");
  const DType own = storage.base->layout.dtype;
  const std::int64_t count = count_of(static_cast<std::uint64_t>(storage.base->cell->bytes), own);
  const Var all = strided(session, Var(&session, storage.base), Dims{count}, Dims{1}, 0);
  if (own == dtype || all.absent()) return all;
  return session.call(bitcast, {&all, 1}, {Attribute::of(dtype)}, {})[0];
}

HandleRef handle_of(const Var& var) { return HandleRef(&autograd::handle_of(var)); }

}  // namespace

core::Result<DType> dtype_of(std::int32_t scalar_type) {
  for (const Numbered& each : kNumbered) {
    if (each.scalar_type == scalar_type) return each.dtype;
  }
  return core::unimplemented(
      "the device tt has no tensors of this dtype (torch's number " + std::to_string(scalar_type) +
      "): complex32, float8 and quantized dtypes are not supported; convert on the CPU first, for "
      "example by .to(torch.bfloat16)");
}

std::int32_t scalar_type_of(DType dtype) {
  for (const Numbered& each : kNumbered) {
    if (each.dtype == dtype) return each.scalar_type;
  }
  return -1;
}

Dims sizes_of(const tt_tensor& tensor) {
  return Dims(std::span(tensor.sizes, static_cast<std::size_t>(tensor.rank)));
}

Var operand(Session& session, core::Device device, const tt_tensor& tensor) {
  tt_storage& storage = *tensor.storage;
  const auto dtype = dtype_of(tensor.dtype);
  if (!dtype.ok()) {
    session.put_status(dtype.status());
    return {};
  }
  if (storage.base == nullptr) {
    const Var all = elements(session, device, count_of(storage.bytes, *dtype), *dtype);
    if (all.absent()) return {};
    storage.base = handle_of(all);
  }
  if (shows(*storage.base, *dtype, tensor)) return Var(&session, storage.base);
  for (const HandleRef& view : storage.views) {
    if (shows(*view, *dtype, tensor)) return Var(&session, view);
  }
  const Var from = storage.base->layout.dtype == *dtype ? Var(&session, storage.base)
                                                        : flat(session, storage, *dtype);
  if (from.absent()) return {};
  const Dims strides(std::span(tensor.strides, static_cast<std::size_t>(tensor.rank)));
  const Var view = strided(session, from, sizes_of(tensor), strides, tensor.offset);
  if (view.absent()) return {};
  if (storage.views.size() >= kViews) storage.views.erase(storage.views.begin());
  storage.views.push_back(handle_of(view));
  return view;
}

Status copy_to(Session& session, const Var& to, const Var& value) {
  static const ops::OpRef copy("copy");
  const Var arguments[] = {to, value};
  return session.apply_inplace(copy, arguments, {}, {});
}
Status write(Session& session, core::Device device, const tt_tensor& to, const Var& value) {
  const Var target = operand(session, device, to);
  TT_RETURN_IF_ERROR(session.take_status());
  return copy_to(session, target, value);
}

Status give(Session& session, core::Device device, const tt_tensor& to, const Var& value) {
  const auto dtype = dtype_of(to.dtype);
  TT_RETURN_IF_ERROR(dtype.status());
  autograd::Handle& h = autograd::handle_of(value);
  if (to.storage->base == nullptr && !h.is_view() && shows(h, *dtype, to) &&
      static_cast<std::uint64_t>(h.cell->bytes) == to.storage->bytes) {
    to.storage->base = HandleRef(&h);
    return {};
  }
  return write(session, device, to, value);
}

Status resize(Session& session, tt_storage& storage, std::uint64_t bytes) {
  if (storage.base != nullptr) {
    const DType dtype = storage.base->layout.dtype;
    const std::int64_t old = count_of(static_cast<std::uint64_t>(storage.base->cell->bytes), dtype);
    const std::int64_t count = count_of(bytes, dtype);
    const std::int64_t kept = std::min(old, count);
    const Var all = elements(session, storage.base->layout.device, count, dtype);
    if (kept > 0) {
      const Var before = strided(session, Var(&session, storage.base), Dims{kept}, Dims{1}, 0);
      const Var after = strided(session, all, Dims{kept}, Dims{1}, 0);
      TT_RETURN_IF_ERROR(session.take_status());
      TT_RETURN_IF_ERROR(copy_to(session, after, before));
    }
    TT_RETURN_IF_ERROR(session.take_status());
    storage.base = handle_of(all);
    storage.views.clear();
  }
  storage.bytes = bytes;
  return {};
}

void rebind(tt_storage& storage, HandleRef contents) {
  storage.base = std::move(contents);
  storage.views.clear();
}

Status make_result(Session& session, const Var& value, std::span<const Var> operands,
                   tt_result& result) {
  static const ops::OpRef clone("clone");
  Var own = value;
  const auto& cell = autograd::handle_of(value).cell;
  const bool shared =
      autograd::handle_of(value).is_view() || std::ranges::any_of(operands, [&](const Var& each) {
        return each.is_tensor() && autograd::handle_of(each).cell == cell;
      });
  if (shared) own = session.call(clone, {&value, 1}, {}, {})[0];
  TT_RETURN_IF_ERROR(session.take_status());
  autograd::Handle& h = autograd::handle_of(own);
  auto* storage = new tt_storage;
  storage->bytes = static_cast<std::uint64_t>(h.cell->bytes);
  storage->base = HandleRef(&h);
  const Geometry& g = h.geometry();
  result.kind = TT_TENSOR;
  result.storage_bytes = storage->bytes;
  result.tensor = {storage,           scalar_type_of(h.layout.dtype),
                   g.shape.size(),    g.shape.begin(),
                   g.strides.begin(), g.offset};
  return {};
}

}  // namespace teletensor::torch
