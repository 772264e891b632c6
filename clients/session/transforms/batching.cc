// vmap: performs one call for a whole batch, by the batching rules of engine/ops (op.h: Batching).

#include "clients/session/transforms/transforms_shared.h"

namespace teletensor::client::transforms {

using ops::Batching;
using ops::Parameter;

namespace {

// Refuses what would be refused without vmap, for the shapes that the function sees.
Status infer(const OpDef& def, const Request& request, std::vector<Layout>& results) {
  core::InlineVector<ops::OperandInfo, 3> infos;
  ops::InferContext context{.op = def.name,
                            .operands = {},
                            .counts = request.counts,
                            .attributes = request.attributes,
                            .default_dtype = default_dtype(),
                            .device = {},
                            .results = {}};
  bool any = false;
  for (const Var& argument : request.arguments) {
    ops::OperandInfo& info = infos.emplace_back();
    if (argument.is_tensor()) {
      info.layout = &argument.layout();
      if (!any) context.device = info.layout->device;
      any = true;
    } else if (argument.is_number()) {
      info.number = &argument.number();
    }
  }
  for (std::size_t i = 0; i < request.attributes.size() && !any; ++i) {
    if (request.attributes.at(i).kind == Attribute::Kind::kDevice) {
      context.device = request.attributes.device(i);
    }
  }
  context.operands = {infos.data(), infos.size()};
  if (def.view != nullptr) {
    std::vector<core::Geometry> views;
    const Status status = def.view(context, views);
    // For reshape, a view may be possible in one layout and not in the other; the batch's layout
    // decides.
    if (status.ok()) {
      for (const core::Geometry& view : views) {
        const core::DType dtype =
            context.results.empty() ? context.dtype(0) : context.results[0].dtype;
        results.push_back({dtype, context.device, view});
      }
      return {};
    }
    if (status.code() != core::Code::kFailedPrecondition || def.infer == nullptr) return status;
  }
  TT_RETURN_IF_ERROR(def.infer(context));
  results.assign(context.results.begin(), context.results.end());
  return {};
}

// ---------------------------------------------------------------- the call

class BatchCall final : public ops::BatchContext {
 public:
  BatchCall(Session& session, const Request& request, const Level& level)
      : session_(session), request_(request), level_(level) {}

  const Attributes& attributes() const override { return request_.attributes; }
  std::span<const std::uint32_t> counts() const override { return request_.counts; }
  std::size_t operands() const override { return request_.arguments.size(); }
  ops::Builder& builder() override { return session_; }
  std::int64_t size() const override { return level_.size; }
  bool batched(std::size_t i) const override {
    return i < operands() && batched_at(request_.arguments[i], level_.id);
  }
  int rank(std::size_t i) const override {
    const Var& v = request_.arguments[i];
    return v.is_tensor() ? v.rank() : 0;
  }
  Var own(std::size_t i) override {
    if (i >= operands()) return {};
    return batched(i) ? inner_of(session_, request_.arguments[i]) : request_.arguments[i];
  }
  Var front(std::size_t i) override {
    const Var v = own(i);
    return batched(i) || !v.is_tensor() ? v : spread(v, level_.size);
  }
  void give(const Var& result) override { results_.push_back(result); }
  void slices() override;

  void elementwise();
  void front_all(const OpDef& def);
  const std::vector<Var>& results() const { return results_; }

