// Part of _bridge.cpp, which is one translation unit: the rows of the table as kernels of PyTorch's
// operators, and the fallback to the CPU for what has no row.
#pragma once

#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <deque>

#include "_bridge_device.hpp"

namespace {

// The arguments of a call as records, and what these point to.
class Records {
 public:
  Records(std::size_t count, bool moves_indices) : moves_indices_(moves_indices) {
    values_.reserve(count + 1);
  }
  const tt_value* values() const { return values_.data(); }
  void add(const c10::IValue& value) { values_.push_back(of(value)); }
  void add_dtype(c10::ScalarType dtype) {
    tt_value record{};
    record.kind = TT_INT;
    record.integer = static_cast<std::int64_t>(dtype);
    values_.push_back(record);
  }

 private:
  tt_value of(const c10::IValue& value) {
    tt_value record{};
    if (value.isTensor()) {
      of_tensor(value.toTensor(), record);
    } else if (value.isBool()) {
      record.kind = TT_BOOL;
      record.integer = value.toBool();
    } else if (value.isInt() || value.isSymInt()) {
      record.kind = TT_INT;
      record.integer =
          value.isInt() ? value.toInt() : value.toSymInt().guard_int(__FILE__, __LINE__);
    } else if (value.isDouble()) {
      record.kind = TT_REAL;
      record.real = value.toDouble();
    } else if (value.isComplexDouble()) {
      record.kind = TT_COMPLEX;
      record.real = value.toComplexDouble().real();
      record.imaginary = value.toComplexDouble().imag();
    } else if (value.isIntList()) {
      ints_.push_back(value.toIntVector());
      record.kind = TT_INTS;
      record.ints = ints_.back().data();
      record.count = ints_.back().size();
    } else if (value.isBoolList()) {
      auto& list = ints_.emplace_back();
      for (const bool each : value.toBoolList()) list.push_back(each);
      record.kind = TT_INTS;
      record.ints = list.data();
      record.count = list.size();
    } else if (value.isDoubleList()) {
      reals_.push_back(value.toDoubleVector());
      record.kind = TT_REALS;
      record.reals = reals_.back().data();
      record.count = reals_.back().size();
    } else if (value.isString()) {
      record.kind = TT_TEXT;
      record.text = value.toStringRef().data();
      record.count = value.toStringRef().size();
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      of_tensors(value, record);
    } else if (value.isGenerator()) {
      record.kind = TT_GENERATOR;
      record.generator = value.toGenerator().unsafeGetGeneratorImpl();
    } else if (value.isList()) {
      auto& list = numbers_.emplace_back();
      for (const c10::IValue& each : value.toListRef()) list.push_back(of(each));
      record.kind = TT_NUMBERS;
      record.numbers = list.data();
      record.count = list.size();
    }
    return record;  // None, devices and layouts are TT_NONE
  }

  // Rows know no bits that say "to be conjugated" or "to be negated". PyTorch leaves them to the
  // kernel for products of matrices and other operators of linear algebra.
  at::Tensor resolved(const at::Tensor& tensor) {
    if (!tensor.is_conj() && !tensor.is_neg()) return tensor;
    return kept_.emplace_back(tensor.resolve_conj().resolve_neg());
  }
  void of_tensor(const at::Tensor& tensor, tt_value& record) {
    if (!tensor.defined()) return;
    if (tensor.device().type() == kType) {
      record.kind = TT_TENSOR;
      record.tensor = record_of(resolved(tensor));
      return;
    }
    TORCH_CHECK(tensor.device().is_cpu() && tensor.dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, "
                "tt:0 and ",
                tensor.device(), "!");
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      record = of(c10::IValue(tensor.item()));
      return;
    }
    const at::Tensor plain = tensor.resolve_conj().resolve_neg();
    record.kind = TT_CPU_SCALAR;
    record.dtype = static_cast<std::int32_t>(plain.scalar_type());
    TORCH_CHECK(plain.element_size() <= sizeof record.bytes, "tt: an element is too large");
    std::memcpy(record.bytes, plain.const_data_ptr(), plain.element_size());
  }

