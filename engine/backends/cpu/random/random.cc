// Kernels of random numbers from Philox blocks. Elements are numbered in the row-major order of the
// result's shape, whatever its strides. An element uses one word (f32 and narrower dtypes,
// bernoulli, dropout) or two.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/access/strided.h"
#include "engine/backends/cpu/arrangement/index_places.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/loops/loops.h"
#include "engine/backends/cpu/random/random_simd.h"
#include "engine/backends/scratch_bytes.h"
#include "hwy/contrib/sort/vqsort.h"

namespace teletensor::backends::cpu {
namespace {

using core::Dims;
using core::DType;
using core::Geometry;
using core::Status;

constexpr std::int64_t kNumbers = 512;  // numbers generated at once

Stream stream_of(const core::Attributes& a) {
  return {static_cast<std::uint64_t>(a.integer(a.size() - 2)),
          static_cast<std::uint64_t>(a.integer(a.size() - 1))};
}

// Calls run() for the runs of a region in row-major order (in contrast to Walk, which orders by
// stride).
template <class F>
void row_major_runs(const Geometry& g, std::int64_t start, std::int64_t count, F&& run) {
  if (g.contiguous()) {
    run(start, std::int64_t{1}, count);
    return;
  }
  const int rank = g.rank();
  const std::int64_t length = g.shape.back(), stride = g.strides.back();
  while (count > 0) {
    std::int64_t offset = start % length * stride, rest = start / length;
    const std::int64_t n = std::min(count, length - start % length);
    for (int d = rank - 2; d >= 0; --d) {
      offset += rest % g.shape[d] * g.strides[d];
      rest /= g.shape[d];
    }
    run(offset, stride, n);
    start += n;
    count -= n;
  }
}

// Calls make(words, n, block) for the numbers [start, start + n) and stores them. Each number uses
// kWords words.
template <class A, int kWords, class F>
void fill(KernelCall& call, const TensorArg& out, double cost, F make) {
  const Stream stream = stream_of(call.attributes);
  const StoreBlock<A> store = store_block<A>(out.dtype);
  const auto element = static_cast<std::int64_t>(core::size_of(out.dtype));
  split(call.parallel, out.geometry->numel(), cost, kNumbers,
        [&](std::int64_t begin, std::int64_t end) {
          std::uint32_t words[kNumbers * kWords];
          A block[kNumbers];
          for (std::int64_t at = begin; at < end; at += kNumbers) {
            const std::int64_t n = std::min(kNumbers, end - at);
            random_words(stream, static_cast<std::uint64_t>(at * kWords / 4), (n * kWords + 3) / 4,
                         words);
            make(words, n, block, at);
            std::int64_t done = 0;
            row_major_runs(*out.geometry, at, n,
                           [&](std::int64_t offset, std::int64_t stride, std::int64_t count) {
                             store(block + done, count, out.first<char>() + offset * element,
                                   stride);
                             done += count;
                           });
          }
        });
}

// Numbers in [0, 1) have as many bits as the significand of the dtype, so that no value is rounded
// up to 1.
int uniform_bits(DType dtype) { return dtype == DType::kF16 ? 11 : dtype == DType::kBF16 ? 8 : 24; }

void fill_uniform(KernelCall& call, double low, double high) {
  const TensorArg& out = call.out[0];
  const double span = high - low;
  if (out.dtype == DType::kF64) {
    fill<double, 2>(call, out, 3,
                    [=](const std::uint32_t* w, std::int64_t n, double* to, std::int64_t) {
                      for (std::int64_t i = 0; i < n; ++i) {
                        const std::uint64_t bits =
                            (static_cast<std::uint64_t>(w[2 * i + 1]) << 32 | w[2 * i]) >> 11;
                        const double x = low + span * (static_cast<double>(bits) * 0x1p-53);
                        to[i] = x >= high ? low : x;
                      }
                    });
    return;
  }
  const int shift = 32 - uniform_bits(out.dtype);
  const auto from = static_cast<float>(low), wide = static_cast<float>(span);
  const float unit = std::ldexp(1.0f, -uniform_bits(out.dtype));
  const bool standard = low == 0 && high == 1;
  // If rounding to the result's dtype gives `high`, the value is replaced by `low`.
  const DType dtype = out.dtype;
  const auto limit = static_cast<float>(high);
  fill<float, 1>(call, out, 2,
                 [=](const std::uint32_t* w, std::int64_t n, float* to, std::int64_t) {
                   for (std::int64_t i = 0; i < n; ++i)
                     to[i] = static_cast<float>(static_cast<std::int32_t>(w[i] >> shift)) * unit;
                   if (standard) return;
                   for (std::int64_t i = 0; i < n; ++i) to[i] = from + wide * to[i];
                   if (dtype == DType::kF32) {
                     for (std::int64_t i = 0; i < n; ++i) to[i] = to[i] >= limit ? from : to[i];
                   } else if (dtype == DType::kF16) {
                     for (std::int64_t i = 0; i < n; ++i) {
                       to[i] = static_cast<float>(core::Half(to[i])) >= limit ? from : to[i];
                     }
                   } else {
                     for (std::int64_t i = 0; i < n; ++i) {
                       to[i] = static_cast<float>(core::BFloat16(to[i])) >= limit ? from : to[i];
                     }
                   }
                 });
}

void fill_normal(KernelCall& call, double mean, double std) {
  const TensorArg& out = call.out[0];
  if (out.dtype == DType::kF64) {
    fill<double, 2>(call, out, 15,
                    [=](const std::uint32_t* w, std::int64_t n, double* to, std::int64_t) {
                      double pairs[kNumbers];
                      normal_from_words(w, (n + 1) / 2 * 2, pairs);
                      for (std::int64_t i = 0; i < n; ++i) to[i] = mean + std * pairs[i];
                    });
    return;
  }
  const auto centre = static_cast<float>(mean), wide = static_cast<float>(std);
  fill<float, 1>(call, out, 5,
                 [=](const std::uint32_t* w, std::int64_t n, float* to, std::int64_t) {
                   float pairs[kNumbers];
                   normal_from_words(w, (n + 1) / 2 * 2, pairs);
                   for (std::int64_t i = 0; i < n; ++i) to[i] = centre + wide * pairs[i];
                 });
}

void fill_integers(KernelCall& call, std::int64_t low, std::int64_t high) {
  const std::uint64_t span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  fill<std::int64_t, 2>(
      call, call.out[0], 4,
      [=](const std::uint32_t* w, std::int64_t n, std::int64_t* to, std::int64_t) {
        for (std::int64_t i = 0; i < n; ++i) {
          const std::uint64_t bits = static_cast<std::uint64_t>(w[2 * i + 1]) << 32 | w[2 * i];
          const auto high_part =
              static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits) * span) >> 64);
          to[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + high_part);
        }
      });
}

