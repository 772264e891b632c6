#include "engine/ops/verify.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/ops/sizes.h"

namespace teletensor::ops {

using core::Geometry;
using core::invalid;
using core::Layout;
using core::Status;
using program::Block;
using program::kNoValue;
using program::Operand;
using program::Program;
using program::Step;
using program::StepOperand;
using program::StepResult;
using program::ValueId;

namespace {

constexpr int kMaxDepth = 8;

class Verifier {
 public:
  Verifier(const Program& program, const Catalog& catalog, core::Clock::time_point until)
      : program_(program), catalog_(catalog), until_(until), facts_(program.values.size()) {}

  Status run() {
    for (std::size_t v = 0; v < program_.values.size(); ++v) {
      const program::ValueType& type = program_.values[v];
      std::int64_t bytes = 0;
      if (type.elements < 0 ||
          __builtin_mul_overflow(type.elements,
                                 static_cast<std::int64_t>(core::size_of(type.dtype)), &bytes) ||
          bytes > INT64_MAX / 16) {
        return fail("value " + std::to_string(v) + " is too large to address");
      }
    }
    const Block& body = program_.body;
    TT_RETURN_IF_ERROR(parameters(body, true));
    for (const program::Literal& literal : program_.literals) TT_RETURN_IF_ERROR(check(literal));
    TT_RETURN_IF_ERROR(steps(body, 0));
    for (const program::View& result : body.results)
      TT_RETURN_IF_ERROR(readable(result, "a result"));
    TT_RETURN_IF_ERROR(surface());
    if (late_) return Status(core::Code::kDeadlineExceeded, "program: checking it took too long");
    return {};
  }

 private:
  struct Fact {
    bool made = false, visible = false;
    // The parameter's value that this value overwrites, or itself if it is a parameter's value.
    ValueId root = kNoValue;
    ValueId latest = kNoValue;  // for a parameter's value: the value that replaces it now
  };

  Status fail(std::string text) const {
    return invalid("program: " + (where_.empty() ? "" : where_ + ": ") + std::move(text));
  }
  static std::string name(ValueId v) { return "%" + std::to_string(v); }

  // Checks that shape, strides and offset stay within `elements`.
  Status inside(const Geometry& g, std::int64_t elements, const char* what) const {
    const auto count = core::checked_numel(g.shape.span());
    if (!count.ok()) return fail(std::string(what) + " has an impossible shape");
    if (g.offset < 0 || g.offset > elements) {
      return fail(std::string(what) + " begins outside of its value");
    }
    __int128 last = g.offset;
    for (int d = 0; d < g.rank(); ++d) {
      if (g.strides[d] < 0) return fail(std::string(what) + " has a negative stride");
      if (*count > 0) last += static_cast<__int128>(g.shape[d] - 1) * g.strides[d];
    }
    if (*count > 0 && last >= elements) {
      return fail(std::string(what) + " reaches outside of its value");
    }
    return {};
  }

  Status readable(const program::View& view, const char* what) const {
    if (view.value >= facts_.size()) return fail(std::string(what) + ": there is no such value");
    if (!facts_[view.value].visible) {
      return fail(std::string(what) + ": " + name(view.value) + " is not made here");
    }
    return inside(view.geometry, program_.values[view.value].elements, what);
  }

  Status make(ValueId v, const char* what) {
    if (v >= facts_.size()) return fail(std::string(what) + ": there is no such value");
    if (facts_[v].made) return fail(std::string(what) + ": " + name(v) + " is made twice");
    facts_[v].made = facts_[v].visible = true;
    scope_.push_back(v);
    return {};
  }

  // Several parameters of the body may be views of one value; in other blocks each is a new value.
  Status parameters(const Block& block, bool outer) {
    for (const program::View& p : block.parameters) {
      const bool again = outer && p.value < facts_.size() && facts_[p.value].made;
      if (!again) TT_RETURN_IF_ERROR(make(p.value, "a parameter"));
      facts_[p.value].root = facts_[p.value].latest = outer ? p.value : kNoValue;
      TT_RETURN_IF_ERROR(inside(p.geometry, program_.values[p.value].elements, "a parameter"));
    }
    return {};
  }

