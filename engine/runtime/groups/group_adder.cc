#include "engine/runtime/groups/group_adder.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/collective/exchange/schedule.h"

namespace teletensor::runtime {

using collective::Job;
using collective::Reduction;
using core::Status;

namespace {

constexpr std::int64_t kBlock = 1 << 14;  // elements

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

// The elements of a source in a block, or their sum with others.
struct GroupAdder::Slot {
  char* data;
  core::DType dtype;
  char* result = nullptr;  // where a sum may be stored, because it is a result of the job
  bool writable = false;   // false: `data` is the source's memory, which must not be changed
  core::Ref<memory::Storage> own = nullptr;

  void move_to(char* memory, core::DType now) {
    data = memory;
    dtype = now;
    writable = true;
  }
};

// Elements [begin, begin + count) of a job. All steps of a job run block by block, because a block
// stays in the second-level cache.
struct GroupAdder::Block {
  const Job* job;
  std::int64_t begin, count;
  core::Geometry geometry;
};

GroupAdder::GroupAdder(const ops::Catalog& catalog, Device& host, Lanes& lanes,
                       memory::OwnerId owner)
    : catalog_(catalog),
      host_(host),
      lanes_(lanes),
      copies_(catalog),
      pool_(memory::Pool::create(host.pool(), owner, 0)) {}

Status GroupAdder::add(std::span<const Job> jobs, const Address& address) {
  std::vector<Block> blocks;
  for (const Job& job : jobs) {
    for (std::int64_t begin = 0; begin < job.elements; begin += kBlock) {
      const std::int64_t count = std::min(kBlock, job.elements - begin);
      blocks.push_back({&job, begin, count, core::Geometry(core::Dims{count})});
    }
  }
  core::Mutex mu;
  Status first;
  lanes_.run_parts(static_cast<std::int64_t>(blocks.size()), [&](std::int64_t i) {
    Status status = run(blocks[static_cast<std::size_t>(i)], address);
    core::MutexLock lock(mu);
    if (first.ok()) first = std::move(status);
  });
  return first;
}

core::Ref<memory::Storage> GroupAdder::allocate(std::size_t bytes) {
  return pool_->allocate_shared(bytes, 0);
}

// Returns memory for elements of the slot in another dtype, which the slot keeps.
char* GroupAdder::room(Slot& slot, core::DType dtype, const core::Geometry& geometry) {
  slot.own = allocate(bytes_of(geometry.numel(), dtype));
  return slot.own ? static_cast<char*>(slot.own->data()) : nullptr;
}

// Converts the slot's elements, in new memory.
Status GroupAdder::cast(Slot& slot, core::DType to, const core::Geometry& geometry) {
  if (slot.dtype == to) return {};
  const core::Ref<memory::Storage> from = slot.own;  // kept until it is copied
  char* const memory = room(slot, to, geometry);
  if (!memory) return no_memory();
  OneThread parallel;
  PoolScratch scratch(*this);
  TT_RETURN_IF_ERROR(copies_.copy(host_, {slot.data, slot.dtype, &geometry},
                                  {memory, to, &geometry}, parallel, scratch));
  slot.move_to(memory, to);
  return {};
}

// Stores the kernel's result for `a` and `b` in `into`.
Status GroupAdder::call(const ops::OpDef& op, backends::TensorArg a, backends::TensorArg b,
                        Slot& into, const core::Geometry& geometry) {
  char* memory = into.writable ? into.data : into.result;
  if (!memory) memory = room(into, into.dtype, geometry);
  if (!memory) return no_memory();
  const backends::TensorArg in[] = {a, b};
  backends::TensorArg out[] = {tensor(memory, into.dtype, geometry)};
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
  into.move_to(memory, into.dtype);
  return {};
}

// The slots of a block. The sum of a slot that is one output is stored there at once, unless it is
// rounded first or is the memory of a source.
std::vector<GroupAdder::Slot> GroupAdder::slots_of(const Block& block, const Address& address) {
  const Job& job = *block.job;
  const core::DType accumulator = collective::accumulator_of(job.dtype);
  const auto at = [&](const collective::Slice& slice, core::DType dtype) {
    return address(slice) + bytes_of(block.begin, dtype);
  };
  std::vector<Slot> slots;
  for (const Job::Source& source : job.sources) {
    const core::DType dtype = source.accumulated ? accumulator : job.dtype;
    slots.push_back({at(source.at, dtype), dtype});
  }
  std::vector<int> uses(slots.size());
  for (const Job::Output& output : job.outputs) ++uses[output.slot];
  for (const Job::Output& output : job.outputs) {
    if (uses[output.slot] != 1 || output.to.empty()) continue;
    if (!output.accumulated && job.dtype != accumulator) continue;
    char* const result = at(output.to[0], accumulator);
    const std::size_t bytes = bytes_of(block.count, accumulator);
    const bool is_source = std::any_of(slots.begin(), slots.end(), [&](const Slot& slot) {
      return slot.data < result + bytes && result < slot.data + bytes;
    });
    if (!is_source) slots[output.slot].result = result;
  }
  return slots;
}

Status GroupAdder::run(const Block& block, const Address& address) {
  const Job& job = *block.job;
  const core::Geometry& geometry = block.geometry;
  const core::DType accumulator = collective::accumulator_of(job.dtype);
  std::vector<Slot> slots = slots_of(block, address);
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
    for (const collective::Slice& slice : output.to) {
      char* const to = address(slice) + bytes_of(block.begin, slot.dtype);
      if (to != slot.data) std::memcpy(to, slot.data, bytes_of(block.count, slot.dtype));
    }
  }
  return {};
}

}  // namespace teletensor::runtime
