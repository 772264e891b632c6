// Tensors that follow memory of the program (tt.shared_empty, tt.from_numpy).
// Before each use, the contents of the memory are copied into the tensor. So no kernel reads memory
// while the program writes to it, and the tape keeps the values that were used.

#include "bindings.h"

namespace teletensor::client {

void PySession::follow(Handle& h, nb::object refresh) {
  forget_followed();
  followed_[h.cell.get()] = {HandleRef(&h), std::move(refresh)};
  following = true;
}

void PySession::follow_nothing() {
  std::unordered_map<const autograd::Cell*, Followed> gone;
  gone.swap(followed_);
  following = false;
}

// Forgets tensors whose cell is referenced only from here, as cell and as write counter.
void PySession::forget_followed() {
  // The undo records of commands refer to cells, too, until the commands are known to have run.
  if (!followed_.empty() && !has_pending()) graph().completed(stream().completed_upto());
  std::vector<Followed> gone;  // Collected here, because destroying them may run Python code.
  for (auto at = followed_.begin(); at != followed_.end();) {
    if (at->first->references() <= 2) {
      gone.push_back(std::move(at->second));
      at = followed_.erase(at);
    } else {
      ++at;
    }
  }
  following = !followed_.empty();
}

void PySession::set_handed_over(const Handle& h, bool on) {
  const auto found = followed_.find(h.cell.get());
  if (found != followed_.end()) found->second.handed_over = on;
}

nb::object PySession::follower_of(const Handle& h) const {
  const auto found = followed_.find(h.cell.get());
  return found == followed_.end() ? nb::none() : found->second.refresh;
}

Status PySession::before_use(Handle& h, bool writes) {
  auto found = followed_.find(h.cell.get());
  if (found == followed_.end() || found->second.busy || found->second.handed_over) return {};
  if (tracer() != nullptr) {
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
  const nb::object tensor = nb::steal(wrap(*this, found->second.handle));
  PyObject* done = call_python(refresh.ptr(), tensor.ptr());
  found = followed_.find(h.cell.get());
  if (found != followed_.end()) found->second.busy = false;
  if (done == nullptr) return aborted();
  Py_DECREF(done);
  return {};
}

}  // namespace teletensor::client
