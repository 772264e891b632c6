// The end of a trace: the recorded commands are executed again (replay.h), and the resulting
// instructions become the program and, for outputs that require grad, the program of their
// gradients.

#include <algorithm>

#include "engine/autograd/trace/program_builder.h"
#include "engine/autograd/trace/replay.h"
#include "engine/ops/verify.h"

namespace teletensor::autograd {

using core::Geometry;
using core::invalid;
using core::Layout;
using core::Status;
using program::HandleId;
using program::Instruction;
using program::Operand;
using program::Program;
using program::ValueId;

namespace {

// Returns true if the operands are equal, apart from numbers that the call supplies.
bool same_operand(const Operand& a, const Operand& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == Operand::Kind::kTensor) return *a.geometry == *b.geometry;
  if (a.kind != Operand::Kind::kNumber || a.number == b.number) return true;
  return a.number.argument != 0 && a.number.argument == b.number.argument;
}

}  // namespace

class Tracer::Ending {
 public:
  using Site = std::function<std::string(std::uint64_t)>;
  Ending(const Tracer& tracer, const std::vector<Handle*>& outputs, std::uint64_t drawn,
         const Site& site, const std::set<HandleId>* only)
      : tracer_(tracer),
        known_(tracer.known_),
        catalog_(tracer.graph_.catalog()),
        outputs_(outputs),
        drawn_(drawn),
        site_(site),
        only_(only),
        replay_(tracer, {}) {}

  core::Result<Traced> run() {
    if (Status status = replay_.run(); !status.ok()) {
      return Status(status.code(),
                    "this cannot be captured: " + status.message() +
                        " (does backward() reach tensors computed before the captured call?)");
    }
    for (Handle* each : outputs_) {
      HandleRef h = replay_.front().find(each->id);
      if (!h) return core::internal("trace: an output is unknown");
      results_.push_back(std::move(h));
    }
    TT_RETURN_IF_ERROR(expand(replay_, own_));
    number_values();
    TT_RETURN_IF_ERROR(count_draws());
    choose_inputs();
    TT_RETURN_IF_ERROR(add_inputs());
    TT_RETURN_IF_ERROR(add_steps());
    TT_RETURN_IF_ERROR(add_rebinds());
    TT_RETURN_IF_ERROR(add_results());
    TT_RETURN_IF_ERROR(add_gradients());
    if (!own_.roots.empty() && !own_.wanted.empty()) TT_RETURN_IF_ERROR(add_backward());
    TT_RETURN_IF_ERROR(ops::verify(forward_.program(), catalog_));
    out_.grads_matter = tracer_.grads_matter_;
    out_.hooks_matter = tracer_.hooks_matter_;
    out_.program = forward_.take();
    return std::move(out_);
  }

 private:
  // The instructions of the outputs' backward, which follow those of the recorded commands, and the
  // tensors that this backward starts from and computes.
  struct Expansion {
    std::vector<HandleRef> roots, seeds, wanted, gradients;
  };
  Status expand(Replay& run, Expansion& to) const;
  void number_values();
  std::set<std::uint32_t> decisive();
  bool only_numbers(const std::set<std::uint32_t>& tags) const;
  Status count_draws();
  void choose_inputs();
  Status add_inputs();
  Status add_steps();
  Status add_rebinds();
  Status add_results();
  Status add_gradients();
  Status add_backward();

  // The new .grad of outer tensor k, or null if the function has not set one.
  HandleRef new_grad(std::size_t k) {
    const HandleRef& h = replay_.strangers()[k];
    const HandleRef before =
        known_[k].grad ? replay_.front().find(known_[k].grad->id) : HandleRef();
    return h->grad == before ? HandleRef() : h->grad;
  }
  const program::ValueRef& original(std::size_t k) const {
    return replay_.original(known_[k].cell);
  }
  std::uint32_t add_result(const HandleRef& h);
  // Adds a parameter to the backward program for a value that it reads and does not compute.
  void save(const program::Value& value, ProgramBuilder& backward);

