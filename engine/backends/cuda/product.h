// A matrix product as a library of products takes it: a pure description.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/core/dtype.h"

namespace teletensor::backends::cuda {

// Matrices of one operand, `batch` elements apart: row-major ones whose rows lie `line` apart, or
// `turned`: their columns do.
struct ProductMatrix {
  const void* data = nullptr;
  bool turned = false;
  std::int64_t line = 0, batch = 0;
  friend bool operator==(const ProductMatrix&, const ProductMatrix&) = default;
};

// out = alpha * a b + beta * c + bias (of each column): out is row-major without gaps.
struct Product {
  core::DType dtype = core::DType::kF32;
  std::int64_t batches = 1, m = 0, n = 0, k = 0;
  ProductMatrix a, b, c;  // c is not read where beta is 0
  const void* bias = nullptr;
  void* out = nullptr;
  double alpha = 1, beta = 0;
  bool tf32 = false;  // f32: factors may be rounded to TF32
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  friend bool operator==(const Product&, const Product&) = default;
};

// The matrix of rows x columns elements with these strides; none where neither is 1.
std::optional<ProductMatrix> product_matrix(const void* data, std::int64_t rows,
                                            std::int64_t columns, std::int64_t row_stride,
                                            std::int64_t column_stride);

}  // namespace teletensor::backends::cuda
