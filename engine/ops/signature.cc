#include "engine/ops/signature.h"

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <utility>

namespace teletensor::ops {
namespace {

using core::Attribute;
using Type = Parameter::Type;

constexpr std::pair<std::string_view, Type> kTypes[] = {
    {"Tensor[]", Type::kTensorList}, {"Tensor", Type::kTensor}, {"Operand", Type::kOperand},
    {"bool", Type::kBool},           {"int[]", Type::kInts},    {"int", Type::kInt},
    {"float", Type::kFloat},         {"str", Type::kString},    {"dtype", Type::kDType},
    {"device", Type::kDevice}};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  core::Result<Signature> run() {
    Signature out;
    out.name = word();
    if (out.name.empty() || !take("(")) return fail("expected a name and '('");
    while (!take(")")) {
      if (!out.parameters.empty() && !take(",")) return fail("expected ','");
      if (!out.parameters.empty() && left_off(out.parameters.back())) {
        return fail("a parameter that calls may leave out must be the last");
      }
      Parameter parameter;
      if (core::Status status = read(parameter); !status.ok()) return status;
      if (parameter.is_operand()) {
        if (out.operand_parameters != static_cast<int>(out.parameters.size())) {
          return fail("operands must come before attributes");
        }
        ++out.operand_parameters;
      }
      out.parameters.push_back(std::move(parameter));
    }
    if (!take("->")) return fail("expected '->'");
    if (take("Tensor[]")) {
      out.results = -1;
    } else if (take("Tensor")) {
      out.results = 1;
    } else if (take("(")) {
      out.results = 0;
      do {
        if (!take("Tensor")) return fail("expected Tensor");
        word();
        ++out.results;
      } while (take(","));
      if (!take(")")) return fail("expected ')'");
    } else {
      return fail("expected results");
    }
    skip();
    if (at_ != text_.size()) return fail("there is text after the results");
    return out;
  }

 private:
  core::Status fail(std::string_view what) const {
    return core::internal("signature '" + std::string(text_) + "', column " +
                          std::to_string(at_ + 1) + ": " + std::string(what));
  }
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(std::string_view token) {
    skip();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  std::string word() {
    skip();
    const std::size_t start = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) {
      ++at_;
    }
    return std::string(text_.substr(start, at_ - start));
  }

  core::Status read(Parameter& out) {
    bool known = false;
    for (const auto& [name, type] : kTypes) {
      if (take(name)) {
        out.type = type;
        known = true;
        break;
      }
    }
    if (!known) return fail("unknown type");
    if (take("?")) {
      out.optional = true;
      if (out.type == Type::kTensor) out.type = Type::kOptionalTensor;
    }
    out.name = word();
    if (out.name.empty()) return fail("expected a parameter's name");
    if (!take("=")) return {};
    out.has_default = true;
    if (!read_default(out.fallback)) return fail("bad default");
    if (out.type == Type::kFloat && out.fallback.kind == Attribute::Kind::kInt) {
      out.fallback = Attribute::of(static_cast<double>(out.fallback.integer));
    }
    const bool fit = out.is_operand() ? operand_default(out) : fits(out, out.fallback);
    return fit ? core::Status() : fail("the default value has another kind than the parameter");
  }

  static bool operand_default(const Parameter& p) {
    if (p.fallback.kind == Attribute::Kind::kNone) return p.optional;
    return p.type == Type::kOperand && p.fallback.kind <= Attribute::Kind::kFloat;
  }

  bool read_default(Attribute& out) {
    if (take("'")) {
      const std::size_t end = text_.find('\'', at_);
      if (end == std::string_view::npos) return false;
      out = Attribute::of(text_.substr(at_, end - at_));
      at_ = end + 1;
      return true;
    }
    if (take("[")) {
      out = Attribute::of(std::span<const std::int64_t>());
      while (!take("]")) {
        if (!out.ints.empty() && !take(",")) return false;
        Attribute item;
        if (!read_number(item) || item.kind != Attribute::Kind::kInt) return false;
        out.ints.push_back(item.integer);
      }
      return true;
    }
    skip();
    const std::size_t start = at_;
    const std::string name = word();
    if (name == "None") return true;
    if (name == "True" || name == "False") return out = Attribute::of(name == "True"), true;
    if (const auto dtype = core::dtype_from_name(name)) return out = Attribute::of(*dtype), true;
    at_ = start;
    return read_number(out);
  }

  bool read_number(Attribute& out) {
    skip();
    const std::size_t end = text_.find_first_of(",)] ", at_);
    if (end == std::string_view::npos) return false;
    const std::string_view token = text_.substr(at_, end - at_);
    std::int64_t integer = 0;
    double real = 0;
    const char *first = token.data(), *last = first + token.size();
    if (auto [p, e] = std::from_chars(first, last, integer); e == std::errc() && p == last) {
      out = Attribute::of(integer);
    } else if (auto [q, f] = std::from_chars(first, last, real); f == std::errc() && q == last) {
      out = Attribute::of(real);
    } else {
      return false;
    }
    at_ = end;
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

core::Result<Signature> parse_signature(std::string_view text) { return Parser(text).run(); }

bool fits(const Parameter& parameter, const Attribute& value) {
  using Kind = Attribute::Kind;
  if (value.kind == Kind::kNone) return parameter.optional;
  switch (parameter.type) {
    case Type::kBool:
      return value.kind == Kind::kBool;
    case Type::kInt:
      return value.kind == Kind::kInt;
    case Type::kFloat:
      return value.kind == Kind::kFloat || value.kind == Kind::kInt;
    case Type::kInts:
      return value.kind == Kind::kInts;
    case Type::kString:
      return value.kind == Kind::kString;
    case Type::kDType:
      return value.kind == Kind::kDType && value.integer >= 0 &&
             core::dtype_from_number(static_cast<std::uint64_t>(value.integer)).has_value();
    case Type::kDevice:
      return value.kind == Kind::kDevice && value.integer >= 0 &&
             value.integer / 256 <= static_cast<int>(core::DeviceKind::kSim);
    default:
      return false;
  }
}

}  // namespace teletensor::ops
