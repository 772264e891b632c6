// Var: an operand or result as vjps see it. Builder: turns calls of ops into instructions.
//
// vjps are written with ops over Vars, so the same code runs on the daemon (a plain backward, where
// nothing is recorded) and on the client (create_graph, where ordinary recorded instructions are
// sent).
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

#include "engine/core/attributes.h"
#include "engine/core/geometry.h"
#include "engine/core/inline_vector.h"
#include "engine/core/ref.h"
#include "engine/program/instruction.h"

namespace teletensor::ops {

using program::OpId;

// The object that a Var refers to: the graph's Handle. Only the session's thread changes its
// reference count.
class Named : public core::Counted {
 public:
  core::Layout layout;
};

class Builder;

// A tensor, a number, or absent. Cheap to copy.
class Var {
 public:
  Var() = default;
  Var(Builder* builder, core::Ref<Named> named) : builder_(builder), named_(std::move(named)) {}
  Var(core::Number number) : number_(number), is_number_(true) {}
  Var(double value) : Var(core::Number::of_float(value)) {}
  Var(int value) : Var(core::Number::of_int(value)) {}

  bool is_tensor() const { return named_ != nullptr; }
  bool is_number() const { return is_number_; }
  bool absent() const { return !is_tensor() && !is_number(); }
  const core::Number& number() const { return number_; }
  const core::Ref<Named>& named() const { return named_; }
  Builder* builder() const { return builder_; }

  // The layout of a tensor; an empty 0-d f32 layout if it is none (after a failed call).
  const core::Layout& layout() const;
  const core::Dims& shape() const { return layout().geometry.shape; }
  core::DType dtype() const { return layout().dtype; }
  int rank() const { return shape().size(); }

 private:
  Builder* builder_ = nullptr;
  core::Ref<Named> named_;
  core::Number number_;
  bool is_number_ = false;
};
using Vars = core::InlineVector<Var, 2>;

class Builder {
 public:
  virtual ~Builder() = default;
  // Applies an op out of place; views are ops too. After the first failure status() keeps its
  // error, all results are absent and further calls do nothing, so callers need not check each
  // call.
  virtual Vars call(OpId op, std::span<const Var> arguments, core::Attributes attributes,
                    std::span<const std::uint32_t> counts) = 0;
  const core::Status& status() const { return status_; }

 protected:
  core::Status status_;
};

}  // namespace teletensor::ops
