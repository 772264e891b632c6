#include "engine/runtime/back/queue_image.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "engine/ops/verify.h"
#include "engine/program/serialize.h"

namespace teletensor::runtime {

using core::Status;
using program::Image;
using program::Instruction;
using program::Operand;
using program::Program;
using program::ValueId;
using program::ValueRef;
using Saved = Image::Entry;

namespace {

Status inconsistent() {
  return core::invalid("the session's snapshot is inconsistent: a command that has not run");
}

std::uint64_t size_of(const program::ValueType& type) {
  return static_cast<std::uint64_t>(type.elements) * core::size_of(type.dtype);
}

std::uint64_t size_of(const program::Value& value) {
  return static_cast<std::uint64_t>(value.elements) * core::size_of(value.dtype);
}

// Builds the program of one entry.
class Builder {
 public:
  Builder() { program_.name = "entry"; }

  // The value as a parameter, read as another dtype if `dtype` differs.
  ValueId parameter(const program::Value& value, core::DType dtype) {
    const auto [known, is_new] = parameters_.try_emplace({&value, dtype}, next());
    if (!is_new) return known->second;
    const auto elements = static_cast<std::int64_t>(size_of(value) / core::size_of(dtype));
    add(value, dtype, elements);
    program_.body.parameters.push_back({known->second, core::Geometry(core::Dims{elements})});
    program_.parameter_names.emplace_back();
    return known->second;
  }
  ValueId result(const program::Value& value) {
    add(value, value.dtype, value.elements);
    return next() - 1;
  }

  Program program_;
  std::vector<const program::Value*> values_;