Status rand(KernelCall& call) { return fill_uniform(call, 0, 1), Status(); }
Status randn(KernelCall& call) { return fill_normal(call, 0, 1), Status(); }
Status uniform(KernelCall& call) {
  return fill_uniform(call, call.attributes.real(0), call.attributes.real(1)), Status();
}
Status normal(KernelCall& call) {
  return fill_normal(call, call.attributes.real(0), call.attributes.real(1)), Status();
}
Status randint(KernelCall& call) {
  return fill_integers(call, call.attributes.integer(0), call.attributes.integer(1)), Status();
}

// Sorts 0 ... n-1 by random 64-bit keys, and equal keys by number.
Status randperm(KernelCall& call) {
  const TensorArg& out = call.out[0];
  const std::int64_t n = out.geometry->numel();
  if (n == 0) return {};
  const std::size_t bytes = scratch_bytes(n, sizeof(hwy::uint128_t));
  auto* order = static_cast<hwy::uint128_t*>(call.scratch.allocate(bytes));
  if (order == nullptr) return out_of_scratch(call.op.name, bytes);
  const Stream stream = stream_of(call.attributes);
  for (std::int64_t at = 0; at < n; at += kNumbers) {
    const std::int64_t count = std::min(kNumbers, n - at);
    std::uint32_t words[2 * kNumbers];
    random_words(stream, static_cast<std::uint64_t>(at / 2), (count + 1) / 2, words);
    for (std::int64_t i = 0; i < count; ++i) {
      order[at + i].hi = static_cast<std::uint64_t>(words[2 * i + 1]) << 32 | words[2 * i];
      order[at + i].lo = static_cast<std::uint64_t>(at + i);
    }
  }
  hwy::Sorter()(order, static_cast<std::size_t>(n), hwy::SortAscending());
  const StoreBlock<std::int64_t> store = store_block<std::int64_t>(out.dtype);
  const auto element = static_cast<std::int64_t>(core::size_of(out.dtype));
  for (std::int64_t at = 0; at < n; at += kNumbers) {
    const std::int64_t count = std::min(kNumbers, n - at);
    std::int64_t numbers[kNumbers];
    for (std::int64_t i = 0; i < count; ++i) {
      numbers[i] = static_cast<std::int64_t>(order[at + i].lo);
    }
    store(numbers, count, out.first<char>() + at * element, 1);
  }
  return {};
}

