#include "engine/runtime/execute/template_runner.h"

#include <memory>
#include <new>
#include <utility>

#include "engine/backends/prepared_loop.h"
#include "engine/core/memory/reserve.h"
#include "engine/passes/loop.h"
#include "engine/runtime/execute/preparation.h"
#include "engine/runtime/execute/value_storage.h"
#include "engine/runtime/queue/queue.h"

namespace teletensor::runtime {

using backends::TensorArg;
using core::Status;
using program::Operand;
using program::Template;
using program::TemplateCall;
using program::Value;

namespace {

struct PreparedTemplate final : Template::Prepared {
  std::size_t device = 0;
  std::unique_ptr<const backends::PreparedLoop> loop;
};

const PreparedTemplate& prepared_of(const Template& repeated) {
  return static_cast<const PreparedTemplate&>(*repeated.prepared);
}

TensorArg arg_of(const Template::Operand& operand, const Template& repeated) {
  TensorArg arg;
  if (operand.kind == Template::Operand::Kind::kNumber) {
    arg.kind = TensorArg::Kind::kNumber;
    arg.number = operand.number;
    return arg;
  }
  const bool inside = operand.kind == Template::Operand::Kind::kStep;
  arg.kind = TensorArg::Kind::kTensor;
  arg.geometry = repeated.geometry;
  arg.dtype = inside ? repeated.steps[operand.index].dtype : repeated.inputs[operand.index];
  arg.number.integer = inside ? operand.index : -1 - std::int64_t{operand.index};
  return arg;
}

}  // namespace

std::size_t TemplateRunner::prepare(Template& repeated, const ops::Catalog& catalog,
                                    const Devices& devices) {
  const int found = devices.find(repeated.device);
  if (found < 0) return 0;
  Device& device = devices.at(static_cast<std::size_t>(found));
  auto* const preparer = dynamic_cast<backends::LoopPreparer*>(&device.backend());
  if (preparer == nullptr) return 0;
  std::vector<std::vector<TensorArg>> arguments;
  std::vector<backends::LoopStep> steps;
  for (const Template::Step& step : repeated.steps) {
    if (!passes::loopable(catalog.at(step.op))) break;
    std::vector<TensorArg>& in = arguments.emplace_back();
    for (const Template::Operand& operand : step.operands) {
      in.push_back(arg_of(operand, repeated));
    }
    backends::LoopStep& added = steps.emplace_back();
    added.op = &catalog.at(step.op);
    added.kernel = device.kernel(step.op);
    added.role = device.backend().role(step.op);
    added.in = in;
    added.out.kind = TensorArg::Kind::kTensor;
    added.out.dtype = step.dtype;
    added.out.geometry = repeated.geometry;
    added.attributes = step.attributes;
  }
  if (steps.empty()) return 0;
  auto prepared = std::make_unique<PreparedTemplate>();
  prepared->device = static_cast<std::size_t>(found);
  std::size_t count = 0;
  prepared->loop = preparer->prepare_loop(steps, &count);
  if (count < repeated.steps.size()) return count;
  repeated.bytes =
      sizeof repeated + sizeof *prepared + prepared->loop->bytes() + count * sizeof(Template::Step);
  repeated.prepared = std::move(prepared);
  return count;
}

bool TemplateRunner::run(const TemplateCall& call) {
  const Template& repeated = *call.repeated;
  const PreparedTemplate& prepared = prepared_of(repeated);
  if (!gather(call)) return false;
  Profile::Timer timer(context_.profile, call.first_seq, repeated.steps[call.first].op,
                       static_cast<std::uint32_t>(call.size()));
  const Attempt attempt(context_);
  Status status;
  try {
    const core::UsesReserve forbidden(false);
    status = allocate(call, prepared.device);
  } catch (const std::bad_alloc&) {
    status = Status(core::Code::kResourceExhausted, "template: the process is out of memory");
  }
  if (status.ok()) {
    prepared.loop->run(in_.data(), out_.data(), call.first, call.end);
    for (Stored& stored : stored_) {
      Value& value = *call.results[stored.step];
      stored.storage->described().set(value.dtype, repeated.geometry->shape);
      value.contents = std::move(stored.storage);
    }
  } else {
    timer.forget();
    if (context_.memory.has_starved(status)) {
      for (const program::ValueRef& input : call.inputs) {
        if (input) context_.memory.need(*input);
      }
      for (std::size_t s = 0; s < call.first; ++s) {
        if (call.results[s]) context_.memory.need(*call.results[s]);
      }
    }
  }
  stored_.clear();
  return status.ok();
}

// Finds the memory of the inputs. Returns false if an input is not simply in memory.
bool TemplateRunner::gather(const TemplateCall& call) {
  in_.assign(call.repeated->inputs.size(), nullptr);
  out_.assign(call.end, nullptr);
  const auto find = [&](const program::ValueRef& value, auto& data) {
    if (!value) return true;
    if (value->failure || !value->contents) return false;
    memory::Storage& storage = *storage_of(*value);
    if (storage.data() == nullptr || storage.sharing() != nullptr) return false;
    context_.memory.touch(storage);
    data = storage.data();
    return true;
  };
  for (std::size_t i = 0; i < in_.size(); ++i) {
    if (!find(call.inputs[i], in_[i])) return false;
  }
  for (std::size_t s = 0; s < call.first; ++s) {
    if (!find(call.results[s], out_[s])) return false;
  }
  return true;
}

// A result to which only the call refers is not stored.
Status TemplateRunner::allocate(const TemplateCall& call, std::size_t device) {
  const Template& repeated = *call.repeated;
  for (std::size_t s = call.first; s < call.end; ++s) {
    if (call.results[s] == nullptr || call.results[s]->references() == 1) continue;
    const Template::Step& step = repeated.steps[s];
    Stored& stored = stored_.emplace_back(Stored{s, nullptr});
    TT_RETURN_IF_ERROR(context_.memory.allocate(device, context_.catalog.at(step.op).name,
                                                bytes_of(repeated.elements, step.dtype),
                                                call.seq(s), &stored.storage));
    if (context_.has_accelerator) forget_bounds(*stored.storage, {});
    out_[s] = stored.storage->data();
  }
  return {};
}

void TemplateRunner::expand(const TemplateCall& call, Chunk& chunk) {
  static_assert(Chunk::kEntries >= Template::kMaxSteps);
  const Template& repeated = *call.repeated;
  auto results = call.results;
  for (std::size_t s = call.first; s < call.end; ++s) {
    const Template::Step& step = repeated.steps[s];
    program::ValueRef& result = results[s];
    if (result == nullptr) {
      result = core::make_ref<Value>(step.dtype, repeated.device, repeated.elements);
    }
    program::Instruction& i = chunk.add().instruction;
    i.op = step.op;
    i.seq = call.seq(s);
    i.attributes = step.attributes;
    for (const Template::Operand& from : step.operands) {
      Operand& operand = i.operands.emplace_back();
      if (from.kind == Template::Operand::Kind::kNumber) {
        operand.kind = Operand::Kind::kNumber;
        operand.number = from.number;
        continue;
      }
      const bool inside = from.kind == Template::Operand::Kind::kStep;
      operand.kind = Operand::Kind::kTensor;
      operand.value = inside ? results[from.index] : call.inputs[from.index];
      operand.dtype = inside ? repeated.steps[from.index].dtype : repeated.inputs[from.index];
      operand.geometry = repeated.geometry;
    }
    i.results.push_back({result, repeated.geometry, -1});
  }
}

}  // namespace teletensor::runtime
