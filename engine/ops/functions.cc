#include "engine/ops/functions.h"

#include <algorithm>
#include <unordered_map>

namespace teletensor::ops {
namespace {

// Derivatives name ops by text, which costs one hash lookup per call.
OpId by_name(std::string_view name) {
  static const auto* const table = [] {
    auto* map = new std::unordered_map<std::string_view, OpId>();
    for (std::size_t i = 0; i < catalog().size(); ++i) {
      map->emplace(catalog().at(static_cast<OpId>(i)).name, static_cast<OpId>(i));
    }
    return map;
  }();
  return table->at(name);
}

// Adds the defaults of the signature for the attributes that are not given.
core::Attributes&& complete(OpId id, core::Attributes&& attributes) {
  const OpDef& op = catalog().at(id);
  for (std::size_t i = op.operand_parameters + attributes.size(); i < op.parameters.size(); ++i) {
    attributes.push_back(op.parameters[i].fallback);
  }
  return std::move(attributes);
}

Var first(Vars results) { return results.empty() ? Var() : std::move(results[0]); }

bool takes_absent(const OpDef& op) {
  const auto operands = static_cast<std::ptrdiff_t>(op.operand_parameters);
  return std::any_of(
      op.parameters.begin(), op.parameters.begin() + operands, [](const Parameter& parameter) {
        return parameter.optional || parameter.type == Parameter::Type::kOptionalTensor;
      });
}

Vars call(OpId op, std::span<const Var> arguments, core::Attributes&& attributes,
          std::span<const std::uint32_t> counts) {
  Builder* builder = nullptr;
  for (const Var& argument : arguments) {
    if (argument.is_tensor()) {
      builder = argument.builder();
      break;
    }
  }
  const OpDef& def = catalog().at(op);
  const bool missing = std::any_of(arguments.begin(), arguments.end(),
                                   [](const Var& argument) { return argument.absent(); });
  if (!builder || (missing && !takes_absent(def))) {
    Vars none;
    none.resize(static_cast<std::size_t>(std::max(def.results, 1)));
    return none;
  }
  return builder->call(op, arguments, complete(op, std::move(attributes)), counts);
}

}  // namespace

Vars apply_all(OpId op, std::span<const Var> arguments, core::Attributes attributes,
               std::span<const std::uint32_t> counts) {
  return call(op, arguments, std::move(attributes), counts);
}

Var apply(OpId op, std::initializer_list<Var> arguments, core::Attributes attributes) {
  return first(call(op, std::span(arguments.begin(), arguments.size()), std::move(attributes), {}));
}

const core::Layout& Var::layout() const {
  static const core::Layout empty{};
  return named_ ? named_->layout : empty;
}

Var operator+(const Var& a, const Var& b) {
  static const OpRef op("add");
  return apply(op, {a, b});
}
Var operator-(const Var& a, const Var& b) {
  static const OpRef op("sub");
  return apply(op, {a, b});
}
Var operator*(const Var& a, const Var& b) {
  static const OpRef op("mul");
  return apply(op, {a, b});
}
Var operator/(const Var& a, const Var& b) {
  static const OpRef op("div");
  return apply(op, {a, b});
}
Var operator-(const Var& a) {
  static const OpRef op("neg");
  return apply(op, {a});
}

Var unary(std::string_view op, const Var& x) { return apply(by_name(op), {x}); }
Var binary(std::string_view op, const Var& a, const Var& b) { return apply(by_name(op), {a, b}); }

Var where(const Var& condition, const Var& a, const Var& b) {
  static const OpRef op("where");
  return apply(op, {condition, a, b});
}

Var cast(const Var& x, core::DType dtype) {
  static const OpRef op("cast");
  if (!x.is_tensor() || x.dtype() == dtype) return x;
  return apply(op, {x}, {core::Attribute::of(dtype)});
}

Var conj(const Var& x) {
  static const OpRef op("conj");
  if (x.is_number() && x.number().is_complex()) {
    return core::Number::of_complex(x.number().real, -x.number().imaginary);
  }
  return x.is_tensor() && core::is_complex(x.dtype()) ? apply(op, {x}) : x;
}

Var real(const Var& x) {
  static const OpRef op("real");
  return x.is_tensor() && core::is_complex(x.dtype()) ? apply(op, {x}) : x;
}

bool flag(const core::Attributes& attributes, std::size_t at) {
  return attributes.has(at) && attributes.boolean(at);
}

Var matmul(const Var& a, const Var& b, bool tf32) {
  static const OpRef op("matmul");
  if (!tf32) return apply(op, {a, b});
  return apply(op, {a, b}, {core::Attribute::of(true)});
}

void VjpContext::give_product(std::size_t i, const Var& a, const Var& b, bool tf32) {
  if (needs(i)) give(i, matmul(transpose(a, 0, 1), b, tf32));
}

Var sum(const Var& x, const core::Dims& dims, bool keepdim) {
  static const OpRef op("sum");
  return apply(op, {x}, {core::Attribute::of(dims), core::Attribute::of(keepdim)});
}

Var sum_to(const Var& x, const core::Dims& shape) {
  if (!x.is_tensor() || x.shape() == shape) return x;
  core::Dims dims;
  const int extra = x.rank() - shape.size();
  for (int i = 0; i < x.rank(); ++i) {
    if (i < extra || (shape[i - extra] == 1 && x.shape()[i] != 1)) dims.push_back(i);
  }
  return reshape(dims.empty() ? x : sum(x, dims, true), shape);
}

Var expand(const Var& x, const core::Dims& shape) {
  static const OpRef op("expand");
  if (!x.is_tensor() || x.shape() == shape) return x;
  return apply(op, {x}, {core::Attribute::of(shape)});
}

Var reshape(const Var& x, const core::Dims& shape) {
  static const OpRef op("reshape");
  if (!x.is_tensor() || x.shape() == shape) return x;
  return apply(op, {x}, {core::Attribute::of(shape)});
}

Var transpose(const Var& x, int a, int b) {
  static const OpRef op("transpose");
  return apply(op, {x}, {core::Attribute::of(a), core::Attribute::of(b)});
}

Var permute(const Var& x, const core::Dims& order) {
  static const OpRef op("permute");
  return apply(op, {x}, {core::Attribute::of(order)});
}

Var unsqueeze(const Var& x, int dim) {
  static const OpRef op("unsqueeze");
  return apply(op, {x}, {core::Attribute::of(dim)});
}

Var squeeze(const Var& x, int dim) {
  if (!x.is_tensor()) return x;
  core::Dims shape = x.shape();
  if (dim < 0) dim += shape.size();
  if (dim < shape.size() && shape[dim] == 1) shape.erase(dim);
  return reshape(x, shape);
}

Var full(Builder& builder, const core::Dims& shape, const core::Number& value, core::DType dtype,
         core::Device device) {
  static const OpRef op("full");
  const Var number(value);
  return first(builder.call(op, std::span(&number, 1),
                            complete(op, {core::Attribute::of(shape), core::Attribute::of(dtype),
                                          core::Attribute::of(device)}),
                            {}));
}

Var zeros(Builder& builder, const core::Layout& like) {
  return full(builder, like.geometry.shape, core::Number::of_int(0), like.dtype, like.device);
}

core::Geometry parts_of(const core::Geometry& g) {
  core::Geometry parts = g;
  // Strides of a tensor without elements may be arbitrary, so doubling them must not overflow.
  for (std::int64_t& stride : parts.strides) stride = std::min(stride, INT64_MAX / 2) * 2;
  parts.shape.push_back(2);
  parts.strides.push_back(1);
  parts.offset *= 2;
  return parts;
}

core::Attributes region_attributes(const core::Geometry& base, const core::Geometry& view) {
  return {core::Attribute::of(base.shape), core::Attribute::of(base.strides),
          core::Attribute::of(view.shape), core::Attribute::of(view.strides),
          core::Attribute::of(view.offset - base.offset)};
}

Var region_of(const Var& all, const core::Layout& base, const core::Layout& view) {
  static const OpRef index("index_region");
  if (base.dtype == view.dtype) {
    return apply(index, {all}, region_attributes(base.geometry, view.geometry));
  }
  if (core::is_complex(base.dtype)) {
    return apply(index, {unary("view_as_real", all)},
                 region_attributes(parts_of(base.geometry), view.geometry));
  }
  return unary("view_as_complex",
               apply(index, {all}, region_attributes(base.geometry, parts_of(view.geometry))));
}

Var with_region(const Var& all, const Var& part, const core::Layout& base,
                const core::Layout& view) {
  static const OpRef update("update_region");
  if (base.dtype == view.dtype) {
    return apply(update, {all, part}, region_attributes(base.geometry, view.geometry));
  }
  if (core::is_complex(base.dtype)) {
    return unary("view_as_complex",
                 apply(update, {unary("view_as_real", all), part},
                       region_attributes(parts_of(base.geometry), view.geometry)));
  }
  return apply(update, {all, unary("view_as_real", part)},
               region_attributes(base.geometry, parts_of(view.geometry)));
}

}  // namespace teletensor::ops
