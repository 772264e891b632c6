// Reading and writing at positions given by tensors: index, gather, scatter, index_select,
// embedding and others. The kernel finds an index out of range before its first store.

#include <algorithm>
#include <iterator>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/pointwise/elementwise.h"
#include "engine/ops/sizes.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

constexpr std::string_view kInteger = "its result is an integer";

std::string name(DType dtype) { return std::string(core::name_of(dtype)); }

bool is_index(DType dtype) { return dtype == DType::kI32 || dtype == DType::kI64; }

Status check_index(const InferContext& c, std::size_t i) {
  if (is_index(c.dtype(i))) return {};
  return c.fail("indices must be int64 or int32, they are " + name(c.dtype(i)));
}

Status check_same_dtype(const InferContext& c, std::size_t a, std::size_t b) {
  if (c.dtype(a) == c.dtype(b)) return {};
  return c.fail("dtypes differ: " + name(c.dtype(a)) + " and " + name(c.dtype(b)));
}

// ---------------------------------------------------------------- index, index_put

// The shape of x[indices], where the operands first .. first + dims.size() index the dimensions
// `dims` of x.
Status indexed_shape(InferContext& c, std::size_t first, std::size_t attribute, Dims& out) {
  const auto refuse = [&](std::string text) {
    return Status(core::Code::kOutOfRange, std::string(c.op) + ": " + std::move(text));
  };
  const Dims& x = c.shape(0);
  const auto dims = c.attributes.ints(attribute);
  const std::size_t count = c.operands.size() - first;
  if (dims.empty() || dims.size() != count)
    return c.fail("needs one index tensor for each of dims");
  Dims broad;
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (dims[i] < 0 || dims[i] >= x.size()) {
      return refuse("too many indices for a tensor of rank " + std::to_string(x.size()));
    }
    if (i > 0 && dims[i] <= dims[i - 1]) return c.fail("dims must ascend");
    if (!is_index(c.dtype(first + i))) {
      return refuse("tensors used as indices must be int64, int32 or bool, not " +
                    name(c.dtype(first + i)));
    }
    const auto next = i == 0 ? core::Result<Dims>(c.shape(first))
                             : core::broadcast_shapes(broad, c.shape(first + i), c.op);
    if (!next.ok()) {
      return refuse("shape mismatch: indexing tensors of shapes " + core::to_string(broad) +
                    " and " + core::to_string(c.shape(first + i)) + " do not broadcast");
    }
    broad = *next;
    largest = std::max(largest, c.geometry(first + i).numel());
  }
  // This bounds the number of indices, because neither result does: the result of index_put is x,
  // and the result of index may have no elements. A single index has been checked as an operand.
  const auto places = core::checked_numel(broad.span());
  if (!places.ok() || (*places > kMaxRepeated && *places > largest)) {
    return c.fail("indexing tensors broadcast to shape " + core::to_string(broad) +
                  ", more elements than one instruction may work on");
  }
  if (x.size() - static_cast<int>(count) + broad.size() > core::kMaxRank) {
    return c.fail("the result's rank is above the limit of 12");
  }
  // RULE (as in NumPy): indexed dimensions that are adjacent are replaced in place; otherwise the
  // dimensions of the indices come first.
  const bool neighbours = dims[count - 1] - dims[0] + 1 == static_cast<std::int64_t>(count);
  out = Dims();
  std::size_t next = 0;
  if (!neighbours) out = broad;
  for (int d = 0; d < x.size(); ++d) {
    if (next < count && dims[next] == d) {
      if (neighbours && next == 0) {
        for (std::int64_t n : broad) out.push_back(n);
      }
      ++next;
    } else {
      out.push_back(x[d]);
    }
  }
  if (!core::checked_numel(out.span()).ok()) {
    return c.fail("the indexed shape " + core::to_string(out) + " is too large to address");
  }
  return {};
}

Status infer_index(InferContext& c) {
  Dims out;
  TT_RETURN_IF_ERROR(indexed_shape(c, 1, 0, out));
  c.add_result(c.dtype(0), out);
  return {};
}

