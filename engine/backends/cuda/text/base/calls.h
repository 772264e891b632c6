// Parameters of recipes (recipes.h): the host fills in these structs and the kernels read them.
// Tensors are row-major; `n` is the number of tasks.
#pragma once

#include <cstdint>

#include "engine/ops/scalar/losses.h"
#include "engine/ops/scalar/steps.h"

namespace teletensor::backends::cuda::calls {

struct PoolAxis {
  std::int64_t in, out, kernel, stride, padding, dilation;
};
// Pooling windows over the last three dimensions; the dimensions before them are combined into
// planes.
struct PoolCall {
  std::int64_t n;
  const void* x;
  void* y;
  std::int64_t* places;
  PoolAxis axes[3];
  std::int64_t divisor;  // the op's argument, or 0 if none was given
  bool include_padding;
};
struct UnpoolCall {
  std::int64_t n;
  const void* x;
  const std::int64_t* places;
  void* y;
  const int* flag;
  std::int64_t in, out;  // elements per plane
  bool accumulate;
};

// The gates of a recurrent cell: in[i] and out[i] have several parts per row, each of `size`
// elements.
struct GateCall {
  std::int64_t n, size;
  const void* in[5];
  void* out[3];
};

// start + i * step; linspace counts from both ends.
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
  std::int64_t n;                         // number of blocks
  const ops::scalar::Step<double>* made;  // constants computed on the device; null: use `step`
  float* found;
  ops::scalar::Step<double> step;
  int count, unused;
  StepTensor tensors[kStepTensors];
};
struct HyperCall {
  std::int64_t n;
  ops::scalar::Step<double>* to;
  const double* tensors;  // values of the hyperparameters whose bits are set in `mask`
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

// The normalization of rows of `length` elements. `n` is the number of tasks: rows for the result
// and the gradient of x, and sums of columns for the gradients of weight and bias.
struct LayerNormCall {
  std::int64_t n, length, rows, group, groups;
  const void* x;
  const void* g;
  const void* weight;  // in the compute type; may be null, as may bias
  const void* bias;
  void* y;
  void* means;
  void* scales;
  void* sums;  // dimensions [groups][weight, bias][length]
  void* dweight;
  void* dbias;
  double eps;
};
// The normalization of channels: x has the dimensions [batch, channels, area]. The sums of each
// channel have `leaves` leaves.
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
  void* partial;  // one value for each leaf of each channel
  void* dweight;
  void* dbias;
  void* terms;
  double eps;
  bool gathered;
};

// A pointwise loss. Its operands are in the compute type.
struct LossCall {
  std::int64_t n, count, part;
  const void* x;
  const void* target;
  const void* weight;    // may be null, as may `positive`
  const void* positive;  // weight of the positive targets
  const void* gradient;
  void* y;
  void* leaves;
  const int* flag;
  int* refuse;
  const double* divisor_there;  // computed on the device; null: use `divisor`
  double divisor;
  ops::scalar::LossSettings settings;
  bool mean, none;
};
// A loss over lines of classes: x has the dimensions [before, classes, step], and a line has the
// values of all classes at one index of the other two dimensions.
struct ClassCall {
  std::int64_t n, lines, classes, step, ignore;
  const void* x;
  const std::int64_t* target;
  const void* weight;    // in the compute type, as are `gradient` and `losses`
  const void* gradient;  // one number per line, or only one
  void* losses;
  void* y;
  int* refuse;
  double* divisor;  // [0]: sum of the weights of all targets; [1]: of all classes
  double smoothing;
  bool mean, none;
};

// Writes x[b, i, a], or with `fill` one element, to y[b, index[i], a]. `size` is the size of y's
// middle dimension.
struct ChainCall {
  std::int64_t n, count, after, size, skipped;
  const std::int64_t* index;
  std::int64_t* next;
  int* later;
  const void* x;
  void* y;
  const int* flag;
  double alpha;
  bool fill, fresh, mean;  // fresh: the previous contents of y do not count
};
// Combines several indices into dimensions of sizes `size` into one index. An index whose step is 0
// is a single number.
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
  // Number of writes so far to each element of a row-major y; null if not counted.
  std::int64_t* counts;
  bool fill, fresh, mean;
};

// As in cpu/conv.h. rows, columns and depth describe the product of one group; its sum is split
// into `slices` slices of length `slice`.
struct ConvCall {
  std::int64_t n, groups, in_channels, out_channels, group_in, group_out, taps;
  std::int64_t in[3], out[3], kernel[3], stride[3], padding[3], dilation[3];
  std::int64_t rows, columns, depth, slices, slice;
  const void* x;
  const void* weight;
  const void* y;
  const void* bias;  // in the compute type, or null
  void* result;
};
// Rows of a sequence per block in text/tensor_attention.cuh: 8 warps of 16 rows.
inline constexpr int kTensorAttentionRows = 128;
// Tensors have the dimensions [heads, length or keys, inner or values].
struct AttentionCall {
  std::int64_t n, length, keys, inner, values;
  std::int64_t rows;  // number of queries of all heads
  const void* query;
  const void* key;
  const void* value;
  const void* gradient;
  // null, or matrices of mask_size elements; each serves mask_heads heads (0: all)
  const void* mask;
  std::int64_t mask_size, mask_heads, mask_row, mask_column;
  void* y;
  void* logs;
  void* dots;  // one number for each query; two in text/tensor_attention.cuh
  void* dquery;
  void* dkey;
  void* dvalue;
  double scale;
  bool causal;
};

// Lines of dimensions [before, length, step]. A long line is split into `pieces` pieces of `piece`
// elements (the last may be shorter). `totals` has the total of each piece, and `best` the position
// of its extremum.
struct ScanCall {
  std::int64_t n, length, step, piece, pieces;
  const void* x;
  void* y;
  std::int64_t* places;
  void* totals;
  std::int64_t* best;
};

// Selects elements by a row-major mask, which is split into `blocks` blocks of 1024 elements.
// `starts` has, for each block, the position of its first selected element among all selected ones.
// At most `wanted` elements are written.
struct SelectCall {
  std::int64_t n, size, blocks, wanted;
  const void *mask, *x;
  void* y;
  std::int64_t* starts;
  int* flag;  // may be null if nothing is checked
  std::int64_t shape[8];
  int rank;
};

// Searches for values in sorted lines of `length` elements. Each line is searched for `width`
// values; 0 means that there is only one line.
struct SearchCall {
  std::int64_t n, length, width;
  const void *sorted, *values;
  void* places;
  bool right;
};
// n rows of `columns` elements.
struct RowsCall {
  std::int64_t n, columns, width;
  const void* x;
  const std::int64_t* from;
  std::int64_t* to;
};

// Sorts such lines. The items are all elements of a line, or those that earlier runs have kept
// (`kept` per line when results are taken); see text/sort.cuh.
struct SortCall {
  std::int64_t n, length, step, keep, width, kept, first, taken;
  const void *x, *from;
  void *to, *y;
  std::int64_t* places;
  bool descending, nan_wins;
};

}  // namespace teletensor::backends::cuda::calls
