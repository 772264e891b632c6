// Rows of the table for scans: a thread for each line.
#include "engine/backends/cpu/block_io.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/recipes.h"
#include "engine/backends/cuda/text/calls.h"

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using core::Status;

enum ScanKind : std::uint8_t { kSum, kReverseSum, kProduct, kMax, kMin };  // as text/scan.cuh

constexpr std::int64_t kManyLines = 256, kShortLine = 4096;

template <ScanKind kKind>
Status scan(KernelCall& call, Work& work) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  const core::Dims& shape = x.geometry->shape;
  const std::int64_t count = x.geometry->numel();
  if (count == 0) return {};
  const int rank = shape.size(), dim = dim_of(call, call.attributes.integer(0), rank);
  calls::ScanCall p = {};
  p.length = rank == 0 ? 1 : shape[dim];
  p.step = 1;
  for (int d = dim + 1; d < rank; ++d) p.step *= shape[d];
  p.n = count / p.length;
  if (p.n < kManyLines && p.length > kShortLine) return not_here("a few long lines");
  // What is summed is converted to the result's compute type first, as on the CPU.
  DType compute = y.dtype;
  cpu::with_any_compute_type(y.dtype, [&](auto a) { compute = cpu::kDTypeOf<decltype(a)>; });
  constexpr bool kFinds = kKind == kMax || kKind == kMin;
  const DType element = x.dtype == y.dtype ? y.dtype : compute;
  RowMajorCall memory(call, work);
  p.x = memory.read(x, element);
  p.y = memory.write(y, element);
  if (kFinds) p.places = static_cast<std::int64_t*>(memory.write(call.out[1], DType::kI64));
  return memory.finish({Recipe::kScanLine, {element, compute}, kKind}, p);
}

}  // namespace

void add_sort_kernels(DeviceTable& table);  // sort_kernels.cc

void add_scan_kernels(DeviceTable& table) {
  add_sort_kernels(table);
  constexpr Skeleton kScan = Skeleton::kScan;
  table.add("cumsum", kScan, scan<kSum>);
  table.add("reverse_cumsum", kScan, scan<kReverseSum>);
  table.add("cumprod", kScan, scan<kProduct>);
  table.add("cummax", kScan, scan<kMax>);
  table.add("cummin", kScan, scan<kMin>);
}

}  // namespace teletensor::backends::cuda
