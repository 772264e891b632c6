// Templates: recognises instructions in a session's stream that the session has sent before in the
// same order, and executes them together.
//
// The stream is divided into segments, at places that depend on the instructions alone, so that the
// rounds of a loop are divided at the same places, whatever their frames and whatever is released
// between their instructions. A segment that is seen for the second time becomes a template
// (program/template.h), if its instructions compute small tensors of one layout. When the commands
// of a frame continue with all instructions of a template, one entry of the queue runs them. If
// operands require a gradient, each instruction that depends on them becomes a node of the tape, as
// without a template. If none does, results that are released before the end of the segment get
// neither a handle nor a value. What does not match a template is executed by the front end,
// command by command.
//
// Not thread-safe; belongs to a daemon's front end.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/autograd/graph.h"
#include "engine/autograd/known/known_call.h"
#include "engine/autograd/names.h"
#include "engine/program/command.h"
#include "engine/program/template.h"

namespace teletensor::autograd {

class Templates {
 public:
  // A template has at least kMinSteps steps, and a segment usually kUsualSteps or more.
  static constexpr std::size_t kMinSteps = 8, kUsualSteps = 16;
  static constexpr std::size_t kMaxSteps = program::Template::kMaxSteps;
  // Tensors with more elements are executed one by one, so that loops over their memory are chosen
  // from a whole window.
  static constexpr std::int64_t kMaxElements = 4096;

  // `sink` is not null when execute() is called.
  Templates(Graph& graph, Names& names, Sink* sink) : graph_(graph), names_(names), sink_(sink) {}

  // Executes the first of these commands if they repeat a template; `seq` is the number of the
  // first one. Returns how many commands it has executed. After 0, the caller executes the first
  // command itself.
  std::size_t execute(std::uint64_t seq, std::span<const program::Command> commands) {
    return seq < attempt_at_ ? 0 : attempt(seq, commands);
  }
  // Approximate memory of the templates.
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kMinPart = 4;       // steps of a template that run together
  static constexpr std::size_t kMaxReleased = 32;  // handles from outside, in one segment
  static constexpr int kSlotBits = 6;
  static constexpr std::uint8_t kLives = 15, kLivesSeenOnce = 3;

  // An instruction of a template, as it is found in the stream.
  struct Step {
    static constexpr std::int8_t kNoHandle = -1;
    core::Ref<const program::KnownApply> known;
    // By argument: the index of the step that made the handle, -2 - i for input i, or kNoHandle.
    std::array<std::int8_t, program::KnownApply::kMaxArguments> from;
    bool recorded = false;  // it becomes a node of the tape
  };
  struct Input {
    bool may_be_recorded = false;  // an instruction that reads it may be recorded
    KnownCall::History history = KnownCall::History::kNone;
  };
  // What is known about the segments with one hash.
  struct Slot {
    std::uint64_t hash = 0;
    std::uint8_t lives = 0;      // As in wire::KnownApplies.
    std::uint8_t follower = 0;   // the slot of the template that ran after this one
    bool tried = false;          // learn() was called
    std::uint16_t unfit = 0;     // without a template: number of instructions that no template has
    std::uint64_t interner = 0;  // number of the interner of the template
    core::Ref<const program::Template> repeated;
    std::vector<Step> steps;
    std::vector<Input> inputs;
    bool records = false;  // some step is recorded
  };
  struct Segment {
    std::size_t commands = 0;  // including those that follow a segment and need no attempt
    std::size_t steps = 0;     // number of instructions
    std::uint64_t hash = 0;
    bool whole = false;  // it begins and ends as it would in another round
  };
  // Commands that repeat the steps of a template from `first` up to `steps`. The earlier steps came
  // in earlier frames, directly before these commands.
  struct Match {
    HandleId base = 0;  // the id of the result of step 0
    std::size_t commands = 0, inputs = 0, first = 0, steps = 0;
    std::array<Handle*, program::Template::kMaxInputs> input;
    std::array<HandleId, program::Template::kMaxInputs> input_id;
    std::array<std::uint16_t, kMaxSteps> command;    // by step
    std::uint32_t reads_earlier = 0;                 // bit set of the steps in front of `first`
    std::uint32_t released = 0;                      // bit set of the steps from `first` on
    std::uint32_t dead_inputs = 0;                   // bit set of the inputs
    std::array<HandleId, kMaxReleased> released_id;  // of handles from outside
    std::size_t released_ids = 0;
    bool at_end = false;  // the commands end before the template

    bool has_released(HandleId id) const {
      const HandleId* const end = released_id.data() + released_ids;
      return std::find(released_id.data(), end, id) != end;
    }
  };

  std::size_t attempt(std::uint64_t seq, std::span<const program::Command> commands);
  std::size_t attempt_part(std::uint64_t seq, Slot& slot,
                           std::span<const program::Command> commands);
  Segment scan(std::span<const program::Command> commands);
  void skip_unfit(std::uint64_t seq, std::uint8_t place, const Segment& segment,
                  std::span<const program::Command> commands);
  // Matches the commands with a template from its first step on, or from the step after the last
  // match on. Returns true if all its steps match.
  bool match(const Slot& slot, std::span<const program::Command> commands);
  bool match_more(const Slot& slot, std::span<const program::Command> commands);
  bool match_steps(const Slot& slot, std::span<const program::Command> commands);
  bool match_step(const Slot& slot, const program::Repeated& command);
  bool match_earlier(std::size_t step, HandleId id);
  bool match_input(const Slot& slot, std::size_t input, HandleId id);
  bool match_release(const program::Release& release);
  // Executes the commands of the match.
  std::size_t run(std::uint64_t seq, const Slot& slot);
  // Results of the steps that run, if some step is recorded.
  using StepHandles = std::array<HandleRef, kMaxSteps>;
  void record(std::uint64_t seq, const Slot& slot, std::size_t step, const StepHandles& made);
  // Makes a template of the first steps of a segment, or notes that this is not possible.
  void learn(Slot& slot, std::span<const program::Command> commands);
  void set(Slot& slot, core::Ref<const program::Template> repeated);
  // Describes the first steps, up to `most`.
  void describe(std::span<const program::Command> commands, std::size_t most, Slot& slot,
                program::Template& made) const;
  bool describe_step(const program::Repeated& command, HandleId base, Slot& slot,
                     program::Template& made, std::vector<KnownCall::Tensor>& results,
                     std::vector<HandleId>& inputs) const;

  Graph& graph_;
  Names& names_;
  Sink* const sink_;
  std::size_t bytes_ = 0;
  std::uint64_t attempt_at_ = 0;  // commands before this one need no attempt
  std::uint8_t last_ = 0;         // the slot of the template that ran last
  bool open_ = false;             // only the first steps of that template have run
  Match match_;                   // the last one
  // Of the present segment: the last instructions, and the number of all.
  std::uint64_t window_ = 0;
  std::size_t since_ = 0;
  std::array<std::unique_ptr<Slot>, std::size_t{1} << kSlotBits> slots_;
  struct Skipped {
    std::uint64_t end = 0;   // the command after the instructions that were unfit last
    std::uint8_t slot = 0;   // that of their segment
    std::uint16_t room = 0;  // number of instructions of that segment that follow them
  };
  Skipped skipped_;
};

}  // namespace teletensor::autograd