 private:
  ValueId next() const { return static_cast<ValueId>(program_.values.size()); }
  void add(const program::Value& value, core::DType dtype, std::int64_t elements) {
    program_.values.push_back({dtype, value.device, elements});
    values_.push_back(&value);
  }
  std::map<std::pair<const program::Value*, core::DType>, ValueId> parameters_;
};

void build_step(const Instruction& i, const ops::OpDef& def, Builder& builder, Saved& saved) {
  Program& made = builder.program_;
  program::Step step;
  step.op = i.op;
  step.counts = i.counts;
  if (i.attributes != nullptr) step.attributes = *i.attributes;
  if (def.random) {
    const std::size_t last = step.attributes.size() - 1;
    saved.seed = step.attributes.integer(last - 1);
    saved.ordinal = step.attributes.integer(last);
    core::Attributes neutral;
    for (std::size_t a = 0; a + 1 < last; ++a) neutral.push_back(step.attributes.at(a));
    neutral.push_back(core::Attribute::of(std::int64_t{0}));
    neutral.push_back(core::Attribute::of(std::int64_t{0}));
    step.attributes = std::move(neutral);
    made.random_steps = 1;
  }
  for (const Operand& operand : i.operands) {
    program::StepOperand& given = step.operands.emplace_back();
    given.kind = operand.kind;
    given.number = operand.number;
    if (operand.kind != Operand::Kind::kTensor) continue;
    given.view = {builder.parameter(*operand.value, operand.dtype), *operand.geometry};
  }
  for (const program::ResultSlot& result : i.results) {
    const ValueId id = builder.result(*result.value);
    step.results.push_back({{id, *result.geometry}, result.overwrites});
    if (result.overwrites < 0) continue;
    const ValueId old = step.operands[static_cast<std::size_t>(result.overwrites)].view.value;
    for (std::uint32_t p = 0; p < made.body.parameters.size(); ++p) {
      if (made.body.parameters[p].value == old) made.rebinds.push_back({p, id});
    }
  }
  made.body.steps.push_back(std::move(step));
}

}  // namespace

struct QueueImage::SavedEntry {
  Entry::Kind kind = Entry::Kind::kRun;
  bool bulk = false, simple = true;
  const std::string* bytes = nullptr;
  const Instruction* instruction = nullptr;
  // The instruction of an open collective, with its operand again, or of a copy of its result.
  std::unique_ptr<Instruction> own;
  std::unique_ptr<core::Geometry> geometry;  // of that operand
};

// Open collectives and their copies, in the order of their commands, and then the queue.
std::vector<QueueImage::SavedEntry> QueueImage::left(std::initializer_list<Chunk*> lists,
                                                     NotRun& parts) const {
  std::vector<SavedEntry> all;
  for (const OpenCollective& open : collectives_.all()) {
    SavedEntry& added = all.emplace_back();
    added.own = std::make_unique<Instruction>(open.instruction);
    const RowMajor& contents = open.open.operand;
    const std::size_t unit = core::size_of(open.operand_dtype);
    const core::Ref<memory::Storage>& storage = contents.storage.ref();
    ValueRef& value = parts.values.emplace_back(core::make_ref<program::Value>(
        open.operand_dtype, storage->device(), static_cast<std::int64_t>(storage->bytes() / unit)));
    value->contents = storage;
    Operand& operand = added.own->operands.emplace_back();
    operand.kind = Operand::Kind::kTensor;
    operand.value = value;
    operand.dtype = open.operand_dtype;
    added.geometry = std::make_unique<core::Geometry>(open.operand_shape);
    added.geometry->offset = static_cast<std::int64_t>(contents.offset / unit);
    operand.geometry = added.geometry.get();
    for (const Instruction& copy : open.copies)
      all.emplace_back().own = std::make_unique<Instruction>(copy);
  }
  std::stable_sort(all.begin(), all.end(), [](const SavedEntry& a, const SavedEntry& b) {
    return a.own->seq < b.own->seq;
  });
  for (SavedEntry& each : all) each.instruction = each.own.get();
  const auto add_chunks = [&](Chunk* chunk) {
    for (; chunk != nullptr; chunk = chunk->next) {
      for (std::size_t at = chunk->taken(); at < chunk->filled(); ++at) {
        const Entry& entry = chunk->entry(at);
        if (entry.done) continue;
        if (entry.kind == Entry::Kind::kCall && !entry.refused) {
          if (auto call = entry.call->left()) {
            for (const auto& each : call->instructions) {
              all.emplace_back().instruction = each.get();
            }
            parts.calls.push_back(std::move(call));
            continue;
          }
        }
        SavedEntry& added = all.emplace_back();
        added.kind = entry.kind;
        added.bulk = entry.bulk;
        added.bytes = entry.bytes.get();
        added.instruction = &entry.instruction;
        added.simple = !entry.refused && entry.kind <= Entry::Kind::kFetch &&
                       entry.kind != Entry::Kind::kUploaded;
      }
    }
  };
  for (Chunk* const first : lists) add_chunks(first);
  return all;
}

core::Result<std::vector<Saved>> QueueImage::entries(std::initializer_list<Chunk*> lists,
                                                     const IndexOf& index_of, NotRun& parts) const {
  const auto refused = [] {
    return core::unimplemented("a command that waits for other ranks cannot be saved");
  };
  std::vector<Saved> all;
  for (const SavedEntry& entry : left(lists, parts)) {
    if (!entry.simple) return refused();
    const Instruction& i = *entry.instruction;
    Saved& saved = all.emplace_back();
    saved.seq = i.seq;
    saved.bulk = entry.bulk;
    Builder builder;
    for (const Operand& operand : i.operands) {
      if (operand.value && operand.value->through) return refused();
    }
    switch (entry.kind) {
      case Entry::Kind::kFetch: {
        saved.kind = Saved::Kind::kFetch;
        const Operand& operand = i.operands[0];
        builder.program_.body.results.push_back(
            {builder.parameter(*operand.value, operand.dtype), *operand.geometry});
        break;
      }
      case Entry::Kind::kConstant: {
        saved.kind = Saved::Kind::kConstant;
        const ValueId id = builder.result(*i.results[0].value);
        builder.program_.literals.push_back({id, *entry.bytes});
        builder.program_.body.results.push_back({id, *i.results[0].geometry});
        break;
      }
      default:
        build_step(i, catalog_.at(i.op), builder, saved);
    }
    if (!index_of) {
      if (!ops::verify(builder.program_, catalog_).ok()) return refused();
      continue;
    }
    saved.program = program::serialize(builder.program_, ops::op_names(catalog_));
    for (const program::Value* value : builder.values_) saved.values.push_back(index_of(*value));
  }
  return all;
}

namespace {

// Checks that a program is one of those that entries() makes, for the values of a snapshot.
class Reader {
 public:
  Reader(const std::vector<ValueRef>& values, std::uint64_t last)
      : values_(values), last_(last), made_(values.size(), false) {
    for (std::size_t v = 0; v < values.size(); ++v) {
      made_[v] = values[v]->contents || values[v]->failure;
    }
  }

