// Tracer: turns a part of a session's command stream into a Program. The client runs the function
// as usual. The tracer keeps the commands that the function issues, and the state of each outer
// tensor (one that existed before the trace) at its first use. At the end a front end like the
// daemon's executes the commands once more, on stand-ins for the outer tensors. Its instructions
// become the steps of the program, whether they come from a forward, a backward or an optimizer.
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

// One tensor that the traced function returned: either one of the inputs, or a result.
struct TracedOutput {
  bool is_input = false;
  std::uint32_t index = 0;
  bool requires_grad = false;
};

struct Traced {
  // The tensor that a parameter of the program stands for.
  struct Input {
    HandleRef handle;       // the handle in the session's mirror
    int argument = -1;      // position among the function's arguments, -1 if it is none of them
    int gradient_of = -1;   // index of the input whose .grad this is, or -1
    bool has_grad = false;  // at the first use
    bool requires_grad = false;
    std::string name;
  };
  std::shared_ptr<const program::Program> program;
  std::vector<Input> inputs;
  std::vector<TracedOutput> outputs;
  bool grads_matter = false;  // the program depends on which inputs have a .grad
  bool hooks_matter = false;  // the function ran a backward, in which hooks of inputs were called
  std::vector<std::uint32_t> tags;  // the tags of the numbers, in the order of Program::numbers
  // Tags that cannot be numbers of the program, because their value influenced more than a number.
  std::vector<std::uint32_t> fixed_tags;

  // The gradients of outputs that require grad: a program that takes `saved` and one gradient for
  // each entry of `differentiated`, and returns the gradients of `wanted`.
  struct Saved {
    bool is_input = false;
    std::uint32_t index = 0;  // index of the input, or of the program's result
  };
  std::shared_ptr<const program::Program> backward;
  std::vector<Saved> saved;
  std::vector<std::uint32_t> differentiated;  // indices of outputs
  std::vector<std::uint32_t> wanted;          // indices of inputs
};

class Tracer {
 public:
  // `graph` is the session's mirror.
  Tracer(Graph& graph, std::uint64_t seed, std::uint64_t ordinal);
  ~Tracer();

  // Only commands of the thread that started the trace belong to it.
  bool follows() const { return std::this_thread::get_id() == thread_; }

  // Called with the operands of a command before the command takes effect.
  void know(Handle& h);
  void know(std::span<const ops::Var> arguments);
  // Registers a program: the steps of later Calls of this number become steps of the trace.
  // Precondition: the program takes no numbers, and has no gradients, rebinds or aliases.
  void define(std::uint64_t number, std::shared_ptr<const program::Program> program) {
    programs_[number] = std::move(program);
  }
  // Called when `p.grad` was read.
  void on_grad_read(Handle& owner);
  // The command was issued; it made `made` handles, with ids from `first` on.
  void record(program::Command command, std::uint64_t seq, program::HandleId first,
              std::uint32_t made);
  void made(Handle& h) { alive_[h.id] = &h; }
  void died(program::HandleId id) { alive_.erase(id); }
  // Handles that were made during the trace and are still alive.
  const std::map<program::HandleId, Handle*>& alive() const { return alive_; }

  // Marks h as the argument of the function at position `place`.
  void argument(Handle& h, int place);
  // Records why the function cannot be traced; only the first reason is kept.
  void refuse(core::Status why);

  // Builds the program of everything that was recorded. `site` returns the source line of a
  // command. `roots` are the outputs whose gradients the backward program takes; if null, all
  // outputs that require grad.
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
  // Ids of the new handles, as (first, count), ascending.
  std::vector<std::pair<program::HandleId, std::uint32_t>> ranges_;
  std::map<program::HandleId, Handle*> alive_;
  std::unordered_map<program::HandleId, program::HandleId> owner_of_grad_;
  bool grads_matter_ = false;
  bool hooks_matter_ = false;
  core::Status refused_;
};

}  // namespace teletensor::autograd
