#include "engine/backends/cpu/pointwise/loop.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <forward_list>
#include <string_view>
#include <utility>

#include "engine/backends/cpu/cpu_backend.h"
#include "engine/backends/cpu/loops/loops.h"
#include "engine/backends/cpu/pointwise/machine.h"
#include "engine/backends/cpu/reduction/reduce_simd.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {
namespace {

using core::Status;

using Room = Memory<core::Complex128>;   // large enough for a step of any type
constexpr std::int64_t kShortRow = 256;  // shorter rows are reduced by the op's own kernel

Status refused(const char* why) { return Status(core::Code::kUnimplemented, why); }

// An elementwise step.
class Element {
 public:
  virtual ~Element() = default;
  virtual std::size_t constant_bytes() const = 0;
  virtual void fill_constants(std::int64_t n, std::byte* memory) = 0;
  virtual std::int64_t length(std::int64_t at, std::int64_t n) const = 0;
  virtual void block(std::int64_t at, std::int64_t n, Room& room, const void* const* inside,
                     void* result) const = 0;
  virtual double ns_per_element() const = 0;
};

template <class A>
class ElementOf final : public Element {
 public:
  ElementOf(const Plan& plan, Inner inner, std::span<const TensorArg> in, const TensorArg& out,
            const LinearOrder& order)
      : machine_(plan, inner, in, out, order) {}
  std::size_t constant_bytes() const override { return machine_.constant_bytes(); }
  void fill_constants(std::int64_t n, std::byte* memory) override {
    machine_.fill_constants(n, memory, constants_);
  }
  std::int64_t length(std::int64_t at, std::int64_t n) const override {
    return machine_.length(at, n);
  }
  void block(std::int64_t at, std::int64_t n, Room& room, const void* const* inside,
             void* result) const override {
    machine_.block(at, n, reinterpret_cast<Memory<A>&>(room), constants_, inside, result);
  }
  double ns_per_element() const override { return machine_.ns_per_element(); }

 private:
  const Machine<A> machine_;
  const std::byte* constants_[kMaxOperands] = {};
};

// An elementwise step whose operands and result have the compute type and the layout of the loop,
// so that nothing is converted.
class PlainElement final : public Element {
 public:
  // The base of an operand that the loop computes is null.
  PlainElement(Inner inner, const void* functor, const char* const* bases, std::size_t operands,
               std::int64_t size, int cost)
      : inner_(inner),
        functor_(functor),
        operands_(operands),
        size_(size),
        ns_(0.09 * cost * static_cast<double>(size) / 4) {
    std::copy_n(bases, operands, bases_);
  }
  std::size_t constant_bytes() const override { return 0; }
  void fill_constants(std::int64_t, std::byte*) override {}
  std::int64_t length(std::int64_t, std::int64_t n) const override { return n; }
  void block(std::int64_t at, std::int64_t n, Room&, const void* const* inside,
             void* result) const override {
    const void* in[kMaxOperands];
    for (std::size_t i = 0; i < operands_; ++i) {
      in[i] = bases_[i] == nullptr ? inside[i] : bases_[i] + at * size_;
    }
    inner_(in, result, n, functor_);
  }
  double ns_per_element() const override { return ns_; }

 private:
  const Inner inner_;
  const void* const functor_;
  const std::size_t operands_;
  const std::int64_t size_;  // of an element, in bytes
  const double ns_;
  const char* bases_[kMaxOperands];
};

// What the kernel of a plain step has described, for steps with the same kernel, attributes and
// dtypes. The kernel of a plain step looks at nothing else, because no operand is a number.
struct PlainStep {
  Kernel kernel = nullptr;
  core::Attributes attributes;
  std::size_t operands = 0;
  DType in = DType::kF32, out = DType::kF32;
  Inner inner = nullptr;
  int cost = 1;
  alignas(16) std::byte functor[kMaxFunctorBytes];

