// Forward mode: keeps tangents beside tensors, by the rules of engine/ops (op.h: Tangent).

#include "clients/session/transforms/transforms_shared.h"

namespace teletensor::client::transforms {

using ops::Tangent;

namespace {

Extra::Tangent* entry_of(const Handle& h, std::uint64_t id) {
  if (h.extra == nullptr) return nullptr;
  for (Extra::Tangent& each : extra_of(h)->tangents) {
    if (each.level == id) return &each;
  }
  return nullptr;
}

void put_entry(Handle& h, const HandleRef& value, std::uint64_t id) {
  const std::uint32_t now = ground(h).clock->now();
  if (Extra::Tangent* entry = entry_of(h, id)) {
    entry->value = value;
    entry->seen = now;
    entry->part.reset();
    return;
  }
  std::vector<Extra::Tangent>& all = own_extra(h).tangents;
  // Removes tangents of levels that have ended.
  std::erase_if(all, [](const Extra::Tangent& each) {
    return std::none_of(levels().begin(), levels().end(),
                        [&](const Level& level) { return level.id == each.level; });
  });
  all.push_back({id, value, now, {}});
}

// Converts h's tangent t to one of the tensor that h represents outside all levels, and back; every
// vmap level adds its batch dimension.
Var to_outermost(Session& session, const Handle& h, Var t) {
  for (const Handle* at = &h; at->id == 0 && t.is_tensor(); at = extra_of(*at)->inner.get()) {
    t = pulled(session, t, index_of(extra_of(*at)->level));
  }
  return t;
}
Var raised(Session& session, const Handle& h, const Var& t) {
  if (h.id != 0 || !t.is_tensor()) return t;
  const Var inner = raised(session, *extra_of(h)->inner, t);
  if (!inner.is_tensor()) return {};
  return Var(&session, inserted(session, HandleRef(&handle(inner)), extra_of(h)->level));
}

// The tangent of a group's base. If only the part of a view is known, it is extended with zeros to
// the whole.
Var whole(Session& session, Handle& base, Extra::Tangent& entry, std::uint64_t id) {
  if (!entry.part) return Var(&session, entry.value);
  const Var all = ops::with_region(ops::zeros(session, base.layout), Var(&session, entry.value),
                                   base.layout, *entry.part);
  if (all.is_tensor()) put_entry(base, HandleRef(&handle(all)), id);
  return all;
}

}  // namespace

bool may_have_tangent(const Var& v, std::uint64_t id) {
  if (!v.is_tensor()) return false;
  Handle& h = handle(v);
  return entry_of(h, id) != nullptr || entry_of(ground(h).group(), id) != nullptr;
}

Var tangent(Session& session, const Var& v, std::uint64_t id) {
  if (!v.is_tensor()) return {};
  Handle& h = handle(v);
  Handle& named = ground(h);
  Handle& base = named.group();
  Extra::Tangent* entry = entry_of(h, id);
  if (&h == &base) return entry ? whole(session, base, *entry, id) : Var();
  if (entry && entry->seen == named.clock->now()) return Var(&session, entry->value);
  Extra::Tangent* of_base = entry_of(base, id);
  if (of_base == nullptr) return entry ? Var(&session, entry->value) : Var();
  Var t = whole(session, base, *of_base, id);
  if (&named != &base) t = ops::region_of(t, base.layout, named.layout);
  const Var out = raised(session, h, t);
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
  if (!t.is_tensor()) return;
  Handle& h = handle(result);
  put_entry(h, HandleRef(&handle(t)), id);
  // The base gets the tangent as well, so that a write through any tensor of the group reaches the
  // others.
  Handle& named = ground(h);
  Handle& base = named.group();
  if (&h == &base || entry_of(base, id) != nullptr) return;
  const Var physical = to_outermost(static_cast<Session&>(*result.builder()), h, t);
  if (!physical.is_tensor()) return;
  put_entry(base, HandleRef(&handle(physical)), id);
  if (&named != &base) entry_of(base, id)->part = named.layout;
}

namespace {

// A VJP over the operands and results of a call that has just run.
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
    if (gradients_[i].absent() && core::is_inexact(results_[i]->layout.dtype)) {
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
    if (!core::is_inexact(results[i]->layout.dtype)) continue;
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
    if (!v.is_tensor() || !ground(handle(v)).requires_grad()) continue;
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

}  // namespace

Status with_tangents(Session& session, std::size_t position, const Request& request,
                     Handles& results) {
  const std::uint64_t id = levels()[position].id;
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
  for (std::size_t i = 0; def.refused != 0 && i < tangents.size(); ++i) {
    if (tangents[i].is_tensor() && ops::refuses(def, i)) {
      return ops::not_implemented(def, request.attributes, i);
    }
  }
  TT_RETURN_IF_ERROR(
      session.apply(request.op, request.arguments, request.counts, request.attributes, results));
  if (!def.mutates.empty() || request.op == client_node || request.op == detach ||
      request.op == data || def.random) {
    if (def.name != "dropout") return {};
  }
  bool floating = false;
  for (const HandleRef& h : results) floating |= core::is_inexact(h->layout.dtype);
  if (!floating) return {};
  const auto attach_all = [&](const Vars& found) {
    for (std::size_t i = 0; i < results.size() && i < found.size(); ++i) {
      if (core::is_inexact(results[i]->layout.dtype)) {
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
        } else if (argument.is_tensor() && core::is_inexact(argument.dtype())) {
          arguments.push_back(ops::zeros(session, argument.layout()));
        } else {
          arguments.push_back(argument);
        }
      }
      attach_all(session.call(request.op, {arguments.data(), arguments.size()}, request.attributes,
                              request.counts));
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
      const bool complex = core::is_complex(like.dtype) ||
                           std::any_of(tangents.begin(), tangents.end(), [](const Var& t) {
                             return t.is_tensor() && core::is_complex(t.dtype());
                           });
      // A complex Jacobian need not be its own transpose; only its adjoint is known.
      if (complex) return transposed(session, request, results, tangents, id, calls);
      for (std::size_t i = 0; i < request.arguments.size(); ++i) {
        if (!tangents[i].is_tensor()) continue;
        LiveVjp vjp(session, request, results, /*raw=*/true);
        vjp.gradients_[0] = ops::expand(ops::cast(tangents[i], like.dtype), like.geometry.shape);
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
        // The operator is not differentiable, so its result is constant.
        if (!def.internal) return {};
        return invalid("Trying to use forward AD with " + def.name +
                       " that does not support it because it has not been implemented yet.");
      }
      return transposed(session, request, results, tangents, id, calls);
  }
}

Status write_dual(Session& session, const Var& self_var, const Var& result, std::uint64_t id) {
  static const OpRef copy("copy");
  const Calls calls(session);
  Handle& self = handle(self_var);
  Handle& named = ground(self);
  Handle& base = named.group();
  Var t = tangent(session, result, id);
  Extra::Tangent* of_base = entry_of(base, id);
  const Var before = of_base ? whole(session, base, *of_base, id) : Var();
  const Var arguments[] = {self_var, result};
  TT_RETURN_IF_ERROR(session.apply_inplace(copy, arguments, {}, {}));
  if (!core::is_inexact(self.layout.dtype)) return calls.status();
  if (!t.is_tensor()) {
    if (before.absent()) return calls.status();
    t = ops::zeros(session, self.layout);
  }
  t = ops::expand(ops::cast(t, self.layout.dtype), self.shape());
  if (!t.is_tensor()) return calls.status();
  put_entry(self, HandleRef(&handle(t)), id);
  if (&self == &base) return calls.status();
  Var all = to_outermost(session, self, t);
  if (&named != &base) {
    all = ops::with_region(before.absent() ? ops::zeros(session, base.layout) : before, all,
                           base.layout, named.layout);
  }
  if (all.is_tensor()) put_entry(base, HandleRef(&handle(all)), id);
  return calls.status();
}

}  // namespace teletensor::client::transforms
