// Copies of tensors: strided within a device (with a cast), and between devices. The strand only.
#pragma once

#include <cstddef>

#include "engine/core/geometry.h"
#include "engine/core/status.h"
#include "engine/memory/storage.h"
#include "engine/runtime/device.h"

namespace teletensor::runtime {

// A tensor in memory. `data` is the start of the storage; not owned.
struct View {
  void* data = nullptr;
  core::DType dtype = core::DType::kF32;
  const core::Geometry* geometry = nullptr;

  char* first() const {
    return static_cast<char*>(data) +
           geometry->offset * static_cast<std::int64_t>(core::size_of(dtype));
  }
};

// Row-major contents, which stay in memory.
struct RowMajor {
  memory::Pinned storage;
  std::size_t offset = 0, bytes = 0;
  char* data() const { return static_cast<char*>(storage->data()) + offset; }
};

// numel * size_of(dtype); SIZE_MAX where that is more than memory can hold.
std::size_t bytes_of(std::int64_t elements, core::DType dtype);

class CopyKernels {
 public:
  // The catalog's "clone" and "cast" do the strided work.
  explicit CopyKernels(const ops::Catalog& catalog);
  // Precondition: equal shapes, one device; memory not shared except at equal views.
  core::Status copy(Device& device, const View& from, const View& to, backends::Parallel& parallel,
                    backends::Scratch& scratch) const;

 private:
  const ops::Catalog& catalog_;
  const ops::OpDef* clone_;
  const ops::OpDef* cast_;
};

// Bytes of one device to another, through the host where both are elsewhere.
core::Status copy_between(Device& from_device, const void* from, Device& to_device, void* to,
                          std::size_t bytes);

}  // namespace teletensor::runtime