 private:
  Session& session_;
  const Request& request_;
  const Level& level_;
  std::vector<Var> results_;
};

// Reshapes x to [batch, 1, ..., 1, rest], so that it has `wanted` dimensions after the batch.
Var padded(const Var& x, int wanted) {
  if (!x.is_tensor() || x.rank() - 1 >= wanted) return x;
  Dims shape{x.shape()[0]};
  for (int i = x.rank() - 1; i < wanted; ++i) shape.push_back(1);
  for (int i = 1; i < x.rank(); ++i) shape.push_back(x.shape()[i]);
  return ops::reshape(x, shape);
}

void BatchCall::elementwise() {
  int most = 0;
  for (std::size_t i = 0; i < operands(); ++i) most = std::max(most, rank(i));
  core::InlineVector<Var, 4> arguments;
  for (std::size_t i = 0; i < operands(); ++i) {
    arguments.push_back(batched(i) ? padded(own(i), most) : own(i));
  }
  for (const Var& result : session_.call(request_.op, {arguments.data(), arguments.size()},
                                         request_.attributes, request_.counts)) {
    give(result);
  }
}

void BatchCall::slices() {
  static const OpRef select("select");
  static const OpRef stack("stack");
  std::vector<std::vector<Var>> parts;
  for (std::int64_t b = 0; b < level_.size && session_.status().ok(); ++b) {
    core::InlineVector<Var, 4> arguments;
    for (std::size_t i = 0; i < operands(); ++i) {
      arguments.push_back(
          batched(i) ? ops::apply(select, {own(i)}, {Attribute::of(0), Attribute::of(b)}) : own(i));
    }
    const Vars results = session_.call(request_.op, {arguments.data(), arguments.size()},
                                       request_.attributes, request_.counts);
    parts.resize(results.size());
    for (std::size_t r = 0; r < results.size(); ++r) parts[r].push_back(results[r]);
  }
  for (const std::vector<Var>& each : parts) {
    const auto count = static_cast<std::uint32_t>(each.size());
    give(ops::apply_all(stack, each, {Attribute::of(0)}, std::span(&count, 1))[0]);
  }
}

void BatchCall::front_all(const OpDef& def) {
  const int seen = operands() > 0 ? rank(0) : 0;
  const bool grows = def.name == "unsqueeze" || def.name == "stack";
  const bool squeezes = def.name == "squeeze";
  bool lifted = false;  // Whether a 0-d operand gets a dimension to reduce.
  Attributes attributes;
  for (std::size_t i = 0; i < request_.attributes.size(); ++i) {
    const Parameter& p = def.parameters[static_cast<std::size_t>(def.operand_parameters) + i];
    Attribute a = request_.attributes.at(i);
    const bool dim = p.name == "dim" || p.name == "dim0" || p.name == "dim1" || p.name == "dim2";
    if (dim && p.type == Parameter::Type::kInt) {
      if (seen == 0 && !grows) return slices();
      if (a.kind == Attribute::Kind::kInt && a.integer >= 0) ++a.integer;
    } else if (p.type == Parameter::Type::kInts && (dim || p.name == "dims")) {
      const bool all = !request_.attributes.has(i) || (a.ints.empty() && !squeezes);
      Dims dims;
      if (seen == 0 && !squeezes) {
        lifted = true;
        dims.push_back(1);
      } else if (all) {
        for (int d = 1; d <= seen; ++d) dims.push_back(d);
      } else if (seen > 0) {
        for (std::int64_t d : a.ints) dims.push_back(d < 0 ? d : d + 1);
      }
      a = Attribute::of(dims);
    } else if (p.name == "size" && p.type == Parameter::Type::kInts) {
      Dims size{level_.size};
      for (std::int64_t n : a.ints) size.push_back(n);
      a = Attribute::of(size);
    } else if (p.name == "keepdim" && lifted) {
      a = Attribute::of(false);
    }
    attributes.push_back(std::move(a));
  }
  core::InlineVector<Var, 4> arguments;
  for (std::size_t i = 0; i < operands(); ++i) {
    const Var x = front(i);
    arguments.push_back(lifted && x.is_tensor() ? padded(x, 1) : x);
  }
  for (const Var& result : session_.call(request_.op, {arguments.data(), arguments.size()},
                                         attributes, request_.counts)) {
    give(result);
  }
}

}  // namespace

const char kRandomError[] =
    "vmap: called random operation while in randomness error mode. Please either use the 'same' or "
    "'different' randomness flags on vmap or perform the randomness operation out of vmap";

Status batched(Session& session, std::size_t position, const Request& request, Handles& results) {
  const Level level = levels()[position];
  const OpDef& def = session.catalog().at(request.op);
  if (def.random && level.randomness == Randomness::kError) return invalid(kRandomError);
  if (!def.mutates.empty()) {
    return invalid("vmap: " + def.name + " has no batching rule: it writes a list of tensors");
  }
  static const OpRef client_node("client_node");
  std::vector<Layout> seen;
  if (request.op != client_node) TT_RETURN_IF_ERROR(infer(def, request, seen));
  const Below below(position);
  const Calls calls(session);
  BatchCall call(session, request, level);
  if (request.op == client_node) {
    core::InlineVector<Var, 4> arguments;
    for (std::size_t i = 0; i < request.arguments.size(); ++i) arguments.push_back(call.own(i));
    TT_RETURN_IF_ERROR(session.apply(request.op, {arguments.data(), arguments.size()},
                                     request.counts, request.attributes, results));
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (call.batched(request.counts[0] + i)) results[i] = wrap(session, results[i], level.id);
    }
    return {};
  }
  if (def.random && level.randomness == Randomness::kSame) {
    call.slices();
  } else if (def.batch != nullptr) {
    def.batch(call);
  } else if (def.batching == Batching::kElementwise) {
    call.elementwise();
  } else if (def.batching == Batching::kFront || def.random) {
    const bool sized = std::any_of(def.parameters.begin(), def.parameters.end(),
                                   [](const Parameter& p) { return p.name == "size"; });
    if (def.random && request.arguments.empty() && !sized) {
      return invalid("vmap: " + def.name + " has no batching rule for randomness 'different'");
    }
    call.front_all(def);
  } else {
    call.slices();
  }
  TT_RETURN_IF_ERROR(calls.status());
  if (call.results().empty() && !seen.empty()) {
    return invalid("vmap: " + def.name + " over a batch of size 0 has no batching rule");
  }
  for (std::size_t i = 0; i < call.results().size(); ++i) {
    Var result = call.results()[i];
    // 0-d operands have lower priority in type promotion. With the batch dimension they lose that
    // property, so the result is cast.
    if (i < seen.size()) result = ops::cast(result, seen[i].dtype);
    TT_RETURN_IF_ERROR(calls.status());
    const bool has_batch =
        result.is_tensor() && result.rank() > 0 && result.shape()[0] == level.size;
    if (result.is_tensor() && !has_batch && i < seen.size() &&
        result.shape() == seen[i].geometry.shape && core::numel(result.shape()) == 0) {
      results.push_back(HandleRef(&handle(result)));  // The result has no elements for any sample.
      continue;
    }
    if (!has_batch) {
      return core::internal("vmap: the batching rule of " + def.name + " lost the batch");
    }
    results.push_back(wrap(session, HandleRef(&handle(result)), level.id));
  }
  return {};
}

}  // namespace teletensor::client::transforms
