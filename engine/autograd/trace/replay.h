// Replay: executes the commands that a Tracer has recorded once more, in a front end of its own,
// with stand-ins for the tensors that existed before the trace.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/autograd/front.h"
#include "engine/autograd/trace/tracer.h"
#include "engine/program/instruction.h"

namespace teletensor::autograd {

// In a replay: the op of an instruction that stands for a call.
constexpr program::OpId kCall = 0xffff;

// A tensor that existed before the trace, in its state at its first use.
struct Tracer::Known {
  HandleRef handle;
  core::Layout layout;
  const Cell* cell;
  const Clock* clock;
  bool requires_grad, has_history;
  HandleRef grad;
  int argument = -1;
};

// One execution of the recorded commands, with chosen values for the numbers.
class Tracer::Replay final : public Sink {
 public:
  // The numbers with the tags in `varied` get other values than in the trace.
  Replay(const Tracer& tracer, std::set<std::uint32_t> varied)
      : tracer_(tracer), varied_(std::move(varied)), front_(tracer.graph_.catalog(), this) {}
  ~Replay() override { strangers_.clear(); }

  core::Status run();

  Front& front() { return front_; }
  const std::vector<HandleRef>& strangers() const { return strangers_; }
  const std::deque<program::Instruction>& instructions() const { return instructions_; }
  std::deque<program::Instruction>& instructions() { return instructions_; }
  std::size_t forward() const { return forward_; }
  const std::vector<std::pair<program::ValueRef, std::string>>& literals() const {
    return literals_;
  }
  const program::ValueRef& original(const Cell* cell) const { return originals_.at(cell); }
  // The call that an instruction of op kCall stands for.
  const program::Invocation& call_of(const program::Instruction& instruction) const {
    return calls_.at(&instruction);
  }

  // If a backward reached a node whose backward is the client's own code: the command that recorded
  // the node.
  std::optional<std::uint64_t> stopped_at() const { return stopped_at_; }

  // ---- Sink
  program::Interner& interner() override { return interner_; }
  program::Instruction& instruction(std::uint64_t seq) override {
    program::Instruction& out = instructions_.emplace_back();
    out.seq = seq;
    return out;
  }
  core::Status constant(std::uint64_t, program::Constant constant,
                        program::ValueRef value) override;
  // Stores the call as an instruction of op kCall, with its inputs as operands and its outcomes as
  // results.
  core::Status call(std::uint64_t seq, program::Invocation invocation) override;
  core::Status client_backward(std::uint64_t seq) override;
  core::Status uploaded(std::uint64_t, const program::Uploaded&, program::ValueRef) override {
    return core::internal("a captured function cannot upload");
  }
  void fetch(std::uint64_t, bool, program::Operand) override {}
  std::vector<std::uint64_t> failed_rebinds(std::uint64_t) override { return {}; }
  void raised(std::uint64_t, std::uint64_t, const std::vector<std::uint64_t>&) override {}

 private:
  void vary(program::Apply& apply) const;

  const Tracer& tracer_;
  const std::set<std::uint32_t> varied_;
  program::Interner interner_;
  std::deque<program::Instruction> instructions_;
  std::map<const program::Instruction*, program::Invocation> calls_;
  std::vector<std::pair<program::ValueRef, std::string>> literals_;
  std::map<const Cell*, program::ValueRef> originals_;
  Front front_;
  std::vector<HandleRef> strangers_;
  std::size_t forward_ = 0;
  std::optional<std::uint64_t> stopped_at_;
};

}  // namespace teletensor::autograd
