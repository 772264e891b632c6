#include "transforms.h"

#include <algorithm>

#include "engine/ops/functions.h"
#include "session.h"

namespace teletensor::client::transforms {

using autograd::Handle;
using autograd::HandleRef;
using autograd::Handles;
using core::Attribute;
using core::Attributes;
using core::Dims;
using core::invalid;
using core::Layout;
using core::Status;
using ops::Batching;
using ops::OpDef;
using ops::OpRef;
using ops::Parameter;
using ops::Tangent;
using ops::Var;
using ops::Vars;

constinit thread_local std::size_t depth = 0;

namespace {

thread_local std::vector<Level> t_levels;
std::uint64_t g_next_level = 1;

Extra* extra_of(const Handle& h) { return static_cast<Extra*>(h.extra.get()); }

Extra& own_extra(Handle& h) {
  if (h.extra == nullptr) h.extra = core::Ref<core::Counted>(new Extra);
  return *extra_of(h);
}

Handle& handle(const Var& v) { return autograd::handle_of(v); }

bool batched_at(const Var& v, std::uint64_t level) {
  return v.is_tensor() && is_batched(handle(v), level);
}

Var inner_of(Session& session, const Var& v) { return Var(&session, extra_of(handle(v))->inner); }

// `inner` seen inside a level, without its dimension 0.
HandleRef wrap(Session& session, const HandleRef& inner, std::uint64_t level) {
  Layout layout = inner->layout;
  layout.geometry.shape.erase(0);
  layout.geometry.strides.erase(0);
  HandleRef h = session.graph().adopt(layout, nullptr);
  Extra& extra = own_extra(*h);
  extra.inner = inner;
  extra.level = level;
  return h;
}

// Calls through the session's Builder, whose first failure is taken out at the end.
class Calls {
 public:
  explicit Calls(Session& session) : session_(session), before_(session.take_status()) {}
  ~Calls() { session_.put_status(std::move(before_)); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  const Status& status() const { return session_.status(); }

 private:
  Session& session_;
  Status before_;
};

Var spread(const Var& x, std::int64_t size) {
  Dims shape{size};
  for (std::int64_t n : x.shape()) shape.push_back(n);
  return ops::expand(ops::unsqueeze(x, 0), shape);
}

// ---------------------------------------------------------------- inference of what is seen

// Refuses what would be refused without vmap, in the shapes that the function sees.
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
    // reshape: in the batch's layout another answer is possible, and that one counts.
    if (status.ok()) {
      for (const core::Geometry& view : views) {
        results.push_back({context.dtype(0), context.device, view});
      }
      return {};
    }
    if (status.code() != core::Code::kFailedPrecondition || def.infer == nullptr) return status;
  }
  TT_RETURN_IF_ERROR(def.infer(context));
  results.assign(context.results.begin(), context.results.end());
  return {};
}

// ---------------------------------------------------------------- vmap

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

Var padded(const Var& x, int wanted) {  // [batch, ...] with 1s behind the batch
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
      arguments.push_back(batched(i) ? ops::apply(select, {own(i)}, {Attribute::of(0),
                                                                     Attribute::of(b)})
                                     : own(i));
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
  bool lifted = false;  // a 0-d operand gets a dimension to reduce
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

constexpr char kRandomError[] =
    "vmap: called random operation while in randomness error mode. Please either use the 'same' or "
    "'different' randomness flags on vmap or perform the randomness operation out of vmap";

Status batched(Session& session, std::size_t position, const Request& request,
               Handles& results) {
  const Level level = t_levels[position];
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
  } else if (def.batching == Batching::kFront) {
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
    // 0-d operands have less say in promotion, which they lose with the batch's dimension.
    if (i < seen.size()) result = ops::cast(result, seen[i].dtype);
    TT_RETURN_IF_ERROR(calls.status());
    if (!result.is_tensor() || result.rank() == 0 || result.shape()[0] != level.size) {
      return core::internal("vmap: the batching rule of " + def.name + " lost the batch");
    }
    results.push_back(wrap(session, HandleRef(&handle(result)), level.id));
  }
  return {};
}

// ---------------------------------------------------------------- forward mode

Extra::Tangent* entry_of(const Handle& h, std::uint64_t id) {
  if (h.extra == nullptr) return nullptr;
  for (Extra::Tangent& each : extra_of(h)->tangents) {
    if (each.level == id) return &each;
  }
  return nullptr;
}

bool may_have_tangent(const Var& v, std::uint64_t id) {
  if (!v.is_tensor()) return false;
  const Handle& h = handle(v);
  return entry_of(h, id) != nullptr || (h.is_view() && entry_of(*h.base, id) != nullptr);
}

void put_entry(Handle& h, const HandleRef& value, std::uint64_t id) {
  if (Extra::Tangent* entry = entry_of(h, id)) {
    entry->value = value;
    entry->seen = h.clock->now();
    return;
  }
  std::vector<Extra::Tangent>& all = own_extra(h).tangents;
  std::erase_if(all, [](const Extra::Tangent& each) {  // of levels that have ended
    return std::none_of(t_levels.begin(), t_levels.end(),
                        [&](const Level& level) { return level.id == each.level; });
  });
  all.push_back({id, value, h.clock->now()});
}

void drop_entry(Handle& h, std::uint64_t id) {
  if (h.extra == nullptr) return;
  std::erase_if(extra_of(h)->tangents, [&](const auto& each) { return each.level == id; });
}

Attributes region_of(const Handle& base, const Handle& view) {
  return {Attribute::of(base.shape()), Attribute::of(base.geometry().strides),
          Attribute::of(view.shape()), Attribute::of(view.geometry().strides),
          Attribute::of(view.geometry().offset - base.geometry().offset)};
}

// At the depth of the level's inside.
Var tangent(Session& session, const Var& v, std::uint64_t id) {
  if (!v.is_tensor()) return {};
  Handle& h = handle(v);
  Extra::Tangent* entry = entry_of(h, id);
  if (!h.is_view() || (entry && entry->seen == h.clock->now())) {
    return entry ? Var(&session, entry->value) : Var();
  }
  const Extra::Tangent* of_base = entry_of(*h.base, id);
  if (of_base == nullptr) return entry ? Var(&session, entry->value) : Var();
  static const OpRef region("index_region");
  const Var out = ops::apply(region, {Var(&session, of_base->value)}, region_of(*h.base, h));
  if (out.is_tensor()) put_entry(h, HandleRef(&handle(out)), id);
  return out;
}

void attach(const Var& result, Var t, std::uint64_t id) {
  if (!result.is_tensor() || !t.is_tensor()) return;
  const Layout& like = result.layout();
  t = ops::expand(ops::cast(t, like.dtype), like.geometry.shape);
  if (t.is_tensor() && !(t.layout().geometry.strides == like.geometry.strides) &&
      like.geometry.dense()) {
    static const OpRef relayout("relayout");
    t = ops::apply(relayout, {t}, {Attribute::of(like.geometry.strides)});
  }
  if (t.is_tensor()) put_entry(handle(result), HandleRef(&handle(t)), id);
}

// A vjp over the operands and results of a call that has just run.
class LiveVjp final : public ops::VjpContext {
 public:
  LiveVjp(Session& session, const Request& request, const Handles& results, bool raw)
      : session_(session), request_(request), results_(results), raw_(raw) {
    gradients_.resize(results.size());
    given_.resize(request.arguments.size());
    needs_.resize(request.arguments.size());
  }
  const Attributes& attributes() const override { return request_.attributes; }
  std::span<const std::uint32_t> counts() const override { return request_.counts; }
  std::size_t operands() const override { return request_.arguments.size(); }
  ops::Builder& builder() override { return session_; }
  Var gradient(std::size_t i) override {
    if (i >= gradients_.size()) return {};
    if (gradients_[i].absent() && core::is_floating(results_[i]->layout.dtype)) {
      gradients_[i] = ops::zeros(session_, results_[i]->layout);
    }
    return gradients_[i];
  }
  Var operand(std::size_t i) override { return request_.arguments[i]; }
  Var result(std::size_t i) override {
    return i < results_.size() ? Var(&session_, results_[i]) : Var();
  }
  const Layout& operand_layout(std::size_t i) const override {
    return request_.arguments[i].layout();
  }
  bool needs(std::size_t i) const override { return needs_[i]; }
  void give(std::size_t i, const Var& gradient) override {
    if (i >= given_.size() || !needs(i) || !gradient.is_tensor()) return;
    given_[i] = raw_ ? gradient
                     : ops::cast(ops::sum_to(gradient, operand_layout(i).geometry.shape),
                                 operand_layout(i).dtype);
  }