  Status check(const program::Literal& literal) {
    TT_RETURN_IF_ERROR(make(literal.value, "a literal"));
    const program::ValueType& type = program_.values[literal.value];
    const std::size_t unit = core::size_of(type.dtype);
    if (literal.bytes.size() % unit != 0 ||
        literal.bytes.size() / unit != static_cast<std::uint64_t>(type.elements)) {
      return fail("a literal of " + std::to_string(literal.bytes.size()) + " bytes for " +
                  std::to_string(type.elements) + " elements");
    }
    return {};
  }

  Status steps(const Block& block, int depth) {
    for (const Step& step : block.steps) {
      if (step.origin >= program_.origins.size()) {
        return fail("a step has an origin that is not listed");
      }
      switch (step.kind) {
        case Step::Kind::kOp:
          TT_RETURN_IF_ERROR(op(step, depth));
          break;
        case Step::Kind::kIf:
        case Step::Kind::kWhile:
          if (depth == kMaxDepth) return fail("blocks are nested too deeply");
          TT_RETURN_IF_ERROR(control(step, depth));
          break;
        case Step::Kind::kPast:
          TT_RETURN_IF_ERROR(past(step));
          break;
      }
    }
    return {};
  }

  // ---- control flow

  Status is_condition(const program::View& view) const {
    TT_RETURN_IF_ERROR(readable(view, "a condition"));
    if (program_.values[view.value].dtype != core::DType::kBool || view.geometry.rank() != 0) {
      return fail("a condition must be a 0-d bool");
    }
    return {};
  }

  Status same(const program::View& from, const program::View& to, const char* what) const {
    if (!(from.geometry == to.geometry) ||
        !(program_.values[from.value] == program_.values[to.value])) {
      return fail(std::string(what) + " has another type than the value that it is passed to");
    }
    return {};
  }

  Status inner(const Block& block, const Step& step, int depth, bool loops, bool condition) {
    const std::size_t outside = scope_.size();
    if (loops) {
      if (block.parameters.size() != step.operands.size()) {
        return fail(
            "a block of a loop has another number of parameters than the loop has operands");
      }
      TT_RETURN_IF_ERROR(parameters(block, false));
      for (std::size_t i = 0; i < block.parameters.size(); ++i) {
        TT_RETURN_IF_ERROR(same(step.operands[i].view, block.parameters[i], "a loop's operand"));
      }
    } else if (!block.parameters.empty()) {
      return fail("a branch must have no parameters");
    }
    TT_RETURN_IF_ERROR(steps(block, depth + 1));
    for (const program::View& r : block.results)
      TT_RETURN_IF_ERROR(readable(r, "a block's result"));
    if (condition) {
      if (block.results.size() != 1) return fail("a loop's condition must have one result");
      TT_RETURN_IF_ERROR(is_condition(block.results[0]));
    } else {
      const std::size_t results = loops ? step.operands.size() : step.results.size();
      if (block.results.size() != results) {
        return fail(
            "the number of results of a block differs from the number of results of its step");
      }
      for (std::size_t i = 0; i < results; ++i) {
        const ValueId v = step.results[i].view.value;
        if (v >= facts_.size()) return fail("a result: there is no such value");
        TT_RETURN_IF_ERROR(same(block.results[i], step.results[i].view, "a block's result"));
        if (loops) {
          TT_RETURN_IF_ERROR(same(block.results[i], block.parameters[i], "a loop's result"));
        }
      }
    }
    while (scope_.size() > outside) {
      facts_[scope_.back()].visible = false;
      scope_.pop_back();
    }
    return {};
  }

