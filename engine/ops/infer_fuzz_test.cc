// Fuzzes infer and view of every op of the catalog with operands and attributes of the right kinds
// and arbitrary values, as a hostile client can send them. Each call must be refused or give valid
// layouts; sanitizer builds detect other errors. A failure prints the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "engine/ops/dice_test.h"
#include "engine/ops/verify.h"

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

  // Returns true if the value of a number determines a layout.
  bool has_size() const {
    if (op_.view != nullptr) return false;  // A view has no numbers.
    const std::vector<OperandInfo> infos = operand_infos();
    for (std::size_t i = 0; i < infos.size(); ++i) {
      if (infos[i].number == nullptr) continue;
      if (decided_by(op_, infos, counts_, attributes_, i).layout) return true;
    }
    return false;
  }

  // Returns true if the call is valid, has a float operand and gives a float result.
  bool of_floats() {
    std::vector<core::Layout> results;
    const bool takes = std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
      return !slot.absent && !slot.is_number && core::is_inexact(slot.layout.dtype);
    });
    return takes && layouts(results) &&
           std::any_of(results.begin(), results.end(),
                       [](const core::Layout& each) { return core::is_inexact(each.dtype); });
  }

  bool layouts(std::vector<core::Layout>& results) {
    if (op_.view != nullptr) return false;  // A view has no numbers.
    const std::vector<OperandInfo> infos = operand_infos();
    InferContext context = context_of(infos);
    if (!op_.infer(context).ok()) return false;
    results.assign(context.results.begin(), context.results.end());
    return true;
  }

  void run(std::uint64_t seed) {
    const std::vector<OperandInfo> infos = operand_infos();
    InferContext context = context_of(infos);
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
  std::vector<OperandInfo> operand_infos() const {
    std::vector<OperandInfo> infos;
    for (const Slot& slot : slots_) {
      OperandInfo& info = infos.emplace_back();
      if (slot.absent) continue;
      if (slot.is_number) info.number = &slot.number;
      if (!slot.is_number) info.layout = &slot.layout;
    }
    return infos;
  }

  InferContext context_of(const std::vector<OperandInfo>& infos) const {
    return {.op = op_.name,
            .operands = infos,
            .counts = counts_,
            .attributes = attributes_,
            .default_dtype = core::DType::kF32,
            .device = {},
            .results = {}};
  }

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

// A captured program gets a number with each call, unless it is a size.
TEST(Infer, NumbersThatAreSizes) {
  const Catalog& ops = catalog();
  std::set<std::string> found;
  for (std::size_t id = 0; id < ops.size(); ++id) {
    const OpDef& op = ops.at(static_cast<OpId>(id));
    for (std::uint64_t seed = 0; seed < 1500 && !found.contains(op.name); ++seed) {
      Dice dice(seed * 1000 + id);
      if (Call(op, dice).has_size()) found.insert(op.name);
    }
  }
  EXPECT_EQ(found, std::set<std::string>{"arange"});
}

// Float results of float operands through which no gradient passes, and no error says so. Each with
// the reason.
constexpr std::pair<std::string_view, std::string_view> kConstants[] = {
    {"await_sends", "it waits for data that other ranks read"},
    {"receive_from", "the result is another rank's data"},
    {"send_to", "the data goes to another rank, which has no tape of this one"},
};

TEST(Infer, NoOpDropsGradientsSilently) {
  const Catalog& ops = catalog();
  std::set<std::string> found;
  for (std::size_t id = 0; id < ops.size(); ++id) {
    const OpDef& op = ops.at(static_cast<OpId>(id));
    if (op.vjp != nullptr || !op.mutates.empty()) continue;
    for (std::uint64_t seed = 0; seed < 1500; ++seed) {
      Dice dice(seed * 1000 + id);
      if (!Call(op, dice).of_floats()) continue;
      found.insert(op.name);
      break;
    }
  }
  std::set<std::string> known;
  for (const auto& [name, why] : kConstants) known.emplace(name);
  EXPECT_EQ(found, known);
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