  const Tracer& tracer_;
  const std::vector<Known>& known_;
  const ops::Catalog& catalog_;
  const std::vector<Handle*>& outputs_;
  const std::uint64_t drawn_;
  const Site& site_;
  const std::set<HandleId>* const only_;
  Replay replay_;
  std::vector<HandleRef> results_;
  Expansion own_;
  Traced out_;
  struct Numbers {                                   // the numbers that the call supplies
    std::map<std::uint32_t, core::Number> values;    // value of each number, by tag
    std::map<std::uint32_t, std::uint32_t> indices;  // tag -> index of the number
    std::vector<core::Number> examples;
  } numbers_;
  std::vector<std::size_t> order_;  // outer tensors in the order of the parameters
  // Range of elements that the parameters on a cell cover.
  std::map<const Cell*, std::pair<std::int64_t, std::int64_t>> extent_;
  std::map<std::size_t, std::uint32_t> input_of_;  // index of the outer tensor -> parameter
  std::map<const Cell*, std::uint32_t> parameter_of_cell_;
  std::map<const Cell*, ValueId> rebound_;  // the final contents of the parameters' storages
  std::map<const Handle*, std::uint32_t> result_of_;
  // Key: cell and dtype.
  std::map<std::pair<const Cell*, core::DType>, std::uint32_t> result_of_cell_;
  ProgramBuilder forward_;
};