Status infer_index_put(InferContext& c) {
  Dims target;
  TT_RETURN_IF_ERROR(indexed_shape(c, 2, 0, target));
  TT_RETURN_IF_ERROR(check_number(c, 1, c.dtype(0)));
  if (c.operands[1].tensor()) {
    auto broad = core::broadcast_shapes(c.shape(1), target, c.op);
    if (!broad.ok() || !(*broad == target)) {
      return c.fail("shape mismatch: value of shape " + core::to_string(c.shape(1)) +
                    " does not broadcast to the indexed shape " + core::to_string(target));
    }
  }
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

// Calls the op with the operands `lead`, followed by the operands from `first` on as the list of
// indices.
Var with_indices(VjpContext& c, std::string_view op, std::initializer_list<Var> lead,
                 std::size_t first, core::Attributes attributes) {
  const OpRef id(op);
  core::InlineVector<Var, 4> arguments;
  for (const Var& v : lead) arguments.push_back(v);
  for (std::size_t i = first; i < c.operands(); ++i) arguments.push_back(c.operand(i));
  const auto count = static_cast<std::uint32_t>(c.operands() - first);
  Vars out = apply_all(id, {arguments.data(), arguments.size()}, std::move(attributes),
                       std::span(&count, 1));
  return out.empty() ? Var() : out[0];
}

void index_vjp(VjpContext& c) {
  const Var zero = zeros(c.builder(), c.operand_layout(0));
  c.give(0, with_indices(c, "index_put", {zero, c.gradient()}, 1,
                         {c.attributes().at(0), Attribute::of(true)}));
}

void index_put_vjp(VjpContext& c) {
  const Var g = c.gradient();
  const bool accumulate = c.attributes().boolean(1);
  if (c.needs(0)) {
    c.give(0, accumulate ? g
                         : with_indices(c, "index_put", {g, Var(0)}, 2,
                                        {c.attributes().at(0), Attribute::of(false)}));
  }
  if (c.needs(1)) c.give(1, with_indices(c, "index", {g}, 2, {c.attributes().at(0)}));
}

std::vector<Save> save_from(int first) {
  std::vector<Save> saves;
  for (int i = 0; i < core::kMaxRank; ++i) saves.push_back({first + i});
  return saves;
}

// ---------------------------------------------------------------- bool masks

Status infer_nonzero(InferContext& c) {
  const std::int64_t count = c.attributes.integer(0);
  if (count < 0 || count > c.geometry(0).numel()) {
    return c.fail("count " + std::to_string(count) + " is impossible for shape " +
                  core::to_string(c.shape(0)));
  }
  c.add_result(DType::kI64, Dims{count, c.rank(0)});
  return {};
}

Status infer_nonzero_static(InferContext& c) {
  const std::int64_t size = c.attributes.integer(0);
  if (size < 0) return c.fail("size must not be negative, it is " + std::to_string(size));
  c.add_result(DType::kI64, Dims{size, c.rank(0)});
  return {};
}

Status check_mask(InferContext& c, std::size_t i) {
  if (c.dtype(i) != DType::kBool) return c.fail("the mask must be bool, it is " + name(c.dtype(i)));
  const auto broad = core::broadcast_shapes(c.shape(i), c.shape(0), c.op);
  if (!broad.ok() || !(*broad == c.shape(0))) {
    return c.fail("mask of shape " + core::to_string(c.shape(i)) + " does not broadcast to " +
                  core::to_string(c.shape(0)));
  }
  return {};
}

Status infer_masked_scatter(InferContext& c) {
  TT_RETURN_IF_ERROR(check_mask(c, 1));
  TT_RETURN_IF_ERROR(check_same_dtype(c, 0, 2));
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

Status infer_masked_pack(InferContext& c) {
  TT_RETURN_IF_ERROR(check_mask(c, 1));
  const auto sizes = c.attributes.ints(0);
  if (sizes.size() > core::kMaxRank || !core::checked_numel(sizes).ok()) {
    return c.fail("bad size");
  }
  c.add_result(c.dtype(0), Dims(sizes));
  return {};
}

// ---------------------------------------------------------------- gather, scatter

// The index may be smaller than x in dimensions other than `dim`; if `also` is given, the index
// must fit into that shape too.
Status check_gather(InferContext& c, std::size_t index, const Dims* also) {
  TT_RETURN_IF_ERROR(check_index(c, index));
  const Dims x = at_least_1d(c.shape(0)), at = at_least_1d(c.shape(index));
  const auto dim = core::normalize_dim(c.attributes.integer(0), x.size(), c.op);
  if (!dim.ok()) return dim.status();
  bool fits = x.size() == at.size() && (also == nullptr || also->size() == at.size());
  if (core::numel(c.shape(index)) > 0) {
    for (int d = 0; fits && d < x.size(); ++d) {
      fits = (d == *dim || at[d] <= x[d]) && (also == nullptr || at[d] <= (*also)[d]);
    }
  }
  if (fits) return {};
  return c.fail("index of shape " + core::to_string(c.shape(index)) + " does not fit " +
                core::to_string(c.shape(0)) +
                (also ? " and source " + core::to_string(*also) : std::string()) + " (dim " +
                std::to_string(*dim) + ")");
}

Status infer_gather(InferContext& c) {
  TT_RETURN_IF_ERROR(check_gather(c, 1, nullptr));
  c.add_result(c.dtype(0), c.shape(1));
  return {};
}

Status infer_scatter(InferContext& c) {
  TT_RETURN_IF_ERROR(check_number(c, 2, c.dtype(0)));
  if (c.operands[2].tensor()) {
    TT_RETURN_IF_ERROR(check_same_dtype(c, 0, 2));
    const Dims source = at_least_1d(c.shape(2));
    TT_RETURN_IF_ERROR(check_gather(c, 1, &source));
  } else {
    TT_RETURN_IF_ERROR(check_gather(c, 1, nullptr));
  }
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

Var gather(const Var& x, const Var& index, std::int64_t dim) {
  static const OpRef op("gather");
  return apply(op, {x, index}, {Attribute::of(dim)});
}

// The gradient of a source of which only the part index.shape was read.
Var padded_gather(VjpContext& c, const Var& g, const Var& index) {
  static const OpRef update("update_region");
  const Var part = gather(g, index, c.attributes().integer(0));
  const core::Layout& source = c.operand_layout(2);
  const Dims& whole = source.geometry.shape;
  if (part.absent() || part.shape() == whole) return part;
  const Dims strides = core::contiguous_strides(whole);
  return apply(update, {zeros(c.builder(), source), part},
               {Attribute::of(whole), Attribute::of(strides), Attribute::of(part.shape()),
                Attribute::of(strides), Attribute::of(0)});
}

void scatter_vjp(VjpContext& c) {
  static const OpRef op("scatter");
  const Var g = c.gradient(), index = c.operand(1);
  if (c.needs(0)) c.give(0, apply(op, {g, index, Var(0)}, c.attributes()));
  if (c.needs(2)) c.give(2, padded_gather(c, g, index));
}

void scatter_add_vjp(VjpContext& c) {
  const Var g = c.gradient();
  if (c.needs(0)) c.give(0, g);
  if (c.needs(2)) c.give(2, padded_gather(c, g, c.operand(1)));
}

void gather_vjp(VjpContext& c) {
  static const OpRef op("scatter_add");
  c.give(0, apply(op, {zeros(c.builder(), c.operand_layout(0)), c.operand(1), c.gradient()},
                  c.attributes()));
}

// ---------------------------------------------------------------- index_select and similar ops

// Checks the dimension from which a vector of indices picks.
Status check_select(InferContext& c, int& dim) {
  TT_RETURN_IF_ERROR(check_index(c, 1));
  if (c.rank(1) > 1) {
    return Status(core::Code::kOutOfRange, std::string(c.op) +
                                               ": the index must be a vector, it has shape " +
                                               core::to_string(c.shape(1)));
  }
  const auto at = core::normalize_dim(c.attributes.integer(0), c.rank(0), c.op);
  if (!at.ok()) return at.status();
  dim = *at;
  if (c.rank(0) == 0 && core::numel(c.shape(1)) != 1) {
    return c.fail("takes one index for a 0-d tensor, got " + core::to_string(c.shape(1)));
  }
  return {};
}

Status infer_index_select(InferContext& c) {
  int dim;
  TT_RETURN_IF_ERROR(check_select(c, dim));
  Dims out = c.shape(0);
  if (!out.empty()) out[dim] = core::numel(c.shape(1));
  c.add_result(c.dtype(0), out);
  return {};
}

// index_add and index_copy: the source has the shape of x, with the number of indices along `dim`.
Status infer_index_write(InferContext& c) {
  int dim;
  TT_RETURN_IF_ERROR(check_select(c, dim));
  TT_RETURN_IF_ERROR(check_same_dtype(c, 0, 2));
  Dims wanted = c.shape(0);
  if (!wanted.empty()) wanted[dim] = core::numel(c.shape(1));
  if (!(wanted == c.shape(2)) && !(wanted.empty() && c.shape(2) == Dims{1})) {
    return c.fail("source must have shape " + core::to_string(wanted) + ", it has " +
                  core::to_string(c.shape(2)));
  }
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

Status infer_index_fill(InferContext& c) {
  int dim;
  TT_RETURN_IF_ERROR(check_select(c, dim));
  TT_RETURN_IF_ERROR(check_number(c, 2, c.dtype(0)));
  if (c.operands[2].tensor() && c.rank(2) != 0) {
    return c.fail("value must be a number or a 0-d tensor, it has shape " +
                  core::to_string(c.shape(2)));
  }
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

Var index_select(const Var& g, const Var& index, std::int64_t dim) {
  static const OpRef op("index_select");
  return apply(op, {g, index}, {Attribute::of(dim)});
}
Var index_fill(const Var& g, const Var& index, std::int64_t dim) {
  static const OpRef op("index_fill");
  return apply(op, {g, index, Var(0)}, {Attribute::of(dim)});
}

void index_select_vjp(VjpContext& c) {
  static const OpRef op("index_add");
  c.give(0, apply(op, {zeros(c.builder(), c.operand_layout(0)), c.operand(1), c.gradient()},
                  {c.attributes().at(0)}));
}

void index_add_vjp(VjpContext& c) {
  const Var g = c.gradient();
  const double alpha = c.attributes().real(1);
  if (c.needs(0)) c.give(0, g);
  if (c.needs(2)) {
    const Var part = reshape(index_select(g, c.operand(1), c.attributes().integer(0)),
                             c.operand_layout(2).geometry.shape);
    c.give(2, alpha == 1 ? part : part * Var(alpha));
  }
}

void index_copy_vjp(VjpContext& c) {
  const Var g = c.gradient(), index = c.operand(1);
  const std::int64_t dim = c.attributes().integer(0);
  if (c.needs(0)) c.give(0, index_fill(g, index, dim));
  if (c.needs(2)) {
    c.give(2, reshape(index_select(g, index, dim), c.operand_layout(2).geometry.shape));
  }
}

void index_fill_vjp(VjpContext& c) {
  const Var g = c.gradient(), index = c.operand(1);
  const std::int64_t dim = c.attributes().integer(0);
  const Var kept = index_fill(g, index, dim);
  if (c.needs(0)) c.give(0, kept);
  // If indices are equal, the value is written only once.
  if (c.needs(2)) c.give(2, g - kept);
}

Status infer_take(InferContext& c) {
  TT_RETURN_IF_ERROR(check_index(c, 1));
  c.add_result(c.dtype(0), c.shape(1));
  return {};
}

void take_vjp(VjpContext& c) {
  static const OpRef op("index_put");
  const core::Layout& x = c.operand_layout(0);
  core::Layout flat = x;
  flat.geometry = core::Geometry(Dims{x.geometry.numel()});
  const Var arguments[] = {zeros(c.builder(), flat), c.gradient(), c.operand(1)};
  const std::uint32_t count = 1;
  Vars out =
      apply_all(op, arguments, {Attribute::of(Dims{0}), Attribute::of(true)}, std::span(&count, 1));
  if (!out.empty()) c.give(0, reshape(out[0], x.geometry.shape));
}

// ---------------------------------------------------------------- embedding

Status infer_embedding(InferContext& c) {
  TT_RETURN_IF_ERROR(check_index(c, 1));
  if (c.rank(0) != 2)
    return c.fail("weight must be a matrix, it has " + core::to_string(c.shape(0)));
  if (c.rank(1) == core::kMaxRank) return c.fail("rank above the limit of 12");
  Dims out = c.shape(1);
  out.push_back(c.shape(0)[1]);
  c.add_result(c.dtype(0), out);
  return {};
}

Status infer_embedding_backward(InferContext& c) {
  TT_RETURN_IF_ERROR(check_index(c, 1));
  if (!core::is_floating(c.dtype(0))) return c.fail("takes floats, got " + name(c.dtype(0)));
  const std::int64_t rows = c.attributes.integer(0);
  if (rows < 0) return c.fail("negative number of rows");
  Dims wanted = c.shape(1);
  bool fits = c.rank(0) == wanted.size() + 1;
  for (int d = 0; fits && d < wanted.size(); ++d) fits = c.shape(0)[d] == wanted[d];
  if (!fits) {
    return c.fail("gradient of shape " + core::to_string(c.shape(0)) + " for indices of shape " +
                  core::to_string(wanted));
  }
  c.add_result(c.dtype(0), Dims{rows, c.shape(0).back()});
  return {};
}

void embedding_vjp(VjpContext& c) {
  static const OpRef op("embedding_backward");
  c.give(0, apply(op, {c.gradient(), c.operand(1)},
                  {Attribute::of(c.operand_layout(0).geometry.shape[0]), c.attributes().at(0)}));
}

// Picks the rows of the second gradient; the row of the padding index is zero.
void embedding_backward_vjp(VjpContext& c) {
  static const OpRef op("embedding");
  Var g = c.gradient();
  const std::int64_t padding = c.attributes().integer(1);
  if (padding >= 0 && padding < c.attributes().integer(0)) {
    const Var row = full(c.builder(), Dims{1}, core::Number::of_int(padding), DType::kI64,
                         c.operand_layout(0).device);
    g = index_fill(g, row, 0);
  }
  c.give(0, apply(op, {g, c.operand(1)}, {Attribute::of(padding)}));
}

}  // namespace

std::vector<OpDef> index_ops() {
  const std::vector<Save> save_index = {{1}};
  std::vector<OpDef> all = {
      {.signature = "index(Tensor x, Tensor[] indices, int[] dims) -> Tensor",
       .doc =
           "The elements of x at the places that the indices, broadcast together, name in the "
           "ascending dimensions dims (NumPy's advanced indexing). Negative indices count from the "
           "end.",
       .infer = infer_index,
       .vjp = index_vjp,
       .saves = save_from(1)},
      {.signature = "index_put(Tensor x, Operand values, Tensor[] indices, int[] dims, bool "
                    "accumulate=False) -> Tensor",
       .doc =
           "x with the elements that index(x, indices, dims) shows replaced by values (or values "
           "added, in order, with accumulate). Of equal places without accumulate the last wins.",
       .infer = infer_index_put,
       .vjp = index_put_vjp,
       .saves = save_from(2),
       .inplace = Inplace::kRegion},
      {.signature = "nonzero(Tensor x, int count) -> Tensor",
       .doc =
           "The places of the elements that are not zero, one row each, in row-major order; count "
           "is their number (count_nonzero), which the kernel verifies.",
       .infer = infer_nonzero,
       .not_differentiable = kInteger},
      {.signature = "nonzero_static(Tensor x, int size, int fill_value=-1) -> Tensor",
       .doc = "The first `size` rows of nonzero(x), or fewer and then rows of fill_value.",
       .infer = infer_nonzero_static,
       .not_differentiable = kInteger},
      {.signature = "masked_scatter(Tensor x, Tensor mask, Tensor source) -> Tensor",
       .doc = "x with the elements where mask is True replaced by those of source, in order.",
       .infer = infer_masked_scatter,
       .vjp =
           [](VjpContext& c) {
             static const OpRef pack("masked_pack");
             const Var g = c.gradient(), mask = c.operand(1);
             if (c.needs(0)) c.give(0, where(mask, Var(0), g));
             if (c.needs(2)) {
               c.give(2,
                      apply(pack, {g, mask}, {Attribute::of(c.operand_layout(2).geometry.shape)}));
             }
           },
       .saves = save_index,
       .inplace = Inplace::kRegion},
      {.signature = "masked_pack(Tensor x, Tensor mask, int[] size) -> Tensor",
       .doc = "Zeros of the given size whose first elements are those of x where mask is True.",
       .infer = infer_masked_pack,
       .vjp =
           [](VjpContext& c) {
             static const OpRef scatter("masked_scatter");
             const Var zero = zeros(c.builder(), c.operand_layout(0));
             c.give(0, apply(scatter, {zero, c.operand(1), c.gradient()}));
           },
       .saves = save_index,
       .internal = true},
      {.signature = "gather(Tensor x, Tensor index, int dim) -> Tensor",
       .doc = "out[i][j] = x[index[i][j]][j] for dim 0, and so on.",
       .infer = infer_gather,
       .vjp = gather_vjp,
       .saves = save_index},
      {.signature = "scatter(Tensor x, Tensor index, Operand src, int dim) -> Tensor",
       .doc =
           "x with out[index[i][j]][j] = src[i][j] for dim 0, and so on. Of equal places the last "
           "wins.",
       .infer = infer_scatter,
       .vjp = scatter_vjp,
       .saves = save_index,
       .inplace = Inplace::kRegion},
      {.signature = "scatter_add(Tensor x, Tensor index, Tensor src, int dim) -> Tensor",
       .doc = "x with src[i][j] added at [index[i][j]][j] for dim 0, and so on, in order.",
       .infer = infer_scatter,
       .vjp = scatter_add_vjp,
       .saves = save_index,
       .inplace = Inplace::kRegion},
      {.signature = "index_select(Tensor x, Tensor index, int dim) -> Tensor",
       .doc = "The slices of x along dim at the indices.",
       .infer = infer_index_select,
       .vjp = index_select_vjp,
       .saves = save_index},
      {.signature = "index_add(Tensor x, Tensor index, Tensor source, int dim, float alpha=1) -> "
                    "Tensor",
       .doc = "x with alpha times the slices of source added, in order, at the indices of dim.",
       .infer = infer_index_write,
       .vjp = index_add_vjp,
       .saves = save_index,
       .inplace = Inplace::kRegion},
      {.signature = "index_copy(Tensor x, Tensor index, Tensor source, int dim) -> Tensor",
       .doc = "x with the slices at the indices of dim replaced by those of source.",
       .infer = infer_index_write,
       .vjp = index_copy_vjp,
       .saves = save_index,
       .inplace = Inplace::kRegion},
      {.signature = "index_fill(Tensor x, Tensor index, Operand value, int dim) -> Tensor",
       .doc =
           "x with the slices at the indices of dim filled with value. Negative indices count from "
           "the end.",
       .infer = infer_index_fill,
       .vjp = index_fill_vjp,
       .saves = save_index,
       .inplace = Inplace::kRegion},
      {.signature = "take(Tensor x, Tensor index) -> Tensor",
       .doc = "The elements of x, seen as a vector in row-major order, at the indices. Negative "
              "indices count from the end.",
       .infer = infer_take,
       .vjp = take_vjp,
       .saves = save_index},
      {.signature = "embedding(Tensor weight, Tensor indices, int padding_idx=-1) -> Tensor",
       .doc = "The rows of weight at the indices. The row padding_idx (-1: none) gets no gradient.",
       .infer = infer_embedding,
       .vjp = embedding_vjp,
       .saves = save_index},
      {.signature = "embedding_backward(Tensor g, Tensor indices, int rows, int padding_idx=-1) -> "
                    "Tensor",
       .doc = "The gradient of embedding's weight: rows of g summed by index, in order.",
       .infer = infer_embedding_backward,
       .vjp = embedding_backward_vjp,
       .saves = save_index,
       .internal = true},
  };
  std::vector<OpDef> more = scatter_ops();
  std::move(more.begin(), more.end(), std::back_inserter(all));
  return all;
}

}  // namespace teletensor::ops
