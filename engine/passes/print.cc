#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "engine/passes/loop.h"
#include "engine/passes/passes.h"

namespace teletensor::passes {
namespace {

using program::Block;
using program::Operand;
using program::Step;
using program::ValueId;
using program::View;

std::string escaped(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "'";
}

// Returns the shortest decimal that reads back as the same number, as Python prints it.
std::string text_of(double x) {
  char text[40];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, x);
    if (std::strtod(text, nullptr) == x) break;
  }
  // True if the text is none of 1.5, 1e9, inf and nan.
  const bool plain = std::strpbrk(text, ".en") == nullptr;
  return plain ? std::string(text) + ".0" : text;
}
std::string text_of(const core::Number& number) {
  if (number.kind == core::Number::Kind::kFloat) return text_of(number.real);
  return core::to_string(number);
}

template <class Ints>
std::string list(const Ints& ints) {
  std::string out;
  for (const std::int64_t i : ints) out += (out.empty() ? "" : ", ") + std::to_string(i);
  return out;
}

std::string text_of(const core::Attribute& a) {
  using Kind = core::Attribute::Kind;
  switch (a.kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return a.integer != 0 ? "True" : "False";
    case Kind::kInt:
      return std::to_string(a.integer);
    case Kind::kFloat:
      return text_of(a.real);
    case Kind::kInts:
      return "[" + list(a.ints) + "]";
    case Kind::kString:
      return escaped(a.text);
    case Kind::kDType:
      return std::string(core::name_of(static_cast<core::DType>(a.integer)));
    case Kind::kDevice:
      return core::to_string(core::Device{static_cast<core::DeviceKind>(a.integer / 256),
                                          static_cast<std::uint8_t>(a.integer % 256)});
  }
  return "?";
}

class Printer {
 public:
  Printer(const Program& program, const ops::Catalog& catalog, bool loops)
      : program_(program), catalog_(catalog), loops_(loops), names_(program.values.size()) {
    for (std::size_t p = 0; p < program.body.parameters.size(); ++p) {
      const ValueId value = program.body.parameters[p].value;
      if (p < program.parameter_names.size()) names_[value] = program.parameter_names[p];
    }
  }

  std::string run() {
    out_ = "program " + (program_.name.empty() ? std::string("?") : program_.name) + "(";
    for (std::size_t p = 0; p < program_.body.parameters.size(); ++p) {
      out_ += (p > 0 ? ", " : "") + declared(program_.body.parameters[p]);
    }
    out_ += "):\n";
    for (const program::Literal& literal : program_.literals) {
      const program::ValueType& type = program_.values[literal.value];
      out_ += "  " + name(literal.value) + ": " + std::string(core::name_of(type.dtype)) + " x " +
              std::to_string(type.elements) + " = literal\n";
    }
    steps(program_.body, "  ");
    for (const program::Rebind& rebind : program_.rebinds) {
      out_ += "  " + name(program_.body.parameters[rebind.parameter].value) +
              " := " + name(rebind.value) + "\n";
    }
    out_ += "  return " + views(program_.body.results) + "\n";
    return std::move(out_);
  }

 private:
  std::string name(ValueId value) const {
    if (value < names_.size() && !names_[value].empty()) return names_[value];
    return "v" + std::to_string(value);
  }
  std::string read(const View& view) const {
    const core::Geometry& g = view.geometry;
    const bool whole = g.contiguous() && g.offset == 0 && view.value < program_.values.size() &&
                       g.numel() == program_.values[view.value].elements;
    if (whole) return name(view.value);
    std::string out = name(view.value) + "[" + list(g.shape) + " | " + list(g.strides);
    if (g.offset != 0) out += " @ " + std::to_string(g.offset);
    return out + "]";
  }
  std::string views(const std::vector<View>& all) const {
    std::string out;
    for (const View& view : all) out += (out.empty() ? "" : ", ") + read(view);
    return out;
  }
  std::string declared(const View& view) const {
    const program::ValueType& type = program_.values[view.value];
    std::string out = name(view.value) + ": " + std::string(core::name_of(type.dtype)) + "[" +
                      list(view.geometry.shape);
    if (!view.geometry.contiguous()) out += " | " + list(view.geometry.strides);
    out += "]";
    if (!(type.device == core::Device{})) out += " on " + core::to_string(type.device);
    return out;
  }

