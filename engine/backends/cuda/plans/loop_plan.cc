// The graph, parameters and launch shape of a loop. The CPU's kernel of each op describes the step
// to a LoopMaker, so functor, compute type and rounding are chosen in one place for both devices.
#include "engine/backends/cuda/plans/loop_plan.h"

#include <algorithm>
#include <cstring>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/pointwise/loop.h"
#include "engine/backends/cuda/codegen/params.h"
#include "engine/backends/cuda/codegen/shapes.h"
#include "engine/backends/cuda/describe.h"
#include "engine/backends/cuda/plans/index_plan.h"

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using core::Status;
using Kind = LoopOperand::Kind;

constexpr int kHeavy = 20;  // with a functor of this cost each thread computes only one element

DType compute_dtype(std::span<const TensorArg> in, const cpu::Plan& plan) {
  switch (plan.dtype) {
    case DType::kF64:
    case DType::kU64:
    case DType::kC64:
    case DType::kC128:
      return plan.dtype;
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
      return DType::kF32;
    default:
      return cpu::fits_narrow(in, plan) ? DType::kI32 : DType::kI64;
  }
}

bool has_loop(const cpu::Loops& loops, DType compute) {
  switch (compute) {
    case DType::kF32:
      return loops.real32 != nullptr;
    case DType::kF64:
      return loops.real64 != nullptr;
    case DType::kU64:
      return loops.natural != nullptr;
    case DType::kC64:
      return loops.complex64 != nullptr;
    case DType::kC128:
      return loops.complex128 != nullptr;
    case DType::kI32:
      return loops.narrow != nullptr;
    default:
      return loops.integer != nullptr;
  }
}

// Calls f(A{}) with the C++ type A that `compute` names.
template <class F>
void with_type(DType compute, F&& f) {
  if (compute == DType::kI32) return f(std::int32_t{});
  cpu::with_any_compute_type(compute, f);
}

struct NumberBlock {
  alignas(16) std::byte bytes[16] = {};
  std::size_t size = 0;
};

// A number operand, converted as in the CPU's loops.
NumberBlock number_for(const core::Number& number, DType compute, DType rounded) {
  NumberBlock value;
  value.size = core::size_of(compute);
  cpu::number_bytes(number, compute, value.bytes);
  if (rounded == compute) return value;
  with_type(compute, [&](auto a) {
    using A = decltype(a);
    alignas(16) std::byte narrow[16];
    A x;
    std::memcpy(&x, value.bytes, sizeof x);
    cpu::store_block<A>(rounded)(&x, 1, narrow, 1);
    cpu::load_block<A>(rounded)(narrow, 1, 1, &x);
    std::memcpy(value.bytes, &x, sizeof x);
  });
  return value;
}

struct Strides {
  std::int64_t at[core::kMaxRank];
};

class Planner final : public LoopMaker {
 public:
  Planner(std::span<const LoopStep> steps, Parallel& parallel, Scratch& scratch, LoopGraph& graph,
          const LoopChecks* checks)
      : steps_(steps), parallel_(parallel), scratch_(scratch), graph_(graph), checks_(checks) {}

  Status run(std::vector<std::byte>& params, LaunchShape& shape) {
    const cpu::LinearOrder order(*steps_[0].out.geometry);
    rank_ = order.rank;
    std::copy_n(order.sizes, rank_, sizes_);
    std::copy_n(order.dims, rank_, dims_);
    count_ = order.count;
    for (step_ = 0; step_ < steps_.size(); ++step_) {
      const LoopStep& step = steps_[step_];
      if (step.role != LoopRole::kElement) return not_on_device("a fold");
      const TensorArg& out = step.out;
      if (!(out.geometry->shape == steps_[0].out.geometry->shape)) {
        return not_on_device("steps of different shapes");
      }
      const Kernel kernel = host_kernel(*step.op);
      if (kernel == nullptr) return not_on_device("no elementwise kernel");
      KernelCall call{*step.op,         step.in,   std::span(&out, 1), step.counts,
                      *step.attributes, parallel_, scratch_,           this};
      TT_RETURN_IF_ERROR(kernel(call));
      if (graph_.nodes.size() != step_ + 1) {
        return not_on_device("a kernel that cannot be a step of a loop");
      }
      LoopNode& node = graph_.nodes.back();
      node.result = out.dtype;
      if (out.data == nullptr) continue;
      if (out.geometry->overlaps_itself()) return not_on_device("a result that overlaps itself");
      node.stored = true;
      TT_RETURN_IF_ERROR(slot_of(out, /*shared=*/false, node.slot));
    }
    return finish(params, shape);
  }

