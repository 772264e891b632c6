// The contents of a storage of torch: one cell of a session, and its views by geometry.
//
// Under Python's lock. Torch's tensors stay torch's own: what is known here of a tensor is its
// storage, and a handle for its dtype, sizes, strides and offset is found when an op needs one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "clients/session/session.h"
#include "clients/torch/record.h"

struct tt_storage {
  tt_storage() = default;
  tt_storage(const tt_storage&) = delete;
  ~tt_storage() {
    if (watch != nullptr) *watch = nullptr;
  }

  std::uint64_t bytes = 0;
  teletensor::autograd::HandleRef base;                // null: no contents
  std::vector<teletensor::autograd::HandleRef> views;  // of base, the last used ones
  // Objects that must know whether the storage still exists share this pointer to it.
  std::shared_ptr<tt_storage*> watch;
};

namespace teletensor::torch {

using autograd::HandleRef;
using client::Session;
using core::DType;
using core::Status;
using ops::Var;

// Torch's number of a dtype; -1 and nothing where the other side has none.
core::Result<DType> dtype_of(std::int32_t scalar_type);
std::int32_t scalar_type_of(DType dtype);

core::Dims sizes_of(const tt_tensor& tensor);

// The tensor as an operand of the session. Storages without contents get some.
Var operand(Session& session, core::Device device, const tt_tensor& tensor);
// As torch's copy_, with broadcasting and casts.
Status copy_to(Session& session, const Var& to, const Var& value);
// The same for a tensor of torch.
Status write(Session& session, core::Device device, const tt_tensor& to, const Var& value);
// As write() for a value that nothing else uses: a storage without contents takes its memory over.
Status give(Session& session, core::Device device, const tt_tensor& to, const Var& value);
Status resize(Session& session, tt_storage& storage, std::uint64_t bytes);
// Gives the storage other contents, of as many bytes.
void rebind(tt_storage& storage, HandleRef contents);

// A new storage for a result. A value that shares memory is copied first. `result.tensor` points
// into the handle.
Status make_result(Session& session, const Var& value, std::span<const Var> operands,
                   tt_result& result);

}  // namespace teletensor::torch
