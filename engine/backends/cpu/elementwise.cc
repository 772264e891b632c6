#include "engine/backends/cpu/elementwise.h"

#include <algorithm>
#include <cstring>

#include "engine/backends/cpu/block_io.h"
#include "engine/backends/cpu/strided.h"
#include "engine/ops/op.h"

namespace teletensor::backends::cpu {

using core::DType;
using core::Status;
using Kind = TensorArg::Kind;

namespace {

// One cache line more than a block: blocks of several operands must not share their low address
// bits.
template <class A>
struct Memory {
  alignas(64) std::byte blocks[kMaxOperands + 1][kBlock * sizeof(A) + 64];
};

template <class A>
struct Source {
  bool direct = false;     // read in place
  bool constant = false;   // the block holds it already
  bool condition = false;  // bytes, 0 or not
  bool round = false;      // through the compute dtype
  bool rows = false;  // dense along axis 0 of the walk: a block within one row is read in place
  const char* base = nullptr;
  std::int64_t size = 0;  // bytes of an element
  LoadBlock<A> load = nullptr;
  Walk walk;
};

template <class A>
void round_through(DType dtype, A* block, std::int64_t n) {
  alignas(16) std::byte narrow[kBlock * sizeof(A)];
  store_block<A>(dtype)(block, n, narrow, 1);
  load_block<A>(dtype)(narrow, 1, n, block);
}

void load_bytes(const std::uint8_t* from, std::int64_t stride, std::int64_t n, std::uint8_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = from[i * stride];
}

template <class A>
class Machine {
 public:
  Machine(const Plan& plan, Inner inner, std::span<const TensorArg> in, const TensorArg& out)
      : plan_(plan),
        inner_(inner),
        operands_(static_cast<int>(in.size())),
        out_(out),
        order_(*out.geometry) {
    const int rank = out.geometry->rank();
    for (int i = 0; i < operands_; ++i) {
      Source<A>& s = sources_[i];
      const TensorArg& arg = in[i];
      s.condition = plan.condition && i == 0;
      if (arg.kind != Kind::kTensor) {
        s.constant = true;
        number_[i] = &arg.number;
      } else {
        s.walk = Walk(*arg.geometry, order_, rank);
        s.base = arg.first<char>();
        s.size = static_cast<std::int64_t>(core::size_of(arg.dtype));
        s.constant = s.walk.constant();
        s.direct = !s.constant && s.walk.dense() && (s.condition || arg.dtype == kDTypeOf<A>);
        if (!s.condition) s.load = load_block<A>(arg.dtype);
      }
      s.round = !s.condition && plan.dtype != kDTypeOf<A> &&
                (arg.kind == Kind::kTensor ? arg.dtype != plan.dtype : !plan.exact_numbers);
      s.rows = !s.direct && !s.constant && !s.condition && arg.dtype == kDTypeOf<A> &&
               s.walk.stride(0) == 1 && s.walk.size(0) >= kBlock / 4;
      if (s.rows) row_ = s.walk.size(0);
      all_direct_ = all_direct_ && s.direct;
    }
    out_walk_ = Walk(*out.geometry, order_, rank);
    out_size_ = static_cast<std::int64_t>(core::size_of(out.dtype));
    const DType natural = plan.loops->bool_result ? DType::kBool : kDTypeOf<A>;
    out_direct_ = out_walk_.dense() && out.dtype == natural;
    all_direct_ = all_direct_ && out_direct_;
  }

  void run(std::int64_t begin, std::int64_t end) const {
    const void* in[kMaxOperands];
    if (all_direct_) {
      for (int i = 0; i < operands_; ++i) in[i] = sources_[i].base + begin * sources_[i].size;
      inner_(in, out_.first<char>() + begin * out_size_, end - begin, plan_.functor);
      return;
    }
    Memory<A> memory;
    for (int i = 0; i < operands_; ++i) {
      if (sources_[i].constant) fill(i, std::min(kBlock, end - begin), memory.blocks[i]);
    }
    std::int64_t n = 0;
    for (std::int64_t at = begin; at < end; at += n) {
      n = std::min(kBlock, end - at);
      if (row_ > 0) n = std::min(n, row_ - at % row_);
      for (int i = 0; i < operands_; ++i) {
        const Source<A>& s = sources_[i];
        if (s.direct) {
          in[i] = s.base + at * s.size;
        } else if (s.rows && at % s.walk.size(0) + n <= s.walk.size(0)) {
          s.walk.runs(at, n, [&](std::int64_t offset, std::int64_t, std::int64_t) {
            in[i] = s.base + offset * s.size;
          });
        } else {
          in[i] = memory.blocks[i];
          if (!s.constant) gather(s, at, n, memory.blocks[i]);
        }
      }
      if (out_direct_) {
        inner_(in, out_.first<char>() + at * out_size_, n, plan_.functor);
      } else {
        inner_(in, memory.blocks[kMaxOperands], n, plan_.functor);
        scatter(memory, at, n);
      }
    }
  }

