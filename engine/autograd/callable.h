// Callable: a verified program, with the facts about its effect on handles that every call needs.
// They are computed once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/program/program.h"

namespace teletensor::autograd {

class Callable {
 public:
  // Precondition: ops::verify(*program) is ok.
  explicit Callable(std::shared_ptr<const program::Program> program);

  static constexpr std::uint32_t kNone = ~0u;
  struct Parameter {
    std::uint32_t leader;          // index of the first parameter that is a view of the same value
    std::uint32_t rebind = kNone;  // for a leader: index into the program's rebinds
  };
  struct Result {
    bool aliases = false, of_parameter = false, is_gradient = false;
    std::uint32_t index = 0;     // index of the parameter or result whose memory this result shares
    std::uint32_t root = kNone;  // the leader parameter whose storage holds this result, if any
    // With root: the result is that parameter's value, which no step has overwritten.
    bool untouched = false;
  };

  const program::Program& program() const { return *program_; }
  const std::shared_ptr<const program::Program>& shared() const { return program_; }
  bool has_collectives() const { return has_collectives_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Result>& results() const { return results_; }

 private:
  std::shared_ptr<const program::Program> program_;
  std::vector<Parameter> parameters_;
  std::vector<Result> results_;
  bool has_collectives_ = false;
};

}  // namespace teletensor::autograd