  void of_tensors(const c10::IValue& value, tt_value& record) {
    auto& list = tensors_.emplace_back();
    for (const c10::IValue& each : value.toListRef()) {
      if (each.isNone() || !each.toTensor().defined()) {
        list.push_back({});
        continue;
      }
      at::Tensor tensor = each.toTensor();
      if (moves_indices_ && tensor.device().is_cpu()) tensor = tensor.to(kDevice);
      TORCH_CHECK(tensor.device().type() == kType,
                  "Expected all tensors to be on the same device, but found at least two devices, "
                  "tt:0 and ",
                  tensor.device(), "!");
      list.push_back(record_of(resolved(tensor)));
      kept_.push_back(std::move(tensor));
    }
    record.kind = TT_TENSORS;
    record.tensors = list.data();
    record.count = list.size();
  }

  const bool moves_indices_;
  c10::SmallVector<tt_value, 16> values_;
  std::deque<std::vector<std::int64_t>> ints_;
  std::deque<std::vector<double>> reals_;
  std::deque<std::vector<tt_tensor>> tensors_;
  std::deque<std::vector<tt_value>> numbers_;
  std::vector<at::Tensor> kept_;
};

std::mutex g_fallbacks_mutex;
std::map<std::string, std::uint64_t> g_fallbacks;  // how often, by name

std::string name_of(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const std::string name = schema.name();
  return schema.overload_name().empty() ? name : name + "." + schema.overload_name();
}

// Runs an operator whose result is a sparse tensor (_bridge_sparse.hpp). Returns false, without
// effects, for every other call.
bool makes_sparse(const std::string& name, torch::jit::Stack* stack);

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = name_of(op);
  if (makes_sparse(name, stack)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(!g_strict, "tt: ", name,
                              " has no row for these operands on the device tt, and strict mode "
                              "does not let it run on the CPU");
  bool first = false;
  {
    const std::lock_guard lock(g_fallbacks_mutex);
    first = g_fallbacks[name]++ == 0;
  }
  at::native::cpu_fallback(op, stack);
  if (first) {
    TORCH_WARN("tt: ", name,
               " has no row for these operands on the device tt: it runs on the CPU of this "
               "process, and its operands and results travel each time");
  }
}
// Operators that the device does not have for tensors of other layouts.
void other_layout(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "tt: ", name_of(op),
      ": the device tt has no such operator for sparse, nested or quantized tensors; keep "
      "them on the CPU, or make dense ones there (to_dense(), dequantize())");
}

void boxed_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  fall_back(op, stack);
}

class RowKernel final : public c10::OperatorKernel {
 public:
  RowKernel(int row, std::size_t inputs, bool in_place, bool moves_indices)
      : row_(row), inputs_(inputs), in_place_(in_place), moves_indices_(moves_indices) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const std::size_t count = schema.arguments().size();
    const c10::IValue* const arguments = stack->data() + (stack->size() - count);
    const std::size_t outs = count - inputs_;
    if (in_place_ || outs > 0) check_written(arguments[in_place_ ? 0 : inputs_]);
    if (in_place_ && has_bits(arguments[0].toTensor())) return on_resolved(op, keys, stack);
    Records records(count, moves_indices_);
    for (std::size_t i = 0; i < inputs_; ++i) records.add(arguments[i]);
    if (outs > 0) records.add_dtype(arguments[inputs_].toTensor().scalar_type());
    c10::SmallVector<c10::IValue, 4> made;
    if (!run(records, made)) return fall_back(op, stack);
    if (outs > 0) {
      for (std::size_t i = 0; i < outs; ++i) write(arguments[inputs_ + i].toTensor(), made[i]);
      made.assign(arguments + inputs_, arguments + count);
    } else if (in_place_) {
      made.assign(arguments, arguments + 1);
    }
    stack->erase(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    const auto& returns = schema.returns();
    if (returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType) {
      c10::List<at::Tensor> list;
      for (c10::IValue& each : made) list.push_back(std::move(each).toTensor());
      stack->emplace_back(std::move(list));
      return;
    }
    for (std::size_t i = 0; i < returns.size(); ++i) {
      const bool truth = returns[i].type()->kind() == c10::TypeKind::BoolType;
      stack->push_back(truth ? c10::IValue(made[i].toInt() != 0) : std::move(made[i]));
    }
  }

