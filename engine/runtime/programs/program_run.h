// ProgramRun: a running call of a program, or loop of calls. The values are registers; branches and
// loops are decided here, without the client. It runs a few steps at a time, so that a long call
// shares its lane.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/program/program.h"
#include "engine/runtime/execute/executor.h"
#include "engine/runtime/programs/prepared.h"
#include "engine/runtime/programs/window.h"

namespace teletensor::runtime {

class ProgramRun {
 public:
  enum class Next : std::uint8_t { kRun, kRan, kStop };
  // The session that makes the call.
  class Caller {
   public:
    virtual ~Caller() = default;
    // Returns true if the run must give up its lane. Called between units.
    virtual bool stop() = 0;
    // Reports that an instruction of the call failed or had a failed operand; `root`: it is the
    // root of the failure.
    virtual void failed(const program::Instruction& instruction, const FailureRef& failure,
                        bool root) = 0;
    // Reports that the last instruction is a collective that has not ended (Executor::opened).
    virtual void opened(program::Instruction instruction) = 0;
    // next() and ready() are called while the session has open collectives. next() decides what to
    // do with an instruction; kRan: the session has taken it.
    virtual Next next(program::Instruction& instruction) = 0;
    // Returns false if an operand is the result of a collective that has not ended.
    virtual bool ready(std::span<const program::Operand> operands) = 0;
  };

  ProgramRun(std::shared_ptr<const Prepared> prepared, program::Invocation invocation,
             std::uint64_t seq);

  // Runs until stop() returns true, an instruction must wait (Executor::stopped, Next::kStop), or
  // everything is done. Returns true in the last case: every outcome then has contents or a
  // failure, or is the result of an open collective. After an exception the run may continue once
  // cancel() was called.
  bool run(Executor& executor, PlanStats& stats, Caller& caller);
  // Makes the results of all instructions that have not run yet fail, and informs other ranks about
  // the collectives among them. Returns false if the run was cancelled earlier.
  bool cancel(const FailureRef& failure);
  // Returns true after cancel() if rounds are skipped, so that this rank never reaches their
  // collectives.
  bool leaves_out() const { return leaves_out_; }
  const std::vector<std::uint64_t>& groups() const { return prepared_->groups(); }
  // What is left of the call, as instructions that use the values of the run. The lists own what
  // these refer to. `same` are outcomes that become another value, which has its contents.
  struct Left {
    std::vector<std::unique_ptr<program::Instruction>> instructions;
    std::deque<core::Attributes> attributes;
    std::vector<std::pair<program::ValueRef, program::ValueRef>> same;  // outcome, value
    std::unique_ptr<ProgramRun> run;
  };
  // Returns null if that depends on data, or if there are several rounds. Precondition: run() is
  // not active.
  std::unique_ptr<Left> left() const;
  std::uint64_t seq() const { return seq_; }
  const std::vector<program::Operand>& inputs() const { return call_.inputs; }

 private:
  using ValueId = program::ValueId;
  // A block that is running; `owner` is the step that contains it, null for the body.
  struct Frame {
    const program::Block* block;
    const program::Step* owner;
    bool condition;  // the condition of a loop
    const Prepared::Facts* facts;
    std::size_t next = 0;  // index of the next unit
  };

  ProgramRun(const ProgramRun&) = default;  // for left()
  void lay_out();
  bool take_left(Left& left);
  bool go_on(Executor& executor, Caller& caller);
  // Returns true if the last instruction did not run and must be tried again.
  bool halted(const Executor& executor) const { return executor.stopped() || waits_; }
  // The following functions return false if the run has halted; they must be called again.
  bool begin(Executor& executor, Caller& caller);
  bool end_round(Executor& executor, Caller& caller);
  bool stack(Executor& executor, Caller& caller, std::size_t outcome);
  bool begin_records(Executor& executor, Caller& caller, const program::Step& loop);
  bool end_records(Executor& executor, Caller& caller, const program::Step& loop);
  bool zero(Executor& executor, Caller& caller, const program::ValueRef& value,
            const core::Dims& shape);
  // Overwrites a part of `whole`, which is then replaced by `becomes`.
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
  program::Instruction& one_instruction();  // returns it cleared
  static void clear(program::Instruction& instruction);
  void enter(const program::Block& block, const program::Step* owner, bool condition);
  void leave(Executor& executor, Caller& caller);
  // Makes the results of a control step fail whose condition failed.
  void poison(const program::Step& step, const FailureRef& failure);
  FailureRef condition(Executor& executor, const program::View& view, bool* value, Caller& caller);
  FailureRef scalar(Executor& executor, const program::View& view, void* to, std::size_t bytes,
                    Caller& caller);
  // Records the operands of a loop at the beginning of a round. Returns the failure if that was not
  // possible.
  FailureRef record(Executor& executor, Caller& caller, const program::Step& loop);
  void past(Executor& executor, Caller& caller, const program::Step& step);
  void end_unit();  // ends the unit of the innermost frame
  program::ValueRef new_value(ValueId id, std::int64_t elements) const;
  program::Operand operand_of(const program::View& view);
  // The geometry relative to the storage of the value; valid until the next unit.
  const core::Geometry* placed(const core::Geometry* geometry, program::ValueId value);

  // The recorded values of one operand of a loop: one row for each round, in a storage that grows.
  struct Record {
    program::ValueRef rows, wider;  // wider: the larger storage that will replace `rows`
    std::int64_t room = 0;          // number of rows that fit in `rows`
    bool spoilt = false;            // a recorded value has failed
  };
  struct Records {
    std::vector<Record> records;  // one record for each of the loop's `counts`
    program::ValueRef count;
    std::int64_t rounds = 0;
    std::size_t upto = 0;  // records done in this round
  };

  const std::shared_ptr<const Prepared> prepared_;
  const program::Program& program_;
  program::Invocation call_;
  const std::uint64_t seq_;
  std::vector<program::ValueRef> registers_;
  std::vector<std::int64_t> displacement_;  // by value: offset of the value's storage
  std::vector<std::int32_t> outcome_of_;    // by value: the outcome that it becomes, or -1
  std::vector<bool> rebound_;               // by value: it is a parameter whose name is rebound
  std::vector<program::ValueRef> literals_;
  std::vector<Frame> frames_;
  std::unordered_map<const program::Step*, Records> records_;  // records of the running loops
  PlanStats* stats_ = nullptr;                                 // set while it runs
  struct RunningUnit {  // kept from unit to unit, to reuse its memory
    std::vector<program::Instruction> instructions;
    std::vector<program::Instruction*> loop;
    std::deque<core::Geometry> placed;  // layouts that differ from the program's own
    core::Attributes attributes;        // attributes of a random step, which is a unit by itself
    std::size_t ran = 0;                // steps of the unit that have run
    bool filled = false, together = false;
  } unit_;
  FailureRef cancelled_;
  struct Rounds {
    std::uint32_t now = 0, count = 1;
    std::vector<program::ValueRef> stacked;  // by outcome
    std::vector<program::ValueRef> carried;  // by rebind: the result of the previous round
    std::size_t stacked_upto = 0;            // outcomes of this round that were stacked
  } rounds_;
  bool laid_out_ = false, begun_ = false, ended_ = false;  // ended_: all rounds have run
  bool waits_ = false;                                     // the run waits for a collective
  bool leaves_out_ = false;
};

}  // namespace teletensor::runtime
