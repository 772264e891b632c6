// Reverse mode inside transforms: the tape records ordinary tensors, so a gradient of tensors
// inside levels is one of the tensors that they represent.

#include "clients/session/transforms/transforms_shared.h"

namespace teletensor::client::transforms {

namespace {

// The tangent, inside level `id`, of the tensor that `v` represents below the levels.
Var tangent_under(Session& session, const Var& v, std::uint64_t id) {
  const Handle& h = handle(v);
  if (h.id != 0 || extra_of(h)->level < id) {
    const Below below(index_of(id));
    return tangent(session, v, id);
  }
  const Var t = tangent_under(session, Var(&session, extra_of(h)->inner), id);
  if (!t.is_tensor()) return {};
  return Var(&session, wrap(session, HandleRef(&handle(t)), extra_of(h)->level));
}

void attach_under(Session& session, const Var& result, const Var& t, std::uint64_t id) {
  const Handle& h = handle(result);
  if (h.id != 0 || extra_of(h)->level < id) {
    const Below below(index_of(id));
    return attach(result, t, id);
  }
  const std::uint64_t outer = extra_of(h)->level;
  const std::size_t at = index_of(outer);
  const Below below(at);
  const Var inner = batched_at(t, outer) ? inner_of(session, t) : spread(t, levels()[at].size);
  if (inner.is_tensor()) attach_under(session, Var(&session, extra_of(h)->inner), inner, id);
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
  const Level level = levels()[k];
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
            return invalid(
                "backward: grad can be created implicitly only for scalar outputs, this "
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
      if (any && !wrapped.back()) {
        return invalid(
            "grad: inside vmap, the outputs depend on the sample but the inputs do not; "
            "use func.grad");
      }
      if (wrapped.back()) input = HandleRef(extra_of(*input)->inner);
    }
    TT_RETURN_IF_ERROR(gradient_below(session, k, std::move(call), create_graph, results));
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (wrapped[i] && results[i]) results[i] = inserted(session, results[i], level.id);
    }
    return session.status();
  }
  // The derivative of the dual number, one part at a time.
  autograd::BackwardCall second;
  second.inputs = call.inputs;
  second.has_inputs = second.allow_unused = true;
  second.retain_graph = call.retain_graph;
  for (std::size_t i = 0; i < call.roots.size(); ++i) {
    const Below below(k);
    const Var t = tangent(session, Var(&session, call.roots[i]), level.id);
    const Var s =
        call.seeds[i] ? tangent_under(session, Var(&session, call.seeds[i]), level.id) : Var();
    TT_RETURN_IF_ERROR(session.status());
    if (t.is_tensor() && ground(handle(t)).requires_grad()) {
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
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i] && tangents[i]) {
      attach_under(session, Var(&session, results[i]), Var(&session, tangents[i]), level.id);
    }
  }
  return session.status();
}

Var everywhere(Session& session, const Var& x, std::size_t at) {
  if (at == 0 || !x.is_tensor()) return x;
  const std::size_t k = at - 1;
  const Level level = levels()[k];
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

namespace {

// detach() also drops tangents, so they are attached again.
Var detached(Session& session, const Var& x) {
  static const OpRef detach("detach");
  const Var out = ops::apply(detach, {x});
  for (std::size_t k = depth; out.is_tensor() && k-- > 0;) {
    if (!levels()[k].forward) continue;
    const Var t = tangent_under(session, x, levels()[k].id);
    if (t.is_tensor()) attach_under(session, out, t, levels()[k].id);
  }
  return out;
}

}  // namespace

core::Result<HandleRef> cut(Session& session, const Var& x) {
  const Calls calls(session);
  const Var out = detached(session, x);
  TT_RETURN_IF_ERROR(calls.status());
  return HandleRef(&handle(out));
}

core::Result<HandleRef> variable(Session& session, const Var& x) {
  static const OpRef alias("alias");
  const Calls calls(session);
  const bool history = grad_mode() && ground(handle(x)).requires_grad();
  Var out;
  if (history) {
    out = ops::apply(alias, {everywhere(session, x, depth)});
  } else {
    out = detached(session, everywhere(session, x, depth));
  }
  TT_RETURN_IF_ERROR(calls.status());
  Handle& named = handle(out);
  Handle& leaf = ground(named);
  if (!history) TT_RETURN_IF_ERROR(session.set_requires_grad(leaf, true));
  return HandleRef(&named);
}

}  // namespace teletensor::client::transforms
