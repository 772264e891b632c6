// Prepared loops on the CPU: elementwise steps whose operands and results have the compute type of
// their kernels, so that nothing is converted. Numbers are blocks that were filled in advance.
#include "engine/backends/prepared_loop.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/cpu_backend.h"
#include "engine/backends/cpu/pointwise/loop.h"

namespace teletensor::backends::cpu {
namespace {

using core::DType;
using core::Status;
using Kind = TensorArg::Kind;

// The size of the largest element.
constexpr std::int64_t kMaxElementBytes = sizeof(core::Complex128);

class PlainLoop final : public PreparedLoop {
 public:
  struct Source {
    enum class Kind : std::uint8_t { kStep, kInput, kNumber };
    Kind kind = Kind::kNumber;
    std::uint8_t size = 0;    // of an element, in bytes; 0 for a number
    std::uint32_t index = 0;  // of the step, the input or the number
  };
  struct Step {
    Inner inner = nullptr;
    std::uint32_t operands = 0;
    std::uint32_t size = 0;  // of an element of the result, in bytes
    std::size_t slot = 0;    // offset of its result in the memory of a run, if it is not stored
    Source sources[kMaxOperands];
    alignas(16) std::byte functor[kMaxFunctorBytes];
  };
  // An element in the compute type, at the start of a block that repeats it.
  struct Number {
    alignas(16) std::byte element[kMaxElementBytes];
    std::int64_t size = 0;
  };

  PlainLoop(std::int64_t count, std::vector<Step> steps, const std::vector<Number>& numbers)
      : count_(count), block_(std::min(count, kBlock)), steps_(std::move(steps)) {
    place();
    for (const Number& number : numbers) {
      std::vector<std::byte>& block = numbers_.emplace_back();
      block.resize(static_cast<std::size_t>(block_ * number.size));
      for (std::int64_t i = 0; i < block_; ++i) {
        std::memcpy(block.data() + i * number.size, number.element,
                    static_cast<std::size_t>(number.size));
      }
    }
  }

  void run(const void* const* in, void* const* out, std::size_t first,
           std::size_t end) const override {
    static thread_local std::vector<std::byte> memory;  // the next run on this lane reuses it
    if (memory.size() < slot_bytes_) memory.resize(slot_bytes_);
    std::byte* results[kMaxSteps];
    for (std::int64_t at = 0; at < count_; at += kBlock) {
      const std::int64_t n = std::min(kBlock, count_ - at);
      for (std::size_t s = 0; s < end; ++s) {
        const Step& step = steps_[s];
        results[s] = out[s] == nullptr ? memory.data() + step.slot
                                       : static_cast<std::byte*>(out[s]) + at * step.size;
        if (s < first) continue;
        const void* operands[kMaxOperands];
        for (std::uint32_t i = 0; i < step.operands; ++i) {
          const Source& source = step.sources[i];
          switch (source.kind) {
            case Source::Kind::kStep:
              operands[i] = results[source.index];
              break;
            case Source::Kind::kInput:
              operands[i] = static_cast<const std::byte*>(in[source.index]) + at * source.size;
              break;
            case Source::Kind::kNumber:
              operands[i] = numbers_[source.index].data();
              break;
          }
        }
        step.inner(operands, results[s], n, step.functor);
      }
    }
  }

  std::size_t bytes() const override {
    std::size_t bytes = sizeof *this + steps_.size() * sizeof(Step);
    for (const auto& block : numbers_) bytes += sizeof block + block.size();
    return bytes;
  }

  static constexpr std::size_t kMaxSteps = 64;
  static constexpr std::size_t kMaxNumbers = 8;  // different ones

 private:
  // Assigns slots. The slot of a result is free after the last step that reads it; that step itself
  // must not write to it.
  void place() {
    std::vector<std::size_t> last(steps_.size()), free;
    std::size_t size = 0;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      last[s] = s;
      size = std::max<std::size_t>(size, steps_[s].size);
      for_each_inside(s, [&](std::size_t made_by) { last[made_by] = s; });
    }
    // With an additional cache line, so that the slots do not share their low address bits.
    const std::size_t slot = static_cast<std::size_t>(block_) * size + 64;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      if (free.empty()) {
        free.push_back(slot_bytes_);
        slot_bytes_ += slot;
      }
      steps_[s].slot = free.back();
      free.pop_back();
      const auto end = [&](std::size_t of) {
        if (last[of] != s) return;
        last[of] = steps_.size();  // so that a slot that is read twice is freed once
        free.push_back(steps_[of].slot);
      };
      for_each_inside(s, end);
      end(s);
    }
  }
  template <class F>
  void for_each_inside(std::size_t s, F&& call) const {
    for (std::uint32_t i = 0; i < steps_[s].operands; ++i) {
      const Source& source = steps_[s].sources[i];
      if (source.kind == Source::Kind::kStep) call(std::size_t{source.index});
    }
  }

  const std::int64_t count_, block_;
  std::vector<Step> steps_;
  std::size_t slot_bytes_ = 0;
  std::vector<std::vector<std::byte>> numbers_;  // one block for each
};

