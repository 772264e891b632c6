#include "engine/autograd/defined_programs.h"

#include <algorithm>

#include "engine/core/clock.h"
#include "engine/ops/verify.h"
#include "engine/program/serialize.h"

namespace teletensor::autograd {

using core::Code;
using core::invalid;
using core::Status;

namespace {

constexpr std::uint64_t kDayMs = 86'400'000;

Status no_program(std::uint64_t number) {
  return Status(Code::kNotFound, "program " + std::to_string(number) + " is not defined");
}

}  // namespace

Status check_amount(std::string_view what, const program::Amounts& limits,
                    std::uint64_t program::Amounts::*field, std::uint64_t used,
                    std::uint64_t more) {
  const std::uint64_t limit = limits.*field;
  if (used <= limit && more <= limit - used) return {};
  return program::over_limit(what, field, used, more, limit, "drop some");
}

Status DefinedPrograms::define(std::uint64_t number, std::string_view bytes) {
  if (number == 0) return invalid("define: the numbers of programs start at 1");
  if (programs_.contains(number)) {
    return invalid("define: program " + std::to_string(number) + " is in use");
  }
  auto read = program::deserialize(bytes, ops::op_finder(catalog_));
  if (!read.ok()) return read.status();
  const std::uint64_t steps = program::steps_of(read->body);
  const auto check = [&](auto field, std::uint64_t used, std::uint64_t more) {
    return check_amount("define", limits_, field, used, more);
  };
  TT_RETURN_IF_ERROR(check(&program::Amounts::programs, programs_.size(), 1));
  TT_RETURN_IF_ERROR(check(&program::Amounts::program_steps, totals_.steps, steps));
  TT_RETURN_IF_ERROR(check(&program::Amounts::program_bytes, totals_.bytes, bytes.size()));
  const auto began = core::Clock::now();
  const Status checked = ops::verify(*read, catalog_, began + time_to_check());
  const bool late = checked.code() == Code::kDeadlineExceeded;
  if (!checked.ok() && !late) return checked;
  const std::uint64_t ns = core::ns_since(began);
  totals_.bytes += bytes.size();
  totals_.steps += steps;
  totals_.checked_ns += ns;
  auto callable = std::make_unique<Callable>(program::counted(std::move(*read), bytes_));
  programs_.emplace(number, Defined{std::move(callable), {bytes.size(), steps, ns}, late});
  return {};
}

Status DefinedPrograms::undefine(std::uint64_t number) {
  const auto found = programs_.find(number);
  if (found == programs_.end()) return no_program(number);
  const ProgramTotals& own = found->second.own;
  totals_.bytes -= own.bytes;
  totals_.steps -= own.steps;
  totals_.checked_ns -= own.checked_ns;
  programs_.erase(found);
  return {};
}

core::Result<const Callable*> DefinedPrograms::find(std::uint64_t number) const {
  const auto found = programs_.find(number);
  if (found == programs_.end()) return no_program(number);
  return found->second.callable.get();
}

void DefinedPrograms::clear() {
  programs_.clear();
  totals_ = {};
}

void DefinedPrograms::add_to(program::Amounts& amounts) const {
  amounts.programs += programs_.size();
  amounts.program_steps += totals_.steps;
  amounts.program_bytes += totals_.bytes;
}

bool DefinedPrograms::is_checked(const program::Program& program) const {
  return std::none_of(programs_.begin(), programs_.end(), [&](const auto& each) {
    return each.second.late && &each.second.callable->program() == &program;
  });
}

std::vector<std::pair<std::uint64_t, std::string>> DefinedPrograms::serialized() const {
  std::vector<std::pair<std::uint64_t, std::string>> out;
  for (const auto& [number, defined] : programs_) {
    out.emplace_back(number,
                     program::serialize(defined.callable->program(), ops::op_names(catalog_)));
  }
  return out;
}

std::chrono::nanoseconds DefinedPrograms::time_to_check() const {
  const std::uint64_t all = std::min(limits_.plan_ms, kDayMs) * 1'000'000;
  return std::chrono::nanoseconds(all - std::min(all, totals_.checked_ns));
}

}  // namespace teletensor::autograd