Status Tracer::Ending::expand(Replay& run, Expansion& to) const {
  Front& f = run.front();
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    HandleRef h = f.find(outputs_[i]->id);
    const bool first =
        std::find(outputs_.begin(), outputs_.begin() + static_cast<std::ptrdiff_t>(i),
                  outputs_[i]) == outputs_.begin() + static_cast<std::ptrdiff_t>(i);
    const bool stranger = tracer_.by_id_.contains(outputs_[i]->id);
    if (only_ != nullptr && !only_->contains(outputs_[i]->id)) continue;
    if (!first || stranger || !h->requires_grad()) continue;
    to.roots.push_back(h);
    const Layout layout{h->layout.dtype, h->layout.device, Geometry(h->shape())};
    to.seeds.push_back(f.graph().objects().adopt(
        layout,
        core::make_ref<program::Value>(layout.dtype, layout.device, layout.geometry.numel())));
  }
  for (std::size_t k = 0; k < known_.size(); ++k) {
    if (known_[k].requires_grad) to.wanted.push_back(run.strangers()[k]);
  }
  if (to.roots.empty() || to.wanted.empty()) return {};
  // Leaves out the outputs whose history a backward() inside the function has used up.
  for (std::size_t i = to.roots.size(); i-- > 0;) {
    if (f.differentiable(to.roots[i], to.seeds[i], to.wanted)) continue;
    to.roots.erase(to.roots.begin() + static_cast<std::ptrdiff_t>(i));
    to.seeds.erase(to.seeds.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (to.roots.empty()) return {};
  const Status status = f.gradients(to.roots, to.seeds, to.wanted, to.gradients);
  if (!run.stopped_at()) return status;
  const std::string line = site_(*run.stopped_at());
  return invalid(
      "this cannot be captured: it gives back a tensor that requires grad, and the derivative of " +
      (line.empty() ? "a line" : line) +
      " is not made of ops but a function of its own (an autograd.Function's backward, or the "
      "program "
      "of a scripted or captured function): call backward() inside the captured function, give "
      "back "
      "a detach()ed tensor, or call the function without capturing it");
}

// ---------------------------------------------------------------- numbers

// Determines which tagged numbers can be arguments of the program: those whose value is used only
// as a number.
void Tracer::Ending::number_values() {
  std::set<std::uint32_t> tags;
  for (const Recorded& each : tracer_.commands_) {
    const auto* apply = std::get_if<program::Apply>(&each.command);
    for (std::size_t i = 0; apply != nullptr && i < apply->arguments.size(); ++i) {
      const program::Argument& argument = apply->arguments[i];
      if (argument.kind == program::Argument::Kind::kNumber && argument.number.argument != 0) {
        numbers_.values.emplace(argument.number.argument, argument.number);
        tags.insert(argument.number.argument);
      }
    }
  }
  for (const std::uint32_t tag : decisive()) {
    out_.fixed_tags.push_back(tag);
    numbers_.values.erase(tag);
    tags.erase(tag);
  }
  if (!tags.empty() && !only_numbers(tags)) {
    for (const std::uint32_t tag : tags) {
      if (only_numbers({tag})) continue;
      out_.fixed_tags.push_back(tag);
      numbers_.values.erase(tag);
    }
  }
  for (const auto& [tag, number] : numbers_.values) {
    numbers_.indices.emplace(tag, static_cast<std::uint32_t>(numbers_.examples.size()));
    numbers_.examples.push_back(number);
    numbers_.examples.back().argument = 0;
    out_.tags.push_back(tag);
  }
}

// The tags of numbers whose value determines the layout of an op's result, or whether the op
// refuses the call, as the line that issues it would.
std::set<std::uint32_t> Tracer::Ending::decisive() {
  std::set<std::uint32_t> found;
  for (const Instruction& instruction : replay_.instructions()) {
    if (instruction.op == kCall || catalog_.at(instruction.op).infer == nullptr) continue;
    std::vector<Layout> layouts(instruction.operands.size());
    std::vector<ops::OperandInfo> infos(instruction.operands.size());
    for (std::size_t i = 0; i < infos.size(); ++i) {
      const Operand& operand = instruction.operands[i];
      if (operand.kind == Operand::Kind::kNumber) infos[i].number = &operand.number;
      if (operand.kind != Operand::Kind::kTensor) continue;
      layouts[i] = {operand.dtype, operand.value->device, *operand.geometry};
      infos[i].layout = &layouts[i];
    }
    for (std::size_t i = 0; i < infos.size(); ++i) {
      const std::uint32_t tag = infos[i].number == nullptr ? 0 : infos[i].number->argument;
      if (tag == 0 || found.contains(tag)) continue;
      const ops::OpDef& op = catalog_.at(instruction.op);
      const std::span<const std::uint32_t> counts(instruction.counts.data(),
                                                  instruction.counts.size());
      const ops::Decides decides = ops::decided_by(op, infos, counts, *instruction.attributes, i);
      if (decides.layout || decides.refusal) found.insert(tag);
    }
  }
  return found;
}

// Replays with other values for the tagged numbers. Returns false if an attribute, an untagged
// number or the sequence of instructions depends on them.
bool Tracer::Ending::only_numbers(const std::set<std::uint32_t>& tags) const {
  Replay other(tracer_, tags);
  Expansion others;
  if (!other.run().ok() || !expand(other, others).ok() ||
      other.instructions().size() != replay_.instructions().size()) {
    return false;
  }
  for (std::size_t i = 0; i < replay_.instructions().size(); ++i) {
    const Instruction& a = replay_.instructions()[i];
    const Instruction& b = other.instructions()[i];
    if (a.op != b.op || a.operands.size() != b.operands.size() ||
        a.results.size() != b.results.size() || !(*a.attributes == *b.attributes)) {
      return false;
    }
    for (std::size_t k = 0; k < a.operands.size(); ++k) {
      if (!same_operand(a.operands[k], b.operands[k])) return false;
      const core::Number& n = a.operands[k].number;
      // A number that has a tag but not the tag's value is a constant that was computed from the
      // value.
      if (a.operands[k].kind == Operand::Kind::kNumber && tags.contains(n.argument) &&
          !(n == numbers_.values.at(n.argument))) {
        return false;
      }
    }
  }
  return true;
}

// Makes the ordinals of random instructions relative to the first one of the program.
Status Tracer::Ending::count_draws() {
  for (Instruction& instruction : replay_.instructions()) {
    if (instruction.op == kCall) {
      const program::Invocation& call = replay_.call_of(instruction);
      if (call.program->random_steps > 0 &&
          static_cast<std::uint64_t>(call.seed) != tracer_.seed_) {
        return invalid("a captured function cannot seed the default generator");
      }
      continue;
    }
    if (!catalog_.at(instruction.op).random) continue;
    const core::Attributes& had = *instruction.attributes;
    const std::size_t last = had.size() - 1;
    const std::uint64_t ordinal = static_cast<std::uint64_t>(had.integer(last)) - tracer_.ordinal_;
    if (static_cast<std::uint64_t>(had.integer(last - 1)) != tracer_.seed_ || ordinal >= drawn_) {
      return invalid(
          "a captured function draws random numbers from the default generator only, and cannot "
          "seed it");
    }
    core::Attributes attributes;
    for (std::size_t i = 0; i + 1 < last; ++i) attributes.push_back(had.at(i));
    attributes.push_back(core::Attribute::of(std::int64_t{0}));
    attributes.push_back(core::Attribute::of(static_cast<std::int64_t>(ordinal)));
    instruction.attributes = replay_.interner().attributes(attributes);
  }
  return {};
}

// ---------------------------------------------------------------- the forward program

// Selects the outer tensors that become parameters: the arguments, and all that an instruction
// reads or writes.
void Tracer::Ending::choose_inputs() {
  std::set<const program::Value*> used;
  for (const Instruction& instruction : replay_.instructions()) {
    for (const Operand& operand : instruction.operands) used.insert(operand.value.get());
  }
  for (const HandleRef& h : results_) used.insert(h->cell->value.get());
  for (const HandleRef& h : own_.gradients) {
    if (h) used.insert(h->cell->value.get());
  }
  for (std::size_t k = 0; k < known_.size(); ++k) {
    if (known_[k].argument >= 0) order_.push_back(k);
  }
  std::sort(order_.begin(), order_.end(),
            [&](std::size_t a, std::size_t b) { return known_[a].argument < known_[b].argument; });
  for (std::size_t k = 0; k < known_.size(); ++k) {
    const bool read = used.contains(original(k).get());
    const bool written = replay_.strangers()[k]->cell->value != original(k);
    if (known_[k].argument < 0 && (read || written || new_grad(k))) order_.push_back(k);
  }
}

Status Tracer::Ending::add_inputs() {
  for (const std::size_t k : order_) {
    const Geometry& g = known_[k].layout.geometry;
    if (known_[k].layout.dtype != original(k)->dtype) {
      return invalid(
          "a captured function cannot use two tensors of different dtypes from outside that share "
          "their memory; make the view in the function, or pass a clone()");
    }
    const auto [at, added] = extent_.try_emplace(known_[k].cell, g.offset, g.storage_end());
    at->second.first = std::min(at->second.first, g.offset);
    at->second.second = std::max(at->second.second, g.storage_end());
  }
  for (const std::size_t k : order_) {
    const Known& known = known_[k];
    const auto [begin, end] = extent_.at(known.cell);
    Traced::Input input;
    input.handle = known.handle;
    input.argument = known.argument;
    input.has_grad = known.grad != nullptr;
    input.requires_grad = known.requires_grad;
    input_of_[k] = forward_.parameter(*original(k), known.layout.geometry, begin, end - begin);
    parameter_of_cell_.try_emplace(replay_.strangers()[k]->cell.get(), input_of_[k]);
    out_.inputs.push_back(std::move(input));
  }
  for (const std::size_t k : order_) {
    const auto owner = tracer_.owner_of_grad_.find(known_[k].handle->id);
    if (known_[k].argument >= 0 || owner == tracer_.owner_of_grad_.end()) continue;
    const auto leaf = input_of_.find(tracer_.by_id_.at(owner->second));
    if (leaf != input_of_.end()) {
      out_.inputs[input_of_[k]].gradient_of = static_cast<int>(leaf->second);
    }
  }
  return {};
}

Status Tracer::Ending::add_steps() {
  for (const auto& [value, bytes] : replay_.literals()) forward_.literal(*value, bytes);
  for (std::size_t i = 0; i < replay_.forward(); ++i) {
    const Instruction& instruction = replay_.instructions()[i];
    if (instruction.op == kCall) {
      forward_.call(replay_.call_of(instruction), tracer_.ordinal_, catalog_);
    } else {
      TT_RETURN_IF_ERROR(
          forward_.step(instruction, numbers_.indices, forward_.origin(site_(instruction.seq))));
    }
  }
  forward_.program().numbers = numbers_.examples;
  forward_.program().random_steps = drawn_;
  return {};
}

Status Tracer::Ending::add_rebinds() {
  bool only_expanded = false;
  for (const std::size_t k : order_) {
    const HandleRef& h = replay_.strangers()[k];
    if (h->node != nullptr) {
      return invalid(
          "a captured function cannot write a tensor from outside in place while gradients are "
          "recorded; do it under no_grad(), or return a new tensor");
    }
    const Cell* const cell = h->cell.get();
    if (h->cell->value == original(k)) continue;
    if (rebound_.contains(cell)) continue;
    // A call writes through a view without overlaps; the function may have read expanded ones too.
    if (known_[k].layout.geometry.overlaps_itself()) {
      only_expanded = true;
      continue;
    }
    const std::uint32_t parameter = input_of_.at(k);
    rebound_[cell] = forward_.rebound(parameter, *h->cell->value);
    forward_.program().rebinds.push_back({parameter, rebound_[cell]});
  }
  for (const std::size_t k : order_) {
    const HandleRef& h = replay_.strangers()[k];
    if (only_expanded && h->cell->value != original(k) && !rebound_.contains(h->cell.get())) {
      return invalid("a captured function cannot write an expanded tensor from outside");
    }
  }
  return {};
}

std::uint32_t Tracer::Ending::add_result(const HandleRef& h) {
  const auto found = result_of_.find(h.get());
  if (found != result_of_.end()) return found->second;
  Program& program = forward_.program();
  const auto index = static_cast<std::uint32_t>(program.body.results.size());
  result_of_[h.get()] = index;
  // If a result shows the storage of a parameter or of another result as another dtype, it is a
  // copy.
  const auto parameter = parameter_of_cell_.find(h->cell.get());
  const bool shared =
      parameter != parameter_of_cell_.end() &&
      program.values[program.body.parameters[parameter->second].value].dtype == h->layout.dtype;
  const auto rebound = rebound_.find(h->cell.get());
  if (shared && rebound != rebound_.end()) {
    program::View& view = program.body.results.emplace_back();
    view = {rebound->second, h->geometry()};
    view.geometry.offset -= forward_.base_of(view.value);
  } else {
    program.body.results.push_back(forward_.view(*h->cell->value, h->geometry(), h->layout.dtype));
  }
  if (shared) {
    program.aliases.push_back({index, true, parameter->second});
  } else {
    const auto [at, added] = result_of_cell_.try_emplace({h->cell.get(), h->layout.dtype}, index);
    if (!added) program.aliases.push_back({index, false, at->second});
  }
  return index;
}

Status Tracer::Ending::add_results() {
  for (std::size_t i = 0; i < results_.size(); ++i) {
    TracedOutput& output = out_.outputs.emplace_back();
    const auto stranger = tracer_.by_id_.find(outputs_[i]->id);
    output.requires_grad =
        std::find(own_.roots.begin(), own_.roots.end(), results_[i]) != own_.roots.end();
    if (stranger == tracer_.by_id_.end()) {
      output.index = add_result(results_[i]);
      continue;
    }
    output.is_input = true;
    if (!input_of_.contains(stranger->second)) {
      return core::internal("trace: an output from outside is no parameter");
    }
    output.index = input_of_.at(stranger->second);
  }
  return {};
}

Status Tracer::Ending::add_gradients() {
  for (const std::size_t k : order_) {
    const HandleRef grad = new_grad(k);
    // A .grad that the function removed needs no entry: the next call finds no .grad, so it uses
    // another program.
    if (!grad) continue;
    if (known_[k].has_history) {
      return invalid(
          "backward() in a captured function reaches a tensor that was computed before it; call "
          "backward() outside, or capture that computation as well");
    }
    if (tracer_.by_id_.contains(grad->id)) {
      return invalid(
          "a captured function cannot assign a tensor from outside to the .grad of another tensor");
    }
    forward_.program().gradients.push_back({input_of_[k], add_result(grad)});
  }
  return {};
}

// ---------------------------------------------------------------- the backward of the outputs

// The saved value is either a parameter of the forward program that no step has overwritten, or it
// becomes one more result of the forward program.
void Tracer::Ending::save(const program::Value& value, ProgramBuilder& backward) {
  for (const std::size_t k : order_) {
    if (original(k).get() != &value || rebound_.contains(replay_.strangers()[k]->cell.get())) {
      continue;
    }
    const auto [begin, end] = extent_.at(known_[k].cell);
    backward.parameter(value, known_[k].layout.geometry, begin, end - begin);
    out_.saved.push_back({true, input_of_[k]});
    return;
  }
  Program& program = forward_.program();
  const ValueId id = forward_.id_of(value);
  const std::int64_t elements = program.values[id].elements;
  const std::int64_t base = forward_.base_of(id);
  out_.saved.push_back({false, static_cast<std::uint32_t>(program.body.results.size())});
  program.body.results.push_back({id, Geometry(core::Dims{elements})});
  backward.parameter(value, Geometry(core::Dims{elements}, core::Dims{1}, base), base, elements);
}

Status Tracer::Ending::add_backward() {
  ProgramBuilder backward;
  std::set<const program::Value*> made;
  for (const HandleRef& seed : own_.seeds) made.insert(seed->cell->value.get());
  const auto read = [&](const program::Value* value) {
    if (value == nullptr || made.contains(value) || backward.has(*value)) return;
    save(*value, backward);
  };
  for (std::size_t i = replay_.forward(); i < replay_.instructions().size(); ++i) {
    const Instruction& step = replay_.instructions()[i];
    for (const Operand& operand : step.operands) read(operand.value.get());
    for (const program::ResultSlot& slot : step.results) made.insert(slot.value.get());
  }
  for (const HandleRef& h : own_.gradients) {
    if (h) read(h->cell->value.get());
  }
  for (std::size_t i = 0; i < own_.roots.size(); ++i) {
    const Handle& seed = *own_.seeds[i];
    backward.parameter(*seed.cell->value, seed.geometry(), 0, seed.geometry().numel());
    const auto at = std::find(results_.begin(), results_.end(), own_.roots[i]);
    out_.differentiated.push_back(static_cast<std::uint32_t>(at - results_.begin()));
  }
  for (std::size_t i = replay_.forward(); i < replay_.instructions().size(); ++i) {
    const Instruction& step = replay_.instructions()[i];
    if (step.op == kCall) return core::internal("trace: a call of a backward");
    TT_RETURN_IF_ERROR(backward.step(step, numbers_.indices, backward.origin(site_(step.seq))));
  }
  Program& p = backward.program();
  std::size_t w = 0;
  for (std::size_t k = 0; k < known_.size(); ++k) {
    if (!known_[k].requires_grad) continue;
    const HandleRef& gradient = own_.gradients[w++];
    if (!gradient) continue;
    out_.wanted.push_back(input_of_.at(k));
    p.body.results.push_back(
        backward.view(*gradient->cell->value, gradient->geometry(), gradient->layout.dtype));
  }
  p.numbers = numbers_.examples;
  TT_RETURN_IF_ERROR(ops::verify(p, catalog_));
  out_.backward = backward.take();
  return {};
}

core::Result<Traced> Tracer::finish(const std::vector<Handle*>& outputs, std::uint64_t drawn,
                                    const std::function<std::string(std::uint64_t)>& site,
                                    const std::set<HandleId>* roots) {
  TT_RETURN_IF_ERROR(refused_);
  return Ending(*this, outputs, drawn, site, roots).run();
}

}  // namespace teletensor::autograd
