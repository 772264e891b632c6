// The parameters of recipes (recipes.h): the host fills them in, the texts read them. Tensors are
// row-major; `n` is the number of tasks.
#pragma once

#include <cstdint>

#include "engine/ops/scalar_losses.h"
#include "engine/ops/scalar_steps.h"

namespace teletensor::backends::cuda::calls {

struct PoolAxis {
  std::int64_t in, out, kernel, stride, padding, dilation;
};
// Windows over the last three dimensions; planes are what comes before.
struct PoolCall {
  std::int64_t n;
  const void* x;
  void* y;
  std::int64_t* places;
  PoolAxis axes[3];
  std::int64_t divisor;  // given, or 0
  bool include_padding;
};
struct UnpoolCall {
  std::int64_t n;
  const void* x;
  const std::int64_t* places;
  void* y;
  const int* flag;
  std::int64_t in, out;  // elements of a plane
  bool accumulate;
};

// Parts of gates: in[i] and out[i] have `size` elements a row and part.
struct GateCall {
  std::int64_t n, size;
  const void* in[5];
  void* out[3];
};

// start + i * step; of linspace from both ends.
struct RangeCall {
  std::int64_t n;
  void* y;
  std::int64_t whole_start, whole_step;
  double start, end, step;
};
struct TriangleCall {
  std::int64_t n, rows, columns, diagonal;
  const void* x;
  void* y;
};
struct OneHotCall {
  std::int64_t n, classes;
  const std::int64_t* index;
  std::int64_t* y;
  const int* flag;
};

inline constexpr int kStepTensors = 36;
struct StepTensor {
  const void* in[5];
  void* out[5];
  std::int64_t n, first_block;
};
struct StepCall {
  std::int64_t n;                         // blocks
  const ops::scalar::Step<double>* made;  // null: `step`
  float* found;
  ops::scalar::Step<double> step;
  int count, unused;
  StepTensor tensors[kStepTensors];
};
struct HyperCall {
  std::int64_t n;
  ops::scalar::Step<double>* to;
  const double* tensors;  // those that the mask names
  double numbers[ops::scalar::kMaxHypers];
  std::uint32_t mask;
  ops::scalar::Rule rule;
  bool flags[3];
};
struct FoundCall {
  std::int64_t n;
  const float* found;
  void* to;
};

// Rows of `length`; n of them, or of what the recipe has as a task.
struct LayerNormCall {
  std::int64_t n, length, rows, group, groups;
  const void* x;
  const void* g;
  const void* weight;  // of the type that is computed in; may be null, as bias
  const void* bias;
  void* y;
  void* means;
  void* scales;
  void* sums;  // [groups][weight, bias][length]
  void* dweight;
  void* dbias;
  double eps;
};
// [batch, channels, area], `leaves` a channel.
struct ChannelCall {
  std::int64_t n, batch, channels, area, leaves;
  const void* x;
  const void* g;
  const void* weight;
  const void* bias;
  void* y;
  void* means;
  void* scales;
  void* variances;
  void* partial;  // of each channel and leaf
  void* dweight;
  void* dbias;
  void* terms;
  double eps;
  bool gathered;
};

// Operands in the type that is computed in.
struct LossCall {
  std::int64_t n, count, part;
  const void* x;
  const void* target;
  const void* weight;    // may be null, as the next
  const void* positive;  // weight of the positive answers
  const void* gradient;
  void* y;
  void* leaves;
  const int* flag;
  int* refuse;
  const double* divisor_there;  // or null: `divisor`
  double divisor;
  ops::scalar::LossSettings settings;
  bool mean, none;
};
// Lines of classes: [before, classes, step].
struct ClassCall {
  std::int64_t n, lines, classes, step, ignore;
  const void* x;
  const std::int64_t* target;
  const void* weight;    // of the type that is computed in, as what follows
  const void* gradient;  // of each line, or one
  void* losses;
  void* y;
  int* refuse;
  double* divisor;  // the weights of all targets; of all classes
  double smoothing;
  bool mean, none;
};

// y[b, index[i], a] from x[b, i, a] (or one element: fill); size: of y's middle dimension.
struct ChainCall {
  std::int64_t n, count, after, size, skipped;
  const std::int64_t* index;
  std::int64_t* next;
  int* later;
  const void* x;
  void* y;
  const int* flag;
  double alpha;
  bool fill, fresh, mean;  // fresh: what y has does not count
};
// Several indices, for dimensions of `size`, as one of all of them; each is one number where its
// step is 0.
struct JoinCall {
  std::int64_t n;
  const std::int64_t* index[4];
  std::int64_t size[4], step[4];
  std::int64_t* to;
  int indices;
};
inline constexpr int kScatterRank = 8;
struct ScatterCall {
  std::int64_t n;
  const std::int64_t* index;
  const void* x;
  void* y;
  const int* flag;
  std::int64_t shape[kScatterRank], index_strides[kScatterRank], x_strides[kScatterRank],
      y_strides[kScatterRank];
  int rank, dim;
  std::int64_t* counts;  // of what has come to each element of a row-major y; null: not counted
  bool fill, fresh, mean;
};

// As cpu/conv.h; rows, columns and depth of the product of one group, in `slices` of `slice`.
struct ConvCall {
  std::int64_t n, groups, in_channels, out_channels, group_in, group_out, taps;
  std::int64_t in[3], out[3], kernel[3], stride[3], padding[3], dilation[3];
  std::int64_t rows, columns, depth, slices, slice;
  const void* x;
  const void* weight;
  const void* y;
  const void* bias;  // of the type that is computed in, or null
  void* result;
};
// Rows of a sequence that a block of text/tensor_attention.cuh has: 8 warps of 16.
inline constexpr int kTensorAttentionRows = 128;
// [heads, length or keys, inner or values].
struct AttentionCall {
  std::int64_t n, length, keys, inner, values;
  std::int64_t rows;  // queries of all heads
  const void* query;
  const void* key;
  const void* value;
  const void* gradient;
  const void* mask;  // null, or matrices of this many elements; each serves so many heads (0: all)
  std::int64_t mask_size, mask_heads, mask_row, mask_column;
  void* y;
  void* logs;
  void* dots;  // of each query; two numbers in text/tensor_attention.cuh
  void* dquery;
  void* dkey;
  void* dvalue;
  double scale;
  bool causal;
};

// Lines of [before, length, step]; long ones in `pieces` of `piece` elements, the last may be
// shorter, with what comes of each (and its place) in `totals` (and `best`).
struct ScanCall {
  std::int64_t n, length, step, piece, pieces;
  const void* x;
  void* y;
  std::int64_t* places;
  void* totals;
  std::int64_t* best;
};

// The elements of a row-major mask, `blocks` of 1024; `starts`: of each block's picked ones among
// all. At most `wanted` are written.
struct SelectCall {
  std::int64_t n, size, blocks, wanted;
  const void *mask, *x;
  void* y;
  std::int64_t* starts;
  int* flag;  // may be null where nothing is checked
  std::int64_t shape[8];
  int rank;
};

// Values find their places in lines of `length`, `width` of them in each line (0: in the one line).
struct SearchCall {
  std::int64_t n, length, width;
  const void *sorted, *values;
  void* places;
  bool right;
};
// n rows of `columns`.
struct RowsCall {
  std::int64_t n, columns, width;
  const void* x;
  const std::int64_t* from;
  std::int64_t* to;
};

// The same lines. Items of all of a line, or of what runs have kept of it (`kept`, where they are
// taken); text/sort.cuh.
struct SortCall {
  std::int64_t n, length, step, keep, width, kept, first, taken;
  const void *x, *from;
  void *to, *y;
  std::int64_t* places;
  bool descending, nan_wins;
};

}  // namespace teletensor::backends::cuda::calls
