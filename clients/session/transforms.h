// Transforms: vmap and forward-mode levels over a session's names.
//
// A name inside vmap is a handle without an id: it has the shape that the function sees, and stands
// for a name whose dimension 0 is the batch. A dual number is an ordinary name that has, beside its
// value, a tangent for a level. An op call is interpreted from the innermost level outwards: a
// level that one of its operands belongs to turns it into calls that run below that level, until
// ordinary commands are left. The tape therefore records ordinary names only, and reverse mode
// composes with both. Levels are of the calling thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/autograd/backward.h"
#include "engine/autograd/graph.h"

namespace teletensor::client {

class Session;

enum class Randomness : std::uint8_t { kError, kSame, kDifferent };

struct Level {
  std::uint64_t id = 0;  // never used twice
  bool forward = false;  // else vmap
  std::int64_t size = 0;
  Randomness randomness = Randomness::kError;
};

// What transforms know of a name.
class Extra final : public core::Counted {
 public:
  struct Tangent {
    std::uint64_t level;
    autograd::HandleRef value;
    std::uint32_t seen;                // the clock of its memory when it was taken
    std::optional<core::Layout> part;  // of a base: value is that of this view alone
  };
  autograd::HandleRef inner;  // inside vmap: what it stands for
  std::uint64_t level = 0;    // whose batch inner has as dimension 0
  std::vector<Tangent> tangents;
};

namespace transforms {

// How many of the thread's levels are seen; 0 outside transforms. Read on the way of every op.
extern constinit thread_local std::size_t depth;

// Calls run below level `at` for its life.
class Below {
 public:
  explicit Below(std::size_t at) : before_(depth) { depth = at; }
  ~Below() { depth = before_; }
  Below(const Below&) = delete;
  Below& operator=(const Below&) = delete;

 private:
  const std::size_t before_;
};

std::uint64_t push(Level level);
// Ends the level and all inside it.
void pop(std::uint64_t id);
// The position of a level; refuses one that has ended.
core::Result<std::size_t> position(std::uint64_t id);
const Level& at(std::size_t position);

// The name at the ground of h: h itself outside vmap.
autograd::Handle& ground(autograd::Handle& h);
inline bool is_batched(const autograd::Handle& h, std::uint64_t level) {
  return h.id == 0 && h.extra != nullptr &&
         static_cast<const Extra*>(h.extra.get())->level == level;
}

struct Request {
  ops::OpId op;
  std::span<const ops::Var> arguments;
  std::span<const std::uint32_t> counts;
  const core::Attributes& attributes;
};
// Whether a level took the call, and how that ended. Precondition: depth > 0.
bool apply(Session& session, const Request& request, autograd::Handles& results,
           core::Status& status);
bool apply_inplace(Session& session, const Request& request, core::Status& status);

// As Session::backward with inputs, for names inside levels.
core::Status gradient(Session& session, const autograd::BackwardCall& call, bool create_graph,
                      std::vector<autograd::HandleRef>& results);

// x inside vmap level `id`, whose dimension `dim` is the batch.
core::Result<autograd::HandleRef> enter(Session& session, const ops::Var& x, std::int64_t dim,
                                        std::uint64_t id);
// What x stands for below level `id`, with the batch as dimension `dim`; repeated if it has none.
core::Result<autograd::HandleRef> leave(Session& session, const ops::Var& x, std::int64_t dim,
                                        std::uint64_t id);
// Absent: constant at this level.
core::Result<ops::Var> tangent_of(Session& session, autograd::Handle& h, std::uint64_t id);
core::Status set_tangent(Session& session, autograd::Handle& h, const ops::Var& tangent,
                         std::uint64_t id);
// A new name for x to take gradients of: batched in every vmap level, so that its gradient is one
// for each sample, with x's history and tangents.
core::Result<autograd::HandleRef> variable(Session& session, const ops::Var& x);

// x without history, with its tangents.
core::Result<autograd::HandleRef> cut(Session& session, const ops::Var& x);

}  // namespace transforms
}  // namespace teletensor::client
