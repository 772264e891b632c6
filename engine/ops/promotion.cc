#include "engine/ops/op.h"

namespace teletensor::ops {
namespace {

using core::DType;

// The promoted dtype of the operands of one category (tensors, 0-d tensors or numbers); `any` is
// false while there is no such operand.
struct Rank {
  bool any = false;
  DType dtype = DType::kBool;
  void add(DType other) {
    dtype = any ? core::promote(dtype, other) : other;
    any = true;
  }
};

// The lower category counts only if its kind of dtype is higher. A complex dtype of the lower
// category keeps the width of a floating dtype of the higher category.
Rank combine(const Rank& higher, const Rank& lower) {
  if (!higher.any) return lower;
  if (!lower.any || core::category_of(higher.dtype) >= core::category_of(lower.dtype)) {
    return higher;
  }
  if (core::is_complex(lower.dtype) && core::is_floating(higher.dtype)) {
    return {true, core::complex_of(higher.dtype)};
  }
  return {true, core::promote(higher.dtype, lower.dtype)};
}

}  // namespace

DType result_type(std::span<const OperandInfo> operands, DType default_dtype) {
  Rank tensors, scalars, numbers;
  for (const OperandInfo& operand : operands) {
    if (operand.tensor()) {
      (operand.layout->geometry.rank() > 0 ? tensors : scalars).add(operand.layout->dtype);
    } else if (operand.number) {
      switch (operand.number->kind) {
        case core::Number::Kind::kBool:
          numbers.add(DType::kBool);
          break;
        case core::Number::Kind::kInt:
          numbers.add(DType::kI64);
          break;
        case core::Number::Kind::kFloat:
          numbers.add(default_dtype);
          break;
        case core::Number::Kind::kComplex:
          numbers.add(core::complex_of(default_dtype));
          break;
        case core::Number::Kind::kUInt:
          numbers.add(DType::kU64);
          break;
      }
    }
  }
  const Rank all = combine(tensors, combine(scalars, numbers));
  return all.any ? all.dtype : default_dtype;
}

}  // namespace teletensor::ops
