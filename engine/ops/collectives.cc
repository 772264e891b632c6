// Collectives: ops that run when all ranks of a group have reached them, and sends and receives
// between two ranks. `group` is the session's number for the group (program::Join), and `site` is
// the client's source line, for errors on other ranks. Collectives have no kernels: the executor
// passes their operand to the group (runtime/groups.h).
#include <algorithm>
#include <string>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Status;

constexpr std::string_view kTransfers = "a derivative would be sent the other way";
constexpr std::string_view kCombinations[] = {"product", "min", "max", "and", "or", "xor"};

Status infer_like_x(InferContext& c) {
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

Status check_average(const InferContext& c) {
  const core::DType dtype = c.dtype(0);
  if (!c.attributes.boolean(1) || core::is_floating(dtype) || core::is_complex(dtype)) return {};
  return c.not_defined_for(dtype, ": an average is of floating point or complex numbers");
}

Status infer_reduce(InferContext& c) {
  TT_RETURN_IF_ERROR(check_average(c));
  return infer_like_x(c);
}

Status infer_combine(InferContext& c) {
  const std::string_view how = c.attributes.text(1);
  if (std::find(std::begin(kCombinations), std::end(kCombinations), how) ==
      std::end(kCombinations)) {
    return c.fail("there is no reduction '" + std::string(how) + "'");
  }
  const bool bits = how == "and" || how == "or" || how == "xor";
  if (bits && !core::is_integral(c.dtype(0)) && c.dtype(0) != core::DType::kBool) {
    return c.not_defined_for(c.dtype(0), ": bitwise reductions are of integers and bool");
  }
  if (how != "product") TT_RETURN_IF_ERROR(c.not_complex());
  return infer_like_x(c);
}

Status infer_all_gather(InferContext& c) {
  const std::int64_t ranks = c.attributes.integer(1);
  if (ranks < 1) return c.fail("a group has at least one rank, not " + std::to_string(ranks));
  if (c.rank(0) == core::kMaxRank) return c.fail("rank above the limit of 12");
  core::Dims shape = c.shape(0);
  shape.insert(0, ranks);
  c.add_result(c.dtype(0), shape);
  return {};
}

Status infer_reduce_scatter(InferContext& c) {
  TT_RETURN_IF_ERROR(check_average(c));
  if (c.rank(0) == 0) return c.fail("dimension 0 has a slice for each rank; got a 0-d tensor");
  core::Dims shape;
  for (int d = 1; d < c.rank(0); ++d) shape.push_back(c.shape(0)[d]);
  c.add_result(c.dtype(0), shape);
  return {};
}

Status infer_all_to_all(InferContext& c) {
  if (c.rank(0) == 0) return c.fail("the parts are along dimension 0; got a 0-d tensor");
  const auto sends = c.attributes.ints(1), receives = c.attributes.ints(2);
  if (sends.size() != receives.size()) {
    return c.fail("send and receive sizes need one entry for each rank, got " +
                  std::to_string(sends.size()) + " sizes to send and " +
                  std::to_string(receives.size()) + " to receive");
  }
  const auto sum = [](std::span<const std::int64_t> sizes, std::int64_t* rows) {
    for (const std::int64_t size : sizes) {
      if (size < 0 || __builtin_add_overflow(*rows, size, rows)) return false;
    }
    return true;
  };
  std::int64_t sent = 0, received = 0;
  if (!sum(sends, &sent) || !sum(receives, &received)) {
    return c.fail("the sizes are negative or too large");
  }
  core::Dims shape = c.shape(0);
  if (sent != shape[0]) {
    return c.fail("parts of " + std::to_string(sent) + " rows in all do not split a tensor of " +
                  core::to_string(shape));
  }
  shape[0] = received;
  c.add_result(c.dtype(0), shape);
  return {};
}

Status infer_send(InferContext& c) {
  c.add_result(c.dtype(0), core::Dims{0});
  return {};
}

Status infer_receive(InferContext& c) {
  c.add_result(c.dtype(0), c.shape(0));
  c.add_result(core::DType::kI64, core::Dims{});
  return {};
}

// ---------------------------------------------------------------- derivatives

// The loss is the sum of the losses of all ranks, as in torch.distributed.nn.
Attribute group_of(const VjpContext& c) { return Attribute::of(c.attributes().integer(0)); }
Attribute average_of(const VjpContext& c) { return Attribute::of(c.attributes().boolean(1)); }
Attribute site_of(const VjpContext& c) {
  return Attribute::of(c.attributes().text(c.attributes().size() - 1));
}

void all_reduce_vjp(VjpContext& c) {
  static const OpRef op("all_reduce");
  c.give(0, apply(op, {c.gradient()}, {group_of(c), average_of(c), site_of(c)}));
}

void broadcast_from_vjp(VjpContext& c) {
  static const OpRef op("reduce_to");
  c.give(0, apply(op, {c.gradient()},
                  {group_of(c), Attribute::of(c.attributes().integer(1)), site_of(c)}));
}

void reduce_to_vjp(VjpContext& c) {
  static const OpRef op("broadcast_from");
  c.give(0, apply(op, {c.gradient()},
                  {group_of(c), Attribute::of(c.attributes().integer(1)), site_of(c)}));
}

void all_gather_vjp(VjpContext& c) {
  static const OpRef op("reduce_scatter");
  c.give(0, apply(op, {c.gradient()}, {group_of(c), Attribute::of(false), site_of(c)}));
}

void reduce_scatter_vjp(VjpContext& c) {
  static const OpRef op("all_gather");
  const std::int64_t ranks = c.operand_layout(0).geometry.shape[0];
  const Var gradient = apply(op, {c.gradient()}, {group_of(c), Attribute::of(ranks), site_of(c)});
  const bool average = c.attributes().boolean(1);
  c.give(0, average ? gradient / Var(core::Number::of_int(ranks)) : gradient);
}

void all_to_all_vjp(VjpContext& c) {
  static const OpRef op("all_to_all");
  c.give(0, apply(op, {c.gradient()},
                  {group_of(c), Attribute::of(c.attributes().ints(2)),
                   Attribute::of(c.attributes().ints(1)), site_of(c)}));
}

// Makes an op of this family; its derivative is another collective.
OpDef collective(std::string_view signature, std::string_view doc, Infer infer, Vjp vjp,
                 std::string_view why_not = "it is not linear") {
  OpDef def;
  def.signature = signature;
  def.doc = doc;
  def.infer = infer;
  def.vjp = vjp;
  if (vjp == nullptr) def.not_differentiable = why_not;
  def.internal = def.collective = true;
  def.tangent = vjp == nullptr ? Tangent::kAuto : Tangent::kLinear;
  return def;
}

}  // namespace

