// Support for unit tests of kernels: tensors in host memory, and a call of one op as the executor
// makes it: infer, memory of exactly the inferred geometry, and the kernel.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/ops/op.h"

namespace teletensor::backends::cpu {

// A tensor whose values are set and read as doubles.
struct TestTensor {
  core::DType dtype = core::DType::kF32;
  core::Geometry geometry;
  std::shared_ptr<std::vector<char>> memory;

  TestTensor() = default;
  TestTensor(core::DType dtype, const core::Geometry& geometry) : dtype(dtype), geometry(geometry) {
    const auto bytes = static_cast<std::size_t>(geometry.storage_end() + 1) * core::size_of(dtype);
    memory = std::make_shared<std::vector<char>>(bytes + 64, char{0});
  }
  TestTensor(core::DType dtype, const core::Dims& shape, const std::vector<double>& values)
      : TestTensor(dtype, core::Geometry(shape)) {
    fill(values);
  }

  std::int64_t offset_of(std::int64_t i) const {
    std::int64_t at = geometry.offset;
    for (int d = geometry.rank() - 1; d >= 0; --d) {
      at += i % geometry.shape[d] * geometry.strides[d];
      i /= geometry.shape[d];
    }
    return at;
  }
  char* data() const {
    auto address = reinterpret_cast<std::uintptr_t>(memory->data());
    return reinterpret_cast<char*>((address + 63) / 64 * 64);
  }
  void fill(const std::vector<double>& values) {
    const auto element = static_cast<std::int64_t>(core::size_of(dtype));
    for (std::int64_t i = 0; i < geometry.numel(); ++i) {
      store_block<double>(dtype)(&values[static_cast<std::size_t>(i)], 1,
                                 data() + offset_of(i) * element, 1);
    }
  }
  std::vector<double> values() const {
    const auto element = static_cast<std::int64_t>(core::size_of(dtype));
    std::vector<double> out(static_cast<std::size_t>(geometry.numel()));
    for (std::int64_t i = 0; i < geometry.numel(); ++i) {
      load_block<double>(dtype)(data() + offset_of(i) * element, 1, 1,
                                &out[static_cast<std::size_t>(i)]);
    }
    return out;
  }
  // The same values with other strides: a transposed, sliced or otherwise strided view.
  TestTensor laid_out(const core::Geometry& other) const {
    TestTensor out(dtype, other);
    out.fill(values());
    return out;
  }
  core::Layout layout() const { return {dtype, {}, geometry}; }
};

// A tensor of small integers, at most 4 in absolute value. The products and sums of a few thousand
// of them are exact in f32 and f64, so results can be compared for equality in whatever order they
// were computed.
inline TestTensor small_integers(core::DType dtype, const core::Dims& shape, unsigned seed) {
  TestTensor x(dtype, core::Geometry(shape));
  std::vector<double> values(static_cast<std::size_t>(x.geometry.numel()));
  unsigned state = seed * 2654435761u + 1;
  for (double& v : values) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<double>((state >> 24) % 5) - (dtype == core::DType::kU8 ? 0 : 2);
  }
  x.fill(values);
  return x;
}

// An argument: a tensor, a number, or nothing.
struct TestOperand {
  TestOperand(const TestTensor& tensor) : tensor(tensor), kind(TensorArg::Kind::kTensor) {}
  TestOperand(core::Number number) : number(number), kind(TensorArg::Kind::kNumber) {}
  TestOperand(double value) : TestOperand(core::Number::of_float(value)) {}
  TestOperand(int value) : TestOperand(core::Number::of_int(value)) {}
  TestOperand(std::nullptr_t) {}

  TestTensor tensor;
  core::Number number;
  TensorArg::Kind kind = TensorArg::Kind::kAbsent;
  core::Bounds* bounds = nullptr;  // known bounds of the tensor, which covers its storage
};

// Runs the parts in reverse order, to reveal results that depend on the order.
class TestParallel : public Parallel {
 public:
  void run(std::int64_t parts, const std::function<void(std::int64_t)>& part) override {
    runs += parts;
    for (std::int64_t i = parts; i-- > 0;) part(i);
  }
  std::int64_t runs = 0;
};

