// Runs searches in sorted lines and the sorting of rows in the emulator and compares them with the
// CPU's kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/backends/cuda/device_test.h"
#include "engine/backends/cuda/samples_test.h"

namespace teletensor::backends::cuda {
namespace {

using core::Attribute;
using core::DType;
using core::Geometry;

// Ascending lines with ties; some lines of floats end with a NaN.
TestTensor ascending(DType dtype, std::int64_t lines, std::int64_t length, std::mt19937& random) {
  TestTensor t(dtype, Geometry({lines, length}));
  std::vector<double> values;
  for (std::int64_t i = 0; i < lines; ++i) {
    std::vector<double> line;
    for (std::int64_t k = 0; k < length; ++k) line.push_back(static_cast<double>(random() % 40));
    std::sort(line.begin(), line.end());
    if (core::is_floating(dtype) && i % 2 == 1) line.back() = std::nan("");
    values.insert(values.end(), line.begin(), line.end());
  }
  t.fill(values);
  return t;
}

TEST(Search, FindsPlacesInSortedLines) {
  std::mt19937 random(100);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI32, DType::kU64}) {
    for (const bool right : {false, true}) {
      for (const bool narrow : {false, true}) {
        const core::Attributes how = {Attribute::of(narrow), Attribute::of(right)};
        const TestTensor values = sample_places(dtype, Geometry({4, 9}), 0, 41, random);
        cases.need("searchsorted", {ascending(dtype, 4, 33, random), values}, how);
        TestTensor line = ascending(dtype, 1, 64, random);
        line.geometry = Geometry({64});
        cases.need("searchsorted", {line, values}, how);
      }
    }
  }
  const core::Attributes plain = {Attribute::of(false), Attribute::of(false)};
  cases.need("searchsorted",
             {ascending(DType::kF32, 1, 5, random), sample(DType::kF32, Geometry({1, 50}), random)},
             plain);
  cases.need("searchsorted",
             {TestTensor(DType::kF32, Geometry({0})), sample(DType::kF32, Geometry({7}), random)},
             plain);
  cases.run(0);
}

TEST(Search, PutsRowsInOrder) {
  std::mt19937 random(101);
  DeviceCases cases;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kI64, DType::kBool}) {
    for (const std::int64_t rows : {1, 2, 7, 64, 200}) {
      TestTensor x = sample_places(dtype, Geometry({rows, 3}), 0, 1, random);
      if (core::is_floating(dtype)) {
        std::vector<double> values = x.values();
        for (double& v : values) {
          if (random() % 5 == 0) v = random() % 2 ? std::nan("") : -0.0;
        }
        x.fill(values);
      }
      cases.need("argsort_rows", {x});
    }
    cases.need("argsort_rows", {TestTensor(dtype, Geometry({5, 0}))});
  }
  cases.run(0);
}

}  // namespace
}  // namespace teletensor::backends::cuda
