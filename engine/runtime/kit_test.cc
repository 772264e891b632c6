#include "engine/runtime/kit_test.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <new>
#include <thread>

#include "engine/core/mutex.h"
#include "engine/memory/storage.h"
#include "engine/program/interner.h"

namespace teletensor::runtime::testing {

std::atomic<int> slow_ms{0};
std::atomic<bool> gate_open{true};
std::atomic<int> at_gate{0};

namespace {

using backends::KernelCall;
using backends::TensorArg;
using core::Status;

struct Interned {
  core::Mutex mutex;
  program::Interner items TT_GUARDED_BY(mutex);
};

Interned& all_interned() {
  static Interned all;
  return all;
}

std::int64_t location(const core::Geometry& geometry, std::int64_t i) {
  std::int64_t at = geometry.offset;
  for (int d = geometry.rank(); d-- > 0; i /= geometry.shape[d]) {
    at += i % geometry.shape[d] * geometry.strides[d];
  }
  return at;
}

// Broadcasts by repeating the last dimensions, which is enough for the tests.
float get(const TensorArg& arg, std::int64_t i) {
  if (arg.kind == TensorArg::Kind::kNumber) return static_cast<float>(arg.number.as_double());
  const std::int64_t at = location(*arg.geometry, i % arg.geometry->numel());
  if (arg.dtype == core::DType::kI32) return static_cast<float>(static_cast<int*>(arg.data)[at]);
  return static_cast<float*>(arg.data)[at];
}

void put(const TensorArg& arg, std::int64_t i, float x) {
  const std::int64_t at = location(*arg.geometry, i);
  if (arg.dtype == core::DType::kI32) {
    static_cast<int*>(arg.data)[at] = static_cast<int>(x);
  } else {
    static_cast<float*>(arg.data)[at] = x;
  }
}

Status clone(KernelCall& call) {
  const std::int64_t n = call.out[0].geometry->numel();
  for (std::int64_t i = 0; i < n; ++i) put(call.out[0], i, get(call.in[0], i));
  return {};
}

Status copy(KernelCall& call) {
  const std::int64_t n = call.out[0].geometry->numel();
  for (std::int64_t i = 0; i < n; ++i) put(call.out[0], i, get(call.in[1], i));
  return {};
}

// The elements of a contiguous f32 tensor; null for other operands.
float* contiguous_floats(const TensorArg& arg) {
  if (arg.kind != TensorArg::Kind::kTensor || arg.dtype != core::DType::kF32) return nullptr;
  if (!arg.geometry->contiguous()) return nullptr;
  return static_cast<float*>(arg.data) + arg.geometry->offset;
}

Status add(KernelCall& call) {
  const std::int64_t n = call.out[0].geometry->numel();
  // Large tensors would take minutes with ThreadSanitizer if each element were located.
  float* const out = contiguous_floats(call.out[0]);
  const float* const in = contiguous_floats(call.in[0]);
  if (out != nullptr && in != nullptr && call.in[1].kind == TensorArg::Kind::kNumber &&
      call.in[0].geometry->numel() == n) {
    const float x = get(call.in[1], 0);
    for (std::int64_t i = 0; i < n; ++i) out[i] = in[i] + x;
    return {};
  }
  for (std::int64_t i = 0; i < n; ++i) {
    put(call.out[0], i, get(call.in[0], i) + get(call.in[1], i));
  }
  return {};
}

// Sets every element to the sum of operand 1, which is wrong if operand and result share memory.
Status total(KernelCall& call) {
  if (!call.out[0].geometry->contiguous()) return core::internal("total: layout");
  const std::int64_t n = call.out[0].geometry->numel();
  for (std::int64_t i = 0; i < n; ++i) {
    float sum = 0;
    for (std::int64_t k = 0; k < call.in[1].geometry->numel(); ++k) sum += get(call.in[1], k);
    put(call.out[0], i, sum);
  }
  return {};
}

// The result is operand 0 with row `index` replaced by operand 1.
Status put_row(KernelCall& call) {
  const core::Geometry row = call.out[0].geometry->select(0, call.attributes.integer(0));
  TensorArg target = call.out[0];
  target.geometry = &row;
  for (std::int64_t i = 0; i < row.numel(); ++i) put(target, i, get(call.in[1], i));
  return {};
}

Status refuse(KernelCall&) { return core::invalid("refuse: always"); }
Status explode(KernelCall&) { throw std::bad_alloc(); }

Status slow(KernelCall& call) {
  std::this_thread::sleep_for(std::chrono::milliseconds(slow_ms));
  return clone(call);
}

Status gate(KernelCall& call) {
  ++at_gate;
  while (!gate_open && !call.parallel.cancelled()) std::this_thread::yield();
  --at_gate;
  if (call.parallel.cancelled()) return Status(core::Code::kCancelled, "gate: interrupted");
  return clone(call);
}

// Like gate, but it never gives up its lane, and cannot be interrupted.
Status wall(KernelCall& call) {
  ++at_gate;
  while (!gate_open) std::this_thread::yield();
  --at_gate;
  return clone(call);
}

Status scratchy(KernelCall& call) {
  const std::size_t bytes = static_cast<std::size_t>(call.attributes.integer(0));
  void* memory = call.scratch.allocate(bytes);
  if (memory == nullptr) return backends::out_of_scratch("scratchy", bytes);
  std::memset(memory, 1, bytes);
  return clone(call);
}

Status split(KernelCall& call) {
  const std::int64_t n = call.out[0].geometry->numel();
  call.parallel.run(n, [&](std::int64_t i) { put(call.out[0], i, get(call.in[0], i) + 1); });
  return {};
}

Status same_layout(ops::InferContext& c) {
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

struct KitOp {
  const char* signature;
  backends::Kernel kernel;
  ops::Inplace inplace;
  bool collective = false;
};
constexpr auto kE = ops::Inplace::kElementwise;
constexpr auto kT = ops::Inplace::kTemporary;
constexpr KitOp kOps[] = {
    {"clone(Tensor x) -> Tensor", clone, kE},
    {"cast(Tensor x, dtype dtype) -> Tensor", clone, kE},
    {"to_device(Tensor x, device device) -> Tensor", nullptr, kT},
    {"copy(Tensor x, Operand src) -> Tensor", copy, kE},
    {"add(Tensor x, Operand y) -> Tensor", add, kE},
    {"total(Tensor x, Tensor y) -> Tensor", total, kT},
    {"put_row(Tensor x, Operand row, int index) -> Tensor", put_row, ops::Inplace::kRegion},
    {"refuse(Tensor x) -> Tensor", refuse, kE},
    {"explode(Tensor x) -> Tensor", explode, kE},
    {"slow(Tensor x) -> Tensor", slow, kE},
    {"gate(Tensor x) -> Tensor", gate, kE},
    {"wall(Tensor x) -> Tensor", wall, kE},
    {"scratchy(Tensor x, int bytes) -> Tensor", scratchy, kE},
    {"split(Tensor x) -> Tensor", split, kE},
    {"absent(Tensor x) -> Tensor", nullptr, kE},
    {"all_reduce(Tensor x, int group, bool average, str site) -> Tensor", nullptr, kT, true},
};

std::vector<std::unique_ptr<Device>> devices(std::uint64_t budget,
                                             backends::sim::SimBackend** sim) {
  std::vector<std::unique_ptr<Device>> all;
  all.push_back(std::make_unique<Device>(std::make_unique<backends::cpu::CpuBackend>(kit_kernels()),
                                         budget, kit_catalog()));
  auto backend = std::make_unique<backends::sim::SimBackend>(kit_kernels(), std::uint8_t{0});
  *sim = backend.get();
  all.push_back(std::make_unique<Device>(std::move(backend), budget, kit_catalog()));
  return all;
}

}  // namespace

const ops::Catalog& kit_catalog() {
  static const ops::Catalog catalog([] {
    std::vector<ops::OpDef> definitions;
    for (const KitOp& op : kOps) {
      definitions.push_back({.signature = op.signature,
                             .doc = "For tests.",
                             .infer = same_layout,
                             .not_differentiable = "a test",
                             .inplace = op.inplace,
                             .collective = op.collective});
    }
    return definitions;
  }());
  return catalog;
}

backends::KernelTable kit_kernels() {
  backends::KernelTable table(kit_catalog());
  for (const KitOp& op : kOps) {
    const std::string_view signature = op.signature;
    if (op.kernel != nullptr) table.add(signature.substr(0, signature.find('(')), op.kernel);
  }
  return table;
}

ops::OpId op(std::string_view name) { return kit_catalog().id(*kit_catalog().find(name)); }

Box::Box(std::uint64_t budget) : devices(testing::devices(budget, &sim)) {}

program::ValueRef value_of(const core::Dims& shape, core::Device device, core::DType dtype) {
  return core::make_ref<program::Value>(dtype, device, core::numel(shape));
}

const core::Geometry* interned(const core::Geometry& geometry) {
  Interned& all = all_interned();
  core::MutexLock lock(all.mutex);
  return all.items.geometry(geometry);
}

const core::Attributes* interned(const core::Attributes& attributes) {
  Interned& all = all_interned();
  core::MutexLock lock(all.mutex);
  return all.items.attributes(attributes);
}

program::Operand view(const program::ValueRef& value, const core::Geometry& geometry) {
  return {program::Operand::Kind::kTensor, value, value->dtype, interned(geometry), {}};
}

program::Operand whole(const program::ValueRef& value, const core::Dims& shape) {
  return view(value, core::Geometry(shape));
}

program::Operand number(double x) {
  program::Operand operand;
  operand.kind = program::Operand::Kind::kNumber;
  operand.number = core::Number::of_float(x);
  return operand;
}

program::Instruction apply(std::uint64_t seq, std::string_view name,
                           std::vector<program::Operand> operands, const program::ValueRef& result,
                           const core::Dims& shape) {
  program::Instruction instruction;
  instruction.op = op(name);
  instruction.seq = seq;
  for (program::Operand& operand : operands) instruction.operands.push_back(std::move(operand));
  instruction.attributes = interned(core::Attributes{});
  instruction.results.push_back({result, interned(core::Geometry(shape)), -1});
  return instruction;
}

program::Instruction overwrite(std::uint64_t seq, std::string_view name,
                               std::vector<program::Operand> operands,
                               const program::ValueRef& result) {
  const core::Geometry* region = operands[0].geometry;
  program::Instruction instruction = apply(seq, name, std::move(operands), result, {});
  instruction.results[0].geometry = region;
  instruction.results[0].overwrites = 0;
  return instruction;
}

std::vector<float> floats(const program::Value& value) {
  const auto* storage = static_cast<const memory::Storage*>(value.contents.get());
  const float* data = static_cast<const float*>(storage->data());
  return std::vector<float>(data, data + value.elements);
}

}  // namespace teletensor::runtime::testing