  Status control(const Step& step, int depth) {
    const bool loops = step.kind == Step::Kind::kWhile;
    where_ = loops ? "while" : "if";
    if (step.blocks.size() != 2 || step.attributes.size() != 0 ||
        (!loops && !step.counts.empty())) {
      return fail("must have two blocks and no attributes");
    }
    for (const StepOperand& operand : step.operands) {
      if (operand.kind != Operand::Kind::kTensor) return fail("its operands must be tensors");
      TT_RETURN_IF_ERROR(readable(operand.view, "an operand"));
    }
    if (loops) TT_RETURN_IF_ERROR(records(step));
    if (!loops) {
      if (step.operands.size() != 1) return fail("must have one operand, the condition");
      TT_RETURN_IF_ERROR(is_condition(step.operands[0].view));
    }
    const std::string here = where_;
    TT_RETURN_IF_ERROR(inner(step.blocks[0], step, depth, loops, loops));
    where_ = here;
    TT_RETURN_IF_ERROR(inner(step.blocks[1], step, depth, loops, false));
    where_ = here;
    for (const StepResult& result : step.results) {
      if (result.overwrites != -1) return fail("its results must not overwrite operands");
      TT_RETURN_IF_ERROR(make(result.view.value, "a result"));
      TT_RETURN_IF_ERROR(
          inside(result.view.geometry, program_.values[result.view.value].elements, "a result"));
    }
    return {};
  }

  bool is_record(const program::View& view) const {
    const program::ValueType& type = program_.values[view.value];
    return type == program::record_type(type.device) && view.geometry == program::record_geometry();
  }

  // Checks the results of a loop: one per operand, and the records.
  Status records(const Step& step) const {
    const std::size_t records = step.counts.size();
    if (step.results.size() != step.operands.size() + records + (records > 0)) {
      return fail("must have as many results as operands, and its records");
    }
    for (std::size_t i = 0; i < records; ++i) {
      if (step.counts[i] >= step.operands.size() ||
          (i > 0 && step.counts[i] <= step.counts[i - 1])) {
        return fail("records must be of operands, in ascending order");
      }
      const program::View& record = step.results[step.operands.size() + i].view;
      if (record.value >= facts_.size()) return fail("a result: there is no such value");
      const program::View& operand = step.operands[step.counts[i]].view;
      if (!is_record(record) ||
          !(program_.values[record.value].device == program_.values[operand.value].device)) {
        return fail("the type of a record differs from the type that its operand needs");
      }
    }
    if (records == 0) return {};
    const program::View& rounds = step.results.back().view;
    if (rounds.value >= facts_.size() ||
        !(program_.values[rounds.value] == program::ValueType{core::DType::kI64, {}, 1}) ||
        !(rounds.geometry == Geometry())) {
      return fail("the number of rounds must be a 0-d int64");
    }
    return {};
  }

  Status past(const Step& step) {
    where_ = "past";
    if (step.operands.size() != 2 || step.results.size() != 1 || !step.blocks.empty() ||
        step.attributes.size() != 0 || !step.counts.empty()) {
      return fail("must have two operands, a result and nothing else");
    }
    for (const StepOperand& operand : step.operands) {
      if (operand.kind != Operand::Kind::kTensor) return fail("its operands must be tensors");
      TT_RETURN_IF_ERROR(readable(operand.view, "an operand"));
    }
    const program::View& record = step.operands[0].view;
    const program::View& round = step.operands[1].view;
    if (!is_record(record)) return fail("its first operand must be a record");
    if (program_.values[round.value].dtype != core::DType::kI64 || round.geometry.rank() != 0) {
      return fail("the number of a round must be a 0-d int64");
    }
    const StepResult& result = step.results[0];
    TT_RETURN_IF_ERROR(make(result.view.value, "a result"));
    const program::ValueType& type = program_.values[result.view.value];
    TT_RETURN_IF_ERROR(inside(result.view.geometry, type.elements, "a result"));
    if (result.overwrites != -1 ||
        !(result.view.geometry == Geometry(result.view.geometry.shape)) ||
        result.view.geometry.numel() != type.elements ||
        !(type.device == program_.values[record.value].device)) {
      return fail("its result must be a row-major value on the record's device");
    }
    return {};
  }

