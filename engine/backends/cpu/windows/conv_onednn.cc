// Convolutions in f32 with oneDNN. Each call of the library runs on one thread; the batch is split
// into parts here. Primitives and their layouts are cached and shared by all threads.
#include <omp.h>

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/backends/cpu/access/dense.h"
#include "engine/backends/cpu/windows/conv.h"
#include "engine/backends/scratch_bytes.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace teletensor::backends::cpu {
namespace {

using core::Status;
using Desc = dnnl::memory::desc;

// RULE: only the daemon's lanes run in parallel. oneDNN generates code for the number of threads
// that it finds, so it must find one.
void one_thread() {
  thread_local const bool single = (omp_set_num_threads(1), true);
  (void)single;
}

const dnnl::engine& engine() {
  static const auto* const made = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *made;
}

// Makes the descriptor of a primitive. oneDNN 2 makes it from an operation's descriptor, which
// oneDNN 3 no longer has.
template <class Operation, class... Facts>
typename Operation::primitive_desc describe(const dnnl::primitive_attr& attributes,
                                            const Facts&... facts) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Operation::primitive_desc(engine(), facts..., attributes);
#else
  return
      typename Operation::primitive_desc(typename Operation::desc(facts...), attributes, engine());
#endif
}

// Describes the primitive of a gradient, for the layouts that the forward primitive has chosen.
template <class Operation, class... Facts>
typename Operation::primitive_desc describe_backward(
    const dnnl::primitive_attr& attributes,
    const dnnl::convolution_forward::primitive_desc& forward, const Facts&... facts) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Operation::primitive_desc(engine(), facts..., forward, attributes);
#else
  return typename Operation::primitive_desc(typename Operation::desc(facts...), attributes,
                                            engine(), forward);
#endif
}

// The part of a problem that one call of a primitive computes.
struct Piece {
  Conv conv;
  ConvPass pass;
  bool bias;

  std::vector<std::int64_t> key() const {
    std::vector<std::int64_t> k{static_cast<std::int64_t>(pass),
                                bias,
                                conv.batch,
                                conv.groups,
                                conv.in_channels,
                                conv.out_channels,
                                conv.spatial};
    for (const auto* list :
         {conv.in, conv.out, conv.kernel, conv.stride, conv.padding, conv.dilation}) {
      k.insert(k.end(), list, list + 3);
    }
    return k;
  }
};

