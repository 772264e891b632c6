#include "engine/autograd/known/templates.h"

#include <algorithm>
#include <utility>

namespace teletensor::autograd {

using program::Argument;
using program::Command;
using program::KnownApply;
using program::Release;
using program::Repeated;
using program::Template;

namespace {

constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15ull;
// One of so many instructions ends a segment that has the usual length.
constexpr int kEndBits = 3;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * kFactor;
  return hash ^ hash >> 32;
}

std::uint64_t number_of(const KnownApply& known) {
  return reinterpret_cast<std::uintptr_t>(&known) / alignof(KnownApply);
}

// Returns the number of commands up to the last of the first `instructions` instructions.
std::size_t commands_up_to(std::size_t instructions, std::span<const Command> commands) {
  std::size_t at = 0;
  while (at < commands.size() && instructions > 0) {
    if (!std::holds_alternative<Release>(commands[at++])) --instructions;
  }
  return at;
}

}  // namespace

std::size_t Templates::attempt(std::uint64_t seq, std::span<const Command> commands) {
  const std::unique_ptr<Slot>& last = slots_[last_];
  if (std::exchange(open_, false) && seq == attempt_at_) {
    if (const std::size_t executed = attempt_part(seq, *last, commands)) return executed;
  } else if (since_ == 0 && last != nullptr) {
    Slot* const next = slots_[last->follower].get();
    if (next != nullptr && (match(*next, commands) || match_.at_end)) {
      if (const std::size_t executed = run(seq, *next)) {
        last_ = last->follower;
        next->lives = kLives;
        return executed;
      }
    }
  }
  const Segment segment = scan(commands);
  attempt_at_ = seq + segment.commands;
  if (!segment.whole) return 0;
  const std::size_t place = segment.hash >> (64 - kSlotBits);
  if (slots_[place] == nullptr) slots_[place] = std::make_unique<Slot>();
  Slot& slot = *slots_[place];
  if (slot.hash != segment.hash) {
    if (slot.lives > 0) {
      --slot.lives;
    } else {
      set(slot, nullptr);
      slot = {};
      slot.hash = segment.hash;
      slot.lives = kLivesSeenOnce;
    }
    return 0;
  }
  if (!slot.tried || slot.lives == 0 ||
      (slot.repeated != nullptr && slot.interner != sink_->interner().number())) {
    learn(slot, commands);
  }
  if (slot.repeated == nullptr) {
    if (slot.lives > 0) --slot.lives;
    skip_unfit(seq, static_cast<std::uint8_t>(place), segment, commands);
    return 0;
  }
  if (!match(slot, commands)) {
    if (slot.lives > 0) --slot.lives;
    return 0;
  }
  slot.lives = kLives;
  if (slots_[last_] != nullptr) slots_[last_]->follower = static_cast<std::uint8_t>(place);
  last_ = static_cast<std::uint8_t>(place);
  return run(seq, slot);
}

// Executes no template for the unfit instructions at the begin of a segment. A segment that follows
// such instructions and is unfit too extends them, as far as they are part of the same segment, so
// that a stream without templates is scanned about once and not once for each instruction.
void Templates::skip_unfit(std::uint64_t seq, std::uint8_t place, const Segment& segment,
                           std::span<const Command> commands) {
  Slot& slot = *slots_[place];
  if (skipped_.end == seq && slots_[skipped_.slot]->repeated == nullptr) {
    slots_[skipped_.slot]->unfit += std::min(slot.unfit, skipped_.room);
  }
  attempt_at_ = seq + commands_up_to(slot.unfit, commands);
  const std::size_t room = segment.steps - std::min<std::size_t>(segment.steps, slot.unfit);
  skipped_ = {attempt_at_, place, static_cast<std::uint16_t>(room)};
  window_ = since_ = 0;
}

// Continues a template whose first steps have run.
std::size_t Templates::attempt_part(std::uint64_t seq, Slot& slot,
                                    std::span<const Command> commands) {
  if (slot.repeated == nullptr || slot.interner != sink_->interner().number() ||
      names_.next() != match_.base + match_.steps) {
    return 0;
  }
  (void)match_more(slot, commands);
  return run(seq, slot);
}

