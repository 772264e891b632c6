#include "engine/runtime/transfer.h"

#include <algorithm>
#include <memory>

namespace teletensor::runtime {

std::size_t bytes_of(std::int64_t elements, core::DType dtype) {
  std::size_t bytes;
  if (elements < 0 ||
      __builtin_mul_overflow(static_cast<std::size_t>(elements), core::size_of(dtype), &bytes)) {
    return SIZE_MAX;
  }
  return bytes;
}

CopyKernels::CopyKernels(const ops::Catalog& catalog)
    : catalog_(catalog), clone_(catalog.find("clone")), cast_(catalog.find("cast")) {}

core::Status CopyKernels::copy(Device& device, const View& from, const View& to,
                               backends::Parallel& parallel, backends::Scratch& scratch) const {
  const bool same = from.dtype == to.dtype;
  if (same && from.geometry->strides == to.geometry->strides && to.geometry->dense()) {
    return device.backend().copy(to.first(), from.first(),
                                 bytes_of(to.geometry->numel(), to.dtype));
  }
  const ops::OpDef* op = same ? clone_ : cast_;
  const backends::Kernel kernel = op == nullptr ? nullptr : device.kernel(catalog_.id(*op));
  if (kernel == nullptr) return core::internal("the device has no kernel for copies");
  const backends::TensorArg in{
      backends::TensorArg::Kind::kTensor, from.data, from.dtype, from.geometry, {}};
  const backends::TensorArg out{
      backends::TensorArg::Kind::kTensor, to.data, to.dtype, to.geometry, {}};
  core::Attributes attributes;
  if (!same) attributes.push_back(core::Attribute::of(to.dtype));
  backends::KernelCall call{*op,     {&in, 1}, {&out, 1},        {}, attributes, parallel,
                            scratch, nullptr,  &device.backend()};
  return kernel(call);
}

core::Status copy_between(Device& from_device, const void* from, Device& to_device, void* to,
                          std::size_t bytes) {
  if (&from_device == &to_device) return to_device.backend().copy(to, from, bytes);
  if (from_device.id().kind == core::DeviceKind::kCpu) {
    return to_device.backend().copy_in(to, from, bytes);
  }
  if (to_device.id().kind == core::DeviceKind::kCpu) {
    return from_device.backend().copy_out(to, from, bytes);
  }
  if (core::Status status = to_device.backend().copy_from(from_device.backend(), to, from, bytes);
      status.code() != core::Code::kUnimplemented) {
    return status;
  }
  const std::size_t piece = std::min<std::size_t>(bytes, std::size_t{1} << 20);
  const auto buffer = std::make_unique_for_overwrite<char[]>(piece);
  for (std::size_t at = 0; at < bytes; at += piece) {
    const std::size_t n = std::min(piece, bytes - at);
    TT_RETURN_IF_ERROR(
        from_device.backend().copy_out(buffer.get(), static_cast<const char*>(from) + at, n));
    TT_RETURN_IF_ERROR(to_device.backend().copy_in(static_cast<char*>(to) + at, buffer.get(), n));
  }
  return {};
}

}  // namespace teletensor::runtime
