// Backend: the memory and the kernels of a device. Kernels are plain functions; a KernelTable finds
// them by the op's name.
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

// One operand or result as a kernel sees it: memory, dtype and view. `data` is the start of the
// storage, so element (i, j) is at data + (geometry.offset + i*stride0 + j*stride1) *
// size_of(dtype).
struct TensorArg {
  enum class Kind : std::uint8_t { kAbsent, kTensor, kNumber };
  Kind kind = Kind::kAbsent;
  void* data = nullptr;
  core::DType dtype = core::DType::kF32;
  const core::Geometry* geometry = nullptr;
  core::Number number;
  // Known bounds of all numbers in the storage. If null, nothing is known, and nothing that a
  // kernel finds out would be kept. A kernel that has read all numbers may narrow the bounds; it
  // has if the view is `whole`, which means that it covers the storage.
  core::Bounds* bounds = nullptr;
  bool whole = false;

  // The address of the first element.
  template <class T = void>
  T* first() const {
    return reinterpret_cast<T*>(static_cast<char*>(data) +
                                geometry->offset * static_cast<std::int64_t>(core::size_of(dtype)));
  }
};

// Splits work into parts and runs them on the free lanes and the calling thread; returns when all
// parts are done. The number of parts depends only on the work and never on the load, so that the
// bits of the result do not depend on the load.
class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual void run(std::int64_t parts, const std::function<void(std::int64_t)>& part) = 0;
  // Like run(), for parts that may run long without a call of cancelled(), such as a call of a
  // library. They do not keep the lanes from the work of other sessions.
  virtual void run_long(std::int64_t parts, const std::function<void(std::int64_t)>& part) {
    run(parts, part);
  }
  // Returns true once the instruction's session is being interrupted. Long kernels check this
  // between parts.
  virtual bool cancelled() const { return false; }
};

// Temporary memory of one kernel call. It counts towards the session's memory and is freed when the
// call returns.
class Scratch {
 public:
  virtual ~Scratch() = default;
  // Returns 64-byte aligned memory that is not zeroed, or nullptr if the session's budget does not
  // allow it (the kernel then returns `out_of_scratch(bytes)`).
  virtual void* allocate(std::size_t bytes) = 0;
  // Like allocate(), but returns host memory. For devices that have their own memory.
  virtual void* allocate_on_host(std::size_t bytes) { return allocate(bytes); }
};
core::Status out_of_scratch(std::string_view op, std::size_t bytes);

// While a loop is built, its kernels describe their computation to a LoopMaker instead of running.
// Each backend defines its own LoopMaker.
class LoopMaker;
class Backend;

struct KernelCall {
  const ops::OpDef& op;
  std::span<const TensorArg> in;          // lists of tensors are flattened
  std::span<const TensorArg> out;         // with exactly the inferred layouts
  std::span<const std::uint32_t> counts;  // lengths of list arguments
  const core::Attributes& attributes;
  Parallel& parallel;
  Scratch& scratch;
  // If not null, the kernel (one with LoopRole::kElement) describes its computation to the
  // LoopMaker and computes nothing; the memory of the operands may then be null.
  LoopMaker* loop = nullptr;
  // The backend that runs this kernel; null for the host's kernels, which do not use it.
  Backend* backend = nullptr;
};
// A kernel. Errors that depend on the data (an index out of range, an integer division by zero)
// must be found before the first store. The memory of `out` may be uninitialised, unless op.inplace
// is kRegion.
using Kernel = core::Status (*)(KernelCall&);

// The role that a kernel can have in a loop (passes/loop.h).
enum class LoopRole : std::uint8_t { kNone, kElement, kFold };

class KernelTable {
 public:
  explicit KernelTable(const ops::Catalog& catalog)
      : catalog_(catalog),
        kernels_(catalog.size(), nullptr),
        roles_(catalog.size(), LoopRole::kNone) {}
  // Precondition: the catalog has the op, and the op has no kernel yet. Otherwise it is an internal
  // error.
  void add(std::string_view op, Kernel kernel, LoopRole role = LoopRole::kNone);
  Kernel find(ops::OpId op) const { return kernels_[op]; }
  LoopRole role(ops::OpId op) const { return roles_[op]; }

 private:
  const ops::Catalog& catalog_;
  std::vector<Kernel> kernels_;
  std::vector<LoopRole> roles_;
};

// One step of a loop. An operand that an earlier step computes, whether it is stored or not, has
// null `data` and the index of that step in `number.integer`.
struct LoopStep {
  const ops::OpDef* op = nullptr;
  Kernel kernel = nullptr;
  LoopRole role = LoopRole::kElement;
  std::span<const TensorArg> in;
  // Null data: the result is not stored, because only later steps of the loop read it.
  TensorArg out;
  std::span<const std::uint32_t> counts;
  const core::Attributes* attributes = nullptr;
};

// A device with its memory and its kernels. Thread-safe after construction.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual core::Device device() const = 0;
  virtual Kernel find(ops::OpId op) const = 0;
  virtual LoopRole role(ops::OpId op) const { return (void)op, LoopRole::kNone; }
  // Runs steps of one layout as one loop. The bits are the same as if their kernels ran one by one.
  // It can fail only before the first store.
  virtual core::Status run_loop(std::span<const LoopStep> steps, Parallel& parallel,
                                Scratch& scratch);
  // Device memory: 64-byte aligned and zeroed (as fresh pages of the host are). Returns nullptr if
  // the device has no memory left.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* memory, std::size_t bytes) = 0;
  virtual void zero(void* memory, std::size_t bytes) = 0;
  // Copies from host to device, from device to host, and within the device. The host memory may be
  // changed as soon as the call returns. The device runs copies and kernels in the order in which
  // they were queued.
  virtual core::Status copy_in(void* device, const void* host, std::size_t bytes) = 0;
  virtual core::Status copy_out(void* host, const void* device, std::size_t bytes) = 0;
  virtual core::Status copy(void* to, const void* from, std::size_t bytes) = 0;
  // Copies directly from another device. Returns UNIMPLEMENTED if the devices cannot do that.
  virtual core::Status copy_from(Backend& other, void* to, const void* from, std::size_t bytes) {
    (void)other, (void)to, (void)from, (void)bytes;
    return core::Status(core::Code::kUnimplemented,
                        "this device cannot copy directly from another device");
  }
  // Returns an error with the cause once the device is lost; then it computes nothing any more. Any
  // thread may call it.
  virtual core::Status health() const { return {}; }
  // Called before each instruction. Device failures and injected faults are reported here.
  virtual core::Status before(const ops::OpDef& op) { return (void)op, core::Status(); }
  // Called for each storage that an instruction allocates, like before().
  virtual core::Status admit(std::size_t bytes) { return (void)bytes, core::Status(); }
};

}  // namespace teletensor::backends
