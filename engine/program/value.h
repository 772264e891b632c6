// Value: immutable contents of one storage identity at one moment. Names come and go; a value never
// changes once its instruction has run.
//
// Made by the front, filled by the back: contents and failure are written once, by the lane that
// runs the producing instruction, before any later instruction of the session reads them (the
// session's order is the synchronisation). Reference counts may be touched by front and lanes at
// once. The client's mirror uses no values at all (null).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/core/dtype.h"
#include "engine/core/ref.h"
#include "engine/core/status.h"

namespace teletensor::program {

// A late error: the root that travels with everything that depends on it.
struct Failure {
  std::uint64_t seq = 0;  // of the command that failed
  core::Status status;
};

class Value : public core::Shared {
 public:
  Value(core::DType dtype, core::Device device, std::int64_t elements)
      : dtype(dtype), device(device), elements(elements) {}

  const core::DType dtype;
  const core::Device device;
  const std::int64_t elements;  // of the whole storage, strides and holes included

  // Set by the back. Exactly one of contents (a memory::Storage) and failure once it has run.
  core::Ref<core::Shared> contents;
  std::shared_ptr<const Failure> failure;
  core::Ref<Value> good;  // with failure: the value that this rebind would have replaced

  // Of a collective's result, set by the back: the storage has had no other value.
  bool received = false;

  // Of a published tensor, set by the front before anybody else sees it: what overwrites the value
  // before it writes the common storage, whoever holds that.
  bool through = false;
};
using ValueRef = core::Ref<Value>;

}  // namespace teletensor::program