  std::vector<Var> gradients_, given_;
  std::vector<bool> needs_;

 private:
  Session& session_;
  const Request& request_;
  const Handles& results_;
  const bool raw_;
};

class JvpCall final : public ops::JvpContext {
 public:
  JvpCall(Session& session, const Request& request, const Handles& results,
          const std::vector<Var>& tangents, std::uint64_t id)
      : session_(session), request_(request), results_(results), tangents_(tangents), id_(id) {}
  const Attributes& attributes() const override { return request_.attributes; }
  std::span<const std::uint32_t> counts() const override { return request_.counts; }
  std::size_t operands() const override { return request_.arguments.size(); }
  ops::Builder& builder() override { return session_; }
  Var operand(std::size_t i) override { return request_.arguments[i]; }
  Var result(std::size_t i) override {
    return i < results_.size() ? Var(&session_, results_[i]) : Var();
  }
  Var tangent(std::size_t i) override { return i < tangents_.size() ? tangents_[i] : Var(); }
  void give(std::size_t i, const Var& t) override { attach(result(i), t, id_); }

 private:
  Session& session_;
  const Request& request_;
  const Handles& results_;
  const std::vector<Var>& tangents_;
  const std::uint64_t id_;
};

Status transposed(Session& session, const Request& request, const Handles& results,
                  const std::vector<Var>& tangents, std::uint64_t id, const Calls& calls) {
  const OpDef& def = session.catalog().at(request.op);
  LiveVjp vjp(session, request, results, /*raw=*/false);
  autograd::BackwardCall call;
  call.has_inputs = call.allow_unused = true;
  std::vector<std::size_t> which;
  const bool mode = grad_mode();
  set_grad_mode(true);
  Status status;
  for (std::size_t i = 0; i < results.size() && status.ok(); ++i) {
    if (!core::is_floating(results[i]->layout.dtype)) continue;
    const Var zero = ops::zeros(session, results[i]->layout);
    status = calls.status();
    if (!status.ok()) break;
    auto u = variable(session, zero);
    status = u.status();
    if (!status.ok()) break;
    vjp.gradients_[i] = Var(&session, *u);
    call.inputs.push_back(*u);
    which.push_back(i);
  }
  if (status.ok()) {
    for (std::size_t i = 0; i < tangents.size(); ++i) vjp.needs_[i] = tangents[i].is_tensor();
    def.vjp(vjp);
    status = calls.status();
  }
  set_grad_mode(mode);
  TT_RETURN_IF_ERROR(status);
  for (std::size_t i = 0; i < tangents.size(); ++i) {
    const Var& v = vjp.given_[i];
    if (!v.is_tensor() || !session.graph().requires_grad(ground(handle(v)))) continue;
    call.roots.push_back(HandleRef(&handle(v)));
    call.seeds.push_back(HandleRef(&handle(ops::cast(tangents[i], v.dtype()))));
  }
  if (call.roots.empty()) return {};
  std::vector<HandleRef> found;
  status = gradient(session, call, mode, found);
  if (!status.ok()) {
    return Status(status.code(), "Trying to use forward AD with " + def.name +
                                     " that does not support it: " + status.message());
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i]) attach(Var(&session, results[which[i]]), Var(&session, found[i]), id);
  }
  return calls.status();
}

