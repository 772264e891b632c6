#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "engine/ops/families.h"
#include "engine/ops/op.h"
#include "engine/ops/signature.h"
#include "engine/ops/transforms.h"

namespace teletensor::ops {
namespace {

// An inconsistent table is an internal error; the first test that runs finds it.
[[noreturn]] void broken(const std::string& why) {
  std::fprintf(stderr, "teletensor: the op catalog is broken: %s\n", why.c_str());
  std::abort();
}

std::vector<OpDef> all_families() {
  std::vector<OpDef> all;
  for (auto family :
       {view_ops,      region_ops,    copy_ops,          unary_ops,        binary_ops,
        ternary_ops,   complex_ops,   reduction_ops,     softmax_ops,      loss_ops,
        order_ops,     matmul_ops,    linalg_factor_ops, linalg_solve_ops, linalg_spectral_ops,
        fft_ops,       creation_ops,  random_ops,        index_ops,        join_ops,
        optimizer_ops, recurrent_ops, client_ops,        norm_ops,         attention_ops,
        conv_ops,      pooling_ops,   spatial_ops,       ctc_ops,          collective_ops}) {
    std::vector<OpDef> ops = family();
    std::move(ops.begin(), ops.end(), std::back_inserter(all));
  }
  const std::string_view unknown = add_transform_rules(all);
  if (!unknown.empty()) broken("transforms.cc has a row for no op: " + std::string(unknown));
  return all;
}

std::string plural(std::size_t n, const char* noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

}  // namespace

OpDef refusing(OpDef def, std::uint32_t operands) {
  def.refused = operands;
  if (def.vjp == nullptr) {
    def.vjp = [](VjpContext&) {};
    def.not_differentiable = "a backward through it raises an error, as in PyTorch";
  }
  return def;
}

core::Status not_implemented(const OpDef& def, const core::Attributes& attributes, std::size_t i) {
  std::string name = def.name;
  if (name == "refuse_gradient") {
    name = attributes.text(0);
  } else if (name.starts_with("special_")) {
    name = name.substr(8);
  }
  if (def.refused != kEveryOperand && i < def.parameters.size()) {
    name += " by its argument '" + def.parameters[i].name + "'";
  }
  return core::unimplemented("derivative for " + name + " is not implemented");
}

Catalog::Catalog(std::vector<OpDef> definitions) : definitions_(std::move(definitions)) {
  if (definitions_.size() > 0xffff) broken("more ops than ids");
  for (OpDef& op : definitions_) {
    core::Result<Signature> parsed = parse_signature(op.signature);
    if (!parsed.ok()) broken(parsed.status().message());
    op.name = std::move(parsed->name);
    op.parameters = std::move(parsed->parameters);
    op.operand_parameters = parsed->operand_parameters;
    op.results = parsed->results;
    if (!op.infer && !op.view) broken(op.name + ": neither infer nor view");
    const bool elementwise = op.inplace == Inplace::kElementwise && op.mutates.empty();
    if (op.tangent == Tangent::kAuto) {
      op.tangent = elementwise ? Tangent::kDiagonal : Tangent::kTransposed;
    }
    if (op.batching == Batching::kAuto) {
      op.batching = elementwise && !op.random ? Batching::kElementwise : Batching::kSlices;
    }
  }
  for (const OpDef& op : definitions_) by_name_.emplace_back(op.name, id(op));
  std::sort(by_name_.begin(), by_name_.end());
  for (std::size_t i = 1; i < by_name_.size(); ++i) {
    if (by_name_[i - 1].first == by_name_[i].first) {
      broken("declared twice: " + std::string(by_name_[i].first));
    }
  }
}

const OpDef* Catalog::find(std::string_view name) const {
  const auto at =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [](const auto& row, std::string_view n) { return row.first < n; });
  return at == by_name_.end() || at->first != name ? nullptr : &definitions_[at->second];
}

std::string Catalog::fingerprint() const {
  std::string text;
  for (const OpDef& op : definitions_) {
    text += op.name;
    text += ' ';
    text += std::to_string(op.revision);
    text += ' ';
    text += op.signature;
    text += '\n';
  }
  return text;
}

core::Status Catalog::check(OpId id, std::size_t operands, std::span<const std::uint32_t> counts,
                            const core::Attributes& attributes) const {
  if (id >= size()) return core::invalid("no op has number " + std::to_string(id));
  const OpDef& op = definitions_[id];
  const auto fail = [&](std::string text) {
    return core::invalid(op.name + ": " + std::move(text));
  };
  std::size_t expected = 0, lists = 0;
  for (int i = 0; i < op.operand_parameters; ++i) {
    if (op.parameters[i].type != Parameter::Type::kTensorList) {
      ++expected;
    } else {
      if (lists < counts.size()) expected += counts[lists];
      ++lists;
    }
  }
  if (lists != counts.size()) {
    return fail("takes " + plural(lists, "list") + ", got " + std::to_string(counts.size()));
  }
  if (expected != operands) {
    return fail("takes " + plural(expected, "operand") + ", got " + std::to_string(operands));
  }
  const std::size_t wanted = op.parameters.size() - op.operand_parameters;
  const bool left = attributes.size() + 1 == wanted && left_off(op.parameters.back());
  if (attributes.size() != wanted && !left) {
    return fail("takes " + plural(wanted, "attribute") + ", got " +
                std::to_string(attributes.size()));
  }
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    const Parameter& parameter = op.parameters[op.operand_parameters + i];
    if (!fits(parameter, attributes.at(i))) {
      return fail("attribute '" + parameter.name + "' has the wrong kind");
    }
  }
  return {};
}

const Catalog& catalog() {
  static const Catalog* const instance = new Catalog(all_families());
  return *instance;
}

}  // namespace teletensor::ops
