#include "engine/runtime/programs/prepared.h"

#include <algorithm>
#include <utility>

namespace teletensor::runtime {

using backends::LoopRole;
using passes::FuseStep;
using passes::Unit;
using program::Block;
using program::Operand;
using program::Step;
using program::StepOperand;
using program::StepResult;
using program::ValueId;

namespace {

// Checks the device's conditions, in addition to the general rule of passes::fuse_steps.
bool fits_device(const FuseStep& fused, const Step& step, const program::Program& program,
                 const Devices& devices) {
  const program::ValueType& type = program.values[step.results[0].view.value];
  const int device = devices.find(type.device);
  if (device < 0) return false;
  for (const StepOperand& operand : step.operands) {
    if (operand.kind == Operand::Kind::kTensor &&
        !(program.values[operand.view.value].device == type.device)) {
      return false;
    }
  }
  const LoopRole role = devices.at(static_cast<std::size_t>(device)).backend().role(step.op);
  if (fused.kind == FuseStep::Kind::kElement) return role == LoopRole::kElement;
  if (role != LoopRole::kFold) return false;
  const std::int64_t outputs = step.results[0].view.geometry.numel();
  const program::View& folded = step.operands[0].view;
  return program.values[folded.value].dtype == type.dtype &&
         (type.dtype == core::DType::kF32 || type.dtype == core::DType::kF64) && outputs > 0 &&
         (outputs == 1 || folded.geometry.numel() / outputs >= passes::kShortRow);
}

template <class T>
std::uint64_t bytes_of(const std::vector<T>& items) {
  return items.capacity() * sizeof(T);
}

std::uint64_t bytes_of(const Prepared::Facts& facts) {
  std::uint64_t bytes = bytes_of(facts.units) + facts.never.capacity() / 8 + bytes_of(facts.dying) +
                        bytes_of(facts.results) + bytes_of(facts.steps);
  for (const Unit& unit : facts.units) bytes += bytes_of(unit.steps);
  for (const auto& dying : facts.dying) bytes += bytes_of(dying);
  for (const auto& step : facts.steps) bytes += bytes_of(step.operands) + bytes_of(step.results);
  return bytes;
}

}  // namespace

// Goes through the blocks, inner blocks at the position of their step.
class Prepared::Scan {
 public:
  Scan(Prepared& prepared, const ops::Catalog& catalog, const Devices& devices)
      : prepared_(prepared),
        program_(*prepared.program_),
        catalog_(catalog),
        devices_(devices),
        made_in_(program_.values.size(), nullptr),
        last_(program_.values.size(), 0) {}

  void run() {
    for (const program::Literal& literal : program_.literals) {
      made_in_[literal.value] = &program_.body;
    }
    block(program_.body);
    for (const Step& step : program_.body.steps) add_group(step);
  }

 private:
  void add_group(const Step& step) {
    if (step.kind != Step::Kind::kOp || !catalog_.at(step.op).collective) return;
    const auto group = static_cast<std::uint64_t>(step.attributes.integer(0));
    std::vector<std::uint64_t>& groups = prepared_.groups_;
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }

  void block(const Block& b) {
    Facts& facts = prepared_.facts_[&b];
    facts.units = units_of(b);
    facts.never.assign(facts.units.size(), false);
    facts.dying.resize(facts.units.size());
    for (const Step& step : b.steps) facts.steps.push_back(facts_of(step));
    std::vector<ValueId> own;
    const auto make = [&](ValueId v, std::size_t at) {
      if (made_in_[v] == nullptr) {
        made_in_[v] = &b;
        own.push_back(v);
      }
      last_[v] = at;
    };
    for (const program::View& p : b.parameters) make(p.value, 0);
    if (&b == &program_.body) {
      for (const program::Literal& literal : program_.literals) own.push_back(literal.value);
    }
    for (std::size_t u = 0; u < facts.units.size(); ++u) {
      for (const std::uint32_t s : facts.units[u].steps) {
        reads(b, b.steps[s], u);
        for (const StepResult& result : b.steps[s].results) make(result.view.value, u);
      }
    }
    const std::size_t end = facts.units.size();
    for (const program::View& r : b.results) {
      if (made_in_[r.value] == &b && last_[r.value] != end) facts.results.push_back(r.value);
      last_[r.value] = end;
    }
    if (&b == &program_.body) {
      for (const program::Rebind& rebind : program_.rebinds) last_[rebind.value] = end;
    }
    for (const ValueId v : own) {
      if (last_[v] < end) facts.dying[last_[v]].push_back(v);
    }
  }

  std::vector<Unit> units_of(const Block& b) const {
    std::vector<FuseStep> fused = passes::fuse_steps(b, program_, catalog_);
    for (std::size_t s = 0; s < fused.size(); ++s) {
      const bool loops =
          fused[s].kind == FuseStep::Kind::kElement || fused[s].kind == FuseStep::Kind::kFold;
      if (loops && !fits_device(fused[s], b.steps[s], program_, devices_)) {
        fused[s].kind = FuseStep::Kind::kPlain;
      }
    }
    return passes::fuse(fused);
  }

  StepFacts facts_of(const Step& step) {
    StepFacts facts;
    facts.random = step.kind == Step::Kind::kOp && catalog_.at(step.op).random;
    for (const StepOperand& operand : step.operands) {
      const bool tensor = operand.kind == Operand::Kind::kTensor;
      facts.operands.push_back(tensor ? prepared_.interner_.geometry(operand.view.geometry)
                                      : nullptr);
    }
    for (const StepResult& result : step.results) {
      facts.results.push_back(prepared_.interner_.geometry(result.view.geometry));
    }
    return facts;
  }

  // Records what unit u of `b` reads of the values made in `b`, including inner blocks.
  void reads(const Block& b, const Step& step, std::size_t u) {
    for (const StepOperand& operand : step.operands) {
      if (operand.kind == Operand::Kind::kTensor) read(b, operand.view.value, u);
    }
    for (const Block& inner : step.blocks) {
      if (!prepared_.facts_.contains(&inner)) block(inner);
      for (const Step& each : inner.steps) reads(b, each, u);
      for (const program::View& r : inner.results) read(b, r.value, u);
    }
  }
  void read(const Block& b, ValueId v, std::size_t u) {
    if (made_in_[v] == &b) last_[v] = u;
  }

  Prepared& prepared_;
  const program::Program& program_;
  const ops::Catalog& catalog_;
  const Devices& devices_;
  std::vector<const Block*> made_in_;
  std::vector<std::size_t> last_;
};

Prepared::Prepared(std::shared_ptr<const program::Program> program, const ops::Catalog& catalog,
                   const Devices& devices)
    : program_(std::move(program)) {
  Scan(*this, catalog, devices).run();
  bytes_ = interner_.bytes();
  for (const auto& [block, facts] : facts_) bytes_ += sizeof(Facts) + bytes_of(facts);
}

}  // namespace teletensor::runtime