  std::int64_t count() const { return order_.count; }
  // Rough; of the shapes, dtypes and the op alone.
  double ns_per_element() const {
    double ns = 0.09 * plan_.loops->cost * (sizeof(A) / 4);
    for (int i = 0; i < operands_; ++i) ns += sources_[i].direct || sources_[i].constant ? 0 : 0.3;
    return ns + (out_direct_ ? 0 : 0.3);
  }

 private:
  void fill(int i, std::int64_t n, std::byte* block) const {
    const Source<A>& s = sources_[i];
    if (s.condition) {
      std::memset(block, *reinterpret_cast<const std::uint8_t*>(s.base) != 0,
                  static_cast<std::size_t>(n));
      return;
    }
    A value;
    if (s.load) {
      s.load(s.base, 1, 1, &value);
    } else {
      number_bytes(*number_[i], kDTypeOf<A>, &value);
    }
    if (s.round) round_through(plan_.dtype, &value, 1);
    std::fill_n(reinterpret_cast<A*>(block), n, value);
  }

  void gather(const Source<A>& s, std::int64_t at, std::int64_t n, std::byte* block) const {
    if (s.condition) {
      auto* to = reinterpret_cast<std::uint8_t*>(block);
      s.walk.runs(at, n, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
        load_bytes(reinterpret_cast<const std::uint8_t*>(s.base) + offset, stride, length, to);
        to += length;
      });
      return;
    }
    A* to = reinterpret_cast<A*>(block);
    s.walk.runs(at, n, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
      if (stride == 0) {
        s.load(s.base + offset * s.size, 1, 1, to);
        std::fill_n(to + 1, length - 1, *to);
      } else {
        s.load(s.base + offset * s.size, stride, length, to);
      }
      to += length;
    });
    if (s.round) round_through(plan_.dtype, reinterpret_cast<A*>(block), n);
  }

  void scatter(Memory<A>& memory, std::int64_t at, std::int64_t n) const {
    std::byte* block = memory.blocks[kMaxOperands];
    if (plan_.loops->bool_result) {
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(block);
      std::int64_t wide[kBlock];
      std::copy_n(bytes, n, wide);
      store(store_block<std::int64_t>(out_.dtype), wide, at, n);
    } else {
      A* values = reinterpret_cast<A*>(block);
      if (plan_.dtype != out_.dtype && plan_.dtype != kDTypeOf<A>) {
        round_through(plan_.dtype, values, n);
      }
      store(store_block<A>(out_.dtype), values, at, n);
    }
  }

  template <class B>
  void store(StoreBlock<B> store, const B* from, std::int64_t at, std::int64_t n) const {
    char* base = out_.first<char>();
    out_walk_.runs(at, n, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
      store(from, length, base + offset * out_size_, stride);
      from += length;
    });
  }

  const Plan& plan_;
  const Inner inner_;
  const int operands_;
  const TensorArg& out_;
  const LinearOrder order_;
  Source<A> sources_[kMaxOperands];
  const core::Number* number_[kMaxOperands];
  Walk out_walk_;
  std::int64_t out_size_ = 0;
  std::int64_t row_ = 0;  // blocks end where rows of this length end
  bool out_direct_ = false, all_direct_ = true;
};

// A large operand whose elements lie in another order than the result's: gathering it block by
// block would read each of its cache lines many times.
bool is_transposed(const TensorArg& arg, const TensorArg& out) {
  if (arg.kind != Kind::kTensor || arg.geometry->rank() != out.geometry->rank()) return false;
  if (arg.dtype == DType::kBool || arg.geometry->numel() < 32768) return false;
  const LinearOrder order(*out.geometry);
  const Walk walk(*arg.geometry, order, out.geometry->rank());
  return walk.rank() > 1 && walk.stride(0) >= 16 && order.count == arg.geometry->numel();
}

// Replaces it by a copy in the result's order, where the budget allows one.
void pack(KernelCall& call, TensorArg& arg, core::Geometry& geometry) {
  const core::Geometry* orders[] = {call.out[0].geometry};
  geometry = core::elementwise_layout(arg.geometry->shape, orders);
  const auto bytes = static_cast<std::size_t>(geometry.numel()) * core::size_of(arg.dtype);
  TensorArg copy = arg;
  copy.data = call.scratch.allocate(bytes);
  copy.geometry = &geometry;
  if (copy.data == nullptr) return;
  strided_copy(arg, copy, call.parallel);
  arg = copy;
}

template <class A>
Status compute(KernelCall& call, std::span<const TensorArg> in, const Plan& plan, Inner inner) {
  if (inner == nullptr) {
    return core::internal(call.op.name + ": no kernel for " +
                          std::string(core::name_of(plan.dtype)));
  }
  TensorArg packed[kMaxOperands];
  core::Geometry geometries[kMaxOperands];
  for (std::size_t i = 0; i < in.size(); ++i) {
    packed[i] = in[i];
    if (is_transposed(in[i], call.out[0])) pack(call, packed[i], geometries[i]);
  }
  const Machine<A> machine(plan, inner, {packed, in.size()}, call.out[0]);
  if (machine.count() == 0) return {};
  split(call.parallel, machine.count(), machine.ns_per_element(), kBlock,
        [&](std::int64_t begin, std::int64_t end) { machine.run(begin, end); });
  return {};
}

