// Kernels of sort, argsort, topk, kthvalue and median. Elements are converted to unsigned keys
// whose order is the wanted one (NaN is the largest, -0 equals 0). Each key is paired with its
// index, which also decides ties.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/lines.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/scratch_bytes.h"

namespace teletensor::backends::cpu {
namespace {

using core::DType;
using core::Status;

template <class A>
std::uint64_t key_of(A value) {
  if constexpr (std::is_same_v<A, std::int64_t>) {
    return static_cast<std::uint64_t>(value) ^ (std::uint64_t{1} << 63);
  } else if constexpr (std::is_same_v<A, std::uint64_t>) {
    return value;
  } else {
    using Bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
    if (value != value) return std::numeric_limits<Bits>::max();
    const Bits bits = std::bit_cast<Bits>(value + A(0));  // turns -0 into 0
    constexpr Bits kSign = Bits{1} << (sizeof(A) * 8 - 1);
    return bits & kSign ? static_cast<Bits>(~bits) : bits | kSign;
  }
}

// An item with a 64-bit key. For keys of 32 bits see Packed.
struct Wide {
  std::uint64_t key;
  std::int64_t index;
  friend bool operator<(const Wide& a, const Wide& b) {
    return a.key != b.key ? a.key < b.key : a.index < b.index;
  }
  std::int64_t place() const { return index; }
  std::uint64_t number() const { return key; }
};
struct Packed {
  std::uint64_t word;  // key << 32 | index
  friend bool operator<(const Packed& a, const Packed& b) { return a.word < b.word; }
  std::int64_t place() const { return static_cast<std::int64_t>(word & 0xffffffffu); }
  std::uint64_t number() const { return word >> 32; }
};

// Sorts by the keys, kBits at a time, skipping digits in which no keys differ; the order of equal
// keys is kept. `spare` has room for n items.
template <int kBits, class E>
void radix_passes(E* x, E* spare, std::int64_t n) {
  constexpr std::uint64_t kBuckets = std::uint64_t{1} << kBits;
  std::uint64_t differ = 0;
  const std::uint64_t first = x[0].number();
  for (std::int64_t i = 1; i < n; ++i) differ |= x[i].number() ^ first;
  E *from = x, *to = spare;
  while (differ != 0) {
    const int shift = std::countr_zero(differ);
    differ = shift + kBits < 64 ? differ & ~((kBuckets << shift) - 1) : 0;
    std::int64_t places[kBuckets] = {};
    for (std::int64_t i = 0; i < n; ++i) ++places[from[i].number() >> shift & (kBuckets - 1)];
    std::int64_t start = 0;
    for (std::int64_t& place : places) start += std::exchange(place, start);
    for (std::int64_t i = 0; i < n; ++i) {
      to[places[from[i].number() >> shift & (kBuckets - 1)]++] = from[i];
    }
    std::swap(from, to);
  }
  if (from != x) std::memcpy(x, from, static_cast<std::size_t>(n) * sizeof(E));
}

constexpr std::int64_t kMinRadix = 128, kManyForRadix = 8192;

template <class E>
void radix_sort(E* x, E* spare, std::int64_t n) {
  if (n < kManyForRadix) return radix_passes<8>(x, spare, n);
  radix_passes<11>(x, spare, n);
}

struct Job {
  enum class What { kSort, kTop, kPick } what = What::kSort;
  bool descending = false;
  std::int64_t keep = 0;  // number of results per line
  std::int64_t pick = 0;  // kPick: position in the order, from 0
  bool nan_wins = false;  // kPick: the median of a line with a NaN is NaN
  const TensorArg* values = nullptr;
  const TensorArg* indices = nullptr;
};

// Moves the k smallest items to the front, unordered, with a heap of the best so far; most items
// are rejected by comparing them with its top.
template <class E>
void select_few(E* x, std::int64_t n, std::int64_t k) {
  std::make_heap(x, x + k);
  for (std::int64_t i = k; i < n; ++i) {
    if (!(x[i] < x[0])) continue;
    std::pop_heap(x, x + k);
    x[k - 1] = x[i];
    std::push_heap(x, x + k);
  }
}

template <class E>
void order(E* x, E* spare, std::int64_t n, const Job& job) {
  if (job.what == Job::What::kPick) {
    std::nth_element(x, x + job.pick, x + n);
    std::swap(x[0], x[job.pick]);
    return;
  }
  if (job.what == Job::What::kTop && job.keep < n / 2) {
    if (job.keep <= 64) {
      select_few(x, n, job.keep);
    } else {
      std::nth_element(x, x + job.keep, x + n);
    }
    n = job.keep;
  }
  // Items are in their original order, so a stable sort keeps ties.
  const bool in_order = job.what == Job::What::kSort;
  if (in_order && n >= (sizeof(E) == 8 ? kMinRadix : 8 * kMinRadix)) {
    return radix_sort(x, spare, n);
  }
  std::sort(x, x + n);
}

template <class A, class E>
class Sorter {
 public:
  // `base` is a lower bound of all integers; packed keys are counted from it.
  Sorter(KernelCall& call, const Job& job, const Lines& lines, std::int64_t base)
      : call_(call),
        job_(job),
        lines_(lines),
        load_(load_block<A>(call.in[0].dtype)),
        size_(static_cast<std::int64_t>(core::size_of(call.in[0].dtype))),
        base_(base) {}

