// Device kernels for scans (cumulative sums and similar): one thread per line or, if there are few
// long lines, one per piece of a line.
#include <cmath>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/text/base/calls.h"

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using core::Status;

// Same values as in text/scan.cuh.
enum ScanKind : std::uint8_t { kSum, kReverseSum, kProduct, kMax, kMin, kLogSum };

constexpr std::int64_t kManyScans = 256, kShortScan = 4096;

// The number of elements that one thread scans. A long line has about as many pieces as a piece has
// elements: first a thread scans each piece, and then one thread scans the totals of all pieces.
std::int64_t piece_of(std::int64_t lines, std::int64_t length) {
  if (lines >= kManyScans || length <= kShortScan) return length;
  return static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(length))));
}

// The dtype of the running result. As on the CPU, sums and products of float32 numbers have double
// precision, because they would stop growing in long lines otherwise.
DType running_of(ScanKind kind, DType compute) {
  if (kind == kMax || kind == kMin) return compute;
  return compute == DType::kF32 ? DType::kF64 : compute == DType::kC64 ? DType::kC128 : compute;
}

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
  // As on the CPU, elements are first converted to the compute type of the result.
  DType compute = y.dtype;
  cpu::with_any_compute_type(y.dtype, [&](auto a) { compute = cpu::kDTypeOf<decltype(a)>; });
  constexpr bool kFinds = kKind == kMax || kKind == kMin;
  const DType element = x.dtype == y.dtype ? y.dtype : compute;
  const DType running = running_of(kKind, compute);
  RowMajorCall memory(call, work);
  p.x = memory.read(x, element);
  p.y = memory.write(y, element);
  if (kFinds) p.places = static_cast<std::int64_t*>(memory.write(call.out[1], DType::kI64));
  p.piece = piece_of(p.n, p.length);
  p.pieces = (p.length + p.piece - 1) / p.piece;
  if (p.pieces > 1) {
    const std::int64_t lines = p.n;
    p.n = lines * p.pieces;
    p.totals = memory.room(p.n, core::size_of(running));
    if (kFinds) p.best = static_cast<std::int64_t*>(memory.room(p.n, sizeof(std::int64_t)));
    TT_RETURN_IF_ERROR(memory.status());
    TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kScanPieces, {element, running}, kKind}, p));
    calls::ScanCall carries = p;
    carries.n = lines;
    TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kScanCarries, {running}, kKind}, carries));
  }
  return memory.finish({Recipe::kScanLine, {element, running}, kKind}, p);
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
  table.add("logcumsumexp", kScan, scan<kLogSum>);
}

}  // namespace teletensor::backends::cuda