Status bernoulli_p(KernelCall& call) {
  const double p = call.attributes.real(0);
  fill<float, 1>(call, call.out[0], 2,
                 [=](const std::uint32_t* w, std::int64_t n, float* to, std::int64_t) {
                   for (std::int64_t i = 0; i < n; ++i)
                     to[i] = static_cast<double>(w[i]) * 0x1p-32 < p;
                 });
  return {};
}

Status bernoulli(KernelCall& call) {
  const TensorArg& x = call.in[0];
  // In row-major order, so that the numbers of the elements match those of the words.
  const DenseCopy p = dense_copy(call, x, x.geometry->shape, DType::kF64);
  if (p.data == nullptr) return out_of_scratch(call.op.name, p.bytes);
  const auto* chance = static_cast<const double*>(p.data);
  for (std::int64_t i = 0, n = x.geometry->numel(); i < n; ++i) {
    if (!(chance[i] >= 0 && chance[i] <= 1)) {
      return core::invalid("bernoulli: p must be in [0, 1], element " + std::to_string(i) + " is " +
                           std::to_string(chance[i]));
    }
  }
  fill<float, 1>(call, call.out[0], 2,
                 [=](const std::uint32_t* w, std::int64_t n, float* to, std::int64_t at) {
                   for (std::int64_t i = 0; i < n; ++i)
                     to[i] = static_cast<double>(w[i]) * 0x1p-32 < chance[at + i];
                 });
  return {};
}

template <class A>
void drop(KernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0], &mask = call.out[1];
  const Stream stream = stream_of(call.attributes);
  const double p = call.attributes.real(0);
  // An element is kept if its random word is at least p times the range of words.
  const double share = std::ceil(p * 0x1p32);
  const bool none = share > 0xffffffffu;
  const auto threshold = none ? 1u : static_cast<std::uint32_t>(share);
  const A factor = p < 1 ? static_cast<A>(1 / (1 - p)) : A(0);
  const LoadBlock<A> load = load_block<A>(x.dtype);
  const StoreBlock<A> store = store_block<A>(y.dtype);
  const auto element = static_cast<std::int64_t>(core::size_of(x.dtype));
  split(call.parallel, y.geometry->numel(), 2, kNumbers, [&](std::int64_t begin, std::int64_t end) {
    const auto least = threshold;  // copies, so that the loop below does not read memory
    const A by = factor;
    std::uint32_t words[kNumbers];
    A block[kNumbers];
    std::uint8_t kept[kNumbers];
    for (std::int64_t at = begin; at < end; at += kNumbers) {
      const std::int64_t n = std::min(kNumbers, end - at);
      random_words(stream, static_cast<std::uint64_t>(at / 4), (n + 3) / 4, words);
      if (none) std::fill_n(words, n, 0u);
      std::int64_t done = 0;
      row_major_runs(*x.geometry, at, n,
                     [&](std::int64_t offset, std::int64_t stride, std::int64_t count) {
                       load(x.first<const char>() + offset * element, stride, count, block + done);
                       done += count;
                     });
      for (std::int64_t i = 0; i < n; ++i) kept[i] = words[i] >= least;
      for (std::int64_t i = 0; i < n; ++i) {
        block[i] = words[i] >= least ? block[i] * by : A(0);
      }
      done = 0;
      row_major_runs(*y.geometry, at, n,
                     [&](std::int64_t offset, std::int64_t stride, std::int64_t count) {
                       store(block + done, count, y.first<char>() + offset * element, stride);
                       done += count;
                     });
      done = 0;
      row_major_runs(*mask.geometry, at, n,
                     [&](std::int64_t offset, std::int64_t stride, std::int64_t count) {
                       auto* to = mask.first<std::uint8_t>() + offset;
                       if (stride == 1) {
                         std::copy_n(kept + done, count, to);
                       } else {
                         for (std::int64_t i = 0; i < count; ++i) to[i * stride] = kept[done + i];
                       }
                       done += count;
                     });
    }
  });
}

Status dropout(KernelCall& call) {
  with_float_type(call.in[0].dtype, [&](auto a) { drop<decltype(a)>(call); });
  return {};
}