  // `room` has two arrays of `length` items.
  void line(std::int64_t i, E* room) const {
    const TensorArg& x = call_.in[0];
    const std::int64_t n = lines_.length(), stride = lines_.stride(*x.geometry);
    const char* from = x.first<const char>() + lines_.offset(*x.geometry, i) * size_;
    Job job = job_;
    A block[256];
    std::int64_t numbers = 0;
    for (std::int64_t start = 0; start < n; start += 256) {
      const std::int64_t m = std::min<std::int64_t>(256, n - start);
      load_(from + start * stride * size_, stride, m, block);
      for (std::int64_t j = 0; j < m; ++j) {
        room[start + j] = element(block[j], start + j);
        numbers += block[j] == block[j];
      }
    }
    // NaNs come last, so this is the position of the first NaN
    if (job.nan_wins && numbers < n) job.pick = numbers;
    order(room, room + n, n, job);
    write(i, from, stride, room);
  }

 private:
  E element(A value, std::int64_t index) const {
    std::uint64_t key = key_of(value);
    if constexpr (std::is_same_v<E, Packed> && std::is_same_v<A, std::int64_t>) {
      key = static_cast<std::uint64_t>(value) - static_cast<std::uint64_t>(base_);
    }
    if (job_.descending) key = ~key;
    if constexpr (std::is_same_v<E, Packed>) {
      return {(key & 0xffffffffu) << 32 | static_cast<std::uint64_t>(index)};
    } else {
      return {key, index};
    }
  }

  void write(std::int64_t i, const char* from, std::int64_t stride, const E* x) const {
    if (job_.indices) {
      const core::Geometry& g = *job_.indices->geometry;
      std::int64_t* to = job_.indices->first<std::int64_t>() + lines_.offset(g, i);
      const std::int64_t step = job_.what == Job::What::kPick ? 0 : lines_.stride(g);
      for (std::int64_t j = 0; j < job_.keep; ++j) to[j * step] = x[j].place();
    }
    if (!job_.values) return;
    const core::Geometry& g = *job_.values->geometry;
    char* to = job_.values->first<char>() + lines_.offset(g, i) * size_;
    const std::int64_t step = (job_.what == Job::What::kPick ? 0 : lines_.stride(g)) * size_;
    const std::int64_t from_step = stride * size_;
    switch (size_) {
      case 1:
        return take<1>(from, from_step, x, to, step);
      case 2:
        return take<2>(from, from_step, x, to, step);
      case 4:
        return take<4>(from, from_step, x, to, step);
      default:
        return take<8>(from, from_step, x, to, step);
    }
  }

