// Copies of tensors: strided copies within a device (with a cast), and copies between devices. Used
// by the session task only.
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

// Row-major contents that stay in memory.
struct RowMajor {
  memory::Pinned storage;
  std::size_t offset = 0, bytes = 0;
  char* data() const { return static_cast<char*>(storage->data()) + offset; }
};

// numel * size_of(dtype); SIZE_MAX if that overflows.
std::size_t bytes_of(std::int64_t elements, core::DType dtype);

class CopyKernels {
 public:
  // Uses the catalog's "clone" and "cast" for strided copies.
  explicit CopyKernels(const ops::Catalog& catalog);
  // Precondition: both views have the same shape and device, and do not overlap unless they are
  // equal.
  core::Status copy(Device& device, const View& from, const View& to, backends::Parallel& parallel,
                    backends::Scratch& scratch) const;

 private:
  const ops::Catalog& catalog_;
  const ops::OpDef* clone_;
  const ops::OpDef* cast_;
};

// Copies bytes from one device to another, through the host if neither of them is the host.
core::Status copy_between(Device& from_device, const void* from, Device& to_device, void* to,
                          std::size_t bytes);

}  // namespace teletensor::runtime
