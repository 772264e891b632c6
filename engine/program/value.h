// Value: the immutable contents of one storage at one moment. Handles come and go; a value never
// changes once its instruction has run.
//
// The front end creates values and the back end fills them: the lane that runs the producing
// instruction writes contents and failure once, before any later instruction of the session reads
// them (the order of the session's instructions is the synchronisation). Front end and lanes may
// change the reference count concurrently. The client's mirror uses null instead of values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/core/dtype.h"
#include "engine/core/recycled.h"
#include "engine/core/ref.h"
#include "engine/core/status.h"

namespace teletensor::program {

// A late error. The same root is passed on to every value that depends on the failed command.
struct Failure {
  std::uint64_t seq = 0;  // of the command that failed
  core::Status status;
};

class Value final : public core::Shared, public core::Recycled<Value> {
 public:
  Value(core::DType dtype, core::Device device, std::int64_t elements)
      : dtype(dtype), device(device), elements(elements) {}

  const core::DType dtype;
  const core::Device device;
  const std::int64_t elements;  // elements of the whole storage, including gaps between strides

  // Set by the back end. Exactly one of contents (a memory::Storage) and failure is set once the
  // instruction has run.
  core::Ref<core::Shared> contents;
  std::shared_ptr<const Failure> failure;
  // With failure: the value that the failed in-place write would have replaced.
  core::Ref<Value> good;

  // Set by the back end on the result of a collective: the storage was newly made for this value.
  bool received = false;

  // Set by the back end while it runs a loop: the step that makes this value, if it is one of the
  // values that the loop makes.
  std::uint32_t loop_step = 0;

  // Set by the back end while it plans a window of its queue: the number of that window among all
  // windows of the process, and the number of this value among the values of the window.
  std::uint64_t window = 0;
  std::uint32_t number_in_window = 0;

  // Set by the front end on values of a published tensor, before other sessions can see them. An
  // instruction that overwrites such a value writes into the shared storage itself, no matter how
  // many references there are.
  bool through = false;
};
using ValueRef = core::Ref<Value>;

}  // namespace teletensor::program