  Status add(std::span<const TensorArg> in, const cpu::Plan& plan) override {
    LoopNode node;
    node.loops = plan.loops;
    node.dtype = plan.dtype;
    node.compute = compute_dtype(in, plan);
    if (!has_loop(*plan.loops, node.compute) || plan.loops->functor.empty()) {
      return not_on_device("no functor for this dtype");
    }
    node.condition = plan.condition;
    node.empty = plan.loops->stateless;
    node.operands = static_cast<std::uint8_t>(in.size());
    Functor functor;
    if (!node.empty) {
      functor.size = plan.functor_bytes;
      std::memcpy(functor.bytes, plan.functor, functor.size);
    }
    functors_.push_back(functor);
    heavy_ = heavy_ || plan.loops->cost >= kHeavy;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const bool tensor = in[i].kind == TensorArg::Kind::kTensor;
      const bool condition = plan.condition && i == 0;
      node.in[i].round = !condition && plan.rounds(in[i], node.compute);
      if (!tensor) {
        if (condition) return not_on_device("a condition that is a number");
        const DType rounded = node.in[i].round ? plan.dtype : node.compute;
        node.in[i].round = false;
        node.in[i].kind = Kind::kNumber;
        numbers_.push_back(number_for(in[i].number, node.compute, rounded));
        continue;
      }
      TT_RETURN_IF_ERROR(operand(in[i], condition, node.in[i]));
    }
    graph_.nodes.push_back(node);
    return {};
  }

  Status add_check(const TensorArg& divisor) override {
    if (checks_ == nullptr) return not_on_device("a step that may fail");
    if (divisor.kind == TensorArg::Kind::kNumber) {
      return divisor.number.integer == 0 ? not_on_device("a division by zero") : Status();
    }
    graph_.guarded = true;
    return describe_check(checks_->call, divisor, /*zero=*/true, 0, 0, checks_->work);
  }

  Status add_copy(const TensorArg& from) override {
    LoopNode node;
    const DType result = steps_[step_].out.dtype;
    node.operands = 1;
    functors_.emplace_back();
    if (from.kind == TensorArg::Kind::kTensor) {
      cpu::with_any_compute_type(from.dtype,
                                 [&](auto a) { node.compute = cpu::kDTypeOf<decltype(a)>; });
      TT_RETURN_IF_ERROR(operand(from, false, node.in[0]));
    } else {
      node.in[0].kind = Kind::kNumber;
      numbers_.push_back(number_for(from.number, result, result));
    }
    graph_.nodes.push_back(node);
    return {};
  }

 private:
  struct Functor {
    std::size_t size = 0;
    alignas(16) std::byte bytes[cpu::kMaxFunctorBytes] = {};
  };
  struct Memory {  // the memory of a slot
    std::byte* first = nullptr;
    Strides strides = {};
    bool shared = true;  // operands that read the same elements share a slot
  };

  Status operand(const TensorArg& arg, bool condition, LoopOperand& to) {
    to.dtype = condition ? DType::kBool : arg.dtype;
    if (arg.data != nullptr) {
      to.kind = Kind::kSlot;
      TensorArg typed = arg;
      typed.data = arg.first();  // the offset counts elements of its own dtype
      typed.dtype = to.dtype;
      core::Geometry geometry = *arg.geometry;
      geometry.offset = 0;
      typed.geometry = &geometry;
      return slot_of(typed, true, to.index);
    }
    const std::int64_t from = arg.number.integer;
    if (from < 0 || from >= static_cast<std::int64_t>(step_)) {
      return core::internal("a step of a loop reads a later step");
    }
    to.kind = Kind::kStep;
    to.index = static_cast<std::uint8_t>(from);
    return {};
  }

  Status slot_of(const TensorArg& arg, bool shared, std::uint8_t& index) {
    Memory memory;
    memory.first = arg.first<std::byte>();
    memory.shared = shared;
    const core::Geometry& geometry = *arg.geometry;
    const int lead = steps_[0].out.geometry->rank() - geometry.rank();
    for (int i = 0; i < rank_; ++i) {
      const int d = dims_[i] - lead;
      memory.strides.at[i] = d < 0 || geometry.shape[d] == 1 ? 0 : geometry.strides[d];
    }
    for (std::size_t s = 0; shared && s < memories_.size(); ++s) {
      if (memories_[s].shared && memories_[s].first == memory.first &&
          graph_.slots[s].dtype == arg.dtype &&
          std::equal(memory.strides.at, memory.strides.at + rank_, memories_[s].strides.at)) {
        index = static_cast<std::uint8_t>(s);
        return {};
      }
    }
    if (memories_.size() >= 64) return not_on_device("too many operands");
    index = static_cast<std::uint8_t>(memories_.size());
    memories_.push_back(memory);
    graph_.slots.push_back({arg.dtype, Access::kLinear});
    return {};
  }

  // Merges adjacent dimensions that every slot traverses uniformly.
  void merge() {
    int kept = 0;
    for (int d = 1; d < rank_; ++d) {
      const bool one = std::all_of(memories_.begin(), memories_.end(), [&](const Memory& memory) {
        return memory.strides.at[d] == memory.strides.at[kept] * sizes_[kept];
      });
      if (one) {
        sizes_[kept] *= sizes_[d];
        continue;
      }
      ++kept;
      sizes_[kept] = sizes_[d];
      for (Memory& memory : memories_) memory.strides.at[kept] = memory.strides.at[d];
    }
    if (rank_ > 0) rank_ = kept + 1;
  }

  bool constant(const Memory& memory) const {
    return std::all_of(memory.strides.at, memory.strides.at + rank_,
                       [](std::int64_t stride) { return stride == 0; });
  }
  bool linear(const Memory& memory) const {
    std::int64_t stride = 1;
    for (int d = 0; d < rank_; ++d) {
      if (memory.strides.at[d] != stride) return false;
      stride *= sizes_[d];
    }
    return true;
  }

  int width() const {
    if (heavy_) return 1;
    std::size_t smallest = 16, largest = 1;
    for (std::size_t s = 0; s < memories_.size(); ++s) {
      if (constant(memories_[s])) continue;
      const std::size_t size = core::size_of(graph_.slots[s].dtype);
      smallest = std::min(smallest, size);
      largest = std::max(largest, size);
    }
    int width = width_for(smallest, largest);
    while (rank_ > 1 && sizes_[0] % width != 0) width /= 2;
    return width;
  }

  Access access(const Memory& memory, DType dtype) const {
    if (constant(memory)) return Access::kConstant;
    const auto size = static_cast<std::int64_t>(core::size_of(dtype));
    const std::int64_t align = std::min<std::int64_t>(16, size * graph_.width);
    const bool aligned =
        reinterpret_cast<std::uintptr_t>(memory.first) % static_cast<std::uintptr_t>(align) == 0;
    if (linear(memory)) return aligned ? Access::kLinear : Access::kUnaligned;
    if (graph_.width == 1) return Access::kStrided;
    if (memory.strides.at[0] == 0) return Access::kRepeated;
    bool runs = aligned && memory.strides.at[0] == 1;
    for (int d = 1; d < rank_; ++d) runs = runs && memory.strides.at[d] * size % align == 0;
    return runs ? Access::kRun : Access::kStrided;
  }

  bool wide() const {
    if (count_ >= kNarrowLimit) return true;
    for (const Memory& memory : memories_) {
      std::int64_t last = 0;
      for (int d = 0; d < rank_; ++d) {
        if (memory.strides.at[d] < 0) return true;
        last += (sizes_[d] - 1) * memory.strides.at[d];
      }
      if (last >= kNarrowLimit) return true;
    }
    return false;
  }

  Status finish(std::vector<std::byte>& bytes, LaunchShape& shape) {
    if (count_ == 0) return {};
    merge();
    graph_.width = static_cast<std::uint8_t>(width());
    graph_.wide = wide();
    Params params;
    params.put(count_);
    if (graph_.guarded) params.put(checks_->work.flag);
    bool coordinates = false;
    for (std::size_t s = 0; s < memories_.size(); ++s) {
      graph_.slots[s].access = access(memories_[s], graph_.slots[s].dtype);
      coordinates = coordinates || by_coordinates(graph_.slots[s].access);
      params.put(memories_[s].first);
    }
    graph_.rank = static_cast<std::uint8_t>(coordinates ? rank_ : 1);
    for (int d = 0; d + 1 < graph_.rank; ++d) {
      if (graph_.wide) {
        params.put(sizes_[d]);
        params.put(std::int64_t{0});
      } else {
        params.put(divisor_of(sizes_[d]));
      }
    }
    for (std::size_t s = 0; s < memories_.size(); ++s) {
      if (!by_coordinates(graph_.slots[s].access)) continue;
      for (int d = 0; d < graph_.rank; ++d) params.put(memories_[s].strides.at[d]);
    }
    std::size_t number = 0;
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const LoopNode& node = graph_.nodes[n];
      if (!node.empty) params.put_bytes(functors_[n].bytes, functors_[n].size);
      for (std::size_t k = 0; k < node.operands; ++k) {
        if (node.in[k].kind != Kind::kNumber) continue;
        params.put_bytes(numbers_[number].bytes, numbers_[number].size);
        ++number;
      }
    }
    bytes = params.take();
    if (bytes.size() > kMaxParameterBytes) return not_on_device("too many parameters");
    if (!threads_for(count_, graph_.width, shape)) return not_on_device("too many elements");
    return {};
  }

  const std::span<const LoopStep> steps_;
  Parallel& parallel_;
  Scratch& scratch_;
  LoopGraph& graph_;
  const LoopChecks* const checks_;
  std::size_t step_ = 0;
  int rank_ = 0;
  int dims_[core::kMaxRank];
  std::int64_t sizes_[core::kMaxRank];
  std::int64_t count_ = 0;
  bool heavy_ = false;
  std::vector<Memory> memories_;
  std::vector<Functor> functors_;
  std::vector<NumberBlock> numbers_;
};

}  // namespace