// Looks for the end of the segment. A segment that began in an earlier frame, or whose end is in a
// later one, is not whole.
Templates::Segment Templates::scan(std::span<const Command> commands) {
  Segment segment;
  const bool begins = since_ == 0;
  const HandleId base = names_.next();
  while (segment.commands < commands.size()) {
    const Command& command = commands[segment.commands++];
    if (std::holds_alternative<Release>(command)) continue;
    const auto* repeated = std::get_if<Repeated>(&command);
    if (repeated == nullptr) {
      segment.whole = begins && since_ >= kMinSteps;
      window_ = since_ = 0;
      break;
    }
    const std::uint64_t number = number_of(*repeated->known);
    std::uint64_t handles = 0;  // every handle from outside of the segment has the same byte
    for (const HandleId id : repeated->handles) {
      handles = handles << 8 | (id >= base ? id - base + 2 : std::uint64_t{id != 0});
    }
    segment.hash = mixed(segment.hash ^ handles << 32, number);
    window_ = window_ << 8 ^ number;
    ++segment.steps;
    ++since_;
    const bool ends = since_ >= kUsualSteps && (window_ * kFactor) >> (64 - kEndBits) == 0;
    if (!ends && since_ < kMaxSteps) continue;
    segment.whole = begins;
    window_ = since_ = 0;
    break;
  }
  return segment;
}

// ---------------------------------------------------------------- matching

bool Templates::match(const Slot& slot, std::span<const Command> commands) {
  match_.at_end = false;
  if (slot.repeated == nullptr || slot.interner != sink_->interner().number()) return false;
  match_.base = names_.next();
  match_.inputs = match_.steps = 0;
  match_.dead_inputs = 0;
  return match_steps(slot, commands);
}

bool Templates::match_more(const Slot& slot, std::span<const Command> commands) {
  for (std::size_t input = 0; input < match_.inputs; ++input) {
    match_.input[input] = names_.find(match_.input_id[input]);
    if (match_.input[input] == nullptr) match_.dead_inputs |= 1u << input;
  }
  return match_steps(slot, commands);
}

bool Templates::match_steps(const Slot& slot, std::span<const Command> commands) {
  match_.first = match_.steps;
  match_.commands = match_.released_ids = 0;
  match_.released = match_.reads_earlier = 0;
  // Includes the releases after the last step.
  for (; match_.commands < commands.size(); ++match_.commands) {
    const Command& command = commands[match_.commands];
    if (const auto* repeated = std::get_if<Repeated>(&command)) {
      if (match_.steps == slot.steps.size() || !match_step(slot, *repeated)) break;
    } else if (const auto* release = std::get_if<Release>(&command)) {
      if (!match_release(*release)) break;
    } else {
      break;
    }
  }
  match_.at_end = match_.commands == commands.size();
  return match_.steps == slot.steps.size();
}

bool Templates::match_step(const Slot& slot, const Repeated& command) {
  const Step& step = slot.steps[match_.steps];
  if (command.known != step.known) return false;
  for (std::size_t i = 0; i < step.from.size(); ++i) {
    const int from = step.from[i];
    const HandleId id = command.handles[i];
    if (from >= 0) {
      const auto made_by = static_cast<std::size_t>(from);
      if (id != match_.base + made_by) return false;
      if (made_by < match_.first ? !match_earlier(made_by, id)
                                 : (match_.released >> from & 1) != 0) {
        return false;
      }
    } else if (from != Step::kNoHandle) {
      const auto input = static_cast<std::size_t>(-2 - from);
      if (input < match_.inputs) {
        if (id != match_.input_id[input] || (match_.dead_inputs >> input & 1) != 0) return false;
      } else if (!match_input(slot, input, id)) {
        return false;
      }
    }
  }
  match_.command[match_.steps++] = static_cast<std::uint16_t>(match_.commands);
  return true;
}

// A result of a step that came in an earlier frame. No command came in between that could have
// changed it, apart from its release.
bool Templates::match_earlier(std::size_t step, HandleId id) {
  if (names_.find(id) == nullptr || match_.has_released(id)) return false;
  match_.reads_earlier |= std::uint32_t{1} << step;
  return true;
}

bool Templates::match_input(const Slot& slot, std::size_t input, HandleId id) {
  const Template& made = *slot.repeated;
  Handle* const h = names_.find(id);
  if (h == nullptr || h->cell->shared || h->layout.dtype != made.inputs[input] ||
      !(h->layout.device == made.device) || h->geometry_in(sink_->interner()) != made.geometry ||
      (slot.inputs[input].may_be_recorded &&
       KnownCall::history_of(*h) != slot.inputs[input].history) ||
      match_.has_released(id)) {
    return false;
  }
  match_.input[input] = h;
  match_.input_id[input] = id;
  match_.inputs = input + 1;
  return true;
}