  // ---- ops

  Status operand_kinds(const OpDef& def, const Step& step) const {
    std::size_t at = 0, list = 0;
    for (int p = 0; p < def.operand_parameters; ++p) {
      const Parameter& parameter = def.parameters[static_cast<std::size_t>(p)];
      const bool is_list = parameter.type == Parameter::Type::kTensorList;
      const std::size_t count = is_list ? step.counts[list++] : 1;
      for (std::size_t i = 0; i < count; ++i, ++at) {
        const Operand::Kind kind = step.operands[at].kind;
        const bool optional =
            parameter.optional || parameter.type == Parameter::Type::kOptionalTensor;
        if (kind == Operand::Kind::kTensor || (kind == Operand::Kind::kAbsent && optional) ||
            (kind == Operand::Kind::kNumber && parameter.type == Parameter::Type::kOperand)) {
          continue;
        }
        return fail("argument '" + parameter.name + "' has a wrong kind");
      }
    }
    return {};
  }

  Status op(const Step& step, int depth) {
    if (step.op >= catalog_.size()) return fail("a step has an op that is not in the catalog");
    const OpDef& def = catalog_.at(step.op);
    where_ = def.name;
    if (!step.blocks.empty()) return fail("must have no blocks");
    late_ = late_ || core::Clock::now() >= until_;
    if (late_) return unchecked(step, depth);
    TT_RETURN_IF_ERROR(catalog_.check(step.op, step.operands.size(),
                                      {step.counts.data(), step.counts.size()}, step.attributes));
    TT_RETURN_IF_ERROR(operand_kinds(def, step));
    if (def.infer == nullptr || def.name == "client_node") {
      return fail("computes nothing: it cannot be a step");
    }
    // Whether this rank reaches a collective must not depend on data.
    if (def.collective && depth > 0) {
      return fail("is a collective, which cannot be in a branch or a loop");
    }
    if (def.random) {
      const std::size_t last = step.attributes.size() - 1;
      const std::int64_t ordinal = step.attributes.integer(last);
      if (step.attributes.integer(last - 1) != 0 || ordinal < 0 ||
          static_cast<std::uint64_t>(ordinal) >= program_.random_steps) {
        return fail("its random numbers are not the program's");
      }
    }

    std::vector<Layout> layouts(step.operands.size());
    core::InlineVector<OperandInfo, 3> infos;
    core::Device device;
    bool any = false;
    for (std::size_t i = 0; i < step.operands.size(); ++i) {
      const StepOperand& operand = step.operands[i];
      OperandInfo& info = infos.emplace_back();
      if (operand.kind == Operand::Kind::kNumber) {
        TT_RETURN_IF_ERROR(number(operand.number));
        info.number = &operand.number;
      }
      if (operand.kind != Operand::Kind::kTensor) continue;
      TT_RETURN_IF_ERROR(readable(operand.view, "an operand"));
      const program::ValueType& type = program_.values[operand.view.value];
      layouts[i] = {type.dtype, type.device, operand.view.geometry};
      info.layout = &layouts[i];
      const std::int64_t elements = operand.view.geometry.numel();
      if (elements > kMaxRepeated && elements > type.elements) {
        return fail("an operand repeats its elements more often than one step may work on");
      }
      if (any && !(device == type.device)) return fail("operands are on different devices");
      device = type.device;
      any = true;
    }
    if (!any || def.name == "to_device") {
      for (std::size_t i = step.attributes.size(); i-- > 0;) {
        if (step.attributes.at(i).kind == core::Attribute::Kind::kDevice) {
          device = step.attributes.device(i);
        }
      }
    }
    // The program does not contain the default dtype at its creation: one of these must fit.
    static constexpr core::DType kDefaults[] = {core::DType::kF32, core::DType::kF64,
                                                core::DType::kBF16, core::DType::kF16};
    Status refused;
    for (const core::DType default_dtype : kDefaults) {
      InferContext context{.op = def.name,
                           .operands = {infos.data(), infos.size()},
                           .counts = {step.counts.data(), step.counts.size()},
                           .attributes = step.attributes,
                           .default_dtype = default_dtype,
                           .device = device,
                           .results = {}};
      TT_RETURN_IF_ERROR(def.infer(context));
      const Status status = results(step, def, context, depth);
      if (status.ok()) return made(step, depth);
      if (refused.ok()) refused = status;
    }
    return refused;
  }

