#include "clients/session/transforms/transforms.h"

#include "clients/session/transforms/transforms_shared.h"

namespace teletensor::client::transforms {

constinit thread_local std::size_t depth = 0;

namespace {

thread_local std::vector<Level> t_levels;
thread_local std::vector<std::pair<std::uint64_t, std::vector<Level>>> t_hidden;
std::uint64_t g_next_level = 1;

}  // namespace

std::vector<Level>& levels() { return t_levels; }

std::size_t index_of(std::uint64_t id) {
  for (std::size_t i = 0; i < t_levels.size(); ++i) {
    if (t_levels[i].id == id) return i;
  }
  return 0;
}

HandleRef wrap(Session& session, const HandleRef& inner, std::uint64_t level) {
  Layout layout = inner->layout;
  layout.geometry.shape.erase(0);
  layout.geometry.strides.erase(0);
  HandleRef h = session.graph().objects().adopt(layout, nullptr);
  Extra& extra = own_extra(*h);
  extra.inner = inner;
  extra.level = level;
  return h;
}

Var spread(const Var& x, std::int64_t size) {
  Dims shape{size};
  for (std::int64_t n : x.shape()) shape.push_back(n);
  return ops::expand(ops::unsqueeze(x, 0), shape);
}

Var pulled(Session& session, const Var& v, std::size_t position) {
  const Level& level = t_levels[position];
  if (batched_at(v, level.id)) return inner_of(session, v);
  const Extra* extra = handle(v).id == 0 ? extra_of(handle(v)) : nullptr;
  if (extra != nullptr && extra->level > level.id) {
    const Var inner = pulled(session, Var(&session, extra->inner), position);
    if (!inner.is_tensor()) return {};
    const Below below(index_of(extra->level));
    const Var moved = ops::transpose(inner, 0, 1);
    if (!moved.is_tensor()) return {};
    return Var(&session, wrap(session, HandleRef(&handle(moved)), extra->level));
  }
  const Below below(position);
  return spread(v, level.size);
}

HandleRef inserted(Session& session, const HandleRef& h, std::uint64_t level) {
  const Extra* extra = h->id == 0 ? extra_of(*h) : nullptr;
  if (extra == nullptr || extra->level < level) return wrap(session, h, level);
  const Below below(index_of(extra->level));
  const Var moved = ops::transpose(Var(&session, extra->inner), 0, 1);
  if (!moved.is_tensor()) return h;
  return wrap(session, inserted(session, HandleRef(&handle(moved)), level), extra->level);
}

// ---------------------------------------------------------------- levels

std::uint64_t push(Level level) {
  level.id = g_next_level++;
  // Levels that are not visible from here are restored when this one ends.
  if (depth < t_levels.size()) {
    t_hidden.emplace_back(
        level.id,
        std::vector<Level>(t_levels.begin() + static_cast<std::ptrdiff_t>(depth), t_levels.end()));
  }
  t_levels.resize(depth);
  t_levels.push_back(level);
  depth = t_levels.size();
  return level.id;
}

void pop(std::uint64_t id) {
  const std::size_t at = index_of(id);
  if (at == t_levels.size() || t_levels[at].id != id) return;
  t_levels.resize(at);
  depth = at;
  while (!t_hidden.empty() && t_hidden.back().first > id) t_hidden.pop_back();
  if (t_hidden.empty() || t_hidden.back().first != id) return;
  const std::vector<Level>& hidden = t_hidden.back().second;
  t_levels.insert(t_levels.end(), hidden.begin(), hidden.end());
  t_hidden.pop_back();
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
    const bool any = std::any_of(request.arguments.begin(), request.arguments.end(),
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
    const bool any =
        std::any_of(request.arguments.begin(), request.arguments.end(), [&](const Var& v) {
          return level.forward ? may_have_tangent(v, level.id) : batched_at(v, level.id);
        });
    if (!any && (level.forward || !def.random || level.randomness == Randomness::kSame)) continue;
    status = {};
    if (!level.forward && !is_batched(self, level.id)) {
      status = def.random && level.randomness == Randomness::kError
                   ? invalid(kRandomError)
                   : invalid(
                         "vmap: inplace arithmetic(self, *extra_args) is not possible because "
                         "there exists a Tensor `other` in extra_args that has more elements "
                         "than `self`. This happened due to `other` being vmapped over but "
                         "`self` not being vmapped over in a vmap. Please try to use "
                         "out-of-place operators instead of inplace arithmetic (" +
                         def.name + "_).");
      return true;
    }
    // Computes the new contents, and then copies them into the old tensor, whose shape must not
    // change.
    Handles results;
    status =
        session.apply(request.op, request.arguments, request.counts, request.attributes, results);
    if (!status.ok()) return true;
    if (!(results[0]->shape() == self.shape())) {
      status = invalid(def.name + "_: the result's shape " + core::to_string(results[0]->shape()) +
                       " does not fit the destination " + core::to_string(self.shape()));
      return true;
    }
    const Below below(k);
    const Var result(&session, results[0]);
    if (!level.forward) {
      const Var arguments[] = {inner_of(session, request.arguments[0]), inner_of(session, result)};
      status = session.apply_inplace(copy, arguments, {}, {});
      return true;
    }
    status = write_dual(session, request.arguments[0], result, level.id);
    return true;
  }
  return false;
}

// ---------------------------------------------------------------- entering and leaving levels

core::Result<HandleRef> enter(Session& session, const Var& x, std::int64_t dim, std::uint64_t id) {
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

core::Result<HandleRef> leave(Session& session, const Var& x, std::int64_t dim, std::uint64_t id) {
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
