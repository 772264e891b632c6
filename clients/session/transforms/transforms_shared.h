// Declarations that the implementation files of transforms.h share. Used by API threads; the levels
// belong to the calling thread. The functions that return a Var report an error as the session's
// builder does: the result is absent, and Calls::status() has the error.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "clients/session/session.h"
#include "clients/session/transforms/transforms.h"
#include "engine/ops/functions.h"

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
using ops::OpDef;
using ops::OpRef;
using ops::Var;
using ops::Vars;

// The calling thread's levels, outermost first.
std::vector<Level>& levels();
// The position of the level with this id in levels(); 0 if there is none.
std::size_t index_of(std::uint64_t id);

inline Extra* extra_of(const Handle& h) { return static_cast<Extra*>(h.extra.get()); }
inline Extra& own_extra(Handle& h) {
  if (h.extra == nullptr) h.extra = core::Ref<core::Counted>(new Extra);
  return *extra_of(h);
}
inline Handle& handle(const Var& v) { return autograd::handle_of(v); }
inline bool batched_at(const Var& v, std::uint64_t level) {
  return v.is_tensor() && is_batched(handle(v), level);
}
inline Var inner_of(Session& session, const Var& v) {
  return Var(&session, extra_of(handle(v))->inner);
}

// `inner` as it is seen inside a level, without its dimension 0.
HandleRef wrap(Session& session, const HandleRef& inner, std::uint64_t level);
// x repeated along a new dimension 0.
Var spread(const Var& x, std::int64_t size);

// pulled() returns v without the level at `position`, whose batch becomes a dimension 0 that the
// inner levels see. inserted() does the reverse: dimension 0 becomes a level's batch, below the
// inner levels.
Var pulled(Session& session, const Var& v, std::size_t position);
HandleRef inserted(Session& session, const HandleRef& h, std::uint64_t level);

// Calls through the session's Builder, whose first error is taken out at the end.
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

// Performs a call at a vmap level that one of its operands belongs to (batching.cc).
Status batched(Session& session, std::size_t position, const Request& request, Handles& results);
extern const char kRandomError[];

// ---- forward mode (tangents.cc)
bool may_have_tangent(const Var& v, std::uint64_t id);
// The tangent of v inside the level. Absent if v is constant.
Var tangent(Session& session, const Var& v, std::uint64_t id);
void attach(const Var& result, Var t, std::uint64_t id);
Status with_tangents(Session& session, std::size_t position, const Request& request,
                     Handles& results);
// Writes `result` into argument 0, whose tangent becomes that of the result.
Status write_dual(Session& session, const Var& self, const Var& result, std::uint64_t id);

}  // namespace teletensor::client::transforms
