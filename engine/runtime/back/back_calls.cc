// Back's entries for groups, and its calls of programs, which can contain collectives.
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "engine/core/memory/reserve.h"
#include "engine/runtime/back/back.h"

namespace teletensor::runtime {

using core::Status;
using program::Operand;

namespace {

std::string stopped(const program::Failure& why) { return "has stopped: " + why.status.message(); }

}  // namespace

void Back::run_group(Entry& entry) {
  Entry::Group& group = *entry.group;
  if (!group.join) return session_groups_.leave(group.number);
  if (Groups::Member* const known = session_groups_.known(group.number)) {
    return known->set_timeout(group.join->timeout);
  }
  Status status = session_groups_.join(entry.instruction.seq, group.number, std::move(*group.join),
                                       failures_.refusal(entry));
  if (!status.ok()) failures_.record(entry.instruction.seq, std::move(status));
}

// ---------------------------------------------------------------- calls of programs

class Back::CallOf final : public ProgramRun::Caller {
 public:
  CallOf(Back& back, Entry& entry, core::Clock::time_point until)
      : back_(back), entry_(entry), until_(until) {}

  bool stop() override {
    if (back_.state_.stopping()) return true;
    bool root = false;
    if (entry_.refused) {
      const FailureRef failure = back_.failures_.refused(entry_, &root);
      back_.cancel_call(entry_, failure, root, stopped(*failure));
    } else if (back_.executor_.interrupts().has(entry_.instruction.seq)) {
      const FailureRef failure = back_.failures_.interrupted(entry_.instruction.seq, &root);
      back_.cancel_call(entry_, failure, root, RankWaits::kInterrupted);
    }
    return core::Clock::now() >= until_;
  }
  void failed(const program::Instruction& instruction, const FailureRef& failure,
              bool root) override {
    back_.failures_.record(instruction, failure, root);
  }
  void opened(program::Instruction instruction) override {
    back_.collectives_.add(std::move(instruction), true);
  }
  Next next(program::Instruction& instruction) override {
    return back_.collectives_.next(instruction, entry_.refused != nullptr);
  }
  bool ready(std::span<const Operand> operands) override {
    return back_.collectives_.ready(operands);
  }

 private:
  Back& back_;
  Entry& entry_;
  const core::Clock::time_point until_;
};

// Returns false if it was cancelled earlier.
bool Back::cancel_call(Entry& entry, const FailureRef& failure, bool root, const std::string& why) {
  if (!entry.call->cancel(failure)) return false;
  if (entry.call->leaves_out()) session_groups_.end(entry.call->groups(), why);
  failures_.record(entry.instruction, failure, root);
  return true;
}

// Runs a call of a program for at most its time on the lane. Returns false if the call has not
// ended by then.
bool Back::run_call(Entry& entry, core::Clock::time_point until) {
  CallOf caller(*this, entry, until);
  try {
    const core::UsesReserve forbidden(false);
    return entry.call->run(executor_, window_.stats(), caller);
  } catch (const std::bad_alloc&) {
    const auto failure = executor_.failures().make(
        entry.instruction.seq,
        Status(core::Code::kResourceExhausted, "call: the daemon process is out of memory"));
    // If it was cancelled earlier, there is no memory to report the failure either.
    if (!cancel_call(entry, failure, true, stopped(*failure))) throw;
    return false;
  }
}

}  // namespace teletensor::runtime
