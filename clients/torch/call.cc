#include "clients/torch/call.h"

#include <algorithm>
#include <cstring>

#include "clients/torch/plan.h"

namespace teletensor::torch {

using core::Attribute;
using core::Attributes;
using core::Dims;
using core::Number;
using ops::Parameter;

std::string_view reduction_of(std::int64_t number) {
  return number == 0 ? "none" : number == 1 ? "mean" : "sum";
}

namespace {

std::span<const std::int64_t> span_of(const tt_value& value) { return {value.ints, value.count}; }

double real_of(const tt_value& value) {
  return value.kind == TT_REAL || value.kind == TT_COMPLEX ? value.real
                                                           : static_cast<double>(value.integer);
}

// An argument as the attribute that the parameter wants.
core::Result<Attribute> attribute_of(const tt_value& value, const Parameter& parameter) {
  using Type = Parameter::Type;
  if (value.kind == TT_NONE) {
    return parameter.optional || !parameter.has_default ? Attribute::none() : parameter.fallback;
  }
  if (value.kind == TT_TENSOR || value.kind == TT_CPU_SCALAR) {
    return core::unimplemented("a tensor as " + parameter.name + " is not supported");
  }
  switch (parameter.type) {
    case Type::kBool:
      return Attribute::of(value.integer != 0);
    case Type::kInt:
      if (value.kind == TT_INTS && value.count == 0) return Attribute::none();
      return Attribute::of(value.kind == TT_INTS ? value.ints[0] : value.integer);
    case Type::kFloat:
      if (value.kind == TT_COMPLEX && value.imaginary != 0) {
        return core::unimplemented("a complex " + parameter.name + " is not supported");
      }
      return Attribute::of(real_of(value));
    case Type::kInts:
      if (value.kind == TT_INT) return Attribute::of(Dims{value.integer});
      if (value.count == 0 && parameter.optional) return Attribute::none();
      return Attribute::of(span_of(value));
    case Type::kString:
      if (value.kind == TT_INT) return Attribute::of(reduction_of(value.integer));
      return Attribute::of(std::string_view(value.text, value.count));
    case Type::kDType: {
      const auto dtype = dtype_of(static_cast<std::int32_t>(value.integer));
      if (!dtype.ok()) return dtype.status();
      return Attribute::of(*dtype);
    }
    default:
      return Attribute::none();
  }
}

}  // namespace

std::string_view Call::name() const { return plan_.name; }

core::Result<std::int64_t> Call::integer_of(const Var& tensor) {
  if (session.commands().tracer() != nullptr) {
    const std::string line = session.here();
    return core::Result<std::int64_t>(Status(
        core::Code::kFailedPrecondition,
        (line.empty() ? "" : line + ": ") +
            "a captured step cannot read a tensor's value: the size of the result of aten::" +
            std::string(name()) + " depends on values; use an operator whose result has a fixed " +
            "size, such as torch.where, or call it outside of the step"));
  }
  return host_.integer_of(tensor);
}
bool Call::in_place() const { return plan_.in_place; }

const tt_value& Call::value(std::string_view name) const {
  static const tt_value none{};
  for (std::size_t i = 0; i < plan_.names.size(); ++i) {
    if (plan_.names[i] == name) return values_[i];
  }
  return none;
}

std::int64_t Call::integer(std::string_view name, std::int64_t otherwise) const {
  const tt_value& found = value(name);
  return found.kind == TT_NONE ? otherwise : found.integer;
}
double Call::real(std::string_view name, double otherwise) const {
  const tt_value& found = value(name);
  return found.kind == TT_NONE ? otherwise : real_of(found);
}
bool Call::is_real(std::string_view name) const {
  const tt_value& found = value(name);
  return found.kind != TT_COMPLEX || found.imaginary == 0;
}
Dims Call::ints(std::string_view name) const {
  const tt_value& found = value(name);
  if (found.kind == TT_INT) return Dims{found.integer};
  return found.kind == TT_INTS ? Dims(span_of(found)) : Dims();
}
std::string_view Call::text(std::string_view name) const {
  const tt_value& found = value(name);
  return found.kind == TT_TEXT ? std::string_view(found.text, found.count) : std::string_view();
}
std::optional<DType> Call::dtype(std::string_view name) {
  const tt_value& found = value(name);
  if (found.kind == TT_NONE) return std::nullopt;
  const auto dtype = dtype_of(static_cast<std::int32_t>(found.integer));
  if (!dtype.ok()) fail(dtype.status());
  return dtype.ok() ? std::optional(*dtype) : std::nullopt;
}

Var Call::var(const tt_tensor& tensor) {
  if (tensor.storage == nullptr) return {};
  return operands_.emplace_back(operand(session, device, tensor));
}
Var Call::var(const tt_value& value) {
  switch (value.kind) {
    case TT_TENSOR:
      return var(value.tensor);
    case TT_BOOL:
      return Number::of_bool(value.integer != 0);
    case TT_INT:
      return Number::of_int(value.integer);
    case TT_REAL:
      return Number::of_float(value.real);
    case TT_COMPLEX:
      return Number::of_complex(value.real, value.imaginary);
    case TT_CPU_SCALAR: {
      const auto dtype = dtype_of(value.dtype);
      if (!dtype.ok()) return fail(dtype.status()), Var();
      std::string bytes(reinterpret_cast<const char*>(value.bytes), core::size_of(*dtype));
      auto made = session.constant(*dtype, device, Dims(), std::move(bytes));
      if (!made.ok()) return fail(made.status()), Var();
      return Var(&session, *made);
    }
    default:
      return {};
  }
}

std::vector<Var> Call::vars(std::string_view name) {
  const tt_value& found = value(name);
  std::vector<Var> all;
  for (std::size_t i = 0; i < found.count && found.kind == TT_TENSORS; ++i) {
    all.push_back(var(found.tensors[i]));
  }
  return all;
}

bool Call::wanted(std::size_t i) const {
  const tt_value& mask = value("output_mask");
  return mask.kind == TT_NONE || (i < mask.count && mask.ints[i] != 0);
}

Attributes Call::with_random(Attributes attributes) {
  std::int64_t seed = 0, ordinal = 0;
  const tt_value& given = value("generator");
  host_.random(given.kind == TT_GENERATOR ? given.generator : nullptr, 1, seed, ordinal);
  attributes.push_back(Attribute::of(seed));
  attributes.push_back(Attribute::of(ordinal));
  return attributes;
}

void Call::write(const Var& tensor, const Var& value) {
  if (!session.status().ok()) return;
  if (const Status status = copy_to(session, tensor, value); !status.ok()) fail(status);
}

void Call::run_inplace(ops::OpId op, std::initializer_list<Var> arguments, Attributes attributes) {
  if (!session.status().ok()) return;
  const Status status =
      session.apply_inplace(op, std::span(arguments.begin(), arguments.size()), {}, attributes);
  if (!status.ok()) fail(status);
}

void Call::fail(Status status) {
  if (session.status().ok()) session.put_status(std::move(status));
}

void Call::give(const Var& result) {
  if (!session.status().ok() || result.absent()) return;
  Var tensor = result;
  if (result.is_number()) return fail(core::invalid("a row gives a number"));
  Status status;
  if (in_place()) {
    const tt_tensor& self = values_[0].tensor;
    if (!(tensor.shape() == sizes_of(self))) {
      return fail(core::invalid("output with shape " + core::to_string(sizes_of(self)) +
                                " doesn't match the broadcast shape " +
                                core::to_string(tensor.shape())));
    }
    status = torch::write(session, device, self, tensor);
  } else {
    tt_result made{};
    status = make_result(session, tensor, operands_, made);
    if (status.ok()) results_.push_back(made);
  }
  if (!status.ok()) fail(status);
}

void Call::give_nothing() { results_.emplace_back(); }
void Call::give_blank(DType dtype) {
  tt_result made{};
  made.kind = TT_TENSOR;
  made.storage_bytes = core::size_of(dtype);
  made.tensor.storage = new tt_storage;
  made.tensor.storage->bytes = made.storage_bytes;
  made.tensor.dtype = scalar_type_of(dtype);
  results_.push_back(made);
}
void Call::give_integer(std::int64_t number) {
  tt_result made{};
  made.kind = TT_INT;
  made.integer = number;
  results_.push_back(made);
}

Call::Operands Call::row_operands() {
  const ops::OpDef& op = *plan_.op;
  Operands found;
  auto& [arguments, counts, attributes] = found;
  for (std::size_t i = 0; i < plan_.terms.size(); ++i) {
    const Term& term = plan_.terms[i];
    const Parameter& parameter = op.parameters[i];
    if (parameter.type == Parameter::Type::kTensorList) {
      const std::vector<Var> all = vars(plan_.names[term.argument]);
      for (const Var& each : all) arguments.push_back(each);
      counts.push_back(static_cast<std::uint32_t>(all.size()));
    } else if (parameter.is_operand()) {
      if (term.kind == Term::Kind::kArgument) {
        Var argument = var(values_[term.argument]);
        if (argument.is_number() && parameter.type != Parameter::Type::kOperand) {
          static const ops::OpRef full("full");
          argument = run(full, {argument},
                         {Attribute::of(Dims()), Attribute::none(), Attribute::of(device)});
        }
        arguments.push_back(argument);
      } else if (term.kind == Term::Kind::kNumber) {
        const bool whole = term.number == static_cast<double>(static_cast<int>(term.number));
        arguments.push_back(whole ? Var(static_cast<int>(term.number)) : Var(term.number));
      } else if (term.kind == Term::Kind::kDefault && parameter.has_default &&
                 parameter.fallback.kind != Attribute::Kind::kNone) {
        arguments.push_back(parameter.fallback.kind == Attribute::Kind::kInt
                                ? Var(Number::of_int(parameter.fallback.integer))
                                : Var(parameter.fallback.real));
      } else {
        arguments.push_back({});
      }
    } else if (parameter.type == Parameter::Type::kDevice) {
      attributes.push_back(Attribute::of(device));
    } else if (term.kind == Term::Kind::kArgument) {
      auto attribute = attribute_of(values_[term.argument], parameter);
      if (!attribute.ok()) return fail(attribute.status()), Operands();
      attributes.push_back(std::move(*attribute));
    } else if (term.kind == Term::Kind::kDefault) {
      attributes.push_back(parameter.fallback);
    } else if (term.kind == Term::Kind::kText) {
      attributes.push_back(Attribute::of(std::string_view(term.text)));
    } else if (term.kind == Term::Kind::kNumber) {
      attributes.push_back(parameter.type == Parameter::Type::kFloat ? Attribute::of(term.number)
                           : parameter.type == Parameter::Type::kBool
                               ? Attribute::of(term.number != 0)
                               : Attribute::of(static_cast<std::int64_t>(term.number)));
    } else {
      attributes.push_back(Attribute::none());
    }
  }
  if (op.random) attributes = with_random(std::move(attributes));
  return found;
}

Var Call::run_row_on(const Var& first) {
  Operands operands = row_operands();
  if (!session.status().ok()) return {};
  operands.tensors[0] = first;
  return run_all(plan_.id, operands.all(), std::move(operands.attributes), operands.lists())[0];
}

void Call::run_row() {
  const ops::OpDef& op = *plan_.op;
  Operands operands = row_operands();
  if (!session.status().ok()) return;
  // An op that writes the tensor that torch's schema names first is run in place.
  const bool direct = in_place() && op.results == 1 && op.infer != nullptr && op.mutates.empty() &&
                      plan_.terms[0].kind == Term::Kind::kArgument &&
                      plan_.terms[0].argument == 0 && operands.tensors.size() > 0 &&
                      operands.tensors[0].is_tensor();
  if (direct) {
    const Status status =
        session.apply_inplace(plan_.id, operands.all(), operands.lists(), operands.attributes);
    if (!status.ok()) fail(status);
    return;
  }
  const ops::Vars made =
      run_all(plan_.id, operands.all(), std::move(operands.attributes), operands.lists());
  for (const Var& each : made) give(each);
}

}  // namespace teletensor::torch
