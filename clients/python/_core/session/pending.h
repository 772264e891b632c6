// Tensors whose sizes depend on data (nonzero, x[mask], unique). Such a tensor object is returned
// at once. A Fetch of the numbers that determine its size is in flight, and the function that
// creates the tensor is called when the program first uses something that depends on these numbers.
// Until then the session has no handle for the tensor. Any operation that could change the result
// of that function (a write to an operand, a flag, a Raise, a backward) calls it first, so the
// program cannot observe the delay.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "clients/session/session.h"
#include "session/source_lines.h"

namespace teletensor::client {

namespace nb = nanobind;

class PySession;
struct PyTensor;

// Sizes of tensors, as numbers that are being fetched from the daemon. Several pending tensors may
// wait for one object.
class Counts final : public core::Counted {
 public:
  Counts(PySession& session, HandleRef handle) : session(session), handle(std::move(handle)) {}
  ~Counts() override;
  // Issues the Fetch of the numbers. wait() issues it again after a wait that was interrupted.
  Status ask();
  // Waits for the numbers. `found` has the error if they could not be computed. The result has the
  // error if the wait failed; a later wait may succeed.
  Status wait(Status& found);

  PySession& session;
  const HandleRef handle;
  std::uint64_t seq = 0;    // Number of the Fetch command. 0 if none is in flight.
  std::uint64_t asked = 0;  // Number of the last Fetch command.
  std::vector<std::int64_t> numbers;
  std::uint64_t root = 0;  // Number of the command that caused the error.

 private:
  std::atomic<bool> busy_ = false;
  std::thread::id waits_;  // The thread that waits while busy_ is set.
  bool done_ = false;
  Status status_;
};

// The source line of the pending tensor that this thread is creating. Null if there is none.
struct PendingCall {
  static const Site* site();
};

class Pending final : public core::Counted {
 public:
  PyTensor* tensor = nullptr;  // The Tensor object; a borrowed reference.
  core::Ref<Counts> counts;
  nb::object finish;  // A function that receives the numbers and returns the Tensor.
  core::DType dtype = core::DType::kI64;
  core::Device device;
  std::int64_t rank = 0;
  bool requires_grad = false;
  bool record = false, inference = false;  // The gradient and inference modes at the call.
  std::size_t depth = 0;                   // Depth of transforms at the call.
  Site site;                               // Source line of the call.
  std::vector<HandleRef> operands;
  std::uint64_t bytes = 0;  // Size of the operands in bytes.
  std::atomic<bool> busy = false;
  std::thread::id runs;    // The thread that creates the tensor while `busy` is set.
  nb::object error;        // The error that every use raises if the tensor cannot be created.
  bool cancelled = false;  // Cancelled by a Ctrl-C that the program has received.

  ~Pending() override;
};

// The pending tensors of a session. Runs under the GIL; a wait releases it.
class PendingTensors {
 public:
  // Sets `session.watching` while the session has pending tensors.
  explicit PendingTensors(PySession& session) : session_(session) {}

  void add(Pending& pending);
  // Creates the tensor. Returns false if a Python error is set.
  bool resolve(PyTensor& tensor);
  // Creates all pending tensors. Raises an error of any of them.
  Status settle_all();
  // Creates the oldest pending tensors until the others keep at most the allowed amount of operands
  // alive.
  Status make_room();
  // Reports that the program has released the tensor.
  void dropped(PyTensor& tensor);

  // These functions create the tensors whose result a command could change: a write to h, a
  // backward, or a Raise.
  Status before_write(const Handle& h);
  Status before_backward();
  Status settle_each();
  // Reports that the commands up to `upto` were cancelled. Pending tensors whose numbers were
  // fetched by these commands then raise an error when they are used.
  void interrupted(std::uint64_t upto);

 private:
  // Creates the tensor, or records the error that prevents it. Returns an error if a wait failed.
  Status settle(PyTensor& tensor);
  Status finish(PyTensor& tensor, Pending& pending);
  Status settle_those(const std::function<bool(const Pending&)>& wanted);
  void unregister(Pending& pending);

  PySession& session_;
  std::deque<Pending*> unresolved_;  // Oldest first; borrowed references.
  std::uint64_t held_ = 0;           // Bytes of their operands.
};

}  // namespace teletensor::client