  bool describes(const LoopStep& step) const {
    return kernel == step.kernel && operands == step.in.size() && in == step.in[0].dtype &&
           out == step.out.dtype && attributes == *step.attributes;
  }
};

// The plain steps that a thread has described. Two kernels whose addresses have the same hash do
// not displace each other, which would make a loop of these two describe them again in each round.
class PlainSteps {
 public:
  static PlainSteps& of_thread() {
    static thread_local const auto steps = std::make_unique<PlainSteps>();
    return *steps;
  }
  // Returns the description of this step; null if there is none.
  const PlainStep* find(const LoopStep& step) {
    Set& set = set_of(step);
    for (std::size_t way = 0; way < set.ways.size(); ++way) {
      if (!set.ways[way].describes(step)) continue;
      set.used_last = way;
      return &set.ways[way];
    }
    return nullptr;
  }
  // Returns the place for the description of a step that find() has not found.
  PlainStep& place(const LoopStep& step) {
    Set& set = set_of(step);
    set.used_last = 1 - set.used_last;
    return set.ways[set.used_last];
  }

 private:
  static constexpr std::size_t kSets = 32;
  struct Set {
    std::array<PlainStep, 2> ways;
    std::size_t used_last = 0;
  };

  Set& set_of(const LoopStep& step) {
    const std::size_t at = reinterpret_cast<std::uintptr_t>(step.kernel) / 16 * 7 +
                           static_cast<std::size_t>(step.in[0].dtype);
    return sets_[(at ^ at >> 8) % kSets];
  }

  std::array<Set, kSets> sets_;
};

// Per-thread memory for the Element objects of the loop that is being built, about 2 KiB each.
class ElementArena {
 public:
  ElementArena() : arena_(of_thread()) {
    if (arena_.busy) return;
    mine_ = arena_.busy = true;
    if (arena_.memory == nullptr) arena_.memory.reset(new std::byte[kBytes]);
  }
  ~ElementArena() {
    if (mine_) arena_.busy = false;
  }
  ElementArena(const ElementArena&) = delete;
  ElementArena& operator=(const ElementArena&) = delete;
  // Returns null if the memory is used up.
  void* place(std::size_t bytes) {
    const std::size_t at = used_;
    if (!mine_ || bytes > kBytes - at) return nullptr;
    used_ += (bytes + 63) / 64 * 64;
    return arena_.memory.get() + at;
  }

 private:
  static constexpr std::size_t kBytes = 48 << 10;
  struct OfThread {
    std::unique_ptr<std::byte[]> memory;
    bool busy = false;
  };
  static OfThread& of_thread() {
    static thread_local OfThread bench;
    return bench;
  }
  OfThread& arena_;
  bool mine_ = false;
  std::size_t used_ = 0;
};

// Destroys the element, and frees its memory if it is on the heap.
struct DestroyElement {
  bool heap = false;
  void operator()(Element* element) const { heap ? delete element : element->~Element(); }
};

// A reduction of float or double over rows of `row` elements. It sums leaf by leaf, as the
// reduction's own kernel does.
struct Folding {
  std::size_t step = 0;
  std::int64_t source = -1;  // the step whose result is reduced; -1: it is in memory
  FoldKind kind = FoldKind::kSum;
  bool mean = false;
  std::int64_t row = 1, leaves = 1;  // number of leaves in a row
  std::byte* partial = nullptr;      // one value for each leaf
};

template <class A>
A tree(const Fold<A>& fold, const A* leaves, std::int64_t n) {
  if (n == 1) return leaves[0];
  std::int64_t half = 1;
  while (half * 2 < n) half *= 2;
  const A left = tree(fold, leaves, half);
  return fold.pair(left, tree(fold, leaves + half, n - half));
}

class Loop final : public LoopMaker {
 public:
  Loop(std::span<const LoopStep> steps, Parallel& parallel, Scratch& scratch)
      : steps_(steps),
        parallel_(parallel),
        scratch_(scratch),
        layout_(layout(steps)),
        order_(layout_),
        dense_(Walk(layout_, order_, layout_.rank()).dense()),
        works_(steps.size()) {}

