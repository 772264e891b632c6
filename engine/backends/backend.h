// Backend: what a device can do. Kernels are plain functions found by op name in a KernelTable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/bounds.h"
#include "engine/core/geometry.h"
#include "engine/core/status.h"
#include "engine/ops/op.h"

namespace teletensor::backends {

// One operand or result as a kernel sees it: memory, dtype, view. `data` is the start of the
// storage, so element (i, j) lies at data + (geometry.offset + i*stride0 + j*stride1) *
// size_of(dtype).
struct TensorArg {
  enum class Kind : std::uint8_t { kAbsent, kTensor, kNumber };
  Kind kind = Kind::kAbsent;
  void* data = nullptr;
  core::DType dtype = core::DType::kF32;
  const core::Geometry* geometry = nullptr;
  core::Number number;
  // What is known of all the numbers in the storage; null: nothing, and nobody keeps it. A kernel
  // that has looked at them all may narrow it: a view that is `whole` shows them all.
  core::Bounds* bounds = nullptr;
  bool whole = false;

  // Address of the first element.
  template <class T = void>
  T* first() const {
    return reinterpret_cast<T*>(static_cast<char*>(data) +
                                geometry->offset * static_cast<std::int64_t>(core::size_of(dtype)));
  }
};

// Splits work into parts whose number depends on the work alone (never on load: the bits rule) and
// runs them on whatever lanes are free, the calling one included. Returns when all are done.
class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual void run(std::int64_t parts, const std::function<void(std::int64_t)>& part) = 0;
  // True once the instruction's session is being interrupted; long kernels look between parts.
  virtual bool cancelled() const { return false; }
};

// Temporary memory of one kernel call, charged to the session; freed when the call returns.
class Scratch {
 public:
  virtual ~Scratch() = default;
  // 64-byte aligned, not zeroed; nullptr when the session's budget does not allow it (the kernel
  // then returns `out_of_scratch(bytes)`).
  virtual void* allocate(std::size_t bytes) = 0;
  // The same of the host's memory, where the device has its own.
  virtual void* allocate_on_host(std::size_t bytes) { return allocate(bytes); }
};
core::Status out_of_scratch(std::string_view op, std::size_t bytes);

// What the kernels of one backend describe their work to while a loop is made of them; its own.
class LoopMaker;
class Backend;

struct KernelCall {
  const ops::OpDef& op;
  std::span<const TensorArg> in;          // lists flattened
  std::span<const TensorArg> out;         // layouts exactly as inferred
  std::span<const std::uint32_t> counts;  // lengths of list arguments
  const core::Attributes& attributes;
  Parallel& parallel;
  Scratch& scratch;
  // Not null: the kernel (one with LoopRole::kElement) says what it would compute, and computes
  // nothing; memory may be null.
  LoopMaker* loop = nullptr;
  // Whose kernel this is; null where the kernel does not ask (the host's).
  Backend* backend = nullptr;
};
// Data-dependent refusals (an index out of range, integer division by zero) must be found before
// the first store. The out memory may be uninitialised unless op.inplace is kRegion.
using Kernel = core::Status (*)(KernelCall&);

// What a kernel can be in a loop (passes/loop.h).
enum class LoopRole : std::uint8_t { kNone, kElement, kFold };

class KernelTable {
 public:
  explicit KernelTable(const ops::Catalog& catalog)
      : catalog_(catalog),
        kernels_(catalog.size(), nullptr),
        roles_(catalog.size(), LoopRole::kNone) {}
  // Our own bug when the catalog has no such op or it has a kernel already.
  void add(std::string_view op, Kernel kernel, LoopRole role = LoopRole::kNone);
  Kernel find(ops::OpId op) const { return kernels_[op]; }
  LoopRole role(ops::OpId op) const { return roles_[op]; }

 private:
  const ops::Catalog& catalog_;
  std::vector<Kernel> kernels_;
  std::vector<LoopRole> roles_;
};

// One step of a loop. An operand that an earlier step makes, stored or not, has no data, and that
// step's index as `number.integer`.
struct LoopStep {
  const ops::OpDef* op = nullptr;
  Kernel kernel = nullptr;
  LoopRole role = LoopRole::kElement;
  std::span<const TensorArg> in;
  TensorArg out;  // data null: never stored, later steps of the loop alone read it
  std::span<const std::uint32_t> counts;
  const core::Attributes* attributes = nullptr;
};

// A device: memory and kernels. Thread-safe after construction.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual core::Device device() const = 0;
  virtual Kernel find(ops::OpId op) const = 0;
  virtual LoopRole role(ops::OpId op) const { return (void)op, LoopRole::kNone; }
  // Runs steps of one layout as one loop, with the bits of their kernels one by one. Fails only
  // before the first store.
  virtual core::Status run_loop(std::span<const LoopStep> steps, Parallel& parallel,
                                Scratch& scratch);
  // Device memory. 64-byte aligned, contents zero (fresh pages of the host are); nullptr when the
  // device has none left.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* memory, std::size_t bytes) = 0;
  virtual void zero(void* memory, std::size_t bytes) = 0;
  // Host to device, device to host and within the device. The host's memory is free to change on
  // return; what the device does, it does in the order in which it was asked, kernels included.
  virtual core::Status copy_in(void* device, const void* host, std::size_t bytes) = 0;
  virtual core::Status copy_out(void* host, const void* device, std::size_t bytes) = 0;
  virtual core::Status copy(void* to, const void* from, std::size_t bytes) = 0;
  // From another device straight to this one. UNIMPLEMENTED: there is no such way.
  virtual core::Status copy_from(Backend& other, void* to, const void* from, std::size_t bytes) {
    (void)other, (void)to, (void)from, (void)bytes;
    return core::Status(core::Code::kUnimplemented, "no way from device to device");
  }
  // Not ok once the device is lost, with the cause: it computes nothing any more. Any thread.
  virtual core::Status health() const { return {}; }
  // Called before each instruction: the seam for device failures and injected faults.
  virtual core::Status before(const ops::OpDef& op) { return (void)op, core::Status(); }
  // The same for each storage that an instruction needs.
  virtual core::Status admit(std::size_t bytes) { return (void)bytes, core::Status(); }
};

}  // namespace teletensor::backends
