#include "session/followed.h"

#include <utility>
#include <vector>

#include "bindings.h"

namespace teletensor::client {

void FollowedMemory::follow(Handle& h, nb::object refresh) {
  forget_unused();
  followed_[h.cell.get()] = {HandleRef(&h), std::move(refresh)};
  session_.following = true;
}

void FollowedMemory::clear() {
  std::unordered_map<const autograd::Cell*, Followed> gone;
  gone.swap(followed_);
  session_.following = false;
}

// Forgets tensors whose cell is referenced only from here, as cell and as write counter.
void FollowedMemory::forget_unused() {
  // The undo records of commands refer to cells, too, until the commands are known to have run.
  if (!followed_.empty() && !session_.errors().any()) {
    session_.graph().undo().completed(session_.stream().completed_upto());
  }
  std::vector<Followed> gone;  // Collected here, because destroying them may run Python code.
  for (auto at = followed_.begin(); at != followed_.end();) {
    if (at->first->references() <= 2) {
      gone.push_back(std::move(at->second));
      at = followed_.erase(at);
    } else {
      ++at;
    }
  }
  session_.following = !followed_.empty();
}

void FollowedMemory::set_handed_over(const Handle& h, bool on) {
  const auto found = followed_.find(h.cell.get());
  if (found != followed_.end()) found->second.handed_over = on;
}

nb::object FollowedMemory::follower_of(const Handle& h) const {
  const auto found = followed_.find(h.cell.get());
  return found == followed_.end() ? nb::none() : found->second.refresh;
}

Status FollowedMemory::before_use(Handle& h, bool writes) {
  auto found = followed_.find(h.cell.get());
  if (found == followed_.end() || found->second.busy || found->second.handed_over) return {};
  if (session_.commands().tracer() != nullptr) {
    return core::invalid(
        "a captured function cannot use a tensor that shows an array's memory "
        "(tt.from_numpy of a tt.shared_empty): give it a copy (tt.tensor), or hand_over() first");
  }
  if (writes) {
    return core::invalid(
        "a tensor that shows an array's memory (tt.from_numpy of a tt.shared_empty) follows the "
        "array and cannot be written to: write to the array, use a clone(), or hand_over() first");
  }
  found->second.busy = true;
  const nb::object refresh = found->second.refresh;
  const nb::object tensor = nb::steal(wrap(session_, found->second.handle));
  PyObject* done = call_python(refresh.ptr(), tensor.ptr());
  found = followed_.find(h.cell.get());
  if (found != followed_.end()) found->second.busy = false;
  if (done == nullptr) return aborted();
  Py_DECREF(done);
  return {};
}

}  // namespace teletensor::client