// Same dtype, shape and row-major strides everywhere: no set-up at all.
bool run_plain(KernelCall& call, std::span<const TensorArg> in, const Plan& plan, Inner inner,
               DType compute) {
  if (plan.dtype != compute || inner == nullptr) return false;
  const TensorArg& out = call.out[0];
  if (out.dtype != (plan.loops->bool_result ? DType::kBool : compute)) return false;
  const core::Geometry& geometry = *out.geometry;
  const std::int64_t n = geometry.numel();
  if (n == 0 || !geometry.contiguous()) return false;
  const void* pointers[kMaxOperands];
  for (std::size_t i = 0; i < in.size(); ++i) {
    const TensorArg& arg = in[i];
    if (arg.kind != Kind::kTensor) return false;
    if (arg.dtype != compute && !(plan.condition && i == 0)) return false;
    if (!(arg.geometry->shape == geometry.shape) || !arg.geometry->contiguous()) return false;
    pointers[i] = arg.first();
  }
  const auto size = static_cast<std::int64_t>(core::size_of(compute));
  const auto out_size = static_cast<std::int64_t>(core::size_of(out.dtype));
  split(call.parallel, n, 0.09 * plan.loops->cost * (size == 8 ? 2 : 1), kBlock,
        [&](std::int64_t begin, std::int64_t end) {
          const void* at[kMaxOperands];
          for (std::size_t i = 0; i < in.size(); ++i) {
            const bool bytes = plan.condition && i == 0;
            at[i] = static_cast<const char*>(pointers[i]) + begin * (bytes ? 1 : size);
          }
          inner(at, out.first<char>() + begin * out_size, end - begin, plan.functor);
        });
  return true;
}

}  // namespace

Status run_elementwise(KernelCall& call, std::span<const TensorArg> in, const Plan& plan) {
  const Loops& loops = *plan.loops;
  switch (plan.dtype) {
    case DType::kF64:
      if (run_plain(call, in, plan, loops.real64, DType::kF64)) return {};
      return compute<double>(call, in, plan, loops.real64);
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
      if (run_plain(call, in, plan, loops.real32, DType::kF32)) return {};
      return compute<float>(call, in, plan, loops.real32);
    case DType::kU64:
      if (run_plain(call, in, plan, loops.natural, DType::kU64)) return {};
      return compute<std::uint64_t>(call, in, plan, loops.natural);
    case DType::kC64:
      if (run_plain(call, in, plan, loops.complex64, DType::kC64)) return {};
      return compute<core::Complex64>(call, in, plan, loops.complex64);
    case DType::kC128:
      if (run_plain(call, in, plan, loops.complex128, DType::kC128)) return {};
      return compute<core::Complex128>(call, in, plan, loops.complex128);
    default:
      break;
  }
  if (run_plain(call, in, plan, loops.integer, DType::kI64)) return {};
  if (run_plain(call, in, plan, loops.bytes, DType::kBool)) return {};
  return compute<std::int64_t>(call, in, plan, loops.integer);
}

DType common_dtype(std::span<const TensorArg> in, const TensorArg& out, bool real) {
  const DType fallback = core::is_inexact(out.dtype) ? core::real_of(out.dtype) : DType::kF32;
  DType dtype;
  bool same = true;
  for (const TensorArg& arg : in) {
    same = same && arg.kind == Kind::kTensor && arg.dtype == in[0].dtype;
  }
  if (same) {
    dtype = in[0].dtype;
  } else {
    core::Layout layouts[kMaxOperands];
    ops::OperandInfo infos[kMaxOperands];
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (in[i].kind == Kind::kTensor) {
        layouts[i].dtype = in[i].dtype;
        if (in[i].geometry->rank() > 0) layouts[i].geometry.shape.push_back(1);
        infos[i].layout = &layouts[i];
      } else if (in[i].kind == Kind::kNumber) {
        infos[i].number = &in[i].number;
      }
    }
    dtype = ops::result_type({infos, in.size()}, fallback);
  }
  return real && !core::is_inexact(dtype) ? fallback : dtype;
}

bool any_zero(const TensorArg& divisor, Parallel&) {
  if (divisor.kind == Kind::kNumber) return divisor.number.integer == 0;
  const LinearOrder order(*divisor.geometry);
  const Walk walk(*divisor.geometry, order, divisor.geometry->rank());
  const LoadBlock<std::int64_t> load = load_block<std::int64_t>(divisor.dtype);
  const auto size = static_cast<std::int64_t>(core::size_of(divisor.dtype));
  std::int64_t zeros = 0;
  walk.runs(0, order.count, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
    std::int64_t block[kBlock];
    for (std::int64_t i = 0; i < length; i += kBlock) {
      const std::int64_t n = std::min(kBlock, length - i);
      load(divisor.first<char>() + (offset + i * stride) * size, stride, n, block);
      zeros += std::count(block, block + n, 0);
    }
  });
  return zeros > 0;
}

}  // namespace teletensor::backends::cpu