Status with_tangents(Session& session, std::size_t position, const Request& request,
                     Handles& results) {
  const std::uint64_t id = t_levels[position].id;
  const OpDef& def = session.catalog().at(request.op);
  static const OpRef client_node("client_node");
  static const OpRef detach("detach");
  static const OpRef data("data");
  const Below below(position);
  const Calls calls(session);
  std::vector<Var> tangents;
  for (const Var& argument : request.arguments) {
    tangents.push_back(tangent(session, argument, id));
  }
  TT_RETURN_IF_ERROR(calls.status());
  TT_RETURN_IF_ERROR(session.apply(request.op, request.arguments, request.counts,
                                   request.attributes, results));
  if (!def.mutates.empty() || request.op == client_node || request.op == detach ||
      request.op == data || def.random) {
    if (def.name != "dropout") return {};
  }
  bool floating = false;
  for (const HandleRef& h : results) floating |= core::is_floating(h->layout.dtype);
  if (!floating) return {};
  const auto attach_all = [&](const Vars& found) {
    for (std::size_t i = 0; i < results.size() && i < found.size(); ++i) {
      if (core::is_floating(results[i]->layout.dtype)) {
        attach(Var(&session, results[i]), found[i], id);
      }
    }
  };
  if (def.jvp != nullptr) {
    JvpCall call(session, request, results, tangents, id);
    def.jvp(call);
    return calls.status();
  }
  core::InlineVector<Var, 4> arguments;
  switch (def.tangent) {
    case Tangent::kLinear:
      for (std::size_t i = 0; i < request.arguments.size(); ++i) {
        const Var& argument = request.arguments[i];
        if (tangents[i].is_tensor()) {
          arguments.push_back(tangents[i]);
        } else if (argument.is_number()) {
          arguments.push_back(core::Number::of_int(0));
        } else if (argument.is_tensor() && core::is_floating(argument.dtype())) {
          arguments.push_back(ops::zeros(session, argument.layout()));
        } else {
          arguments.push_back(argument);
        }
      }
      attach_all(session.call(request.op, {arguments.data(), arguments.size()},
                              request.attributes, request.counts));
      return calls.status();
    case Tangent::kMultilinear: {
      Var total;
      for (std::size_t i = 0; i < request.arguments.size(); ++i) {
        if (!tangents[i].is_tensor()) continue;
        arguments.clear();
        for (const Var& argument : request.arguments) arguments.push_back(argument);
        arguments[i] = tangents[i];
        const Var part = session.call(request.op, {arguments.data(), arguments.size()},
                                      request.attributes, request.counts)[0];
        total = total.absent() ? part : total + part;
      }
      attach(Var(&session, results[0]), total, id);
      return calls.status();
    }
    case Tangent::kDiagonal: {
      if (def.vjp == nullptr) return {};
      Var total;
      const Layout& like = results[0]->layout;
      for (std::size_t i = 0; i < request.arguments.size(); ++i) {
        if (!tangents[i].is_tensor()) continue;
        LiveVjp vjp(session, request, results, /*raw=*/true);
        vjp.gradients_[0] =
            ops::expand(ops::cast(tangents[i], like.dtype), like.geometry.shape);
        vjp.needs_[i] = true;
        def.vjp(vjp);
        if (vjp.given_[i].absent()) continue;
        total = total.absent() ? vjp.given_[i] : total + vjp.given_[i];
      }
      attach(Var(&session, results[0]), total, id);
      return calls.status();
    }
    default:
      if (def.vjp == nullptr) {
        if (!def.internal) return {};  // not differentiable: constant
        return invalid("Trying to use forward AD with " + def.name +
                       " that does not support it because it has not been implemented yet.");
      }
      return transposed(session, request, results, tangents, id, calls);
  }
}

}  // namespace

