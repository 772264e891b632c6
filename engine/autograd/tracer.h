// Tracer: turns a part of a session's stream into a Program. The client runs a function as ever;
// the tracer keeps the commands it issues, and what the names that were there before looked like at
// their first use. At the end the same front that the daemon has executes those commands once more,
// over stand-ins, and the instructions that it makes are the program's steps: forward, backward and
// optimizer alike.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/autograd/graph.h"
#include "engine/program/program.h"

namespace teletensor::autograd {

// What a traced function gave back, tensor by tensor: one of the inputs itself, or a result.
struct TracedOutput {
  bool is_input = false;
  std::uint32_t index = 0;
  bool requires_grad = false;
};

struct Traced {
  // Where the program's parameters come from.
  struct Input {
    HandleRef handle;       // of the session (the mirror's)
    int argument = -1;      // place among the function's arguments, -1: none of them
    int gradient_of = -1;   // it is the .grad of that input
    bool has_grad = false;  // at the first use
    bool requires_grad = false;
    std::string name;
  };
  std::shared_ptr<const program::Program> program;
  std::vector<Input> inputs;
  std::vector<TracedOutput> outputs;
  bool grads_matter = false;        // whether inputs have a .grad takes part in it
  bool hooks_matter = false;        // it has a backward, in which hooks of inputs were called
  std::vector<std::uint32_t> tags;  // of the numbers, by Program::numbers
  // What cannot be a number of the program: its value took another part in it.
  std::vector<std::uint32_t> fixed_tags;

  // Of outputs that require grad: a program that takes `saved` and one gradient for each of
  // `differentiated`, and whose results are the gradients of `wanted`.
  struct Saved {
    bool is_input = false;
    std::uint32_t index = 0;  // of the input, or of the program's result
  };
  std::shared_ptr<const program::Program> backward;
  std::vector<Saved> saved;
  std::vector<std::uint32_t> differentiated;  // outputs
  std::vector<std::uint32_t> wanted;          // inputs
};

class Tracer {
 public:
  // `graph`: the session's mirror.
  Tracer(Graph& graph, std::uint64_t seed, std::uint64_t ordinal);
  ~Tracer();

  // Only this thread's commands belong to the trace.
  bool follows() const { return std::this_thread::get_id() == thread_; }

  // Before a command takes effect: these are its operands.
  void know(Handle& h);
  void know(std::span<const ops::Var> arguments);
  // A Call of this number is of this program, whose steps become the trace's. Precondition: it
  // takes no numbers, and says nothing of gradients, rebinds and aliases.
  void define(std::uint64_t number, std::shared_ptr<const program::Program> program) {
    programs_[number] = std::move(program);
  }
  // `p.grad` was asked for.
  void asked_grad(Handle& owner);
  // The command was issued; it made `made` ids from `first` on.
  void record(program::Command command, std::uint64_t seq, program::HandleId first,
              std::uint32_t made);
  void made(Handle& h) { alive_[h.id] = &h; }
  void died(program::HandleId id) { alive_.erase(id); }
  // Handles made meanwhile that something still holds.
  const std::map<program::HandleId, Handle*>& alive() const { return alive_; }

  // The argument `place` of the function.
  void argument(Handle& h, int place);
  // Why the function cannot be traced; the first reason counts.
  void refuse(core::Status why);

  // The program of everything recorded. `site` gives the line of a command. `roots`: the outputs
  // whose gradients the backward takes; without, all that require grad.
  core::Result<Traced> finish(const std::vector<Handle*>& outputs, std::uint64_t drawn,
                              const std::function<std::string(std::uint64_t)>& site,
                              const std::set<program::HandleId>* roots = nullptr);

 private:
  struct Known;
  struct Recorded {
    program::Command command;
    std::uint64_t seq;
    program::HandleId first;
  };
  class Replay;
  class Ending;

  bool made_here(program::HandleId id) const;

  Graph& graph_;
  const std::thread::id thread_;
  const std::uint64_t seed_, ordinal_;
  std::vector<Known> known_;
  std::unordered_map<program::HandleId, std::size_t> by_id_;
  std::vector<Recorded> commands_;
  std::map<std::uint64_t, std::shared_ptr<const program::Program>> programs_;
  std::vector<std::pair<program::HandleId, std::uint32_t>> ranges_;  // of ids made, ascending
  std::map<program::HandleId, Handle*> alive_;
  std::unordered_map<program::HandleId, program::HandleId> owner_of_grad_;
  bool grads_matter_ = false;
  bool hooks_matter_ = false;
  core::Status refused_;
};

}  // namespace teletensor::autograd