// A primitive and the layouts that it needs.
class Primitive {
 public:
  explicit Primitive(const Piece& piece) : pass_(piece.pass) {
    const Conv& c = piece.conv;
    using dims = dnnl::memory::dims;
    dims x{c.batch, c.in_channels}, y{c.batch, c.out_channels};
    dims weight{c.group_out(), c.group_in()}, stride, dilation, left, right;
    if (c.groups > 1) weight.insert(weight.begin(), c.groups);
    for (int d = 3 - c.spatial; d < 3; ++d) {
      x.push_back(c.in[d]);
      y.push_back(c.out[d]);
      weight.push_back(c.kernel[d]);
      stride.push_back(c.stride[d]);
      dilation.push_back(c.dilation[d] - 1);
      left.push_back(c.padding[d]);
      right.push_back((c.out[d] - 1) * c.stride[d] + c.dilation[d] * (c.kernel[d] - 1) + 1 -
                      c.in[d] - c.padding[d]);
    }
    const auto free = [](const dims& sizes) {
      return Desc(sizes, dnnl::memory::data_type::f32, dnnl::memory::format_tag::any);
    };
    const auto plain = [](const dims& sizes) {
      dims strides(sizes.size(), 1);
      for (std::size_t i = sizes.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * sizes[i];
      return Desc(sizes, dnnl::memory::data_type::f32, strides);
    };
    own_[0] = plain(x), own_[1] = plain(weight), own_[2] = plain(y);
    bias_ = piece.bias ? plain({c.out_channels}) : Desc();
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    using Forward = dnnl::convolution_forward;
    const auto direct = dnnl::algorithm::convolution_direct;
    const auto kind = pass_ == ConvPass::kOutput ? dnnl::prop_kind::forward_inference
                                                 : dnnl::prop_kind::forward_training;
    const Forward::primitive_desc forward =
        piece.bias ? describe<Forward>(attributes, kind, direct, free(x), free(weight), bias_,
                                       free(y), stride, dilation, left, right)
                   : describe<Forward>(attributes, kind, direct, free(x), free(weight), free(y),
                                       stride, dilation, left, right);
    if (pass_ == ConvPass::kOutput) {
      used_[0] = forward.src_desc(), used_[1] = forward.weights_desc(),
      used_[2] = forward.dst_desc();
      scratch_ = forward.scratchpad_desc();
      compute_ = Forward(forward);
    } else if (pass_ == ConvPass::kInput) {
      using Backward = dnnl::convolution_backward_data;
      const auto made =
          describe_backward<Backward>(attributes, forward, direct, free(x), free(weight), free(y),
                                      stride, dilation, left, right);
      used_[0] = made.diff_src_desc(), used_[1] = made.weights_desc(),
      used_[2] = made.diff_dst_desc();
      scratch_ = made.scratchpad_desc();
      compute_ = Backward(made);
    } else {
      using Backward = dnnl::convolution_backward_weights;
      const auto made =
          describe_backward<Backward>(attributes, forward, direct, free(x), free(weight), free(y),
                                      stride, dilation, left, right);
      used_[0] = made.src_desc(), used_[1] = made.diff_weights_desc(),
      used_[2] = made.diff_dst_desc();
      scratch_ = made.scratchpad_desc();
      compute_ = Backward(made);
    }
    for (int i = 0; i < 3; ++i) {
      if (used_[i] == own_[i]) continue;
      const bool result = i == result_index();
      reorder_[i] = dnnl::reorder(
          dnnl::reorder::primitive_desc(engine(), result ? used_[i] : own_[i], engine(),
                                        result ? own_[i] : used_[i], attributes));
      room_[i] = round_up(used_[i].get_size());
    }
  }

  int result_index() const {
    return pass_ == ConvPass::kInput ? 0 : pass_ == ConvPass::kWeight ? 1 : 2;
  }
  // Memory for the weight in the primitive's layout, if the weight is an operand; all pieces share
  // it.
  std::size_t weight_room() const { return pass_ == ConvPass::kWeight ? 0 : room_[1]; }
  // Temporary memory of one call.
  std::size_t room() const {
    return room_[0] + room_[2] + (pass_ == ConvPass::kWeight ? room_[1] : 0) +
           round_up(scratch_.get_size());
  }

  void prepare_weight(const float* weight, char* room) const {
    if (weight_room() > 0) turn(1, const_cast<float*>(weight), room);
  }
  // `room` has room() bytes; `prepared` was filled by prepare_weight().
  void run(const ConvMemory<float>& m, char* prepared, char* room) const {
    float* const given[3] = {m.x, m.weight, m.y};
    void* at[3] = {m.x, m.weight, m.y};
    const int result = result_index();
    for (int i = 0; i < 3; ++i) {
      if (room_[i] == 0) continue;
      if (i == 1 && result != 1) {
        at[i] = prepared;
        continue;
      }
      at[i] = room;
      room += room_[i];
      if (i != result) turn(i, given[i], at[i]);
    }
    dnnl::stream stream = own_stream();
    std::unordered_map<int, dnnl::memory> arguments;
    const int names[3][3] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                             {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                             {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
    for (int i = 0; i < 3; ++i) {
      arguments.emplace(names[static_cast<int>(pass_)][i], dnnl::memory(used_[i], engine(), at[i]));
    }
    if (m.bias) {
      arguments.emplace(DNNL_ARG_BIAS, dnnl::memory(bias_, engine(), const_cast<float*>(m.bias)));
    }
    arguments.emplace(DNNL_ARG_SCRATCHPAD, dnnl::memory(scratch_, engine(), room));
    compute_.execute(stream, arguments);
    if (room_[result] > 0) turn(result, at[result], given[result]);
    stream.wait();
  }

 private:
  static std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }
  static dnnl::stream& own_stream() {
    thread_local dnnl::stream stream(engine());
    return stream;
  }
  void turn(int i, void* from, void* to) const {
    const bool result = i == result_index();
    dnnl::memory source(result ? used_[i] : own_[i], engine(), from),
        target(result ? own_[i] : used_[i], engine(), to);
    reorder_[i].execute(own_stream(), {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, target}});
  }

  const ConvPass pass_;
  Desc own_[3], used_[3], bias_, scratch_;  // for x, weight and y
  dnnl::primitive compute_;
  dnnl::reorder reorder_[3];
  std::size_t room_[3] = {0, 0, 0};  // 0 if the layouts are the same
};

// A cache of the most recently used primitives.
class Cache {
 public:
  std::shared_ptr<const Primitive> get(const Piece& piece) {
    const auto key = piece.key();
    {
      const std::lock_guard lock(mutex_);
      const auto found = places_.find(key);
      if (found != places_.end()) {
        entries_.splice(entries_.begin(), entries_, found->second);
        return found->second->second;
      }
    }
    auto made = std::make_shared<const Primitive>(piece);
    const std::lock_guard lock(mutex_);
    if (places_.count(key) == 0) {
      entries_.emplace_front(key, made);
      places_[key] = entries_.begin();
      if (entries_.size() > kMax) {
        places_.erase(entries_.back().first);
        entries_.pop_back();
      }
    }
    return made;
  }