// ---------------------------------------------------------------- levels

std::uint64_t push(Level level) {
  level.id = g_next_level++;
  t_levels.resize(depth);
  t_levels.push_back(level);
  depth = t_levels.size();
  return level.id;
}

void pop(std::uint64_t id) {
  while (!t_levels.empty()) {
    const std::uint64_t last = t_levels.back().id;
    if (last < id) break;
    t_levels.pop_back();
  }
  depth = std::min(depth, t_levels.size());
}

core::Result<std::size_t> position(std::uint64_t id) {
  for (std::size_t i = 0; i < t_levels.size(); ++i) {
    if (t_levels[i].id == id) return i;
  }
  return Status(invalid("this level of vmap or forward-mode differentiation has ended"));
}

const Level& at(std::size_t position) { return t_levels[position]; }

Handle& ground(Handle& h) {
  Handle* at = &h;
  while (at->id == 0 && at->extra != nullptr && extra_of(*at)->inner) {
    at = extra_of(*at)->inner.get();
  }
  return *at;
}

// ---------------------------------------------------------------- calls

bool apply(Session& session, const Request& request, Handles& results, Status& status) {
  const OpDef& def = session.catalog().at(request.op);
  for (std::size_t k = depth; k-- > 0;) {
    const Level& level = t_levels[k];
    if (level.forward) {
      if (std::any_of(request.arguments.begin(), request.arguments.end(),
                      [&](const Var& v) { return may_have_tangent(v, level.id); })) {
        status = with_tangents(session, k, request, results);
        return true;
      }
      continue;
    }
    const bool any =
        std::any_of(request.arguments.begin(), request.arguments.end(),
                    [&](const Var& v) { return batched_at(v, level.id); });
    if (any || (def.random && level.randomness != Randomness::kSame)) {
      status = batched(session, k, request, results);
      return true;
    }
  }
  return false;
}

