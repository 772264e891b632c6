#include "clients/session/programs/program_table.h"

#include "clients/session/limit.h"

namespace teletensor::client {

core::Status ProgramTable::fits(std::uint64_t steps, std::uint64_t bytes) const {
  constexpr char kWhat[] = "a captured program";
  constexpr char kAdvice[] = "drop functions, or results of theirs, that you no longer use";
  using program::Amounts;
  TT_RETURN_IF_ERROR(check_limit(kWhat, &Amounts::programs, most_, defined_.size(), 1, kAdvice));
  TT_RETURN_IF_ERROR(check_limit(kWhat, &Amounts::program_steps, most_, steps_, steps, kAdvice));
  return check_limit(kWhat, &Amounts::program_bytes, most_, bytes_, bytes, kAdvice);
}

void ProgramTable::add(std::uint64_t steps, std::uint64_t bytes) {
  steps_ += steps;
  bytes_ += bytes;
  defined_[next_number_++] = {steps, bytes};
}

std::uint64_t ProgramTable::take_released() {
  const std::uint64_t number = released_.back();
  released_.pop_back();
  if (const auto found = defined_.find(number); found != defined_.end()) {
    steps_ -= found->second.steps;
    bytes_ -= found->second.bytes;
    defined_.erase(found);
  }
  return number;
}

}  // namespace teletensor::client