  Status run() {
    for (step_ = 0; step_ < steps_.size(); ++step_) {
      const LoopStep& step = steps_[step_];
      if (step.role == LoopRole::kFold) {
        TT_RETURN_IF_ERROR(add_fold(step));
        continue;
      }
      if (has_plain_operands(step)) {
        if (const PlainStep* const known = PlainSteps::of_thread().find(step)) {
          TT_RETURN_IF_ERROR(add_known(*known));
          continue;
        }
      }
      KernelCall call{
          *step.op, step.in, std::span(&step.out, 1), step.counts, *step.attributes, parallel_,
          scratch_, this};
      TT_RETURN_IF_ERROR(step.kernel(call));
      if (!works_[step_].element) return refused("a kernel that cannot be a step of a loop");
    }
    TT_RETURN_IF_ERROR(place());
    double ns = 0;
    for (const Work& work : works_) ns += work.element ? work.element->ns_per_element() : 0.1;
    // Parts end where leaves end; all reductions have rows of the same length.
    const bool rows = !folds_.empty() && folds_[0].row != order_.count;
    const std::int64_t grain = rows ? folds_[0].row : kLeaf;
    split(parallel_, order_.count, ns, grain,
          [&](std::int64_t begin, std::int64_t end) { range(begin, end); });
    for (const Folding& fold : folds_) {
      is_double(fold) ? finish<double>(fold) : finish<float>(fold);
    }
    return {};
  }

  Status add(std::span<const TensorArg> in, const Plan& plan) override {
    const Loops& loops = *plan.loops;
    switch (plan.dtype) {
      case DType::kF64:
        return make<double>(in, plan, loops.real64);
      case DType::kF16:
      case DType::kBF16:
      case DType::kF32:
        return make<float>(in, plan, loops.real32);
      case DType::kU64:
        return make<std::uint64_t>(in, plan, loops.natural);
      case DType::kC64:
        return make<core::Complex64>(in, plan, loops.complex64);
      case DType::kC128:
        return make<core::Complex128>(in, plan, loops.complex128);
      default:
        if (fits_narrow(in, plan)) return make<std::int32_t>(in, plan, loops.narrow);
        return make<std::int64_t>(in, plan, loops.integer);
    }
  }

  // Converts through the compute type of the source, like strided_copy; between equal dtypes the
  // bits are copied unchanged.
  Status add_copy(const TensorArg& from) override {
    const TensorArg& out = steps_[step_].out;
    const DType dtype = from.kind == TensorArg::Kind::kTensor ? from.dtype : out.dtype;
    return with_any_compute_type(dtype, [&](auto a) -> Status {
      using A = decltype(a);
      const bool converts = from.kind == TensorArg::Kind::kTensor && from.dtype != out.dtype;
      if (!converts && dtype != kDTypeOf<A>) return refused("a copy of narrow elements");
      static const s::Positive functor;
      Plan plan;
      plan.loops = &Slot<s::Positive>::loops;
      plan.functor = &functor;
      plan.functor_bytes = sizeof functor;
      plan.dtype = kDTypeOf<A>;
      return add({&from, 1}, plan);
    });
  }

 private:
  struct Work {
    std::unique_ptr<Element, DestroyElement> element;  // null for reductions
    alignas(16) std::byte functor[kMaxFunctorBytes];
    // The steps that compute the operands; -1: in memory.
    std::int64_t inside[kMaxOperands] = {-1, -1, -1, -1};
    std::size_t operands = 0;
    std::size_t last = 0;    // the last step that reads it
    bool folded = false;     // a reduction reads it, one whole leaf at a time
    bool freed = false;      // a later step may use its slot
    std::int64_t slot = -1;  // offset in a part's memory; -1: stored in a tensor
  };

  static const core::Geometry& layout(std::span<const LoopStep> steps) {
    for (const LoopStep& step : steps) {
      if (step.role == LoopRole::kElement) return *step.out.geometry;
    }
    return *steps[0].in[0].geometry;
  }
  std::int64_t size_of_step(std::size_t step) const {
    return static_cast<std::int64_t>(core::size_of(steps_[step].out.dtype));
  }
  bool is_double(const Folding& fold) const { return steps_[fold.step].out.dtype == DType::kF64; }

