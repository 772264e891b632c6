// The programs of a session: traces, definitions and calls.

#include "clients/session/session.h"
#include "engine/ops/verify.h"

namespace teletensor::client {

Status Session::begin_trace(std::uint64_t seed, std::uint64_t ordinal) {
  if (tracer_) return core::invalid("another function of this session is being captured");
  TT_RETURN_IF_ERROR(ready_to_issue());
  flush_releases();
  tracer_ = std::make_unique<autograd::Tracer>(graph_, seed, ordinal);
  return {};
}

void Session::trace_made(Handle& h) {
  if (tracer_->follows()) tracer_->made(h);
}

core::Result<std::uint64_t> Session::define(const program::Program& program) {
  TT_RETURN_IF_ERROR(ready_to_issue());
  if (programs_.has_released()) flush_releases();
  const std::uint64_t number = programs_.next_number();
  program::Define define{number, program::serialize(program, ops::op_names(catalog()))};
  if (define.bytes.size() + 1024 > limits_.frame.bytes) {
    return Status(core::Code::kResourceExhausted,
                  "a program of " + std::to_string(define.bytes.size()) +
                      " bytes does not fit a frame of " + std::to_string(limits_.frame.bytes));
  }
  // Checks that the program can be read back, because the daemon applies the same limits.
  if (auto read = program::deserialize(define.bytes, ops::op_finder(catalog())); !read.ok()) {
    return read.status();
  }
  const std::uint64_t steps = program::steps_of(program.body), bytes = define.bytes.size();
  TT_RETURN_IF_ERROR(programs_.fits(steps, bytes));
  programs_.add(steps, bytes);
  begin_command();
  issue(program::Command(std::move(define)), 0);
  return number;
}

Status Session::call(const autograd::Callable& callable, program::Call command,
                     std::span<const HandleRef> inputs, Handles& results) {
  command.inputs.reserve(inputs.size());
  for (const HandleRef& h : inputs) {
    TT_RETURN_IF_ERROR(nameable(graph_, *h));
    if (following) TT_RETURN_IF_ERROR(before_use(*h, false));
    command.inputs.push_back(h->id);
  }
  TT_RETURN_IF_ERROR(ready_to_issue());
  if (callable.has_collectives()) stream_.mark_fragile(seq_ + 1);
  begin_command();
  TT_RETURN_IF_ERROR(graph_.call(callable, command, inputs, results));
  const program::HandleId first = next_id_;
  for (const HandleRef& h : results) give_id(*h);
  command.made = static_cast<std::uint32_t>(next_id_ - first);
  const std::uint32_t made = command.made;
  issue(program::Command(std::move(command)), made);
  if (!releases_.empty()) flush_releases();
  return {};
}

}  // namespace teletensor::client