  void steps(const Block& block, const std::string& indent) {
    if (!loops_) {
      for (const Step& step : block.steps) line(step, indent);
      return;
    }
    for (const Unit& unit : fuse(fuse_steps(block, program_, catalog_))) {
      if (unit.loop()) out_ += indent + "loop:\n";
      for (const std::uint32_t s : unit.steps) {
        line(block.steps[s], unit.loop() ? indent + "  " : indent);
      }
    }
  }

  void line(const Step& step, const std::string& indent) {
    out_ += indent;
    for (std::size_t r = 0; r < step.results.size(); ++r) {
      out_ += (r > 0 ? ", " : "") + declared(step.results[r].view);
    }
    if (!step.results.empty()) out_ += " = ";
    if (step.kind == Step::Kind::kOp) {
      out_ += call(step) + origin(step) + "\n";
      return;
    }
    if (step.kind == Step::Kind::kPast) {
      out_ += "past(" + operands(step) + ")" + origin(step) + "\n";
      return;
    }
    const bool branch = step.kind == Step::Kind::kIf;
    out_ += (branch ? "if " : "while from ") + operands(step);
    for (std::size_t i = 0; i < step.counts.size(); ++i) {
      out_ += (i == 0 ? " recording " : ", ") + std::to_string(step.counts[i]);
    }
    out_ += ":" + origin(step) + "\n";
    static constexpr const char* kNames[2][2] = {{"condition", "body"}, {"then", "else"}};
    for (std::size_t b = 0; b < step.blocks.size() && b < 2; ++b) {
      const Block& inner = step.blocks[b];
      out_ += indent + "  " + kNames[branch][b] + "(";
      for (std::size_t p = 0; p < inner.parameters.size(); ++p) {
        out_ += (p > 0 ? ", " : "") + declared(inner.parameters[p]);
      }
      out_ += "):\n";
      steps(inner, indent + "    ");
      out_ += indent + "    yield " + views(inner.results) + "\n";
    }
  }

  std::string operands(const Step& step) const {
    std::string out;
    for (std::size_t i = 0; i < step.operands.size(); ++i) {
      const program::StepOperand& operand = step.operands[i];
      if (i > 0) out += ", ";
      switch (operand.kind) {
        case Operand::Kind::kAbsent:
          out += "None";
          break;
        case Operand::Kind::kNumber:
          out += text_of(operand.number);
          break;
        case Operand::Kind::kTensor:
          for (const program::StepResult& result : step.results) {
            if (result.overwrites == static_cast<int>(i)) out += "mut ";
          }
          out += read(operand.view);
      }
    }
    return out;
  }

  std::string call(const Step& step) const {
    if (step.op >= catalog_.size()) return "op" + std::to_string(step.op) + "(?)";
    const ops::OpDef& op = catalog_.at(step.op);
    std::string out = op.name + "(" + operands(step);
    for (std::size_t i = 0; i < step.attributes.size(); ++i) {
      const std::size_t p = static_cast<std::size_t>(op.operand_parameters) + i;
      if (p >= op.parameters.size()) break;
      const ops::Parameter& parameter = op.parameters[p];
      if (parameter.has_default && step.attributes.at(i) == parameter.fallback) continue;
      if (out.back() != '(') out += ", ";
      out += parameter.name + "=" + text_of(step.attributes.at(i));
    }
    return out + ")";
  }
  std::string origin(const Step& step) const {
    if (step.origin == 0 || step.origin >= program_.origins.size()) return "";
    return "  # " + program_.origins[step.origin];
  }

  const Program& program_;
  const ops::Catalog& catalog_;
  const bool loops_;
  std::vector<std::string> names_;
  std::string out_;
};

}  // namespace

std::string to_string(const Program& program, const ops::Catalog& catalog, bool loops) {
  return Printer(program, catalog, loops).run();
}

}  // namespace teletensor::passes