// With replacement: finds a uniform number in the running sum of the weights. Without replacement:
// takes the largest random keys biased by weight (Efraimidis and Spirakis, 2006).
Status multinomial(KernelCall& call) {
  const TensorArg &x = call.in[0], &out = call.out[0];
  const std::int64_t samples = call.attributes.integer(0), categories = x.geometry->shape.back();
  const bool replacement = call.attributes.boolean(1);
  const std::int64_t rows = x.geometry->numel() / categories;
  const DenseCopy all = dense_copy(call, x, x.geometry->shape, DType::kF64);
  if (all.data == nullptr) return out_of_scratch(call.op.name, all.bytes);
  const auto* weights = static_cast<const double*>(all.data);
  for (std::int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    std::int64_t positive = 0;
    for (std::int64_t i = 0; i < categories; ++i) {
      const double w = weights[r * categories + i];
      if (!(w >= 0) || std::isinf(w)) {
        return core::invalid("multinomial: weights must be finite and not negative, one is " +
                             std::to_string(w));
      }
      sum += w;
      positive += w > 0;
    }
    if (!(sum > 0)) return core::invalid("multinomial: the weights of a row add up to zero");
    if (!replacement && positive < samples) {
      return core::invalid("multinomial: " + std::to_string(samples) +
                           " samples without "
                           "replacement, but only " +
                           std::to_string(positive) + " weights are not zero");
    }
  }
  const std::int64_t draws = replacement ? samples : categories;
  const std::size_t bytes = scratch_bytes(categories, sizeof(double));
  auto* sums = static_cast<double*>(call.scratch.allocate(bytes));
  auto* order = static_cast<std::int64_t*>(call.scratch.allocate(bytes));
  if (sums == nullptr || order == nullptr) return out_of_scratch(call.op.name, bytes);
  const Stream stream = stream_of(call.attributes);
  auto* to = out.first<std::int64_t>();
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* const w = weights + r * categories;
    // Numbers in (0, 1); number i of the instruction uses the words 2 i and 2 i + 1.
    const auto numbers = [&](std::int64_t first, std::int64_t count, double* u) {
      const std::int64_t at = r * draws + first, before = at % 2;
      std::uint32_t words[2 * kNumbers + 4];
      random_words(stream, static_cast<std::uint64_t>(at / 2), (before + count + 1) / 2, words);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t* const two = words + 2 * (before + i);
        const std::uint64_t bits = (static_cast<std::uint64_t>(two[1]) << 32 | two[0]) >> 12;
        u[i] = (static_cast<double>(bits) + 0.5) * 0x1p-52;
      }
    };
    if (replacement) {
      std::partial_sum(w, w + categories, sums);
      for (std::int64_t s = 0; s < samples; ++s) {
        double u;
        numbers(s, 1, &u);
        const double at = u * sums[categories - 1];
        std::int64_t i = std::upper_bound(sums, sums + categories, at) - sums;
        // The number can exceed the sum because of rounding.
        while (i == categories || w[i] == 0) --i;
        *to++ = i;
      }
    } else {
      for (std::int64_t i = 0; i < categories; i += kNumbers) {
        const std::int64_t count = std::min(kNumbers, categories - i);
        double u[kNumbers];
        numbers(i, count, u);
        const void* const in[] = {u};
        const s::Log log;
        Slot<s::Log>::loops.real64(in, u, count, &log);
        for (std::int64_t j = 0; j < count; ++j) {
          sums[i + j] = w[i + j] > 0 ? u[j] / w[i + j] : -INFINITY;
        }
      }
      std::iota(order, order + categories, std::int64_t{0});
      std::partial_sort(order, order + samples, order + categories,
                        [&](std::int64_t a, std::int64_t b) {
                          return sums[a] != sums[b] ? sums[a] > sums[b] : a < b;
                        });
      to = std::copy_n(order, samples, to);
    }
  }
  return {};
}

}  // namespace

void add_random_count_kernels(KernelTable& table);  // random_counts.cc

void add_random_kernels(KernelTable& table) {
  bind_loops();
  add_random_count_kernels(table);
  table.add("rand", rand);
  table.add("randn", randn);
  table.add("randint", randint);
  table.add("randperm", randperm);
  table.add("uniform", uniform);
  table.add("normal", normal);
  table.add("random_from", randint);
  table.add("bernoulli", bernoulli);
  table.add("bernoulli_p", bernoulli_p);
  table.add("dropout", dropout);
  table.add("multinomial", multinomial);
}

}  // namespace teletensor::backends::cpu