bool apply_inplace(Session& session, const Request& request, Status& status) {
  static const OpRef copy("copy");
  const OpDef& def = session.catalog().at(request.op);
  Handle& self = handle(request.arguments[0]);
  for (std::size_t k = depth; k-- > 0;) {
    const Level level = t_levels[k];
    const bool any = std::any_of(request.arguments.begin(), request.arguments.end(),
                                 [&](const Var& v) {
                                   return level.forward ? may_have_tangent(v, level.id)
                                                        : batched_at(v, level.id);
                                 });
    if (!any && (level.forward || !def.random || level.randomness == Randomness::kSame)) continue;
    status = {};
    if (!level.forward && !is_batched(self, level.id)) {
      status = def.random && level.randomness == Randomness::kError
                   ? invalid(kRandomError)
                   : invalid("vmap: inplace arithmetic(self, *extra_args) is not possible because "
                             "there exists a Tensor `other` in extra_args that has more elements "
                             "than `self`. This happened due to `other` being vmapped over but "
                             "`self` not being vmapped over in a vmap. Please try to use "
                             "out-of-place operators instead of inplace arithmetic (" +
                             def.name + "_).");
      return true;
    }
    // The new contents, then one copy into the old name. Its shape may not change.
    Handles results;
    status = session.apply(request.op, request.arguments, request.counts, request.attributes,
                           results);
    if (!status.ok()) return true;
    if (!(results[0]->shape() == self.shape())) {
      status = invalid(def.name + "_: the result's shape " + core::to_string(results[0]->shape()) +
                       " does not fit the destination " + core::to_string(self.shape()));
      return true;
    }
    const Calls calls(session);
    const Below below(k);
    const Var result(&session, results[0]);
    if (!level.forward) {
      const Var arguments[] = {inner_of(session, request.arguments[0]),
                               inner_of(session, result)};
      status = session.apply_inplace(copy, arguments, {}, {});
      return true;
    }
    Var t = tangent(session, result, level.id);
    const Var base_tangent =
        self.is_view() && entry_of(*self.base, level.id)
            ? Var(&session, entry_of(*self.base, level.id)->value)
            : Var();
    const Var arguments[] = {request.arguments[0], result};
    status = session.apply_inplace(copy, arguments, {}, {});
    if (!status.ok()) return true;
    if (!t.is_tensor()) {
      drop_entry(self, level.id);
      if (base_tangent.absent()) return true;
      t = ops::zeros(session, self.layout);
    }
    attach(request.arguments[0], t, level.id);
    if (self.is_view() && core::is_floating(self.layout.dtype)) {
      static const OpRef update("update_region");
      const Var before = base_tangent.absent() ? ops::zeros(session, self.base->layout)
                                               : base_tangent;
      const Var after = ops::apply(update, {before, ops::cast(t, self.layout.dtype)},
                                   region_of(*self.base, self));
      if (after.is_tensor()) put_entry(*self.base, HandleRef(&handle(after)), level.id);
    }
    status = calls.status();
    return true;
  }
  return false;
}

// ---------------------------------------------------------------- gradients