core::Status not_on_device(const char* why) { return Status(core::Code::kUnimplemented, why); }

Kernel host_kernel(const ops::OpDef& op) {
  static const KernelTable table = cpu::make_kernels(ops::catalog());
  const ops::OpDef* known = ops::catalog().find(op.name);
  if (known == nullptr) return nullptr;
  const ops::OpId id = ops::catalog().id(*known);
  return table.role(id) == LoopRole::kElement || elementwise_only(op.name) ? table.find(id)
                                                                           : nullptr;
}

std::string LoopGraph::key() const {
  KeyWriter key(KernelKind::kLoop);
  key.put(static_cast<char>(wide | guarded << 1));
  key.put(rank);
  key.put(width);
  key.put(static_cast<std::uint8_t>(slots.size()));
  for (const LoopSlot& slot : slots) {
    key.put(slot.dtype);
    key.put(slot.access);
  }
  key.put(static_cast<std::uint8_t>(nodes.size()));
  for (const LoopNode& node : nodes) {
    key.put(node.loops);
    key.put(node.compute);
    key.put(node.dtype);
    key.put(node.result);
    key.put(static_cast<char>(node.condition | node.empty << 1 | node.stored << 2));
    key.put(node.slot);
    key.put(node.operands);
    for (std::size_t i = 0; i < node.operands; ++i) {
      key.put(node.in[i].kind);
      key.put(node.in[i].index);
      key.put(node.in[i].dtype);
      key.put(static_cast<char>(node.in[i].round));
    }
  }
  return key.take();
}