// The handles must be alive, so that the command can be executed without an error.
bool Templates::match_release(const Release& release) {
  const HandleId made = match_.base + match_.first;  // the first handle of this part
  const std::uint32_t released = match_.released, dead_inputs = match_.dead_inputs;
  const std::size_t released_ids = match_.released_ids;
  for (const HandleId id : release.handles) {
    bool ok = false;
    if (id >= made) {
      const HandleId step = id - match_.base;
      ok = step < match_.steps && (match_.released >> step & 1) == 0;
      if (ok) match_.released |= std::uint32_t{1} << step;
    } else {
      ok = match_.released_ids < kMaxReleased && names_.find(id) != nullptr &&
           !match_.has_released(id);
      if (ok) match_.released_id[match_.released_ids++] = id;
      for (std::size_t input = 0; input < match_.inputs; ++input) {
        if (match_.input_id[input] == id) match_.dead_inputs |= 1u << input;
      }
    }
    if (!ok) {
      match_.released = released;
      match_.dead_inputs = dead_inputs;
      match_.released_ids = released_ids;
      return false;
    }
  }
  return true;
}

// ---------------------------------------------------------------- execution

std::size_t Templates::run(std::uint64_t seq, const Slot& slot) {
  const Template& made = *slot.repeated;
  const std::size_t first = match_.first, end = match_.steps;
  const bool whole = end == made.steps.size(), runs = end - first >= kMinPart;
  // What follows belongs to the same segment, unless this is its end. Commands that do not run
  // together are counted by scan().
  since_ = !runs ? first : whole ? 0 : end;
  window_ = 0;
  for (std::size_t s = since_ - std::min(since_, sizeof window_); s < since_; ++s) {
    window_ = window_ << 8 ^ number_of(*slot.steps[s].known);
  }
  if (!runs) return 0;
  open_ = !whole && match_.at_end;
  attempt_at_ = seq + match_.commands;
  auto call = std::make_unique<program::TemplateCall>();
  call->repeated = slot.repeated;
  call->first = static_cast<std::uint8_t>(first);
  call->end = static_cast<std::uint8_t>(end);
  call->first_seq = seq + match_.command[first];
  for (std::size_t i = 0; i < match_.inputs; ++i) {
    if (match_.input[i] != nullptr) call->inputs[i] = match_.input[i]->cell->value;
  }
  for (std::size_t s = 0; s < first; ++s) {
    if ((match_.reads_earlier >> s & 1) != 0) {
      call->results[s] = names_.find(match_.base + s)->cell->value;
    }
  }
  core::Layout layout{core::DType::kF32, made.device, *made.geometry};
  StepHandles handles;
  for (std::size_t s = first; s < end; ++s) {
    call->commands[s] = static_cast<std::uint16_t>(match_.command[s] - match_.command[first]);
    const bool released = (match_.released >> s & 1) != 0;
    if (released && !slot.records) continue;
    layout.dtype = made.steps[s].dtype;
    call->results[s] = core::make_ref<program::Value>(layout.dtype, layout.device, made.elements);
    HandleRef h = graph_.objects().adopt(layout, made.elements, call->results[s]);
    h->interned = {made.geometry, slot.interner};
    if (slot.records) {
      handles[s] = h;
      if (slot.steps[s].recorded) record(seq, slot, s, handles);
    }
    if (released) continue;
    names_.skip(match_.base + s - names_.next());
    names_.add(std::move(h));
  }
  names_.skip(match_.base + end - names_.next());
  for (std::size_t i = 0; i < match_.released_ids; ++i) (void)names_.remove(match_.released_id[i]);
  sink_->repeat(std::move(call), seq + match_.command[end - 1]);
  return match_.commands;
}

void Templates::record(std::uint64_t seq, const Slot& slot, std::size_t step,
                       const StepHandles& made) {
  const Step& each = slot.steps[step];
  std::array<Handle*, KnownApply::kMaxArguments> operands{};
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (each.from[i] >= 0) {
      const auto by = static_cast<std::size_t>(each.from[i]);
      operands[i] = by < match_.first ? names_.find(match_.base + by) : made[by].get();
    } else if (each.from[i] != Step::kNoHandle) {
      operands[i] = match_.input[static_cast<std::size_t>(-2 - each.from[i])];
    }
  }
  graph_.tape().set_seq(seq + match_.command[step]);
  const program::Apply& apply = each.known->apply;
  graph_.record_known(apply, {operands.data(), apply.arguments.size()}, made[step]);
}

// ---------------------------------------------------------------- learning

void Templates::learn(Slot& slot, std::span<const Command> commands) {
  slot.tried = true;
  slot.lives = kLives;
  set(slot, nullptr);
  slot.interner = sink_->interner().number();
  for (std::size_t most = kMaxSteps;;) {
    auto made = core::make_ref<Template>();
    describe(commands, most, slot, *made);
    slot.unfit = static_cast<std::uint16_t>(made->steps.size() + 1);
    if (made->steps.size() < kMinSteps) break;
    const std::size_t prepared = sink_->prepare(*made);
    if (prepared == made->steps.size()) {
      set(slot, made);
      return;
    }
    most = prepared;
  }
  slot.steps.clear();
  slot.inputs.clear();
}