namespace {

// v without level `position`, whose batch becomes a dimension 0 that the levels inside see.
Var pulled(Session& session, const Var& v, std::size_t position) {
  const Level& level = t_levels[position];
  if (batched_at(v, level.id)) return inner_of(session, v);
  const Extra* extra = handle(v).id == 0 ? extra_of(handle(v)) : nullptr;
  if (extra != nullptr && extra->level > level.id) {
    const Var inner = pulled(session, Var(&session, extra->inner), position);
    if (!inner.is_tensor()) return {};
    const Below below(position);
    const Var moved = ops::transpose(inner, 0, 1);
    if (!moved.is_tensor()) return {};
    return Var(&session, wrap(session, HandleRef(&handle(moved)), extra->level));
  }
  const Below below(position);
  return spread(v, level.size);
}

Status gradient_below(Session& session, std::size_t at, autograd::BackwardCall call,
                      bool create_graph, std::vector<HandleRef>& results) {
  if (at == 0) {
    bool inside = false;
    for (const HandleRef& seed : call.seeds) inside = inside || (seed && seed->id == 0);
    if (inside) return session.backward(std::move(call), create_graph, results);
    const Below below(0);
    return session.backward(std::move(call), create_graph, results);
  }
  const std::size_t k = at - 1;
  const Level level = t_levels[k];
  call.seeds.resize(call.roots.size());
  if (!level.forward) {
    bool any = false;
    for (const HandleRef& root : call.roots) any = any || is_batched(*root, level.id);
    if (any) {
      for (std::size_t i = 0; i < call.roots.size(); ++i) {
        if (!is_batched(*call.roots[i], level.id)) continue;
        const HandleRef inner = extra_of(*call.roots[i])->inner;
        if (call.seeds[i] == nullptr) {
          if (call.roots[i]->geometry().numel() != 1) {
            return invalid("backward: grad can be created implicitly only for scalar outputs, this "
                           "one has shape " +
                           core::to_string(call.roots[i]->shape()));
          }
          const Below below(k);
          const Var ones = ops::full(session, inner->shape(), core::Number::of_int(1),
                                     inner->layout.dtype, inner->layout.device);
          TT_RETURN_IF_ERROR(session.status());
          call.seeds[i] = HandleRef(&handle(ones));
        } else {
          const Var seed = pulled(session, Var(&session, call.seeds[i]), k);
          TT_RETURN_IF_ERROR(session.status());
          call.seeds[i] = HandleRef(&handle(seed));
        }
        call.roots[i] = inner;
      }
    }
    std::vector<bool> wrapped;
    for (HandleRef& input : call.inputs) {
      wrapped.push_back(is_batched(*input, level.id));
      if (wrapped.back()) input = HandleRef(extra_of(*input)->inner);
    }
    TT_RETURN_IF_ERROR(gradient_below(session, k, std::move(call), create_graph, results));
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!wrapped[i] || !results[i]) continue;
      if (results[i]->id == 0 && extra_of(*results[i])->level > level.id) {
        // A seed's own level lies around this one.
        const Below below(k);
        const Extra* outer = extra_of(*results[i]);
        const Var moved = ops::transpose(Var(&session, outer->inner), 0, 1);
        TT_RETURN_IF_ERROR(session.status());
        results[i] = wrap(session, wrap(session, HandleRef(&handle(moved)), level.id),
                          outer->level);
      } else {
        results[i] = wrap(session, results[i], level.id);
      }
    }
    return {};
  }
  // The derivative of the dual number, part by part.
  autograd::BackwardCall second;
  second.inputs = call.inputs;
  second.has_inputs = second.allow_unused = true;
  second.retain_graph = call.retain_graph;
  for (std::size_t i = 0; i < call.roots.size(); ++i) {
    const Below below(k);
    const Var t = tangent(session, Var(&session, call.roots[i]), level.id);
    const Var s = call.seeds[i] ? tangent(session, Var(&session, call.seeds[i]), level.id) : Var();
    TT_RETURN_IF_ERROR(session.status());
    if (t.is_tensor() && session.graph().requires_grad(ground(handle(t)))) {
      second.roots.push_back(HandleRef(&handle(t)));
      second.seeds.push_back(call.seeds[i]);
    }
    if (s.is_tensor()) {
      second.roots.push_back(call.roots[i]);
      second.seeds.push_back(HandleRef(&handle(s)));
    }
  }
  if (second.roots.empty()) {
    return gradient_below(session, k, std::move(call), create_graph, results);
  }
  call.retain_graph = true;
  TT_RETURN_IF_ERROR(gradient_below(session, k, std::move(call), create_graph, results));
  std::vector<HandleRef> tangents;
  TT_RETURN_IF_ERROR(gradient_below(session, k, std::move(second), create_graph, tangents));
  const Below below(k);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i] && tangents[i]) {
      attach(Var(&session, results[i]), Var(&session, tangents[i]), level.id);
    }
  }
  return session.status();
}

