#include "engine/backends/cuda/library/product.h"

namespace teletensor::backends::cuda {

std::optional<ProductMatrix> product_matrix(const void* data, std::int64_t rows,
                                            std::int64_t columns, std::int64_t row_stride,
                                            std::int64_t column_stride) {
  // If there is only a single row or column, any distance fits.
  const auto fits = [](std::int64_t lines, std::int64_t line, std::int64_t length,
                       std::int64_t step) {
    return (length == 1 || step == 1) && (lines == 1 || line >= length);
  };
  if (fits(rows, row_stride, columns, column_stride)) {
    return ProductMatrix{data, false, rows == 1 ? columns : row_stride, 0};
  }
  if (fits(columns, column_stride, rows, row_stride)) {
    return ProductMatrix{data, true, columns == 1 ? rows : column_stride, 0};
  }
  return std::nullopt;
}

}  // namespace teletensor::backends::cuda
