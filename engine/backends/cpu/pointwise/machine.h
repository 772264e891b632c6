// The block machine of one elementwise instruction. It converts operands block by block into
// contiguous memory of the compute type A, calls the inner function, and stores the block. Single
// kernels run it over the whole tensor, and loops run it block by block; hence both give the same
// bits.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/pointwise/elementwise.h"

namespace teletensor::backends::cpu {

using core::DType;

// A block with one additional cache line, so that the blocks of different operands do not share
// their low address bits.
template <class A>
using Block = std::byte[kBlock * sizeof(A) + 64];
template <class A>
struct Memory {
  alignas(64) Block<A> blocks[kMaxOperands + 1];
};

// How the machine reads one operand. Which form applies is decided once for the whole call.
template <class A>
struct Source {
  bool direct = false;     // read in place
  bool constant = false;   // the block was filled in advance
  bool condition = false;  // bytes, 0 or not 0
  bool round = false;      // rounded to the compute dtype first
  bool inside = false;     // computed by an earlier step of the loop; its block is passed in
  bool rows = false;      // dense along axis 0 of the walk: a block within one row is read in place
  bool repeated = false;  // constant along axis 0 of the walk: for a row one short piece is enough
  const char* base = nullptr;
  std::int64_t size = 0;  // bytes per element
  LoadBlock<A> load = nullptr;
  Walk walk;
};

// Rounds n numbers to `dtype`, by a store and a load.
template <class A>
void round_through(DType dtype, A* block, std::int64_t n) {
  alignas(16) std::byte narrow[kBlock * sizeof(A)];
  store_block<A>(dtype)(block, n, narrow, 1);
  load_block<A>(dtype)(narrow, 1, n, block);
}

inline void load_bytes(const std::uint8_t* from, std::int64_t stride, std::int64_t n,
                       std::uint8_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = from[i * stride];
}

// Immutable after construction, so several lanes may run parts of one call. The operands, the
// functor of the plan and `order` must outlive the object.
template <class A>
class Machine {
 public:
  // An operand without memory is computed inside the loop; a result without memory is only used
  // inside the loop.
  Machine(const Plan& plan, Inner inner, std::span<const TensorArg> in, const TensorArg& out,
          const LinearOrder& order)
      : plan_(plan),
        inner_(inner),
        operands_(static_cast<int>(in.size())),
        out_(out),
        order_(order) {
    const int rank = out.geometry->rank();
    for (int i = 0; i < operands_; ++i) {
      Source<A>& s = sources_[i];
      const TensorArg& arg = in[i];
      s.condition = plan.condition && i == 0;
      if (arg.kind != TensorArg::Kind::kTensor) {
        s.constant = true;
        number_[i] = arg.number;
      } else if (arg.data == nullptr) {
        s.inside = true;
        s.size = static_cast<std::int64_t>(core::size_of(arg.dtype));
        s.direct = s.condition || arg.dtype == kDTypeOf<A> ||
                   (arg.dtype == DType::kBool && std::is_same_v<A, std::uint8_t>);
        if (!s.condition) s.load = load_block<A>(arg.dtype);
      } else {
        s.walk = Walk(*arg.geometry, order_, rank);
        s.base = arg.first<char>();
        s.size = static_cast<std::int64_t>(core::size_of(arg.dtype));
        s.constant = s.walk.constant();
        s.direct = !s.constant && s.walk.dense() && (s.condition || arg.dtype == kDTypeOf<A>);
        if (!s.condition) s.load = load_block<A>(arg.dtype);
      }
      s.round = !s.condition && plan.rounds(arg, kDTypeOf<A>);
      s.rows = !s.direct && !s.constant && !s.condition && arg.dtype == kDTypeOf<A> &&
               s.walk.stride(0) == 1 && s.walk.size(0) >= kBlock / 4;
      s.repeated = !s.constant && !s.inside && s.walk.rank() > 1 && s.walk.stride(0) == 0 &&
                   s.walk.size(0) >= kPiece;
      if (s.rows || s.repeated) {
        row_ = row_ > 0 ? std::min(row_, s.walk.size(0)) : s.walk.size(0);
      }
      all_direct_ = all_direct_ && s.direct && !s.inside;
    }
    out_inside_ = out.data == nullptr;
    if (!out_inside_) out_walk_ = Walk(*out.geometry, order_, rank);
    out_size_ = static_cast<std::int64_t>(core::size_of(out.dtype));
    const DType natural = plan.loops->bool_result ? DType::kBool : kDTypeOf<A>;
    out_direct_ = (out_inside_ || out_walk_.dense()) && out.dtype == natural;
    all_direct_ = all_direct_ && out_direct_ && !out_inside_;
  }

  // Computes the elements [begin, end) of the result, counted in the order of `order`.
  void run(std::int64_t begin, std::int64_t end) const {
    if (all_direct_) {
      const void* in[kMaxOperands];
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
      n = length(at, std::min(kBlock, end - at));
      block(at, n, memory, nullptr, nullptr, nullptr);
    }
  }