Var everywhere(Session& session, const Var& x, std::size_t at) {
  if (at == 0 || !x.is_tensor()) return x;
  const std::size_t k = at - 1;
  const Level level = t_levels[k];
  const Below below(k);
  if (level.forward) {
    const Var out = everywhere(session, x, k), t = tangent(session, x, level.id);
    if (t.is_tensor() && out.is_tensor() && out.named().get() != x.named().get()) {
      const Var spread_tangent = everywhere(session, t, k);
      if (spread_tangent.is_tensor()) attach(out, spread_tangent, level.id);
    }
    return out;
  }
  Var inner;
  if (batched_at(x, level.id)) {
    inner = everywhere(session, inner_of(session, x), k);
  } else {
    const Var out = everywhere(session, x, k);
    if (!out.is_tensor()) return {};
    inner = spread(out, level.size);
  }
  if (!inner.is_tensor()) return {};
  return Var(&session, wrap(session, HandleRef(&handle(inner)), level.id));
}

}  // namespace

Status gradient(Session& session, const autograd::BackwardCall& call, bool create_graph,
                std::vector<HandleRef>& results) {
  const Calls calls(session);
  return gradient_below(session, depth, call, create_graph, results);
}

core::Result<HandleRef> variable(Session& session, const Var& x) {
  static const OpRef alias("alias");
  static const OpRef detach("detach");
  const Calls calls(session);
  const bool history = grad_mode() && session.graph().requires_grad(ground(handle(x)));
  Var out;
  if (history) {
    out = ops::apply(alias, {everywhere(session, x, depth)});
  } else {
    // detach() drops tangents too, so they are put back.
    const Var spread_x = everywhere(session, x, depth);
    out = ops::apply(detach, {spread_x});
    for (std::size_t k = depth; out.is_tensor() && k-- > 0;) {
      if (!t_levels[k].forward) continue;
      const Below below(k);
      const Var t = tangent(session, spread_x, t_levels[k].id);
      if (t.is_tensor()) attach(out, t, t_levels[k].id);
    }
  }
  TT_RETURN_IF_ERROR(calls.status());
  Handle& named = handle(out);
  Handle& leaf = ground(named);
  if (!history) TT_RETURN_IF_ERROR(session.set_requires_grad(leaf, true));
  return HandleRef(&named);
}

// ---------------------------------------------------------------- doors

core::Result<HandleRef> enter(Session& session, const Var& x, std::int64_t dim,
                              std::uint64_t id) {
  auto at = position(id);
  if (!at.ok()) return at.status();
  const auto where = core::normalize_dim(dim, x.rank(), "vmap");
  if (!where.ok() || x.rank() == 0) {
    return invalid("vmap: in_dims names dimension " + std::to_string(dim) +
                   " of a tensor of shape " + core::to_string(x.shape()));
  }
  const Below below(*at);
  const Calls calls(session);
  Dims order{*where};
  for (int d = 0; d < x.rank(); ++d) {
    if (d != *where) order.push_back(d);
  }
  const Var moved = *where == 0 ? x : ops::permute(x, order);
  TT_RETURN_IF_ERROR(calls.status());
  return wrap(session, HandleRef(&handle(moved)), id);
}

core::Result<HandleRef> leave(Session& session, const Var& x, std::int64_t dim,
                              std::uint64_t id) {
  auto at = position(id);
  if (!at.ok()) return at.status();
  const auto where = core::normalize_dim(dim, x.rank() + 1, "vmap");
  if (!where.ok()) {
    return invalid("vmap: out_dims names dimension " + std::to_string(dim) +
                   " of an output of shape " + core::to_string(x.shape()));
  }
  const Below below(*at);
  const Calls calls(session);
  const Var front = batched_at(x, id) ? inner_of(session, x) : spread(x, t_levels[*at].size);
  Dims order;
  for (int d = 0; d <= x.rank(); ++d) {
    order.push_back(d == *where ? 0 : d < *where ? d + 1 : d);
  }
  const Var moved = *where == 0 ? front : ops::permute(front, order);
  TT_RETURN_IF_ERROR(calls.status());
  return HandleRef(&handle(moved));
}

core::Result<Var> tangent_of(Session& session, Handle& h, std::uint64_t id) {
  auto at = position(id);
  if (!at.ok()) return at.status();
  const Below below(*at);
  const Calls calls(session);
  Var out = tangent(session, Var(&session, HandleRef(&h)), id);
  TT_RETURN_IF_ERROR(calls.status());
  return out;
}

Status set_tangent(Session& session, Handle& h, const Var& value, std::uint64_t id) {
  auto at = position(id);
  if (!at.ok()) return at.status();
  const Below below(*at);
  const Calls calls(session);
  attach(Var(&session, HandleRef(&h)), value, id);
  return calls.status();
}

}  // namespace teletensor::client::transforms
