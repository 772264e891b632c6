// Product: the description of a matrix product for a library such as cuBLASLt.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/core/dtype.h"

namespace teletensor::backends::cuda {

// The matrices of one operand, `batch` elements apart. They are row-major with rows `line` elements
// apart; with `turned` they are column-major with columns `line` elements apart.
struct ProductMatrix {
  const void* data = nullptr;
  bool turned = false;
  std::int64_t line = 0, batch = 0;
  friend bool operator==(const ProductMatrix&, const ProductMatrix&) = default;
};

// out = alpha * a * b + beta * c + bias (added to each row), where out is row-major without gaps.
struct Product {
  core::DType dtype = core::DType::kF32;
  std::int64_t batches = 1, m = 0, n = 0, k = 0;
  ProductMatrix a, b, c;  // c is not read if beta is 0
  const void* bias = nullptr;
  void* out = nullptr;
  double alpha = 1, beta = 0;
  bool tf32 = false;  // f32: factors may be rounded to TF32
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  friend bool operator==(const Product&, const Product&) = default;
};

// The matrix of rows x columns elements with these strides; no value if neither stride is 1.
std::optional<ProductMatrix> product_matrix(const void* data, std::int64_t rows,
                                            std::int64_t columns, std::int64_t row_stride,
                                            std::int64_t column_stride);

}  // namespace teletensor::backends::cuda
