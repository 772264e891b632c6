// FollowedMemory has the tensors of a session that follow memory of the program (tt.shared_empty,
// tt.from_numpy). Before each use, the contents of the memory are copied into the tensor. So no
// kernel reads memory while the program writes to it, and the tape keeps the values that were used.
// Runs under the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <unordered_map>

#include "clients/session/session.h"

namespace teletensor::client {

namespace nb = nanobind;

class PySession;

class FollowedMemory {
 public:
  // Sets `session.following` while there are such tensors.
  explicit FollowedMemory(PySession& session) : session_(session) {}

  // Makes h and its views follow memory of the program: `refresh` is called with h before they are
  // used, and updates its contents. Ends when the last other reference to h is released.
  void follow(Handle& h, nb::object refresh);
  void clear();
  // Suspends or resumes following: while `on` is set, the tensors behave like any others.
  void set_handed_over(const Handle& h, bool on);
  // The object that updates h if h follows memory of the program; otherwise None.
  nb::object follower_of(const Handle& h) const;
  // Updates h before a command uses it. Refuses a command that writes to it.
  Status before_use(Handle& h, bool writes);

 private:
  struct Followed {
    HandleRef handle;  // A handle of the followed cell; this is the only reference to it.
    nb::object refresh;
    bool handed_over = false, busy = false;
  };

  void forget_unused();

  PySession& session_;
  std::unordered_map<const autograd::Cell*, Followed> followed_;
};

}  // namespace teletensor::client
