// Rows of the table for attention: tiles of scores in shared memory, never the whole matrix.
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/recipes.h"
#include "engine/backends/cuda/text/calls.h"

namespace teletensor::backends::cuda {
namespace {

using core::Dims;
using core::DType;
using core::Status;

constexpr std::int64_t kTile = 64;

// Sizes, heads being all dimensions before the last two. Not ok where heads differ: they broadcast.
Status sizes_of(const KernelCall& call, const TensorArg& q, const TensorArg& k, const TensorArg& v,
                std::int64_t& heads, calls::AttentionCall& p) {
  if (call.out[0].dtype != DType::kF32) return not_here("scores of 8 bytes fill shared memory");
  const Dims &a = q.geometry->shape, &b = k.geometry->shape, &c = v.geometry->shape;
  if (a.size() != b.size() || a.size() != c.size()) return not_here("heads that broadcast");
  heads = 1;
  for (int d = 0; d + 2 < a.size(); ++d) {
    if (a[d] != b[d] || a[d] != c[d]) return not_here("heads that broadcast");
    heads *= a[d];
  }
  p.length = a[a.size() - 2];
  p.inner = a.back();
  p.keys = c[c.size() - 2];
  p.values = c.back();
  if (heads == 0 || p.length == 0 || p.keys == 0 || p.inner == 0 || p.values == 0) {
    return not_here("attention to nothing");
  }
  if (p.inner > 2 * kTile || p.values > 2 * kTile) return not_here("heads of more than 128");
  return {};
}

std::uint8_t tiles(std::int64_t columns) {
  return static_cast<std::uint8_t>((columns + kTile - 1) / kTile);
}
std::int64_t blocks(std::int64_t heads, std::int64_t rows) {
  return heads * ((rows + kTile - 1) / kTile);
}

Status attention(KernelCall& call, Work& work) {
  calls::AttentionCall p = {};
  std::int64_t heads = 1;
  TT_RETURN_IF_ERROR(sizes_of(call, call.in[0], call.in[1], call.in[2], heads, p));
  p.causal = call.attributes.boolean(0);
  p.scale = call.attributes.real(1);
  RowMajorCall memory(call, work);
  p.query = memory.read(call.in[0], DType::kF32);
  p.key = memory.read(call.in[1], DType::kF32);
  p.value = memory.read(call.in[2], DType::kF32);
  p.y = memory.write(call.out[0]);
  p.logs = memory.write(call.out[1], DType::kF32);
  TT_RETURN_IF_ERROR(memory.status());
  p.n = blocks(heads, p.length);
  TT_RETURN_IF_ERROR(
      add_recipe(work, {Recipe::kAttention, {DType::kF32, DType::kF32}, tiles(p.values)}, p));
  return memory.store();
}

Status attention_backward(KernelCall& call, Work& work) {
  calls::AttentionCall p = {};
  std::int64_t heads = 1;
  TT_RETURN_IF_ERROR(sizes_of(call, call.in[1], call.in[2], call.in[3], heads, p));
  p.causal = call.attributes.boolean(0);
  p.scale = call.attributes.real(1);
  RowMajorCall memory(call, work);
  p.gradient = memory.read(call.in[0], DType::kF32);
  p.query = memory.read(call.in[1], DType::kF32);
  p.key = memory.read(call.in[2], DType::kF32);
  p.value = memory.read(call.in[3], DType::kF32);
  p.y = const_cast<void*>(memory.read(call.in[4], DType::kF32));
  p.logs = const_cast<void*>(memory.read(call.in[5], DType::kF32));
  p.dquery = memory.write(call.out[0]);
  p.dkey = memory.write(call.out[1], DType::kF32);
  p.dvalue = memory.write(call.out[2], DType::kF32);
  p.dots = memory.room(heads * p.length, sizeof(float));
  TT_RETURN_IF_ERROR(memory.status());
  p.n = heads * p.length;
  TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kAttentionDots, {DType::kF32, DType::kF32}}, p));
  p.n = blocks(heads, p.keys);
  const std::uint8_t wide = std::max(tiles(p.values), tiles(p.inner));
  TT_RETURN_IF_ERROR(
      add_recipe(work, {Recipe::kAttentionKeys, {DType::kF32, DType::kF32}, wide}, p));
  p.n = blocks(heads, p.length);
  TT_RETURN_IF_ERROR(
      add_recipe(work, {Recipe::kAttentionQueries, {DType::kF32, DType::kF32}, tiles(p.inner)}, p));
  return memory.store();
}

}  // namespace

void add_attention_kernels(DeviceTable& table) {
  table.add("attention", Skeleton::kMatmul, attention);
  table.add("attention_backward", Skeleton::kMatmul, attention_backward);
}

}  // namespace teletensor::backends::cuda