std::vector<OpDef> collective_ops() {
  return {
      collective("all_reduce(Tensor x, int group, bool average, str site) -> Tensor",
                 "The sum, or the average, of the tensors of all ranks.", infer_reduce,
                 all_reduce_vjp),
      collective("all_combine(Tensor x, int group, str reduction, str site) -> Tensor",
                 "The tensors of all ranks as one: their product, min, max, and, or, xor.",
                 infer_combine, nullptr),
      collective("reduce_to(Tensor x, int group, int dst, str site) -> Tensor",
                 "The sum of the tensors of all ranks on rank dst, zeros elsewhere.", infer_like_x,
                 reduce_to_vjp),
      collective("broadcast_from(Tensor x, int group, int src, str site) -> Tensor",
                 "The tensor of rank src, on all ranks.", infer_like_x, broadcast_from_vjp),
      collective("all_gather(Tensor x, int group, int ranks, str site) -> Tensor",
                 "The tensors of all ranks, one after the other along a new dimension 0.",
                 infer_all_gather, all_gather_vjp),
      collective("reduce_scatter(Tensor x, int group, bool average, str site) -> Tensor",
                 "Of the sum or average over all ranks, the slice of dimension 0 that has the "
                 "number of this rank.",
                 infer_reduce_scatter, reduce_scatter_vjp),
      collective("all_to_all(Tensor x, int group, int[] sends, int[] receives, str site) -> Tensor",
                 "Part i of dimension 0 goes to rank i; the parts of all ranks for this one, in "
                 "the order of ranks. `sends` and `receives` are their rows.",
                 infer_all_to_all, all_to_all_vjp),
      collective("send_to(Tensor x, int group, int dst, int tag, str site) -> Tensor",
                 "Sends x to rank dst; the group keeps it until rank dst receives it. Nothing.",
                 infer_send, nullptr, kTransfers),
      collective("receive_from(Tensor like, int group, int src, int tag, str site) -> (Tensor "
                 "data, Tensor "
                 "source)",
                 "What rank src, or any rank where it is -1, sends with this tag: of the dtype and "
                 "shape of `like`; and the rank that sent it.",
                 infer_receive, nullptr, kTransfers),
      collective("await_sends(Tensor x, int group, str site) -> Tensor",
                 "x, when all that this rank has sent has been received.", infer_like_x, nullptr,
                 kTransfers),
  };
}

}  // namespace teletensor::ops
