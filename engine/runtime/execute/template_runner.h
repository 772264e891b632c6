// TemplateRunner: runs the repetitions of templates (program/template.h) as loops that were
// prepared once.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/program/template.h"
#include "engine/runtime/execute/execution_context.h"

namespace teletensor::runtime {

class Chunk;

// Used by the session task, except for prepare().
class TemplateRunner {
 public:
  explicit TemplateRunner(ExecutionContext& context) : context_(context) {}

  // Prepares a template, and returns its number of steps. If some step cannot be a part of a
  // template, returns the number of steps in front of it; the template is not prepared then.
  static std::size_t prepare(program::Template& repeated, const ops::Catalog& catalog,
                             const Devices& devices);
  // Computes the results of a repetition. Returns false, without side effects, if its instructions
  // must run one by one (which also reports their errors) or lack memory
  // (InstructionMemory::starved).
  bool run(const program::TemplateCall& call);
  // Appends the instructions of a repetition, as entries of their own. Precondition: the chunk is
  // empty.
  static void expand(const program::TemplateCall& call, Chunk& chunk);

 private:
  using StorageRef = InstructionMemory::StorageRef;

  bool gather(const program::TemplateCall& call);
  core::Status allocate(const program::TemplateCall& call, std::size_t device);

  ExecutionContext& context_;
  // State of the running repetition; kept to reuse its memory.
  std::vector<const void*> in_;
  std::vector<void*> out_;  // by step
  struct Stored {
    std::size_t step;
    StorageRef storage;
  };
  std::vector<Stored> stored_;
};

}  // namespace teletensor::runtime