  Status unchecked(const Step& step, int depth) {
    for (const StepResult& result : step.results) {
      if (result.overwrites < -1 || result.overwrites >= static_cast<int>(step.operands.size())) {
        return fail("cannot overwrite an operand");
      }
      if (result.overwrites < 0) continue;
      const StepOperand& operand = step.operands[static_cast<std::size_t>(result.overwrites)];
      if (operand.kind != Operand::Kind::kTensor) return fail("cannot overwrite an operand");
      TT_RETURN_IF_ERROR(readable(operand.view, "an operand"));
    }
    return made(step, depth);
  }

  Status number(const core::Number& n) const {
    if (n.argument == 0) return {};
    if (n.argument > program_.numbers.size()) {
      return fail("a number refers to an argument that no call gives");
    }
    if (program_.numbers[n.argument - 1].kind != n.kind) {
      return fail("a number has another kind than the program declares");
    }
    return {};
  }

  Status results(const Step& step, const OpDef& def, const InferContext& context, int) const {
    for (const StepResult& result : step.results) {
      if (result.view.value >= facts_.size()) return fail("a result: there is no such value");
    }
    if (!def.mutates.empty()) return mutated(step, def);
    const bool inplace = step.results.size() == 1 && step.results[0].overwrites >= 0;
    if (inplace) return overwritten(step, def, context);
    if (step.results.size() != context.results.size()) {
      return fail("has another number of results than the op gives");
    }
    for (std::size_t i = 0; i < step.results.size(); ++i) {
      const StepResult& result = step.results[i];
      const Layout& layout = context.results[i];
      const program::ValueType& type = program_.values[result.view.value];
      if (result.overwrites != -1) return fail("cannot overwrite an operand");
      if (type.dtype != layout.dtype || !(type.device == layout.device) ||
          !(result.view.geometry == layout.geometry)) {
        return fail("result " + std::to_string(i) + " has another layout than the op gives");
      }
      const auto count = core::checked_numel(layout.geometry.shape.span());
      if (!count.ok() || type.elements != layout.geometry.storage_end()) {
        return fail("result " + std::to_string(i) + " has another size than the op gives");
      }
    }
    return {};
  }

  Status rewrites(const StepOperand& operand, const StepResult& result) const {
    if (operand.kind != Operand::Kind::kTensor ||
        !(operand.view.geometry == result.view.geometry) ||
        !(program_.values[operand.view.value] == program_.values[result.view.value])) {
      return fail("a result has another type than the value that it overwrites");
    }
    return {};
  }

  Status overwritten(const Step& step, const OpDef& def, const InferContext& context) const {
    const StepResult& result = step.results[0];
    if (result.overwrites != 0 || context.results.size() != 1 || step.operands.empty()) {
      return fail("has no in-place form");
    }
    TT_RETURN_IF_ERROR(rewrites(step.operands[0], result));
    const Layout& inferred = context.results[0];
    const program::ValueType& type = program_.values[result.view.value];
    if (!(inferred.geometry.shape == result.view.geometry.shape) ||
        !(inferred.device == type.device)) {
      return fail("its result has another shape or device than the value that it overwrites");
    }
    const bool all = def.name == "fill" || def.name == "copy";
    if (!all && !core::can_cast(inferred.dtype, type.dtype)) {
      return fail("its result cannot be cast to the dtype of the value that it overwrites");
    }
    const bool fill = def.name == "fill" && step.operands[1].kind != Operand::Kind::kTensor;
    if (!fill && result.view.geometry.overlaps_itself()) {
      return fail("the value that it overwrites has several elements at one memory location");
    }
    return {};
  }