  Status check(const Saved& saved, const Program& read) {
    const program::Block& body = read.body;
    const std::size_t steps = saved.kind == Saved::Kind::kRun ? 1 : 0;
    const std::size_t literals = saved.kind == Saved::Kind::kConstant ? 1 : 0;
    if (saved.seq < before_ || saved.seq == 0 || saved.seq > last_ ||
        saved.values.size() != read.values.size() || body.steps.size() != steps ||
        read.literals.size() != literals || body.results.size() != 1 - steps ||
        (saved.kind == Saved::Kind::kFetch && body.parameters.size() != 1) ||
        !read.numbers.empty() || read.random_steps > 1) {
      return inconsistent();
    }
    before_ = saved.seq;
    std::vector<bool> given(read.values.size(), false);
    for (const program::View& parameter : body.parameters) given[parameter.value] = true;
    for (std::size_t v = 0; v < given.size(); ++v) {
      if (saved.values[v] >= values_.size()) return inconsistent();
      const program::Value& value = *values_[saved.values[v]];
      const program::ValueType& type = read.values[v];
      const bool fits = given[v] ? size_of(value) >= size_of(type)
                                 : value.dtype == type.dtype && value.elements == type.elements;
      if (!fits || !(value.device == type.device) || made_[saved.values[v]] != given[v]) {
        return inconsistent();
      }
    }
    for (std::size_t v = 0; v < given.size(); ++v) {
      if (given[v]) continue;
      if (made_[saved.values[v]]) return inconsistent();
      made_[saved.values[v]] = true;
    }
    if (steps == 1 && body.steps[0].kind != program::Step::Kind::kOp) return inconsistent();
    return {};
  }
  bool complete() const { return std::find(made_.begin(), made_.end(), false) == made_.end(); }

 private:
  const std::vector<ValueRef>& values_;
  const std::uint64_t last_;
  std::uint64_t before_ = 0;
  std::vector<bool> made_;
};

}  // namespace

Status QueueImage::restore(const std::vector<Saved>& entries, const std::vector<ValueRef>& values,
                           QueueWriter& queue) const {
  Reader reader(values, queue.appended_upto());
  for (const Saved& saved : entries) {
    auto read = program::deserialize(saved.program, ops::op_finder(catalog_));
    if (!read.ok()) return read.status();
    TT_RETURN_IF_ERROR(ops::verify(*read, catalog_));
    TT_RETURN_IF_ERROR(reader.check(saved, *read));
    restore_entry(saved, *read, values, queue);
  }
  return reader.complete() ? Status() : inconsistent();
}

void QueueImage::restore_entry(const Saved& saved, Program& read,
                               const std::vector<ValueRef>& values, QueueWriter& queue) const {
  const auto value_of = [&](ValueId id) { return values[saved.values[id]]; };
  const auto operand_of = [&](const program::View& view) {
    Operand operand;
    operand.kind = Operand::Kind::kTensor;
    operand.value = value_of(view.value);
    operand.dtype = read.values[view.value].dtype;
    operand.geometry = queue.interner().geometry(view.geometry);
    return operand;
  };
  if (saved.kind == Saved::Kind::kConstant) {
    const program::View& result = read.body.results[0];
    return queue.constant(saved.seq, result.geometry.shape, std::move(read.literals[0].bytes),
                          value_of(result.value));
  }
  Entry& entry = queue.append(saved.seq);
  Instruction& i = entry.instruction;
  if (saved.kind == Saved::Kind::kFetch) {
    entry.kind = Entry::Kind::kFetch;
    entry.bulk = saved.bulk;
    i.operands.push_back(operand_of(read.body.results[0]));
    return;
  }
  program::Step& step = read.body.steps[0];
  i.op = step.op;
  i.counts = step.counts;
  if (catalog_.at(step.op).random) {
    core::Attributes attributes;
    for (std::size_t a = 0; a + 2 < step.attributes.size(); ++a) {
      attributes.push_back(step.attributes.at(a));
    }
    attributes.push_back(core::Attribute::of(saved.seed));
    attributes.push_back(core::Attribute::of(saved.ordinal));
    step.attributes = std::move(attributes);
  }
  i.attributes = queue.interner().attributes(step.attributes);
  for (const program::StepOperand& given : step.operands) {
    Operand& operand = i.operands.emplace_back();
    if (given.kind == Operand::Kind::kTensor) operand = operand_of(given.view);
    operand.kind = given.kind;
    operand.number = given.number;
  }
  for (const program::StepResult& given : step.results) {
    program::ResultSlot& result = i.results.emplace_back();
    result.value = value_of(given.view.value);
    result.geometry = queue.interner().geometry(given.view.geometry);
    result.overwrites = given.overwrites;
  }
}

}  // namespace teletensor::runtime
