#include "engine/session/bookkeeping.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace teletensor::session {

using core::Code;
using core::Status;

std::uint64_t Bookkeeping::chargeable() const {
  return tape_bytes() + back_.failures().bytes() + front_.totals().memory +
         back_.queue().planned().bytes() + listener_.unread_bytes();
}

bool Bookkeeping::charge() {
  const std::uint64_t used = chargeable();
  tape_bytes_.store(tape_bytes(), std::memory_order_relaxed);
  return charge_.pay(used);
}

void Bookkeeping::publish_to(program::Amounts& amounts) const {
  amounts.tape_bytes = tape_bytes_.load(std::memory_order_relaxed);
  amounts.plan_ms = plan_ms_.load(std::memory_order_relaxed);
}

namespace {

bool makes_names(const program::Command& command) {
  if (const auto* apply = std::get_if<program::Apply>(&command)) return !apply->inplace;
  if (const auto* call = std::get_if<program::Call>(&command)) return call->made > 0;
  if (const auto* refused = std::get_if<program::Refused>(&command)) return refused->made > 0;
  if (const auto* backward = std::get_if<program::Backward>(&command)) return backward->made > 0;
  return std::holds_alternative<program::Constant>(command) ||
         std::holds_alternative<program::Repeated>(command) ||
         std::holds_alternative<program::Uploaded>(command) ||
         std::holds_alternative<program::Saved>(command) ||
         std::holds_alternative<program::Published>(command);
}

std::string names_and_tape(const autograd::Front& front) {
  return "names and tape (" + std::to_string(front.handles()) + " tensors, " +
         std::to_string(front.tape_nodes()) + " recorded operations)";
}

}  // namespace

bool Bookkeeping::handles_fit(const program::Command* next) const {
  const std::uint64_t limit = limits_.handles, used = front_.handles();
  if (limit == 0 || used < limit) return true;
  return used == limit && (next == nullptr || !makes_names(*next));
}

Status Bookkeeping::beyond_limits(const program::Command* next) const {
  if (!handles_fit(next)) {
    return program::over_limit("tensors", &program::Amounts::handles, front_.handles(), 1,
                               limits_.handles, "delete some");
  }
  return program::over_limit(names_and_tape(front_), &program::Amounts::tape_bytes, tape_bytes(), 0,
                             limits_.tape_bytes,
                             "delete tensors, or call backward() or detach() on what is recorded");
}

// As names_and_tape(), with the late errors, the programs and the unread results if they take much.
std::string Bookkeeping::charged_things() const {
  std::string text = names_and_tape(front_);
  if (const std::uint64_t errors = back_.failures().bytes(); errors > Charge::kFree) {
    text += " and late errors (" + std::to_string(errors) + " bytes)";
  }
  const std::uint64_t programs = front_.totals().memory + back_.queue().planned().bytes();
  if (programs > Charge::kFree) {
    text += " and " + std::to_string(front_.amounts().programs) + " functions (" +
            std::to_string(programs) + " bytes with their plans)";
  }
  if (const std::uint64_t unread = listener_.unread_bytes(); unread > Charge::kFree) {
    text += " and results that the client has not read (" + std::to_string(unread) + " bytes)";
  }
  return text;
}

// The end of a session whose names cannot be refused, because its client has made them already: a
// command that the client has sent keeps its numbers whether or not it runs.
Status Bookkeeping::beyond_the_overdraft(const Status& refused, std::uint64_t unpaid,
                                         std::uint64_t seq) const {
  return Status(refused.code(),
                refused.message() + "; the session ends at command " + std::to_string(seq) +
                    ": what its client has sent since needs " + memory::readable_bytes(unpaid) +
                    " for names of instructions that do not run, and for those the daemon has " +
                    memory::readable_bytes(memory::Overdraft::kTotal) +
                    " in all, of which a user gets half of what other users leave");
}

Status Bookkeeping::refuse_or_resume(const program::Command* next, std::uint64_t seq) {
  runtime::QueueWriter& queue = back_.queue();
  const bool in_limits = fits(next);
  if (!in_limits) {
    const std::uint64_t handles = limits_.handles, tape = limits_.tape_bytes;
    if ((handles != 0 && front_.handles() > handles + kMaxExcess) ||
        (tape != 0 && tape_bytes() > tape + kMaxTapeExcess)) {
      return beyond_limits(next);
    }
    if (!queue.refusing()) queue.refuse(beyond_limits(next));
  }
  if (!queue.refusing()) count_plans();
  if (charge()) {
    if (in_limits && queue.refusing()) queue.refuse({});
    return {};
  }
  const std::uint64_t unpaid = charge_.unpaid(chargeable());
  const bool covered = charge_.owe(unpaid);
  if (covered && queue.refusing()) return {};
  Status status = host_.refusal(charged_things(), std::max(unpaid, Charge::kStep));
  if (!covered) return beyond_the_overdraft(status, unpaid, seq);
  queue.refuse(std::move(status));
  return {};
}

Status Bookkeeping::may_plan(const program::Program& program) {
  count_plans();
  const std::uint64_t planned = plan_ms_.load(std::memory_order_relaxed);
  const bool checked = front_.is_checked(program);
  if (checked && planned < limits_.plan_ms) return {};
  return program::over_limit(
      checked ? "call" : "call of a program that was not checked for lack of time",
      &program::Amounts::plan_ms, planned, 0, limits_.plan_ms,
      "drop functions, or results of theirs, that you no longer use");
}

void Bookkeeping::count_plans() {
  plan_ms_.store((front_.totals().checked_ns + back_.queue().planned().forget_unused()) / 1'000'000,
                 std::memory_order_relaxed);
}

void Bookkeeping::count_plans_if_fewer(std::uint64_t programs) {
  if (std::exchange(programs_, programs) > programs) count_plans();
}

}  // namespace teletensor::session