void Templates::set(Slot& slot, core::Ref<const Template> repeated) {
  const auto bytes_of = [](const auto& each) {
    return each == nullptr ? 0 : each->bytes + each->steps.size() * sizeof(Step);
  };
  bytes_ -= bytes_of(slot.repeated);
  slot.repeated = std::move(repeated);
  bytes_ += bytes_of(slot.repeated);
}

void Templates::describe(std::span<const Command> commands, std::size_t most, Slot& slot,
                         Template& made) const {
  slot.steps.clear();
  slot.inputs.clear();
  slot.records = false;
  std::vector<KnownCall::Tensor> results;
  std::vector<HandleId> inputs;
  for (std::size_t at = 0; at < commands.size() && made.steps.size() < most; ++at) {
    if (std::holds_alternative<Release>(commands[at])) continue;
    const auto* repeated = std::get_if<Repeated>(&commands[at]);
    if (repeated == nullptr ||
        !describe_step(*repeated, names_.next(), slot, made, results, inputs)) {
      break;
    }
  }
}

bool Templates::describe_step(const Repeated& command, HandleId base, Slot& slot, Template& made,
                              std::vector<KnownCall::Tensor>& results,
                              std::vector<HandleId>& inputs) const {
  program::Interner& interner = sink_->interner();
  const program::Apply& apply = command.known->apply;
  if (command.known->facts == nullptr || !apply.counts.empty()) return false;
  Step step{command.known, {}};
  step.from.fill(Step::kNoHandle);
  Template::Step described;
  std::vector<KnownCall::Tensor> operands;
  std::vector<HandleId> added;  // inputs
  using History = KnownCall::History;
  History history = History::kNone;
  for (std::size_t i = 0; i < apply.arguments.size(); ++i) {
    Template::Operand& operand = described.operands.emplace_back();
    const HandleId id = command.handles[i];
    if (apply.arguments[i].kind == Argument::Kind::kNumber) {
      operand.number = apply.arguments[i].number;
    } else if (id >= base && id - base < results.size()) {
      operand.kind = Template::Operand::Kind::kStep;
      operand.index = static_cast<std::uint8_t>(id - base);
      step.from[i] = static_cast<std::int8_t>(operand.index);
      operands.push_back(results[operand.index]);
      if (slot.steps[operand.index].recorded) history = std::max(history, History::kGradient);
    } else {
      Handle* const h = id == 0 ? nullptr : names_.find(id);
      if (h == nullptr || h->cell->shared) return false;
      std::size_t input = 0;
      while (input < inputs.size() && inputs[input] != id) ++input;
      if (input == inputs.size()) {
        if (input == Template::kMaxInputs) return false;
        inputs.push_back(id);
        added.push_back(id);
      }
      operand.kind = Template::Operand::Kind::kInput;
      operand.index = static_cast<std::uint8_t>(input);
      step.from[i] = static_cast<std::int8_t>(-2 - static_cast<int>(input));
      operands.push_back({h->geometry_in(interner), h->layout.dtype, h->layout.device});
      history = std::max(history, KnownCall::history_of(*h));
    }
  }
  const auto& calls = static_cast<const KnownCalls&>(*command.known->facts);
  const KnownCall* const call = calls.find(operands, interner.number());
  if (call == nullptr || (call->records() && history == History::kView)) return false;
  step.recorded = call->records() && history == History::kGradient;
  const KnownCall::Tensor& result = call->result_tensor();
  if (made.steps.empty()) {
    made.device = result.device;
    made.geometry = result.geometry;
    made.elements = call->elements();
    const core::Geometry& g = *result.geometry;
    if (made.device.kind != core::DeviceKind::kCpu || g.offset != 0 || !g.dense() ||
        g.numel() != made.elements || made.elements == 0 || made.elements > kMaxElements) {
      return false;
    }
  }
  operands.push_back(result);
  for (const KnownCall::Tensor& tensor : operands) {
    if (tensor.geometry != made.geometry || !(tensor.device == made.device)) return false;
  }
  described.op = apply.op;
  described.dtype = result.dtype;
  described.attributes = call->attributes();
  for (const HandleId id : added) {
    const Handle& h = *names_.find(id);
    made.inputs.push_back(h.layout.dtype);
    slot.inputs.push_back({false, KnownCall::history_of(h)});
  }
  for (const Template::Operand& operand : described.operands) {
    if (operand.kind != Template::Operand::Kind::kInput) continue;
    slot.inputs[operand.index].may_be_recorded |= call->records();
  }
  slot.records = slot.records || step.recorded;
  results.push_back(result);
  slot.steps.push_back(std::move(step));
  made.steps.push_back(std::move(described));
  return true;
}

}  // namespace teletensor::autograd