  template <class A>
  Status make(std::span<const TensorArg> in, Plan plan, Inner inner) {
    if (inner == nullptr) return refused("no kernel for this dtype");
    if (is_plain<A>(in, plan)) return make_plain(plan, inner);
    Work& work = works_[step_];
    std::memcpy(work.functor, plan.functor, plan.functor_bytes);
    plan.functor = work.functor;
    work.operands = in.size();
    TensorArg operands[kMaxOperands];
    for (std::size_t i = 0; i < in.size(); ++i) {
      operands[i] = in[i];
      if (in[i].kind != TensorArg::Kind::kTensor) continue;
      if (in[i].data == nullptr) {
        TT_RETURN_IF_ERROR(read_inside(in[i], work.inside[i]));
      } else {
        core::Geometry packed;
        pack_transposed(operands[i], steps_[step_].out, packed, scratch_, parallel_);
        if (operands[i].geometry == &packed) operands[i].geometry = &packed_.emplace_front(packed);
      }
    }
    set_element<ElementOf<A>>(plan, inner, std::span(operands, in.size()), steps_[step_].out,
                              order_);
    return {};
  }

  template <class E, class... Arguments>
  void set_element(Arguments&&... arguments) {
    static_assert(alignof(E) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    void* place = arena_.place(sizeof(E));
    const bool heap = place == nullptr;
    if (heap) place = ::operator new(sizeof(E));
    works_[step_].element = std::unique_ptr<Element, DestroyElement>(
        new (place) E(std::forward<Arguments>(arguments)...), DestroyElement{heap});
  }

  // Returns true if all operands are tensors of one dtype with the layout of the loop.
  bool has_plain_operands(const LoopStep& step) const {
    return dense_ && !step.in.empty() && step.counts.empty() && step.out.geometry == &layout_ &&
           std::all_of(step.in.begin(), step.in.end(), [&](const TensorArg& arg) {
             return arg.kind == TensorArg::Kind::kTensor && arg.dtype == step.in[0].dtype &&
                    arg.geometry == &layout_;
           });
  }

  template <class A>
  bool is_plain(std::span<const TensorArg> in, const Plan& plan) const {
    const LoopStep& step = steps_[step_];
    return !plan.condition && plan.dtype == kDTypeOf<A> && has_plain_operands(step) &&
           step.in[0].dtype == kDTypeOf<A> && in.data() == step.in.data() &&
           in.size() == step.in.size() &&
           step.out.dtype == (plan.loops->bool_result ? DType::kBool : kDTypeOf<A>);
  }

  Status make_plain(const Plan& plan, Inner inner) {
    const LoopStep& step = steps_[step_];
    PlainStep& known = PlainSteps::of_thread().place(step);
    known.kernel = step.kernel;
    known.attributes = *step.attributes;
    known.operands = step.in.size();
    known.in = step.in[0].dtype;
    known.out = step.out.dtype;
    known.inner = inner;
    known.cost = plan.loops->cost;
    std::memcpy(known.functor, plan.functor, plan.functor_bytes);
    return add_known(known);
  }

  Status add_known(const PlainStep& known) {
    const LoopStep& step = steps_[step_];
    Work& work = works_[step_];
    std::memcpy(work.functor, known.functor, sizeof work.functor);
    work.operands = step.in.size();
    const char* bases[kMaxOperands] = {};
    for (std::size_t i = 0; i < step.in.size(); ++i) {
      if (step.in[i].data == nullptr) {
        TT_RETURN_IF_ERROR(read_inside(step.in[i], work.inside[i]));
      } else {
        bases[i] = step.in[i].first<char>();
      }
    }
    set_element<PlainElement>(known.inner, work.functor, bases, step.in.size(),
                              static_cast<std::int64_t>(core::size_of(known.in)), known.cost);
    return {};
  }

  // Sets `step` to the step that computes the operand, which the present step reads.
  Status read_inside(const TensorArg& operand, std::int64_t& step) {
    step = operand.number.integer;
    if (step < 0 || step >= static_cast<std::int64_t>(step_) ||
        steps_[static_cast<std::size_t>(step)].role != LoopRole::kElement) {
      return core::internal("a step of a loop reads a later step");
    }
    works_[static_cast<std::size_t>(step)].last = step_;
    return {};
  }

  Status add_fold(const LoopStep& step) {
    const TensorArg &in = step.in[0], &out = step.out;
    if (in.dtype != out.dtype || (in.dtype != DType::kF32 && in.dtype != DType::kF64)) {
      return refused("a fold of another dtype");
    }
    Folding fold;
    fold.step = step_;
    fold.source = in.data == nullptr ? in.number.integer : -1;
    const std::string_view name = step.op->name;
    fold.mean = name == "mean";
    if (name == "amax") fold.kind = FoldKind::kMax;
    if (name == "amin") fold.kind = FoldKind::kMin;
    const std::int64_t outputs = out.geometry->numel();
    if (outputs == 0 || out.data == nullptr) return refused("a fold without results");
    fold.row = order_.count / outputs;
    if (outputs > 1 && fold.row < kShortRow) return refused("a fold of short rows");
    if (!folds_.empty() && folds_[0].row != fold.row) return refused("folds of different rows");
    fold.leaves = (fold.row + kLeaf - 1) / kLeaf;
    const std::size_t bytes = scratch_bytes(outputs, fold.leaves, core::size_of(in.dtype));
    fold.partial = static_cast<std::byte*>(scratch_.allocate(bytes));
    if (fold.partial == nullptr) return out_of_scratch(name, bytes);
    folds_.push_back(fold);
    return {};
  }

  // Gives the result of step s a slot, which is a place in a part's memory.
  void take_slot(std::size_t s, std::vector<std::int64_t>& free) {
    Work& work = works_[s];
    if (!work.folded && !free.empty()) {
      work.slot = free.back();
      free.pop_back();
      return;
    }
    work.slot = slot_bytes_;
    slot_bytes_ += (work.folded ? kLeaf * size_of_step(s) : kBlock * 16) + 64;
  }
  // Frees the slot of step `of` if no step after s reads it.
  void free_slot(std::size_t of, std::size_t s, std::vector<std::int64_t>& free) {
    Work& work = works_[of];
    if (work.slot < 0 || work.folded || work.freed || work.last > s) return;
    work.freed = true;
    free.push_back(work.slot);
  }

  // Assigns places in a part's memory to the results that are not stored, and fills the constants.
  Status place() {
    for (const Folding& fold : folds_) {
      if (fold.source < 0) continue;
      Work& source = works_[static_cast<std::size_t>(fold.source)];
      source.folded = true;
      source.last = works_.size();
    }
    std::vector<std::int64_t> free;  // slots
    std::size_t constants = 0;
    for (std::size_t s = 0; s < works_.size(); ++s) {
      Work& work = works_[s];
      if (!work.element) continue;
      constants += work.element->constant_bytes();
      if (steps_[s].out.data == nullptr) take_slot(s, free);
      // A slot is free after its last reader. The last reader itself must not reuse it, because it
      // would overwrite what it reads.
      for (std::size_t i = 0; i < work.operands; ++i) {
        if (work.inside[i] >= 0) free_slot(static_cast<std::size_t>(work.inside[i]), s, free);
      }
      free_slot(s, s, free);  // if no step reads it
    }
    if (constants == 0) return {};
    auto* memory = static_cast<std::byte*>(scratch_.allocate(constants));
    if (memory == nullptr) return out_of_scratch("loop", constants);
    for (Work& work : works_) {
      if (!work.element || work.element->constant_bytes() == 0) continue;
      work.element->fill_constants(std::min(kBlock, order_.count), memory);
      memory += work.element->constant_bytes();
    }
    return {};
  }

  // The address of the elements from `at` on of the result of step s. A leaf that a reduction reads
  // is contiguous.
  std::byte* where(std::size_t s, std::int64_t at, std::byte* memory) const {
    const Work& work = works_[s];
    if (work.slot < 0) return steps_[s].out.first<std::byte>() + at * size_of_step(s);
    return memory + work.slot + (work.folded ? leaf_offset(at) * size_of_step(s) : 0);
  }
  std::int64_t leaf_offset(std::int64_t at) const { return at % folds_[0].row % kLeaf; }

  void range(std::int64_t begin, std::int64_t end) {
    // Thread-local, so that the next loop on this lane reuses the memory.
    static thread_local std::unique_ptr<Room> room;
    static thread_local std::vector<std::byte> memory;
    if (!room) room.reset(new Room);
    if (memory.size() < static_cast<std::size_t>(slot_bytes_) + 64) {
      memory.resize(static_cast<std::size_t>(slot_bytes_) + 64);
    }
    auto* slots = reinterpret_cast<std::byte*>(
        (reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
    const std::int64_t row = folds_.empty() ? 0 : folds_[0].row;
    std::int64_t n = 0;
    for (std::int64_t at = begin; at < end; at += n) {
      n = std::min(kBlock, end - at);
      if (row > 0) n = std::min({n, kLeaf - leaf_offset(at), row - at % row});
      for (const Work& work : works_) {
        if (work.element) n = work.element->length(at, n);
      }
      for (std::size_t s = 0; s < works_.size(); ++s) {
        const Work& work = works_[s];
        if (!work.element) continue;
        const void* inside[kMaxOperands];
        for (std::size_t i = 0; i < work.operands; ++i) {
          if (work.inside[i] >= 0) {
            inside[i] = where(static_cast<std::size_t>(work.inside[i]), at, slots);
          }
        }
        work.element->block(at, n, *room, inside, where(s, at, slots));
      }
      for (const Folding& fold : folds_) {
        const std::int64_t in_row = (at + n) % fold.row;
        if (in_row % kLeaf != 0) continue;
        is_double(fold) ? leaf<double>(fold, at + n, slots) : leaf<float>(fold, at + n, slots);
      }
    }
  }

  // Reduces the leaf that ends at `end`.
  template <class A>
  void leaf(const Folding& fold, std::int64_t end, std::byte* slots) {
    const std::int64_t at_row = (end - 1) / fold.row, in_row = end - 1 - at_row * fold.row;
    const std::int64_t begin = at_row * fold.row + in_row / kLeaf * kLeaf;
    const std::byte* x = fold.source < 0
                             ? steps_[fold.step].in[0].first<std::byte>() + begin * sizeof(A)
                             : where(static_cast<std::size_t>(fold.source), begin, slots);
    reinterpret_cast<A*>(fold.partial)[at_row * fold.leaves + in_row / kLeaf] =
        fold_of<A>(fold.kind).leaf(reinterpret_cast<const A*>(x), end - begin);
  }

  template <class A>
  void finish(const Folding& fold) {
    const TensorArg& out = steps_[fold.step].out;
    const std::int64_t outputs = out.geometry->numel();
    const A* leaves = reinterpret_cast<const A*>(fold.partial);
    for (std::int64_t i = 0; i < outputs; ++i) {
      A value = tree(fold_of<A>(fold.kind), leaves + i * fold.leaves, fold.leaves);
      if (fold.mean) value = value / static_cast<A>(fold.row);
      out.first<A>()[i] = value;
    }
  }

  const std::span<const LoopStep> steps_;
  Parallel& parallel_;
  Scratch& scratch_;
  const core::Geometry& layout_;
  const LinearOrder order_;
  const bool dense_;         // its elements are contiguous in the linear order
  ElementArena arena_;       // must outlive works_
  std::vector<Work> works_;  // one per step
  std::vector<Folding> folds_;
  std::forward_list<core::Geometry> packed_;
  std::size_t step_ = 0;  // the step that is being described
  std::int64_t slot_bytes_ = 0;
};

}  // namespace

Status CpuBackend::run_loop(std::span<const LoopStep> steps, Parallel& parallel, Scratch& scratch) {
  return Loop(steps, parallel, scratch).run();
}

}  // namespace teletensor::backends::cpu