class TestScratch : public Scratch {
 public:
  void* allocate(std::size_t bytes) override {
    if (bytes > (std::size_t{1} << 32)) return nullptr;
    held_.emplace_back(new char[bytes + 64]);
    std::memset(held_.back().get(), 0x5a, bytes + 64);
    auto address = reinterpret_cast<std::uintptr_t>(held_.back().get());
    return reinterpret_cast<void*>((address + 63) / 64 * 64);
  }

 private:
  std::vector<std::unique_ptr<char[]>> held_;
};

struct TestResult {
  core::Status status;
  std::vector<TestTensor> tensors;
  const TestTensor& operator[](std::size_t i) const { return tensors[i]; }
};

// `kernel`, if given, is called instead of the CPU's kernel.
inline TestResult call_op(std::string_view name, const std::vector<TestOperand>& operands,
                          core::Attributes attributes = {},
                          const std::vector<std::uint32_t>& counts = {},
                          const std::function<core::Status(KernelCall&)>& kernel = {}) {
  static const KernelTable table = make_kernels(ops::catalog());
  TestResult result;
  const ops::OpDef* op = ops::catalog().find(name);
  if (op == nullptr) {
    result.status = core::internal("no op " + std::string(name));
    return result;
  }
  for (std::size_t i = op->operand_parameters + attributes.size(); i < op->parameters.size(); ++i) {
    attributes.push_back(op->parameters[i].fallback);
  }
  result.status = ops::catalog().check(ops::catalog().id(*op), operands.size(), counts, attributes);
  if (!result.status.ok()) return result;
  std::vector<core::Layout> layouts(operands.size());
  std::vector<ops::OperandInfo> infos(operands.size());
  std::vector<TensorArg> in(operands.size());
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const TestOperand& operand = operands[i];
    in[i].kind = operand.kind;
    if (operand.kind == TensorArg::Kind::kTensor) {
      layouts[i] = operand.tensor.layout();
      infos[i].layout = &layouts[i];
      in[i].data = operand.tensor.data();
      in[i].dtype = operand.tensor.dtype;
      in[i].geometry = &layouts[i].geometry;
      in[i].bounds = operand.bounds;
      in[i].whole = true;
    } else if (operand.kind == TensorArg::Kind::kNumber) {
      infos[i].number = &operand.number;
      in[i].number = operand.number;
    }
  }
  ops::InferContext context{.op = op->name,
                            .operands = infos,
                            .counts = counts,
                            .attributes = attributes,
                            .default_dtype = core::DType::kF32,
                            .device = {},
                            .results = {}};
  result.status = op->infer(context);
  if (!result.status.ok()) return result;
  std::vector<TensorArg> out;
  if (op->mutates.empty()) {
    for (const core::Layout& layout : context.results) {
      result.tensors.emplace_back(layout.dtype, layout.geometry);
      if (op->inplace == ops::Inplace::kRegion) {
        result.tensors.back().fill(operands[0].tensor.values());
      }
    }
  } else {  // the op wrote in place: the results are operands, in their order
    std::size_t at = 0;
    std::size_t list = 0;
    for (int p = 0; p < op->operand_parameters; ++p) {
      const bool is_list =
          op->parameters[static_cast<std::size_t>(p)].type == ops::Parameter::Type::kTensorList;
      const std::size_t length = is_list ? counts[list++] : 1;
      const bool written = std::count(op->mutates.begin(), op->mutates.end(), p) > 0;
      for (std::size_t i = 0; i < length; ++i, ++at) {
        if (written) result.tensors.push_back(operands[at].tensor);
      }
    }
  }
  for (const TestTensor& tensor : result.tensors) {
    TensorArg& arg = out.emplace_back();
    arg.kind = TensorArg::Kind::kTensor;
    arg.data = tensor.data();
    arg.dtype = tensor.dtype;
    arg.geometry = &tensor.geometry;
  }
  TestParallel parallel;
  TestScratch scratch;
  KernelCall call{*op, in, out, counts, attributes, parallel, scratch};
  result.status = kernel ? kernel(call) : table.find(ops::catalog().id(*op))(call);
  return result;
}

}  // namespace teletensor::backends::cpu