  Status mutated(const Step& step, const OpDef& def) const {
    std::size_t at = 0, list = 0, r = 0;
    std::vector<ValueId> written;
    for (int p = 0; p < def.operand_parameters; ++p) {
      const bool is_list =
          def.parameters[static_cast<std::size_t>(p)].type == Parameter::Type::kTensorList;
      const std::size_t count = is_list ? step.counts[list++] : 1;
      const bool mutates =
          std::find(def.mutates.begin(), def.mutates.end(), p) != def.mutates.end();
      for (std::size_t i = at; mutates && i < at + count; ++i) {
        const StepOperand& operand = step.operands[i];
        if (operand.kind != Operand::Kind::kTensor) continue;
        if (r == step.results.size() || step.results[r].overwrites != static_cast<int>(i)) {
          return fail("does not overwrite the operands that its op mutates");
        }
        TT_RETURN_IF_ERROR(rewrites(operand, step.results[r]));
        if (operand.view.geometry.overlaps_itself()) {
          return fail("the value that it overwrites has several elements at one memory location");
        }
        written.push_back(operand.view.value);
        ++r;
      }
      at += count;
    }
    if (r != step.results.size()) return fail("has another number of results than the op gives");
    std::sort(written.begin(), written.end());
    if (std::adjacent_find(written.begin(), written.end()) != written.end()) {
      return fail("two of the tensors that it overwrites share memory");
    }
    return {};
  }

  Status made(const Step& step, int depth) {
    for (const StepResult& result : step.results) {
      TT_RETURN_IF_ERROR(make(result.view.value, "a result"));
      if (result.overwrites < 0) continue;
      const ValueId old = step.operands[static_cast<std::size_t>(result.overwrites)].view.value;
      const ValueId root = facts_[old].root;
      if (depth > 0 || root == kNoValue) continue;
      // Only the latest value of a parameter can be replaced by the next one.
      if (facts_[root].latest != old) continue;
      facts_[root].latest = result.view.value;
      facts_[result.view.value].root = root;
    }
    return {};
  }

  // ---- the interface that a caller sees

  Status surface() {
    where_.clear();
    const Block& body = program_.body;
    if (program_.parameter_names.size() != body.parameters.size()) {
      return fail("the number of parameter names differs from the number of parameters");
    }
    std::vector<bool> rebound(program_.values.size(), false);
    for (const program::Rebind& rebind : program_.rebinds) {
      if (rebind.parameter >= body.parameters.size()) {
        return fail("rebinds a parameter that does not exist");
      }
      const ValueId root = body.parameters[rebind.parameter].value;
      if (rebound[root]) return fail("rebinds a parameter twice");
      rebound[root] = true;
      if (rebind.value == root || rebind.value != facts_[root].latest) {
        return fail("rebinds a parameter to a value that does not overwrite it");
      }
    }
    for (const program::View& p : body.parameters) {
      if (facts_[p.value].latest != p.value && !rebound[p.value]) {
        return fail("overwrites a parameter without a rebind");
      }
    }
    std::vector<bool> shares(body.results.size(), false);
    std::uint32_t after = 0;
    for (const program::Alias& alias : program_.aliases) {
      if (alias.result < after || alias.result >= body.results.size()) {
        return fail("aliases must be of results, in ascending order");
      }
      after = alias.result + 1;
      shares[alias.result] = true;
      const ValueId value = body.results[alias.result].value;
      if (alias.of_parameter) {
        if (alias.index >= body.parameters.size() ||
            value != facts_[body.parameters[alias.index].value].latest) {
          return fail(
              "a result is declared to share the memory of a parameter but is no view of it");
        }
      } else if (alias.index >= alias.result || body.results[alias.index].value != value) {
        return fail(
            "a result is declared to share the memory of another result but is no view of it");
      }
    }
    for (const program::Gradient& g : program_.gradients) {
      if (g.parameter >= body.parameters.size() || g.result >= body.results.size() ||
          shares[g.result]) {
        return fail("a gradient must name a parameter, and a result that shares no memory");
      }
      const program::View& p = body.parameters[g.parameter];
      const program::View& r = body.results[g.result];
      const program::ValueType& a = program_.values[p.value];
      const program::ValueType& b = program_.values[r.value];
      if (!(p.geometry.shape == r.geometry.shape) || a.dtype != b.dtype ||
          !(a.device == b.device) || r.geometry.overlaps_itself()) {
        return fail(
            "a gradient has another shape, dtype or device than its parameter, or overlaps itself");
      }
    }
    for (const core::Number& n : program_.numbers) {
      if (n.argument != 0) return fail("an example number refers to another number");
    }
    return {};
  }

