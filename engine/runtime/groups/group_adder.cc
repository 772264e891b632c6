#include "engine/runtime/groups/group_adder.h"

#include <cstring>
#include <utility>
#include <vector>

#include "engine/collective/exchange/schedule.h"

namespace teletensor::runtime {

using collective::Job;
using collective::Reduction;
using core::Status;

namespace {

// Runs the parts of a kernel on the thread that runs the job.
class OneThread : public backends::Parallel {
 public:
  void run(std::int64_t parts, const std::function<void(std::int64_t)>& part) override {
    for (std::int64_t i = 0; i < parts; ++i) part(i);
  }
};

class PoolScratch : public backends::Scratch {
 public:
  explicit PoolScratch(GroupAdder& adder) : adder_(adder) {}
  void* allocate(std::size_t bytes) override {
    core::Ref<memory::Storage> storage = adder_.allocate(bytes);
    if (!storage) return nullptr;
    held_.push_back(std::move(storage));
    return held_.back()->data();
  }

 private:
  GroupAdder& adder_;
  std::vector<core::Ref<memory::Storage>> held_;
};

std::string_view kernel_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kAvg:
      return "add";
    case Reduction::kProduct:
      return "mul";
    case Reduction::kMin:
      return "minimum";
    case Reduction::kMax:
      return "maximum";
    case Reduction::kAnd:
      return "bitwise_and";
    case Reduction::kOr:
      return "bitwise_or";
    case Reduction::kXor:
      return "bitwise_xor";
  }
  return "add";
}

Status no_memory() {
  return Status(core::Code::kResourceExhausted, "the daemon has no memory for partial sums");
}

backends::TensorArg tensor(void* data, core::DType dtype, const core::Geometry& geometry) {
  backends::TensorArg arg;
  arg.kind = backends::TensorArg::Kind::kTensor;
  arg.data = data;
  arg.dtype = dtype;
  arg.geometry = &geometry;
  return arg;
}

}  // namespace

// The location of a source, or of a sum of sources.
struct GroupAdder::Slot {
  char* data;
  core::DType dtype;
  core::Ref<memory::Storage> own;  // null: the source's memory, which must not be changed
  void take(core::Ref<memory::Storage> storage, core::DType now) {
    own = std::move(storage);
    data = static_cast<char*>(own->data());
    dtype = now;
  }
};

GroupAdder::GroupAdder(const ops::Catalog& catalog, Device& host, Lanes& lanes,
                       memory::OwnerId owner)
    : catalog_(catalog),
      host_(host),
      lanes_(lanes),
      copies_(catalog),
      pool_(memory::Pool::create(host.pool(), owner, 0)) {}

Status GroupAdder::add(std::span<const Job> jobs, const Address& address) {
  core::Mutex mu;
  Status first;
  lanes_.run_parts(static_cast<std::int64_t>(jobs.size()), [&](std::int64_t i) {
    Status status = run(jobs[static_cast<std::size_t>(i)], address);
    core::MutexLock lock(mu);
    if (first.ok()) first = std::move(status);
  });
  return first;
}

core::Ref<memory::Storage> GroupAdder::allocate(std::size_t bytes) {
  return pool_->allocate_shared(bytes, 0);
}

// Converts the slot's elements in new memory of its own.
Status GroupAdder::cast(Slot& slot, core::DType to, const core::Geometry& geometry) {
  if (slot.dtype == to) return {};
  core::Ref<memory::Storage> own = allocate(bytes_of(geometry.numel(), to));
  if (!own) return no_memory();
  OneThread parallel;
  PoolScratch scratch(*this);
  TT_RETURN_IF_ERROR(copies_.copy(host_, {slot.data, slot.dtype, &geometry},
                                  {own->data(), to, &geometry}, parallel, scratch));
  slot.take(std::move(own), to);
  return {};
}

// Stores the kernel's result for `a` and `b` in `into`.
Status GroupAdder::call(const ops::OpDef& op, backends::TensorArg a, backends::TensorArg b,
                        Slot& into, const core::Geometry& geometry) {
  core::Ref<memory::Storage> own;
  if (!into.own) {
    own = allocate(bytes_of(geometry.numel(), into.dtype));
    if (!own) return no_memory();
  }
  const backends::TensorArg in[] = {a, b};
  backends::TensorArg out[] = {tensor(own ? own->data() : into.data, into.dtype, geometry)};
  core::Attributes attributes;
  for (std::size_t p = static_cast<std::size_t>(op.operand_parameters); p < op.parameters.size();
       ++p) {
    attributes.push_back(op.parameters[p].fallback);
  }
  OneThread parallel;
  PoolScratch scratch(*this);
  backends::KernelCall kernel_call{
      op, in, out, {}, attributes, parallel, scratch, nullptr, &host_.backend()};
  TT_RETURN_IF_ERROR(host_.kernel(catalog_.id(op))(kernel_call));
  if (own) into.take(std::move(own), into.dtype);
  return {};
}

Status GroupAdder::run(const Job& job, const Address& address) {
  const core::Geometry geometry(core::Dims{job.elements});
  const core::DType accumulator = collective::accumulator_of(job.dtype);
  std::vector<Slot> slots;
  for (const Job::Source& source : job.sources) {
    slots.push_back({address(source.at), source.accumulated ? accumulator : job.dtype, nullptr});
  }
  const auto arg = [&](const Slot& slot) { return tensor(slot.data, slot.dtype, geometry); };
  for (const collective::Addition& addition : job.additions) {
    Slot& into = slots[addition.into];
    Slot& from = slots[addition.from];
    TT_RETURN_IF_ERROR(cast(into, accumulator, geometry));
    TT_RETURN_IF_ERROR(cast(from, accumulator, geometry));
    const ops::OpDef& op = *catalog_.find(kernel_of(job.reduction));
    TT_RETURN_IF_ERROR(call(op, arg(into), arg(from), into, geometry));
  }
  for (const Job::Output& output : job.outputs) {
    Slot& slot = slots[output.slot];
    if (output.divisor > 1) {
      TT_RETURN_IF_ERROR(cast(slot, accumulator, geometry));
      backends::TensorArg divisor;
      divisor.kind = backends::TensorArg::Kind::kNumber;
      divisor.dtype = slot.dtype;
      divisor.number = core::Number::of_int(output.divisor);
      TT_RETURN_IF_ERROR(call(*catalog_.find("div"), arg(slot), divisor, slot, geometry));
    }
    TT_RETURN_IF_ERROR(cast(slot, output.accumulated ? accumulator : job.dtype, geometry));
    for (const collective::Slice& to : output.to) {
      std::memcpy(address(to), slot.data, bytes_of(job.elements, slot.dtype));
    }
  }
  return {};
}

}  // namespace teletensor::runtime
