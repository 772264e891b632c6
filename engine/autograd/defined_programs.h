// DefinedPrograms: the programs that a session has defined, by number, and what they use of the
// session's limits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/autograd/callable.h"
#include "engine/core/status.h"
#include "engine/ops/op.h"
#include "engine/program/amounts.h"
#include "engine/program/program.h"

namespace teletensor::autograd {

// Sums over the programs that are defined.
struct ProgramTotals {
  std::uint64_t bytes = 0, steps = 0;  // as they were sent
  std::uint64_t checked_ns = 0;        // time that their verification has taken
  // In bytes, of all programs that exist: a plan or a queued call may use a program whose
  // definition is gone. Front::totals() adds the templates.
  std::uint64_t memory = 0;
};

// Returns an error if `used` and `more` together exceed the limit `field` of `limits`. A client
// that knows the daemon's limits refuses the command itself, so only other clients get this error.
core::Status check_amount(std::string_view what, const program::Amounts& limits,
                          std::uint64_t program::Amounts::*field, std::uint64_t used,
                          std::uint64_t more);

// Not thread-safe: used by the thread that uses the Front.
class DefinedPrograms {
 public:
  // `catalog` must outlive this object.
  DefinedPrograms(const ops::Catalog& catalog, const program::Amounts& limits)
      : catalog_(catalog), limits_(limits) {}

  // Reads and verifies a program of serialize.h and gives it `number`. An error if the number is 0
  // or in use, the program is invalid, or a limit would be exceeded; then nothing changes. A
  // program whose verification ran out of time (limit plan_ms) is defined, but is_checked() returns
  // false.
  core::Status define(std::uint64_t number, std::string_view bytes);
  // NOT_FOUND if there is no program with this number. Calls that are queued still run.
  core::Status undefine(std::uint64_t number);
  // Returns the program, which is valid until undefine() or clear(). NOT_FOUND if there is none.
  core::Result<const Callable*> find(std::uint64_t number) const;
  void clear();

  const ProgramTotals& totals() const { return totals_; }
  // Bytes of all programs that exist (ProgramTotals::memory).
  std::uint64_t memory() const { return bytes_->load(std::memory_order_relaxed); }
  // Adds the number of programs and their sums to `amounts`.
  void add_to(program::Amounts& amounts) const;
  bool is_checked(const program::Program& program) const;
  // The programs as (number, bytes), for a snapshot; define() reads them.
  std::vector<std::pair<std::uint64_t, std::string>> serialized() const;

 private:
  struct Defined {
    std::unique_ptr<Callable> callable;
    ProgramTotals own;
    bool late = false;  // Its verification ran out of time.
  };

  std::chrono::nanoseconds time_to_check() const;

  const ops::Catalog& catalog_;
  const program::Amounts limits_;
  std::unordered_map<std::uint64_t, Defined> programs_;
  ProgramTotals totals_;
  const std::shared_ptr<std::atomic<std::uint64_t>> bytes_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
};

}  // namespace teletensor::autograd