 private:
  // An in-place form whose tensor has a bit of conjugation or negation: runs on a plain copy.
  void on_resolved(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
    c10::IValue& first =
        *(stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()));
    const at::Tensor self = first.toTensor();
    first = self.resolve_conj().resolve_neg();
    (*this)(op, keys, stack);
    self.copy_(stack->back().toTensor());
    stack->back() = self;
  }
  // False: the daemon has no such op for these operands.
  bool run(const Records& records, c10::SmallVector<c10::IValue, 4>& made) const {
    const Gil gil;
    const tt_result* results = nullptr;
    std::size_t count = 0;
    const int code = g_bridge->call(row_, records.values(), &results, &count);
    if (code == 1) return false;
    check(code);
    for (std::size_t i = 0; i < count; ++i) {
      if (results[i].kind == TT_INT) {
        made.emplace_back(results[i].integer);
      } else {
        made.emplace_back(results[i].kind == TT_TENSOR ? tensor_of(results[i]) : at::Tensor());
      }
    }
    return true;
  }
  static bool has_bits(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }
  static void check_written(const c10::IValue& value) {
    TORCH_CHECK(value.toTensor().device().type() == kType,
                "Expected all tensors to be on the same device, but found at least two devices, "
                "tt:0 and ",
                value.toTensor().device(), "!");
  }
  static void write(const at::Tensor& out, const c10::IValue& value) {
    const at::Tensor& made = value.toTensor();
    at::native::resize_output(out, made.sizes());
    TORCH_CHECK(c10::canCast(made.scalar_type(), out.scalar_type()), "result type ",
                made.scalar_type(), " can't be cast to the desired output type ",
                out.scalar_type());
    if (has_bits(out)) {
      out.copy_(made);
      return;
    }
    const tt_tensor to = record_of(out), from = record_of(made);
    const Gil gil;
    check(g_bridge->copy(&to, &from, 1));
  }

  const int row_;
  const std::size_t inputs_;
  const bool in_place_, moves_indices_;
};

// Registers the row that serves this operator, where there is one.
void register_row(torch::Library& library, const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return;
  if (schema.overload_name().find("ames") != std::string::npos ||
      schema.overload_name().find("imname") != std::string::npos) {
    return;  // named dimensions
  }
  std::vector<const char*> names;
  bool outs = false;
  for (const auto& each : schema.arguments()) {
    if (each.is_out()) {
      outs = true;
      continue;
    }
    if (outs) return;
    names.push_back(each.name().c_str());
  }
  const std::size_t inputs = names.size();
  const auto& first = schema.arguments().empty() ? nullptr : schema.arguments()[0].alias_info();
  const bool in_place = !outs && first != nullptr && first->isWrite() &&
                        schema.arguments()[0].type()->kind() == c10::TypeKind::TensorType;
  if (outs) names.push_back("out");
  const std::string name = schema.name().substr(6);
  const tt_schema wanted{name.c_str(), names.size(), names.data(),
                         in_place ? TT_IN_PLACE : TT_FUNCTIONAL};
  const int row = g_bridge->resolve(&wanted);
  if (row < 0) return;
  const std::string full = name_of(op);
  library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RowKernel>(
                                 row, inputs, in_place, name.find("index") != std::string::npos)));
}

}  // namespace
