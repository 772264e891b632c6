// Gradients of torch's own `*_backward` operators, by the vjps of the catalog.

#include <algorithm>

#include "clients/torch/call.h"

namespace teletensor::torch {
namespace {

// The context of a vjp whose operands are given: nothing was recorded.
class GivenContext final : public ops::VjpContext {
 public:
  GivenContext(Session& session, const ops::OpDef& op, std::span<const Var> operands,
               const core::Attributes& attributes, std::span<const std::uint32_t> counts,
               std::span<const Var> gradients, std::uint32_t wants, std::span<const Var> results)
      : session_(session),
        op_(op),
        operands_(operands),
        attributes_(attributes),
        counts_(counts),
        gradients_(gradients),
        wants_(wants),
        results_(results.begin(), results.end()),
        given_(operands.size()) {}

  const core::Attributes& attributes() const override { return attributes_; }
  std::span<const std::uint32_t> counts() const override { return counts_; }
  std::size_t operands() const override { return operands_.size(); }
  ops::Builder& builder() override { return session_; }
  Var gradient(std::size_t i) override {
    if (i < gradients_.size() && !gradients_[i].absent()) return gradients_[i];
    const Var made = result(i);
    return made.absent() ? made : ops::zeros(session_, made.layout());
  }
  Var operand(std::size_t i) override { return i < operands_.size() ? operands_[i] : Var(); }
  Var result(std::size_t i) override {
    if (i < results_.size() && !results_[i].absent()) return results_[i];
    const ops::Vars made = session_.call(ops::catalog().id(op_), operands_, attributes_, counts_);
    if (results_.size() < made.size()) results_.resize(made.size());
    for (std::size_t k = 0; k < made.size(); ++k) {
      if (results_[k].absent()) results_[k] = made[k];
    }
    return i < results_.size() ? results_[i] : Var();
  }
  const core::Layout& operand_layout(std::size_t i) const override { return operands_[i].layout(); }
  bool needs(std::size_t i) const override {
    return i < operands_.size() && operands_[i].is_tensor() && (wants_ >> i & 1) != 0;
  }
  void give(std::size_t i, const Var& gradient) override {
    if (!needs(i) || !gradient.is_tensor()) return;
    const core::Layout& layout = operands_[i].layout();
    const Var summed = ops::sum_to(gradient, layout.geometry.shape);
    given_[i] = summed.absent() || summed.dtype() == layout.dtype ? summed
                                                                  : ops::cast(summed, layout.dtype);
  }
  std::vector<Var> take() { return std::move(given_); }

 private:
  Session& session_;
  const ops::OpDef& op_;
  const std::span<const Var> operands_;
  const core::Attributes& attributes_;
  const std::span<const std::uint32_t> counts_;
  const std::span<const Var> gradients_;
  const std::uint32_t wants_;
  std::vector<Var> results_;
  std::vector<Var> given_;
};

}  // namespace

std::vector<Var> Call::gradients(std::string_view op, std::span<const Var> operands,
                                 const core::Attributes& attributes, std::span<const Var> gradients,
                                 std::uint32_t wants, std::span<const Var> results,
                                 std::span<const std::uint32_t> counts) {
  const ops::OpDef* found = ops::catalog().find(op);
  if (found == nullptr || found->vjp == nullptr) {
    fail(core::unimplemented(std::string(op) + " has no derivative"));
    return std::vector<Var>(operands.size());
  }
  GivenContext context(session, *found, operands, attributes, counts, gradients, wants, results);
  found->vjp(context);
  return context.take();
}

}  // namespace teletensor::torch