// Never runs anything: prepared steps only describe themselves.
class NoParallel final : public Parallel {
 public:
  void run(std::int64_t, const std::function<void(std::int64_t)>&) override {}
};
class NoScratch final : public Scratch {
 public:
  void* allocate(std::size_t) override { return nullptr; }
};

Status not_plain() { return Status(core::Code::kUnimplemented, "not in a plain loop"); }

class PlainLoopMaker final : public LoopMaker {
 public:
  explicit PlainLoopMaker(const core::Geometry& layout) : layout_(layout) {}

  // Returns false if the step cannot be prepared.
  bool add_step(const LoopStep& step) {
    if (step.role != LoopRole::kElement || step.kernel == nullptr) return false;
    step_ = &step;
    const std::size_t before = steps_.size();
    KernelCall call{
        *step.op, step.in, std::span(&step.out, 1), step.counts, *step.attributes, parallel_,
        scratch_, this};
    return step.kernel(call).ok() && steps_.size() == before + 1;
  }
  std::unique_ptr<const PreparedLoop> make() {
    return std::make_unique<const PlainLoop>(layout_.numel(), std::move(steps_), numbers_);
  }

  // LoopMaker
  Status add(std::span<const TensorArg> in, const Plan& plan) override {
    const Loops& loops = *plan.loops;
    switch (plan.dtype) {
      case DType::kF64:
        return add_plain<double>(in, plan, loops.real64);
      case DType::kF32:
        return add_plain<float>(in, plan, loops.real32);
      case DType::kU64:
        return add_plain<std::uint64_t>(in, plan, loops.natural);
      case DType::kC64:
        return add_plain<core::Complex64>(in, plan, loops.complex64);
      case DType::kC128:
        return add_plain<core::Complex128>(in, plan, loops.complex128);
      case DType::kI64:
        return add_plain<std::int64_t>(in, plan, loops.integer);
      case DType::kI32:
        if (fits_narrow(in, plan)) return add_plain<std::int32_t>(in, plan, loops.narrow);
        return not_plain();
      default:
        return not_plain();
    }
  }
  Status add_copy(const TensorArg&) override { return not_plain(); }

 private:
  template <class A>
  Status add_plain(std::span<const TensorArg> in, const Plan& plan, Inner inner) {
    const DType out = plan.loops->bool_result ? DType::kBool : kDTypeOf<A>;
    if (inner == nullptr || in.size() > kMaxOperands || step_->out.dtype != out) return not_plain();
    PlainLoop::Step step;
    step.inner = inner;
    step.operands = static_cast<std::uint32_t>(in.size());
    step.size = static_cast<std::uint32_t>(core::size_of(out));
    std::memcpy(step.functor, plan.functor, plan.functor_bytes);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const bool condition = plan.condition && i == 0;
      const DType dtype = condition ? DType::kBool : kDTypeOf<A>;
      PlainLoop::Source& source = step.sources[i];
      if (in[i].kind == Kind::kNumber && !condition) {
        source.kind = PlainLoop::Source::Kind::kNumber;
        if (!add_number<A>(in[i].number, source.index)) return not_plain();
        continue;
      }
      if (in[i].kind != Kind::kTensor || in[i].dtype != dtype || in[i].data != nullptr ||
          in[i].geometry != &layout_) {
        return not_plain();
      }
      const std::int64_t made_by = in[i].number.integer;
      const bool inside = made_by >= 0;
      if (inside && made_by >= static_cast<std::int64_t>(steps_.size())) return not_plain();
      source.kind = inside ? PlainLoop::Source::Kind::kStep : PlainLoop::Source::Kind::kInput;
      source.index = static_cast<std::uint32_t>(inside ? made_by : -1 - made_by);
      source.size = static_cast<std::uint8_t>(core::size_of(dtype));
    }
    steps_.push_back(step);
    return {};
  }

  // Sets `index` to that of the number. Returns false if there are too many.
  template <class A>
  bool add_number(const core::Number& added, std::uint32_t& index) {
    PlainLoop::Number number{};
    number_bytes(added, kDTypeOf<A>, number.element);
    number.size = sizeof(A);
    for (index = 0; index < numbers_.size(); ++index) {
      const PlainLoop::Number& each = numbers_[index];
      if (each.size == number.size && std::memcmp(each.element, number.element, sizeof(A)) == 0) {
        return true;
      }
    }
    if (numbers_.size() == PlainLoop::kMaxNumbers) return false;
    numbers_.push_back(number);
    return true;
  }

  const core::Geometry& layout_;
  const LoopStep* step_ = nullptr;  // that is being described
  NoParallel parallel_;
  NoScratch scratch_;
  std::vector<PlainLoop::Step> steps_;
  std::vector<PlainLoop::Number> numbers_;
};

}  // namespace

std::unique_ptr<const PreparedLoop> CpuBackend::prepare_loop(std::span<const LoopStep> steps,
                                                             std::size_t* prepared) {
  PlainLoopMaker maker(*steps[0].out.geometry);
  for (*prepared = 0; *prepared < std::min(steps.size(), PlainLoop::kMaxSteps); ++*prepared) {
    if (!maker.add_step(steps[*prepared])) break;
  }
  return *prepared == steps.size() ? maker.make() : nullptr;
}

}  // namespace teletensor::backends::cpu
