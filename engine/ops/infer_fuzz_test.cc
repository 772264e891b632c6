// Fuzzes infer and view of every op of the catalog with operands and attributes of the right kinds
// and arbitrary values, as a hostile client can send them. Each call must be refused or give valid
// layouts; sanitizer builds detect other errors. A failure prints the seed.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/ops/dice_test.h"

namespace teletensor::ops {
namespace {

using core::Dims;
using core::Geometry;

class Call {
 public:
  Call(const OpDef& op, Dice& dice) : op_(op) {
    for (const Parameter& p : op.parameters) {
      if (!p.is_operand()) {
        attributes_.push_back(dice.attribute(p, like()));
        continue;
      }
      std::int64_t count = 1;
      if (p.type == Parameter::Type::kTensorList) {
        count = dice.length();
        counts_.push_back(static_cast<std::uint32_t>(count));
      }
      for (; count > 0; --count) {
        Slot& slot = slots_.emplace_back();
        slot.absent = (p.optional || p.type == Parameter::Type::kOptionalTensor) && dice.chance(30);
        slot.is_number = p.type == Parameter::Type::kOperand && dice.chance(50);
        slot.number = dice.number();
        slot.layout.dtype =
            slots_.size() > 1 && dice.chance(60) ? slots_[0].layout.dtype : dice.dtype();
        slot.layout.geometry = dice.geometry(like());
        if (dice.long_ones() && slots_.size() > 1) slot.layout = slots_[0].layout;
      }
    }
  }

  void run(std::uint64_t seed) {
    std::vector<OperandInfo> infos;
    for (const Slot& slot : slots_) {
      OperandInfo& info = infos.emplace_back();
      if (slot.absent) continue;
      if (slot.is_number) info.number = &slot.number;
      if (!slot.is_number) info.layout = &slot.layout;
    }
    InferContext context{.op = op_.name,
                         .operands = infos,
                         .counts = counts_,
                         .attributes = attributes_,
                         .default_dtype = core::DType::kF32,
                         .device = {},
                         .results = {}};
    if (op_.view != nullptr) {
      std::vector<Geometry> views;
      const core::Status status = op_.view(context, views);
      if (!status.ok()) {
        EXPECT_TRUE(names_op(status.message())) << op_.name << ": " << status.message();
        return;
      }
      const auto bytes = [](const Geometry& geometry, core::DType dtype) {  // may exceed 63 bits
        return static_cast<long double>(geometry.storage_end()) *
               static_cast<long double>(core::size_of(dtype));
      };
      const core::Layout& base = slots_[0].layout;
      const core::DType dtype = context.results.empty() ? base.dtype : context.results[0].dtype;
      for (const Geometry& view : views) {
        ASSERT_LE(view.rank(), core::kMaxRank) << op_.name << " seed " << seed;
        ASSERT_TRUE(core::checked_numel(view.shape.span()).ok()) << op_.name << " seed " << seed;
        if (view.numel() > 0) {
          ASSERT_LE(bytes(view, dtype), bytes(base.geometry, base.dtype))
              << op_.name << " seed " << seed;
        }
      }
    } else {
      const core::Status status = op_.infer(context);
      if (!status.ok()) {
        EXPECT_TRUE(names_op(status.message())) << op_.name << ": " << status.message();
        return;
      }
      if (op_.mutates.empty() && op_.results >= 0) {
        ASSERT_EQ(context.results.size(), static_cast<std::size_t>(op_.results)) << op_.name;
      }
      for (const core::Layout& result : context.results) {
        ASSERT_LE(result.geometry.rank(), core::kMaxRank) << op_.name << " seed " << seed;
        ASSERT_EQ(result.geometry.rank(), result.geometry.strides.size()) << op_.name;
      }
    }
  }

 private:
  struct Slot {
    bool absent = false, is_number = false;
    core::Number number;
    core::Layout layout;
  };
  // Messages have the form "op: fact". Functions of a submodule are named with a dot, and
  // linalg.inv_ex is named linalg.inv.
  bool names_op(std::string_view message) const {
    std::string dotted = op_.name;
    if (dotted.ends_with("_ex")) dotted.resize(dotted.size() - 3);
    if (const auto at = dotted.find('_'); at != std::string::npos) dotted[at] = '.';
    for (const std::string& name : {op_.name, dotted}) {
      if (message.starts_with(name) && message.size() > name.size() + 2) return true;
    }
    return false;
  }
  const Dims* like() const { return slots_.empty() ? nullptr : &slots_[0].layout.geometry.shape; }

  const OpDef& op_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> counts_;
  core::Attributes attributes_;
};

TEST(Infer, SurvivesAnyOperandsAndAttributes) {
  const Catalog& ops = catalog();
  for (std::size_t id = 0; id < ops.size(); ++id) {
    for (std::uint64_t seed = 0; seed < 1500; ++seed) {
      Dice dice(seed * 1000 + id);
      Call(ops.at(static_cast<OpId>(id)), dice).run(seed * 1000 + id);
      if (HasFatalFailure()) return;
    }
  }
}

// Lists of the maximum length of a program: code that compares each pair of entries would take
// minutes.
TEST(Infer, LooksAtLongListsOnce) {
  const Catalog& ops = catalog();
  for (std::size_t id = 0; id < ops.size(); ++id) {
    const OpDef& op = ops.at(static_cast<OpId>(id));
    const bool lists =
        std::any_of(op.parameters.begin(), op.parameters.end(), [](const Parameter& p) {
          return p.type == Parameter::Type::kTensorList || p.type == Parameter::Type::kInts;
        });
    for (std::uint64_t seed = 0; lists && seed < 2; ++seed) {
      Dice dice(seed * 1000 + id, 1 << 16);
      Call(op, dice).run(seed * 1000 + id);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace teletensor::ops
