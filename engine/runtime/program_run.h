// ProgramRun: one call of a program (or a loop of calls) under way. The values are registers;
// branches and loops are read and taken here, without the client. It runs a few steps at a time,
// so that a long call shares its lane.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/program/program.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/prepared.h"
#include "engine/runtime/window.h"

namespace teletensor::runtime {

class ProgramRun {
 public:
  enum class Next : std::uint8_t { kRun, kRan, kStop };
  // The session that makes the call.
  class Caller {
   public:
    virtual ~Caller() = default;
    // Must the run give its lane back? It is asked between units.
    virtual bool stop() = 0;
    // An instruction of the call has failed, or had a failed operand; `root`: the failure is its
    // own.
    virtual void failed(const program::Instruction& instruction, const FailureRef& failure,
                        bool root) = 0;
    // The instruction that has run is a collective that has not ended (Executor::opened).
    virtual void opened(program::Instruction instruction) = 0;
    // These are asked while the session has open collectives. What is to become of an instruction;
    // kRan: the session has taken it.
    virtual Next next(program::Instruction& instruction) = 0;
    // False: a collective that has not ended makes one of them.
    virtual bool ready(std::span<const program::Operand> operands) = 0;
  };

  ProgramRun(std::shared_ptr<const Prepared> prepared, program::Invocation invocation,
             std::uint64_t seq);

  // Runs until stop() says so, an instruction has to wait (Executor::stopped, Next::kStop), or all
  // is done: then every outcome has contents or a failure, or is made by an open collective, and it
  // returns true. Where it throws it may go on as well, after cancel().
  bool run(Executor& executor, PlanStats& stats, Caller& caller);
  // What has not run yet fails with this, and other ranks are told of its collectives. False where
  // that was said before.
  bool cancel(const FailureRef& failure);
  // After cancel(): rounds are left out, so the rank does not come to their collectives.
  bool leaves_out() const { return leaves_out_; }
  const std::vector<std::uint64_t>& groups() const { return prepared_->groups(); }
  std::uint64_t seq() const { return seq_; }
  const std::vector<program::Operand>& inputs() const { return call_.inputs; }

 private:
  using ValueId = program::ValueId;
  // A block under way; `owner` is the step that holds it, null for the body.
  struct Frame {
    const program::Block* block;
    const program::Step* owner;
    bool condition;  // of a loop
    const Prepared::Facts* facts;
    std::size_t next = 0;  // unit
  };

  bool go_on(Executor& executor, Caller& caller);
  // What was tried has not happened, and is to be tried again.
  bool halted(const Executor& executor) const { return executor.stopped() || waits_; }
  // These are false where it has halted: to be called again.
  bool begin(Executor& executor, Caller& caller);
  bool end_round(Executor& executor, Caller& caller);
  bool stack(Executor& executor, Caller& caller, std::size_t outcome);
  bool begin_records(Executor& executor, Caller& caller, const program::Step& loop);
  bool end_records(Executor& executor, Caller& caller, const program::Step& loop);
  bool zero(Executor& executor, Caller& caller, const program::ValueRef& value,
            const core::Dims& shape);
  // A part of `whole`, which `becomes` takes the place of, is overwritten.
  bool copy_into(Executor& executor, Caller& caller, program::ValueRef& whole,
                 program::ValueRef becomes, const core::Geometry& part, program::Operand from);
  bool execute(Executor& executor, Caller& caller, program::Instruction& instruction);
  void begin_round();
  bool finish(Caller& caller);
  void step(Executor& executor, Caller& caller);
  void run_unit(Executor& executor, Caller& caller, const passes::Unit& unit);
  bool ready(Caller& caller, std::span<const program::Operand> operands);
  bool loop_is_ready(Executor& executor, Caller& caller);
  void fill(program::Instruction& out, const program::Step& step, const Prepared::StepFacts& facts);
  bool may_loop(const program::Step& step, const program::Instruction& instruction) const;
  program::Instruction& one_instruction();  // cleared
  static void clear(program::Instruction& instruction);
  void enter(const program::Block& block, const program::Step* owner, bool condition);
  void leave(Executor& executor, Caller& caller);
  // The results of a control step whose condition failed.
  void poison(const program::Step& step, const FailureRef& failure);
  FailureRef condition(Executor& executor, const program::View& view, bool* value, Caller& caller);
  FailureRef scalar(Executor& executor, const program::View& view, void* to, std::size_t bytes,
                    Caller& caller);
  // A round begins: what is to be recorded of it. Why it could not be.
  FailureRef record(Executor& executor, Caller& caller, const program::Step& loop);
  void past(Executor& executor, Caller& caller, const program::Step& step);
  void end_unit();  // of the innermost frame
  program::ValueRef new_value(ValueId id, std::int64_t elements) const;
  program::Operand operand_of(const program::View& view);
  // As it lies in the storage of that value; valid until the next unit.
  const core::Geometry* placed(const core::Geometry* geometry, program::ValueId value);

  // What a loop records of one of its operands: rows, one a round, in a storage that grows.
  struct Record {
    program::ValueRef rows, wider;  // wider: on the way to take the place of `rows`
    std::int64_t room = 0;          // in `rows`
    bool spoilt = false;            // what it was to hold has failed
  };
  struct Records {
    std::vector<Record> records;  // by `counts`
    program::ValueRef count;
    std::int64_t rounds = 0;
    std::size_t upto = 0;  // records of this round
  };

  const std::shared_ptr<const Prepared> prepared_;
  const program::Program& program_;
  program::Invocation call_;
  const std::uint64_t seq_;
  std::vector<program::ValueRef> registers_;
  std::vector<std::int64_t> displacement_;  // by value: where its storage begins
  std::vector<std::int32_t> outcome_of_;    // by value: an outcome that it becomes, -1: none
  std::vector<bool> rebound_;               // by value: a parameter whose name gets another
  std::vector<program::ValueRef> literals_;
  std::vector<program::ValueRef> stacked_;  // by outcome
  std::vector<program::ValueRef> carried_;  // by rebind: what the round before has left
  std::vector<Frame> frames_;
  std::unordered_map<const program::Step*, Records> records_;  // of loops under way
  PlanStats* stats_ = nullptr;                                 // while it runs
  // Of the unit under way; kept to reuse their memory.
  std::vector<program::Instruction> instructions_;
  std::vector<program::Instruction*> loop_;
  std::deque<core::Geometry> placed_;  // layouts that are not the program's own
  core::Attributes attributes_;        // of a random step, which is a unit by itself
  std::size_t ran_ = 0;                // steps of it that have run
  bool filled_ = false, together_ = false;
  FailureRef cancelled_;
  std::uint32_t round_ = 0, rounds_ = 1;
  bool laid_out_ = false, begun_ = false, ended_ = false;  // ended_: all rounds have run
  bool waits_ = false;                                     // for a collective
  bool leaves_out_ = false;
  std::size_t stacked_upto_ = 0;  // outcomes of this round
};

}  // namespace teletensor::runtime