LoopGraph LoopGraph::of_key(std::string_view text) {
  KeyReader key(text);
  key.get<KernelKind>();
  LoopGraph graph;
  const char shape = key.get<char>();
  graph.wide = (shape & 1) != 0;
  graph.guarded = (shape & 2) != 0;
  graph.rank = key.get<std::uint8_t>();
  graph.width = key.get<std::uint8_t>();
  graph.slots.resize(key.get<std::uint8_t>());
  for (LoopSlot& slot : graph.slots) {
    slot.dtype = key.get<DType>();
    slot.access = key.get<Access>();
  }
  graph.nodes.resize(key.get<std::uint8_t>());
  for (LoopNode& node : graph.nodes) {
    node.loops = key.get<const cpu::Loops*>();
    node.compute = key.get<DType>();
    node.dtype = key.get<DType>();
    node.result = key.get<DType>();
    const char flags = key.get<char>();
    node.condition = (flags & 1) != 0;
    node.empty = (flags & 2) != 0;
    node.stored = (flags & 4) != 0;
    node.slot = key.get<std::uint8_t>();
    node.operands = std::min<std::uint8_t>(key.get<std::uint8_t>(), cpu::kMaxOperands);
    for (std::size_t i = 0; i < node.operands; ++i) {
      node.in[i].kind = key.get<Kind>();
      node.in[i].index = key.get<std::uint8_t>();
      node.in[i].dtype = key.get<DType>();
      node.in[i].round = key.get<char>() != 0;
    }
  }
  return graph;
}

core::Status pack_loop(std::span<const LoopStep> steps, Parallel& parallel, Scratch& scratch,
                       LoopGraph& graph, std::vector<std::byte>& params, LaunchShape& shape,
                       const LoopChecks* checks) {
  return Planner(steps, parallel, scratch, graph, checks).run(params, shape);
}

core::Status describe_loop(std::span<const LoopStep> steps, Parallel& parallel, Scratch& scratch,
                           Work& work) {
  LoopGraph graph;
  Launch launch;
  if (steps.empty()) return {};
  TT_RETURN_IF_ERROR(pack_loop(steps, parallel, scratch, graph, launch.params, launch.shape));
  if (launch.params.empty()) return {};
  launch.key = graph.key();
  work.launches.push_back(std::move(launch));
  return {};
}

}  // namespace teletensor::backends::cuda
