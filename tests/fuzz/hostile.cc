#include "hostile.h"

#include <cmath>
#include <limits>

namespace teletensor::fuzz {

using core::Attribute;
using ops::Parameter;
using program::Argument;
using program::Command;

namespace {
constexpr std::int64_t kOdd[] = {std::numeric_limits<std::int64_t>::min(),
                                 std::numeric_limits<std::int64_t>::min() + 1,
                                 -(1ll << 62),
                                 -(1ll << 32),
                                 -1000,
                                 -13,
                                 12,
                                 13,
                                 64,
                                 1000,
                                 1ll << 31,
                                 1ll << 32,
                                 3037000500,
                                 1ll << 62,
                                 std::numeric_limits<std::int64_t>::max() - 1,
                                 std::numeric_limits<std::int64_t>::max()};
}  // namespace

std::vector<Command> Hostile::constants(program::HandleId before) {
  before_ = before;
  static const core::Dims kShapes[] = {{},
                                       {3},
                                       {0},
                                       {2, 3},
                                       {3, 2},
                                       {1, 3},
                                       {2, 2, 3},
                                       {4, 0, 2},
                                       {3, 3},
                                       {2, 1, 3, 2},
                                       {2, 2, 2},
                                       {2, 3, 5},
                                       {4},
                                       {4, 2},
                                       {1, 2, 2},
                                       {1, 2, 4, 4},
                                       {1, 2, 3, 3, 3},
                                       core::Dims(core::kMaxRank, 1),
                                       {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2}};
  constexpr std::size_t kConstants = 30;
  std::vector<Command> commands;
  for (std::size_t i = 0; i < kConstants; ++i) {
    program::Constant c;
    c.dtype = i < std::size(core::kAllDTypes) ? core::kAllDTypes[i]
              : one_in(2)                     ? core::DType::kF32
                                              : dtype();
    c.shape = kShapes[below(std::size(kShapes))];
    const std::size_t bytes =
        static_cast<std::size_t>(core::numel(c.shape)) * core::size_of(c.dtype);
    const bool small = !one_in(4);
    for (std::size_t b = 0; b < bytes; ++b) {
      c.bytes += static_cast<char>(c.dtype == core::DType::kBool ? below(2)
                                   : small ? (b % core::size_of(c.dtype) == 0) * below(4)
                                           : random_());
    }
    commands.push_back(std::move(c));
    if (core::is_floating(std::get<program::Constant>(commands.back()).dtype) && one_in(3)) {
      // ids are sequential: the id of this constant is also the number of constants
      std::uint64_t id = before;
      for (const Command& command : commands)
        id += std::holds_alternative<program::Constant>(command);
      commands.push_back(program::SetFlag{program::SetFlag::What::kRequiresGrad, id, true});
    }
  }
  return commands;
}

std::int64_t Hostile::integer() {
  if (one_in(10)) return kOdd[below(std::size(kOdd))];
  return static_cast<std::int64_t>(below(8)) - 3;
}

double Hostile::real() {
  switch (below(12)) {
    case 0:
      return std::numeric_limits<double>::quiet_NaN();
    case 1:
      return std::numeric_limits<double>::infinity();
    case 2:
      return -std::numeric_limits<double>::infinity();
    case 3:
      return -1e308;
    case 4:
      return 5e-324;
    default:
      return static_cast<double>(below(9)) / 4 - 1;
  }
}

core::Number Hostile::number() {
  switch (below(3)) {
    case 0:
      return core::Number::of_bool(one_in(2));
    case 1:
      return core::Number::of_int(integer());
    default:
      return core::Number::of_float(real());
  }
}

Attribute Hostile::attribute(const Parameter& p) {
  if (p.has_default && one_in(2)) return p.fallback;
  if (p.optional && one_in(3)) return Attribute::none();
  switch (p.type) {
    case Parameter::Type::kBool:
      return Attribute::of(one_in(2));
    case Parameter::Type::kInt:
      return Attribute::of(integer());
    case Parameter::Type::kFloat:
      return Attribute::of(real());
    case Parameter::Type::kInts: {
      std::vector<std::int64_t> values(one_in(20) ? below(40) : below(4));
      const bool sane = one_in(2);  // whether sizes, strides and paddings are reasonable
      for (std::int64_t& value : values) {
        value = sane ? static_cast<std::int64_t>(below(3)) : integer();
      }
      return Attribute::of(std::span<const std::int64_t>(values));
    }
    case Parameter::Type::kString: {
      static const char* const kTexts[] = {
          "",         "mean",      "sum",       "none",     "tanh",    "zzz",      "ij,jk->ik",
          "floor",    "trunc",     "L",         "U",        "reduced", "complete", "r",
          "gels",     "gelsy",     "gelss",     "gelsd",    "prod",    "amax",     "amin",
          "constant", "reflect",   "replicate", "circular", "nearest", "linear",   "bilinear",
          "bicubic",  "trilinear", "area",      "zeros",    "border",  "ortho",    "forward",
          "backward", "max",       "lower",     "higher",   "midpoint"};
      return Attribute::of(kTexts[below(std::size(kTexts))]);
    }
    case Parameter::Type::kDType:
      return Attribute::of(dtype());
    case Parameter::Type::kDevice:
      return Attribute::of(one_in(8) ? core::Device{core::DeviceKind::kCuda, 200} : core::Device{});
    default:
      return Attribute::none();
  }
}

program::Apply Hostile::apply(const ops::Catalog& catalog, program::HandleId handles) {
  program::Apply apply;
  // Views are chosen more often, because faults of histories occur behind several of them.
  const bool view = one_in(8);
  do {
    apply.op = static_cast<program::OpId>(below(catalog.size()));
  } while (view && catalog.at(apply.op).view == nullptr);
  apply.record = one_in(2);
  apply.inplace = one_in(8);
  const ops::OpDef& def = catalog.at(apply.op);
  // Equal operands are accepted more often, and so reach deeper code.
  const program::HandleId usual = handle(handles);
  const auto tensor = [&] { return Argument::of(one_in(2) ? usual : handle(handles)); };
  for (const Parameter& p : def.parameters) {
    switch (p.type) {
      case Parameter::Type::kTensor:
        apply.arguments.push_back(tensor());
        break;
      case Parameter::Type::kOptionalTensor:
        apply.arguments.push_back(one_in(2) ? Argument::absent() : tensor());
        break;
      case Parameter::Type::kOperand:
        apply.arguments.push_back(one_in(3) ? Argument::of(number()) : tensor());
        break;
      case Parameter::Type::kTensorList: {
        const std::uint64_t count = below(4);
        apply.counts.push_back(static_cast<std::uint32_t>(count));
        for (std::uint64_t i = 0; i < count; ++i) apply.arguments.push_back(tensor());
        break;
      }
      default:
        apply.attributes.push_back(attribute(p));
    }
  }
  return apply;
}

Command Hostile::other(program::HandleId handles, std::uint64_t seq) {
  using namespace program;
  switch (below(8)) {
    case 0: {
      Backward b;
      b.roots = {handle(handles)};
      b.seeds = {one_in(2) ? 0 : handle(handles)};
      b.retain_graph = one_in(2);
      b.allow_unused = one_in(2);
      b.has_inputs = one_in(3);
      if (b.has_inputs) b.inputs = {handle(handles), handle(handles)};
      b.made = static_cast<std::uint32_t>(below(3));
      return b;
    }
    case 1:
      return SetGrad{handle(handles), one_in(3) ? 0 : handle(handles)};
    case 2:
      return SetData{handle(handles), handle(handles)};
    case 3:
      return Raise{1 + below(seq)};
    case 4:
      return Saved{1 + below(seq), static_cast<std::uint32_t>(below(4) + 256 * below(2))};
    case 5:
      if (one_in(4)) return program::Taken{1 + below(seq)};
      return one_in(2) ? Command(Release{{handle(handles)}})
                       : Command(program::Forget{1 + below(seq)});
    case 6:
      return SetFlag{static_cast<SetFlag::What>(below(3)), handle(handles), one_in(2)};
    default:
      return Fetch{handle(handles), one_in(4)};
  }
}

}  // namespace teletensor::fuzz
