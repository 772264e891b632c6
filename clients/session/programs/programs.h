// Programs: traces, definitions and calls of the programs of a session.
#pragma once

#include <cstdint>
#include <span>

#include "clients/session/client_hooks.h"
#include "clients/session/commands.h"
#include "clients/session/programs/program_table.h"
#include "engine/autograd/callable.h"
#include "engine/autograd/graph.h"
#include "engine/program/program.h"

namespace teletensor::client {

// Owns the table of the programs that the daemon knows. A program is in the table from its Define
// command to its Undefine command.
class Programs {
 public:
  // All references are to parts of the same session.
  Programs(const program::Amounts& most, ClientHooks& hooks, autograd::Graph& graph,
           Commands& commands)
      : table_(most), hooks_(hooks), graph_(graph), commands_(commands) {}

  ProgramTable& table() { return table_; }
  // Starts to record this thread's commands. Refused while a trace is active.
  Status begin_trace(std::uint64_t seed, std::uint64_t ordinal);
  // Defines a program in the daemon and returns its number.
  core::Result<std::uint64_t> define(const program::Program& program);
  // Calls a program. Inputs and results are in the program's order; `call` has no ids yet.
  Status call(const autograd::Callable& callable, program::Call call,
              std::span<const autograd::HandleRef> inputs, autograd::Handles& results);

 private:
  ProgramTable table_;
  ClientHooks& hooks_;
  autograd::Graph& graph_;
  Commands& commands_;
};

}  // namespace teletensor::client
