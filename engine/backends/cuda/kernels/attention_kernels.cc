// Device kernels for attention. They work on tiles of scores in shared memory and never store the
// whole score matrix.
#include "engine/backends/cuda/codegen/recipes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/text/base/calls.h"

namespace teletensor::backends::cuda {
namespace {

using core::Dims;
using core::DType;
using core::Status;

// Rows per block, for the kernel of plain tiles and for the kernel that uses tensor cores.
constexpr std::int64_t kAttentionTile = 64;
constexpr std::int64_t kTensorRows = calls::kTensorAttentionRows;
constexpr DType kType = DType::kF32;                      // dtype of the scores
constexpr std::int64_t kLongest = std::int64_t{1} << 30;  // the kernels count rows in 32 bits

// Computes the sizes; all dimensions before the last two are heads. Fails if the operands have
// different heads (they would have to broadcast).
Status sizes_of(const KernelCall& call, const TensorArg& q, const TensorArg& k, const TensorArg& v,
                std::int64_t& heads, calls::AttentionCall& p) {
  if (call.out[0].dtype == DType::kF64)
    return not_on_device("scores of 8 bytes fill shared memory");
  const Dims &a = q.geometry->shape, &b = k.geometry->shape, &c = v.geometry->shape;
  if (a.size() != b.size() || a.size() != c.size()) return not_on_device("heads that broadcast");
  heads = 1;
  for (int d = 0; d + 2 < a.size(); ++d) {
    if (a[d] != b[d] || a[d] != c[d]) return not_on_device("heads that broadcast");
    heads *= a[d];
  }
  p.length = a[a.size() - 2];
  p.inner = a.back();
  p.keys = c[c.size() - 2];
  p.values = c.back();
  if (heads == 0 || p.length == 0 || p.keys == 0 || p.inner == 0 || p.values == 0) {
    return not_on_device("an empty tensor");
  }
  if (p.length > kLongest || p.keys > kLongest) return not_on_device("sequences of more than 2^30");
  if (p.inner > 2 * kAttentionTile || p.values > 2 * kAttentionTile)
    return not_on_device("heads of more than 128");
  return {};
}

std::uint8_t tiles(std::int64_t columns) {
  return static_cast<std::uint8_t>((columns + kAttentionTile - 1) / kAttentionTile);
}
std::int64_t blocks(std::int64_t heads, std::int64_t rows,
                    std::int64_t rows_of_block = kAttentionTile) {
  return heads * ((rows + rows_of_block - 1) / rows_of_block);
}

// The kernel for heads of 32-bit numbers: text/attention.cuh.
RecipeGraph recipe(Recipe recipe, std::uint8_t tiles = 0) { return {recipe, {kType}, tiles}; }

// The kernel for heads of 16-bit numbers: text/tensor_attention.cuh.
RecipeGraph tensor_recipe(Recipe recipe, DType heads, const calls::AttentionCall& p) {
  constexpr std::int64_t kUnit = 32;
  const std::int64_t columns = std::max(p.inner, p.values);
  return {recipe, {heads}, static_cast<std::uint8_t>((columns + kUnit - 1) / kUnit)};
}

// Describes the mask that is added to the scores. If all its dimensions after some dimension have
// size 1, and the dimensions up to it are those of the query, one mask serves several heads;
// otherwise the mask is expanded for each head.
void add_mask(const TensorArg& mask, const TensorArg& q, RowMajorCall& memory,
              calls::AttentionCall& p) {
  if (mask.kind != TensorArg::Kind::kTensor) return;
  const Dims &own = mask.geometry->shape, &whole = q.geometry->shape;
  const int lead = own.size() - 2;
  int shared = lead;
  while (shared > 0 && own[shared - 1] == 1) --shared;
  std::int64_t heads = 1;
  for (int d = shared; d < lead; ++d) heads *= whole[d];
  bool repeated = false;
  for (int d = 0; d < shared; ++d) repeated = repeated || own[d] != whole[d];
  core::Geometry geometry = *mask.geometry;
  if (repeated) {
    heads = 1;
    for (int d = 0; d < lead; ++d) {
      if (geometry.shape[d] == 1) geometry.strides[d] = 0;
      geometry.shape[d] = whole[d];
    }
  }
  TensorArg read = mask;
  read.geometry = &geometry;
  p.mask = memory.read(read, kType);
  p.mask_size = own[lead] * own[lead + 1];
  p.mask_heads = shared == 0 ? 0 : heads;
  p.mask_row = own[lead] == 1 ? 0 : own[lead + 1];
  p.mask_column = own[lead + 1] == 1 ? 0 : 1;
}

// The common part of forward and backward. Query, key and value are the operands from `first` on.
Status begin(const KernelCall& call, std::size_t first, std::size_t mask, RowMajorCall& memory,
             std::int64_t& heads, calls::AttentionCall& p) {
  const TensorArg &q = call.in[first], &k = call.in[first + 1], &v = call.in[first + 2];
  TT_RETURN_IF_ERROR(sizes_of(call, q, k, v, heads, p));
  p.causal = call.attributes.boolean(0);
  p.scale = call.attributes.real(1);
  p.query = memory.read(q);
  p.key = memory.read(k);
  p.value = memory.read(v);
  add_mask(call.in[mask], q, memory, p);
  return {};
}

Status attention(KernelCall& call, Work& work) {
  calls::AttentionCall p = {};
  std::int64_t heads = 1;
  RowMajorCall memory(call, work);
  TT_RETURN_IF_ERROR(begin(call, 0, 3, memory, heads, p));
  p.y = memory.write(call.out[0]);
  p.logs = memory.write(call.out[1], kType);
  const DType dtype = call.out[0].dtype;
  if (core::size_of(dtype) == 2) {
    p.n = blocks(heads, p.length, kTensorRows);
    return memory.finish(tensor_recipe(Recipe::kTensorAttention, dtype, p), p);
  }
  p.n = blocks(heads, p.length);
  return memory.finish(recipe(Recipe::kAttention, tiles(p.values)), p);
}

// Adds the launches that compute the gradients, after their operands have been described.
Status by_tensor_cores(DType dtype, std::int64_t heads, RowMajorCall& memory, Work& work,
                       calls::AttentionCall& p) {
  constexpr std::int64_t kRowsOfBlock = 32;
  p.n = blocks(1, p.rows, kRowsOfBlock);
  TT_RETURN_IF_ERROR(add_recipe(work, {Recipe::kTensorAttentionLines, {dtype}}, p));
  p.n = blocks(heads, p.keys, kTensorRows);
  TT_RETURN_IF_ERROR(add_recipe(work, tensor_recipe(Recipe::kTensorAttentionKeys, dtype, p), p));
  p.n = blocks(heads, p.length, kTensorRows);
  return memory.finish(tensor_recipe(Recipe::kTensorAttentionQueries, dtype, p), p);
}
Status by_tiles(std::int64_t heads, RowMajorCall& memory, Work& work, calls::AttentionCall& p) {
  p.n = p.rows;
  TT_RETURN_IF_ERROR(add_recipe(work, recipe(Recipe::kAttentionDots), p));
  p.n = blocks(heads, p.keys);
  const std::uint8_t wide = std::max(tiles(p.values), tiles(p.inner));
  TT_RETURN_IF_ERROR(add_recipe(work, recipe(Recipe::kAttentionKeys, wide), p));
  p.n = blocks(heads, p.length);
  return memory.finish(recipe(Recipe::kAttentionQueries, tiles(p.inner)), p);
}

Status attention_backward(KernelCall& call, Work& work) {
  calls::AttentionCall p = {};
  std::int64_t heads = 1;
  RowMajorCall memory(call, work);
  TT_RETURN_IF_ERROR(begin(call, 1, 6, memory, heads, p));
  p.rows = heads * p.length;
  p.gradient = memory.read(call.in[0]);
  p.y = const_cast<void*>(memory.read(call.in[4]));
  p.logs = const_cast<void*>(memory.read(call.in[5], kType));
  p.dquery = memory.write(call.out[0]);
  p.dkey = memory.write(call.out[1]);
  p.dvalue = memory.write(call.out[2]);
  p.dots = memory.room(p.rows, 2 * sizeof(float));
  TT_RETURN_IF_ERROR(memory.status());
  const DType dtype = call.out[0].dtype;
  return core::size_of(dtype) == 2 ? by_tensor_cores(dtype, heads, memory, work, p)
                                   : by_tiles(heads, memory, work, p);
}

}  // namespace

void add_attention_kernels(DeviceTable& table) {
  table.add("attention", Skeleton::kMatmul, attention);
  table.add("attention_backward", Skeleton::kMatmul, attention_backward);
}

}  // namespace teletensor::backends::cuda
