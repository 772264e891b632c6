// Tensors whose sizes depend on data (nonzero, x[mask], unique). They exist at once: a Fetch of the
// numbers that decide is under way, and what makes the tensor is called at the first use of what
// only those numbers tell. Before that the session knows no name of it; whatever could change what
// that call computes (a write to an operand, a flag, a Raise, a backward) calls it first, so that a
// program cannot tell.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <thread>
#include <vector>

#include "clients/session/session.h"

namespace teletensor::client {

namespace nb = nanobind;

class PySession;
struct PyTensor;

// The caller's place in the program, resolved to a line only when an error needs it.
struct Site {
  std::uint64_t seq = 0;
  PyObject* code = nullptr;  // counted
  int instruction = 0;
};

// Numbers under way; several tensors may wait for the same.
class Counts final : public core::Counted {
 public:
  Counts(PySession& session, HandleRef handle) : session(session), handle(std::move(handle)) {}
  ~Counts() override;
  // Issues the Fetch.
  Status ask();
  // Waits. `found`: whether they were computed. Errors: the wait itself failed, the next may not.
  Status wait(Status& found);

  PySession& session;
  const HandleRef handle;
  std::uint64_t seq = 0;    // of the Fetch; 0: none is under way
  std::uint64_t asked = 0;  // of the last Fetch
  std::vector<std::int64_t> numbers;
  std::uint64_t root = 0;  // of their error

 private:
  std::atomic<bool> busy_ = false;
  std::thread::id waits_;  // while busy
  bool done_ = false;
  Status status_;
};

// The line of the pending tensor that this thread makes; nullptr: none.
struct PendingCall {
  static const Site* site();
};

class Pending final : public core::Counted {
 public:
  PyTensor* tensor = nullptr;  // not counted
  core::Ref<Counts> counts;
  nb::object finish;  // called with the numbers, gives the Tensor
  core::DType dtype = core::DType::kI64;
  core::Device device;
  std::int64_t rank = 0;
  bool requires_grad = false;
  bool record = false, inference = false;  // the modes at the call
  std::size_t depth = 0;                   // of transforms
  Site site;                               // of the call
  std::vector<HandleRef> operands;
  std::uint64_t bytes = 0;  // that they hold
  std::atomic<bool> busy = false;
  std::thread::id runs;    // while busy
  nb::object error;        // it cannot be made: what every use raises
  bool cancelled = false;  // by Ctrl-C, which the program has seen

  ~Pending() override;
};

}  // namespace teletensor::client