  const Program& program_;
  const Catalog& catalog_;
  const core::Clock::time_point until_;
  bool late_ = false;
  std::vector<Fact> facts_;
  std::vector<ValueId> scope_;
  std::string where_;
};

}  // namespace

Status verify(const Program& program, const Catalog& catalog, core::Clock::time_point until) {
  return Verifier(program, catalog, until).run();
}

Decides decided_by(const OpDef& op, std::span<const OperandInfo> operands,
                   std::span<const std::uint32_t> counts, const core::Attributes& attributes,
                   std::size_t number) {
  // The layouts of the results; nothing if infer refuses the number.
  const auto layouts = [&](const core::Number& value) -> std::optional<std::vector<Layout>> {
    std::vector<OperandInfo> infos(operands.begin(), operands.end());
    infos[number].number = &value;
    InferContext context{.op = op.name,
                         .operands = infos,
                         .counts = counts,
                         .attributes = attributes,
                         .default_dtype = core::DType::kF32,
                         .device = {},
                         .results = {}};
    if (!op.infer(context).ok()) return std::nullopt;
    return std::vector<Layout>(context.results.begin(), context.results.end());
  };
  const core::Number& given = *operands[number].number;
  const auto now = layouts(given);
  Decides decides;
  if (!now) return decides;
  const bool may_refuse = !now->empty() && !core::is_inexact((*now)[0].dtype);
  // Numbers of a wide range and of both signs.
  for (const double factor : {0.0, 0.001, 0.5, 3.0, 1000.0, -0.001, -1.0, -1000.0}) {
    for (const double offset : {0.0, 1.0, 7.0, -7.0, 1e5, -1e5}) {
      core::Number other = given;
      other.real = given.real * factor + offset;
      const double whole = static_cast<double>(given.integer) * factor + offset;
      if (std::abs(whole) < 0x1p62) other.integer = static_cast<std::int64_t>(whole);
      const auto then = layouts(other);
      decides.layout = decides.layout || (then && *then != *now);
      decides.refusal = decides.refusal || (!then && may_refuse);
    }
  }
  return decides;
}

bool has_collectives(const program::Program& program, const Catalog& catalog) {
  const std::vector<program::Step>& steps = program.body.steps;
  return std::any_of(steps.begin(), steps.end(), [&](const program::Step& step) {
    return step.kind == program::Step::Kind::kOp && catalog.at(step.op).collective;
  });
}

program::NameOp op_names(const Catalog& catalog) {
  return [&catalog](OpId op) {
    const OpDef& def = catalog.at(op);
    return std::make_pair(def.name, def.revision);
  };
}

program::FindOp op_finder(const Catalog& catalog) {
  return [&catalog](std::string_view name, int revision) -> core::Result<OpId> {
    const OpDef* def = catalog.find(name);
    if (def != nullptr && def->revision == revision) return catalog.id(*def);
    std::string shown;
    for (const char c : name.substr(0, 64)) shown += c >= ' ' && c <= '~' ? c : '?';
    if (def == nullptr) {
      return Status(core::Code::kUnimplemented, "this software has no op '" + shown + "'");
    }
    return Status(core::Code::kUnimplemented, "op '" + shown + "' has revision " +
                                                  std::to_string(revision) + " there and " +
                                                  std::to_string(def->revision) + " here");
  };
}

}  // namespace teletensor::ops