  template <std::size_t kBytes>
  void take(const char* from, std::int64_t from_step, const E* x, char* to,
            std::int64_t step) const {
    for (std::int64_t j = 0; j < job_.keep; ++j) {
      std::memcpy(to + j * step, from + x[j].place() * from_step, kBytes);
    }
  }

  KernelCall& call_;
  const Job& job_;
  const Lines& lines_;
  const LoadBlock<A> load_;
  const std::int64_t size_;
  const std::int64_t base_;
};

constexpr std::int64_t kSmall = 256;  // up to this length no scratch memory is needed

template <class A, class E>
Status run_lines(KernelCall& call, const Job& job, const Lines& lines, std::int64_t base = 0) {
  using Sort = Sorter<A, E>;
  const Sort sorter(call, job, lines, base);
  const std::int64_t n = lines.length();
  if (n <= kSmall) {
    lines.run(call.parallel, 30, [&](std::int64_t i) {
      E room[2 * kSmall];
      sorter.line(i, room);
    });
    return {};
  }
  // Each part has its own memory; the number of parts depends only on the shape.
  const std::int64_t parts =
      std::clamp<std::int64_t>(lines.count() * std::min<std::int64_t>(n, 1 << 20) / 20'000, 1,
                               std::min<std::int64_t>(lines.count(), 16));
  const std::size_t bytes = scratch_bytes(n, 2 * sizeof(E), parts);
  E* rooms = static_cast<E*>(call.scratch.allocate(bytes));
  if (!rooms) return out_of_scratch(call.op.name, bytes);
  call.parallel.run(parts, [&](std::int64_t part) {
    const std::int64_t end = (part + 1) * lines.count() / parts;
    for (std::int64_t i = part * lines.count() / parts; i < end; ++i) {
      sorter.line(i, rooms + part * 2 * n);
    }
  });
  return {};
}

// The minimum and maximum of the int64 elements of all lines.
std::pair<std::int64_t, std::int64_t> range_of(const TensorArg& x, const Lines& lines) {
  const std::int64_t n = lines.length(), stride = lines.stride(*x.geometry);
  std::int64_t least = std::numeric_limits<std::int64_t>::max(),
               most = std::numeric_limits<std::int64_t>::min();
  for (std::int64_t i = 0; i < lines.count(); ++i) {
    const auto* from = x.first<const std::int64_t>() + lines.offset(*x.geometry, i);
    for (std::int64_t j = 0; j < n; ++j) {
      least = std::min(least, from[j * stride]);
      most = std::max(most, from[j * stride]);
    }
  }
  return {least, most};
}

Status run(KernelCall& call, const Job& job, const Lines& lines) {
  if (lines.count() == 0 || lines.length() == 0 || job.keep == 0) return {};
  const DType dtype = call.in[0].dtype;
  const bool short_enough = lines.length() < (std::int64_t{1} << 32);
  const bool packed = core::size_of(dtype) <= 4 && short_enough;
  if (dtype == DType::kI64 && short_enough && lines.length() >= kMinRadix) {
    const auto [least, most] = range_of(call.in[0], lines);
    if (static_cast<std::uint64_t>(most) - static_cast<std::uint64_t>(least) < 1ull << 32) {
      return run_lines<std::int64_t, Packed>(call, job, lines, least);
    }
  }
  const std::int64_t base = dtype == DType::kU32 ? 0 : std::numeric_limits<std::int32_t>::min();
  return with_compute_type(dtype, [&](auto a) {
    using A = decltype(a);
    if constexpr (sizeof(A) == 4 || std::is_same_v<A, std::int64_t>) {
      if (packed) return run_lines<A, Packed>(call, job, lines, base);
    }
    return run_lines<A, Wide>(call, job, lines);
  });
}

Status sort(KernelCall& call) {
  const Lines lines(call.in[0].geometry->shape, call.attributes.integer(0));
  const bool with_values = call.out.size() == 2;
  return run(call,
             {.what = Job::What::kSort,
              .descending = call.attributes.boolean(1),
              .keep = lines.length(),
              .values = with_values ? &call.out[0] : nullptr,
              .indices = &call.out[with_values ? 1 : 0]},
             lines);
}

Status topk(KernelCall& call) {
  const Lines lines(call.in[0].geometry->shape, call.attributes.integer(1));
  return run(call,
             {.what = Job::What::kTop,
              .descending = call.attributes.boolean(2),
              .keep = call.attributes.integer(0),
              .values = &call.out[0],
              .indices = &call.out[1]},
             lines);
}

Status kthvalue(KernelCall& call) {
  const Lines lines(call.in[0].geometry->shape, call.attributes.integer(1));
  return run(call,
             {.what = Job::What::kPick,
              .keep = 1,
              .pick = call.attributes.integer(0) - 1,
              .values = &call.out[0],
              .indices = &call.out[1]},
             lines);
}

Status median_dim(KernelCall& call) {
  const Lines lines(call.in[0].geometry->shape, call.attributes.integer(0));
  return run(call,
             {.what = Job::What::kPick,
              .keep = 1,
              .pick = (lines.length() - 1) / 2,
              .nan_wins = true,
              .values = &call.out[0],
              .indices = &call.out[1]},
             lines);
}

// Copies all elements to one line.
Status median(KernelCall& call) {
  const TensorArg& x = call.in[0];
  const std::int64_t n = x.geometry->numel(),
                     size = static_cast<std::int64_t>(core::size_of(x.dtype));
  if (n == 0) {
    // As in PyTorch, the median of no elements is NaN, or the smallest integer for integer dtypes.
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const std::int64_t lowest = core::range_of(x.dtype).least;
    if (core::is_floating(x.dtype)) {
      store_block<double>(x.dtype)(&nan, 1, call.out[0].first(), 1);
    } else {
      store_block<std::int64_t>(x.dtype)(&lowest, 1, call.out[0].first(), 1);
    }
    return {};
  }
  const std::size_t bytes = scratch_bytes(n, size);
  TensorArg flat = x;
  const core::Geometry line{core::Dims{n}};
  flat.geometry = &line;
  flat.data = call.scratch.allocate(bytes);
  if (!flat.data) return out_of_scratch(call.op.name, bytes);
  const Lines lines(x.geometry->shape, -1);
  char* to = flat.first<char>();
  for (std::int64_t i = 0; i < lines.count(); ++i) {
    const char* from = x.first<const char>() + lines.offset(*x.geometry, i) * size;
    const std::int64_t step = lines.stride(*x.geometry) * size;
    for (std::int64_t j = 0; j < lines.length(); ++j, to += size) {
      std::memcpy(to, from + j * step, static_cast<std::size_t>(size));
    }
  }
  KernelCall one{call.op,         std::span(&flat, 1), call.out,    call.counts,
                 call.attributes, call.parallel,       call.scratch};
  return run(one,
             {.what = Job::What::kPick,
              .keep = 1,
              .pick = (n - 1) / 2,
              .nan_wins = true,
              .values = &call.out[0]},
             Lines(line.shape, 0));
}

}  // namespace

void add_recurrence_kernels(KernelTable& table);  // recurrences.cc

void add_order_kernels(KernelTable& table) {
  add_recurrence_kernels(table);
  table.add("sort", sort);
  table.add("argsort", sort);
  table.add("topk", topk);
  table.add("kthvalue", kthvalue);
  table.add("median_dim", median_dim);
  table.add("median", median);
}

}  // namespace teletensor::backends::cpu
