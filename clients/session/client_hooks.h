// ClientHooks are the functions that a client (Python, C++) supplies to its session. API threads
// call them, except for tick().
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/autograd/graph.h"
#include "engine/core/status.h"

namespace teletensor::client {

class ClientHooks {
 public:
  ClientHooks() = default;
  virtual ~ClientHooks() = default;
  ClientHooks(const ClientHooks&) = delete;
  ClientHooks& operator=(const ClientHooks&) = delete;

  // ---- Waiting
  // Waits until ready() returns true, and lets other API threads run. Implemented by repeated calls
  // of CommandStream::wait_for(). Returns an error if the user has interrupted the wait.
  virtual core::Status block(const std::function<bool()>& ready) = 0;
  // Called by the stream's writer when releases have waited for some time to be sent together.
  // Sending them is the duty of an API thread in clients whose API other threads may enter.
  virtual void tick() {}
  // Called when the commands up to `upto` are cancelled.
  virtual void interrupted(std::uint64_t) {}

  // ---- Source lines
  // Called when command `seq` was issued, to record the source line of the caller.
  virtual void note_site(std::uint64_t seq) = 0;
  // The source line of the caller, for a message. Empty if unknown.
  virtual std::string here() { return ""; }
  // The source line that issued this command, as "at train.py:12 in step". Empty if it is no longer
  // known.
  virtual std::string issued(std::uint64_t) const { return ""; }

  // ---- Saved values
  // For a node whose saved values were dropped: returns a node that has them again.
  virtual core::Result<autograd::Node*> again(autograd::Node& node) = 0;
  // Called before the values that a node saved are dropped.
  virtual core::Status before_forget(autograd::Node&) { return {}; }

  // ---- Postponed calls and memory of the program
  // Whether the client has postponed calls. Then the functions below are called before anything
  // that such a call could observe: a write to h or a change of its flags, gradients, a Raise.
  bool watching = false;
  virtual core::Status before_write(const autograd::Handle&) { return {}; }
  virtual core::Status before_backward() { return {}; }
  virtual core::Status before_raise() { return {}; }
  // Whether tensors exist that follow memory of the program. Then before_use() is called before a
  // command that uses h, or, with `writes`, writes to it.
  bool following = false;
  virtual core::Status before_use(autograd::Handle&, bool) { return {}; }
};

}  // namespace teletensor::client
