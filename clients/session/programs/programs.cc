#include "clients/session/programs/programs.h"

#include "engine/ops/verify.h"

namespace teletensor::client {

using autograd::HandleRef;
using autograd::Handles;

Status Programs::begin_trace(std::uint64_t seed, std::uint64_t ordinal) {
  if (commands_.traced()) {
    return core::invalid("another function of this session is being captured");
  }
  TT_RETURN_IF_ERROR(commands_.ready());
  commands_.flush_releases();
  commands_.set_trace(std::make_unique<autograd::Tracer>(graph_, seed, ordinal));
  return {};
}

core::Result<std::uint64_t> Programs::define(const program::Program& program) {
  TT_RETURN_IF_ERROR(commands_.ready());
  if (table_.has_released()) commands_.flush_releases();
  const ops::Catalog& catalog = graph_.catalog();
  const std::uint64_t number = table_.next_number();
  program::Define define{number, program::serialize(program, ops::op_names(catalog))};
  const std::uint64_t most = commands_.limits().frame.bytes;
  if (define.bytes.size() + 1024 > most) {
    return Status(core::Code::kResourceExhausted,
                  "a program of " + std::to_string(define.bytes.size()) +
                      " bytes does not fit a frame of " + std::to_string(most));
  }
  // Checks that the program can be read back, because the daemon applies the same limits.
  if (auto read = program::deserialize(define.bytes, ops::op_finder(catalog)); !read.ok()) {
    return read.status();
  }
  const std::uint64_t steps = program::steps_of(program.body), bytes = define.bytes.size();
  TT_RETURN_IF_ERROR(table_.fits(steps, bytes));
  table_.add(steps, bytes);
  commands_.begin();
  commands_.issue(program::Command(std::move(define)), 0);
  return number;
}

Status Programs::call(const autograd::Callable& callable, program::Call command,
                      std::span<const HandleRef> inputs, Handles& results) {
  command.inputs.reserve(inputs.size());
  for (const HandleRef& h : inputs) {
    TT_RETURN_IF_ERROR(nameable(graph_, *h));
    if (hooks_.following) TT_RETURN_IF_ERROR(hooks_.before_use(*h, false));
    command.inputs.push_back(h->id);
  }
  TT_RETURN_IF_ERROR(commands_.ready());
  if (callable.has_collectives()) commands_.mark_fragile();
  commands_.begin();
  TT_RETURN_IF_ERROR(graph_.call(callable, command, inputs, results));
  const program::HandleId first = commands_.next_id();
  for (const HandleRef& h : results) commands_.give_id(*h);
  command.made = static_cast<std::uint32_t>(commands_.next_id() - first);
  const std::uint32_t made = command.made;
  commands_.issue(program::Command(std::move(command)), made);
  if (commands_.has_releases()) commands_.flush_releases();
  return {};
}

}  // namespace teletensor::client