 private:
  static constexpr std::size_t kMax = 512;
  using Entry = std::pair<std::vector<std::int64_t>, std::shared_ptr<const Primitive>>;
  std::mutex mutex_;
  std::list<Entry> entries_;
  std::map<std::vector<std::int64_t>, std::list<Entry>::iterator> places_;
};

Cache& cache() {
  static auto* const made = new Cache();
  return *made;
}

Status run(KernelCall& call, const Conv& conv, ConvPass pass, const ConvMemory<float>& memory) {
  // Parts take about half a millisecond. Sums of a weight's gradient are added part by part.
  const double ns = conv.multiplications() * 0.015;
  std::int64_t most = std::min<std::int64_t>(conv.batch, 64);
  if (pass == ConvPass::kWeight) most = std::min<std::int64_t>(most, 8);
  const std::int64_t parts = parts_of(ns, most);
  const std::int64_t each = (conv.batch + parts - 1) / parts,
                     count = (conv.batch + each - 1) / each;
  Piece piece{conv, pass, memory.bias != nullptr};
  // With few multiplications per number, one image at a time stays in the second-level cache while
  // its layout is converted, used and converted back.
  const bool by_image = pass != ConvPass::kWeight && conv.groups > 1 && conv.group_in() == 1 &&
                        conv.in_channels * conv.in_area() >= (std::int64_t{1} << 14);
  const std::int64_t step = by_image ? 1 : each;
  piece.conv.batch = step;
  const auto primitive = cache().get(piece);
  auto last = primitive;
  if (conv.batch % step != 0) {
    piece.conv.batch = conv.batch % step;
    last = cache().get(piece);
  }
  const std::size_t room = std::max(primitive->room(), last->room());
  const bool own_weight = last->weight_room() > 0 && last != primitive;
  const std::int64_t weights = conv.out_channels * conv.group_in() * conv.taps();
  const bool sums = pass == ConvPass::kWeight && count > 1;
  const std::size_t shared = primitive->weight_room() + (own_weight ? last->weight_room() : 0);
  const std::size_t bytes =
      add_scratch_bytes(add_scratch_bytes(scratch_bytes(count, room), shared),
                        sums ? scratch_bytes(count, weights, sizeof(float)) : 0);
  char* const all = static_cast<char*>(call.scratch.allocate(std::max<std::size_t>(bytes, 1)));
  if (!all) return out_of_scratch(call.op.name, bytes);
  char* const prepared = all + static_cast<std::size_t>(count) * room;
  char* const prepared_last = own_weight ? prepared + primitive->weight_room() : prepared;
  auto* const partial = reinterpret_cast<float*>(prepared_last + last->weight_room());
  primitive->prepare_weight(memory.weight, prepared);
  if (own_weight) last->prepare_weight(memory.weight, prepared_last);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(count));
  const auto part = [&](std::int64_t p) {
    if (call.parallel.cancelled()) return;
    one_thread();
    const std::int64_t begin = p * each, end = std::min(conv.batch, begin + each);
    const bool is_last = p + 1 == count;
    try {
      for (std::int64_t image = begin; image < end; image += step) {
        ConvMemory<float> m = memory;
        m.x += image * conv.in_channels * conv.in_area();
        m.y += image * conv.out_channels * conv.out_area();
        if (sums) m.weight = partial + p * weights;
        (is_last ? last : primitive)
            ->run(m, is_last ? prepared_last : prepared, all + static_cast<std::size_t>(p) * room);
      }
    } catch (...) {
      failures[static_cast<std::size_t>(p)] = std::current_exception();
    }
  };
  if (count == 1) {
    part(0);
  } else {
    call.parallel.run(count, part);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  if (sums) {
    for (std::int64_t i = 0; i < weights; ++i) {
      float total = partial[i];
      for (std::int64_t p = 1; p < count; ++p) total += partial[p * weights + i];
      memory.weight[i] = total;
    }
  }
  return {};
}

}  // namespace

bool fits_onednn(const Conv& c) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  if (c.in_channels > kLargest || c.out_channels > kLargest || c.batch > kLargest) return false;
  for (int d = 0; d < 3; ++d) {
    const std::int64_t span = c.dilation[d] * (c.kernel[d] - 1) + 1;
    const std::int64_t right = (c.out[d] - 1) * c.stride[d] + span - c.in[d] - c.padding[d];
    // oneDNN handles windows that lie entirely in the padding with slow code.
    if (c.in[d] > kLargest || c.out[d] > kLargest || c.padding[d] >= span || right >= span ||
        c.in[d] + c.padding[d] + right < span || right < -c.stride[d]) {
      return false;
    }
    // Refuses a y with more windows than fit with equal padding on both sides.
    if ((c.in[d] + 2 * c.padding[d] - span) / c.stride[d] + 1 < c.out[d]) return false;
  }
  return true;
}

Status onednn_conv(KernelCall& call, const Conv& conv, ConvPass pass,
                   const ConvMemory<float>& memory) {
  one_thread();
  try {
    return run(call, conv, pass, memory);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) {
      return Status(core::Code::kResourceExhausted,
                    std::string(call.op.name) + ": oneDNN has no memory for its buffers");
    }
    // oneDNN does not support this problem, so our own code computes it.
    return column_conv(call, conv, pass, memory);
  }
}

}  // namespace teletensor::backends::cpu