  // The following functions run the machine piece by piece, for loops. First: the size of the
  // constant operands' blocks, and filling them.
  std::size_t constant_bytes() const {
    std::size_t bytes = 0;
    for (int i = 0; i < operands_; ++i) bytes += sources_[i].constant ? sizeof(Block<A>) : 0;
    return bytes;
  }
  void fill_constants(std::int64_t n, std::byte* memory, const std::byte** blocks) const {
    for (int i = 0; i < operands_; ++i) {
      if (!sources_[i].constant) continue;
      fill(i, n, memory);
      blocks[i] = memory;
      memory += sizeof(Block<A>);
    }
  }
  // The number of elements from `at` on, up to n, that one block can process.
  std::int64_t length(std::int64_t at, std::int64_t n) const {
    return row_ > 0 ? std::min(n, row_ - at % row_) : n;
  }
  // Computes one block. constants[i] is the block of a constant operand that is not in `memory`;
  // inside[i] and `result` are the blocks of operands and of a result without memory.
  void block(std::int64_t at, std::int64_t n, Memory<A>& memory, const std::byte* const* constants,
             const void* const* inside, void* result) const {
    const void* in[kMaxOperands];
    unsigned repeated = 0;  // bit set of operands for which one short piece serves all elements
    for (int i = 0; i < operands_; ++i) {
      const Source<A>& s = sources_[i];
      if (s.inside) {
        in[i] = inside[i];
        if (!s.direct) {
          A* to = reinterpret_cast<A*>(memory.blocks[i]);
          s.load(inside[i], 1, n, to);
          if (s.round) round_through(plan_.dtype, to, n);
          in[i] = to;
        }
      } else if (s.direct) {
        in[i] = s.base + at * s.size;
      } else if (s.rows && at % s.walk.size(0) + n <= s.walk.size(0)) {
        s.walk.runs(at, n, [&](std::int64_t offset, std::int64_t, std::int64_t) {
          in[i] = s.base + offset * s.size;
        });
      } else if (s.repeated && at % s.walk.size(0) + n <= s.walk.size(0)) {
        repeated |= 1u << i;
        in[i] = memory.blocks[i];
        gather(s, at, std::min(n, kPiece), memory.blocks[i]);
      } else {
        in[i] = s.constant && constants != nullptr ? constants[i] : memory.blocks[i];
        if (!s.constant) gather(s, at, n, memory.blocks[i]);
      }
    }
    if (out_direct_) {
      compute(in, out_inside_ ? result : out_.first<char>() + at * out_size_, n, repeated);
    } else {
      compute(in, memory.blocks[kMaxOperands], n, repeated);
      scatter(memory, at, n, result);
    }
  }

  std::int64_t count() const { return order_.count; }
  // A rough estimate, which depends only on the shapes, the dtypes and the op.
  double ns_per_element() const {
    double ns = 0.09 * plan_.loops->cost * (sizeof(A) / 4);
    for (int i = 0; i < operands_; ++i) ns += sources_[i].direct || sources_[i].constant ? 0 : 0.3;
    return ns + (out_direct_ ? 0 : 0.3);
  }

 private:
  static constexpr std::int64_t kPiece = kBlock / 4;

  void compute(const void** in, void* out, std::int64_t n, unsigned repeated) const {
    if (repeated == 0) return inner_(in, out, n, plan_.functor);
    char* to = static_cast<char*>(out);
    for (std::int64_t done = 0; done < n; done += kPiece) {
      const std::int64_t m = std::min(kPiece, n - done);
      inner_(in, to, m, plan_.functor);
      to += m * (plan_.loops->bool_result ? 1 : static_cast<std::int64_t>(sizeof(A)));
      for (int i = 0; i < operands_; ++i) {
        const Source<A>& s = sources_[i];
        const auto own = s.condition ? 1 : static_cast<std::int64_t>(sizeof(A));
        if (repeated >> i & 1) continue;
        in[i] = static_cast<const char*>(in[i]) + m * (s.direct ? s.size : own);
      }
    }
  }

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
      number_bytes(number_[i], kDTypeOf<A>, &value);
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

  void scatter(Memory<A>& memory, std::int64_t at, std::int64_t n, void* result) const {
    std::byte* block = memory.blocks[kMaxOperands];
    if (plan_.loops->bool_result) {
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(block);
      std::int64_t wide[kBlock];
      std::copy_n(bytes, n, wide);
      store(store_block<std::int64_t>(out_.dtype), wide, at, n, result);
    } else {
      A* values = reinterpret_cast<A*>(block);
      if (plan_.dtype != out_.dtype && plan_.dtype != kDTypeOf<A>) {
        round_through(plan_.dtype, values, n);
      }
      store(store_block<A>(out_.dtype), values, at, n, result);
    }
  }

  template <class B>
  void store(StoreBlock<B> store, const B* from, std::int64_t at, std::int64_t n,
             void* result) const {
    if (out_inside_) return store(from, n, result, 1);
    char* base = out_.first<char>();
    out_walk_.runs(at, n, [&](std::int64_t offset, std::int64_t stride, std::int64_t length) {
      store(from, length, base + offset * out_size_, stride);
      from += length;
    });
  }

  const Plan plan_;
  const Inner inner_;
  const int operands_;
  const TensorArg out_;
  const LinearOrder& order_;
  Source<A> sources_[kMaxOperands];
  core::Number number_[kMaxOperands];
  Walk out_walk_;
  std::int64_t out_size_ = 0;
  std::int64_t row_ = 0;  // blocks end at multiples of this length; 0: anywhere
  bool out_direct_ = false, out_inside_ = false, all_direct_ = true;
};

}  // namespace teletensor::backends::cpu
