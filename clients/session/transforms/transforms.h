// Transforms: vmap and forward-mode levels over the tensors of a session.
// A tensor inside vmap is a handle without an id. It has the shape that the function sees, and
// represents a tensor whose dimension 0 is the batch. A dual number is an ordinary tensor that has
// a tangent for a level in addition to its value. An operator call is interpreted from the
// innermost level outwards: a level that one of its operands belongs to replaces it by calls that
// run below that level, until only ordinary commands are left. The tape therefore records only
// ordinary tensors, and reverse mode composes with both. Levels belong to the calling thread.
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
  std::uint64_t id = 0;  // Number of the level, which is never used twice.
  bool forward = false;  // Whether it is a forward-mode level; otherwise it is a vmap level.
  std::int64_t size = 0;
  Randomness randomness = Randomness::kError;
};

// The data that transforms keep about a tensor.
class Extra final : public core::Counted {
 public:
  struct Tangent {
    std::uint64_t level;
    autograd::HandleRef value;
    std::uint32_t seen;  // Value of the write counter when the tangent was set.
    // Set for a base whose tangent is known only for the part of one view.
    std::optional<core::Layout> part;
  };
  autograd::HandleRef inner;  // Inside vmap: the tensor that this one represents.
  std::uint64_t level = 0;    // The level whose batch is dimension 0 of `inner`.
  std::vector<Tangent> tangents;
};

namespace transforms {

// Number of the thread's levels that are visible; 0 outside transforms. Every operator call reads
// it.
extern constinit thread_local std::size_t depth;

// While an object exists, calls of this thread run below level `at`.
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
// Ends the level and all levels inside it.
void pop(std::uint64_t id);
// Returns the position of a level, or an error if the level has ended.
core::Result<std::size_t> position(std::uint64_t id);
const Level& at(std::size_t position);

// The tensor that h represents outside all vmap levels; h itself outside vmap.
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
// Returns true if a level has handled the call, with the result in `status`. Precondition: depth >
// 0.
bool apply(Session& session, const Request& request, autograd::Handles& results,
           core::Status& status);
bool apply_inplace(Session& session, const Request& request, core::Status& status);

// Computes gradients like Session::backward with inputs, for tensors inside levels.
core::Status gradient(Session& session, const autograd::BackwardCall& call, bool create_graph,
                      std::vector<autograd::HandleRef>& results);

// Wraps x for the vmap level `id`; its dimension `dim` is the batch.
core::Result<autograd::HandleRef> enter(Session& session, const ops::Var& x, std::int64_t dim,
                                        std::uint64_t id);
// The tensor that x represents below level `id`, with the batch as dimension `dim`. Repeated along
// it if x has no batch.
core::Result<autograd::HandleRef> leave(Session& session, const ops::Var& x, std::int64_t dim,
                                        std::uint64_t id);
// The tangent of x. Absent if x is constant at this level.
core::Result<ops::Var> tangent_of(Session& session, autograd::Handle& h, std::uint64_t id);
core::Status set_tangent(Session& session, autograd::Handle& h, const ops::Var& tangent,
                         std::uint64_t id);
// A new tensor for x to compute gradients for. It is batched in every vmap level, so that its
// gradient has a value for each sample, and has the history and tangents of x.
core::Result<autograd::HandleRef> variable(Session& session, const ops::Var& x);

// x without history, but with its tangents.
core::Result<autograd::HandleRef> cut(Session& session, const ops::Var& x);

}  // namespace transforms
}  // namespace teletensor::client
