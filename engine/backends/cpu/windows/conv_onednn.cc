// Convolutions in f32 with oneDNN. Each call of the library runs on one thread; the batch, and the
// images of a small batch, are divided into parts here. Primitives and their layouts are cached and
// shared by all threads.
#include <omp.h>

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/backends/cpu/access/dense.h"
#include "engine/backends/cpu/windows/conv.h"
#include "engine/backends/cpu/windows/conv_slices.h"
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
  Conv whole;  // the convolution whose tensors hold the piece

  std::vector<std::int64_t> key() const {
    std::vector<std::int64_t> k{static_cast<std::int64_t>(pass),
                                bias,
                                conv.batch,
                                conv.groups,
                                conv.in_channels,
                                conv.out_channels,
                                conv.spatial,
                                whole.in_channels,
                                whole.group_in(),
                                whole.out_channels,
                                whole.in_area(),
                                whole.out_area()};
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
    // The layout of a piece of a row-major tensor whose `outer` dimensions have these strides.
    const auto plain = [](const dims& sizes, const dims& outer) {
      dims strides(sizes.size(), 1);
      for (std::size_t i = sizes.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * sizes[i];
      std::copy(outer.begin(), outer.end(), strides.begin());
      return Desc(sizes, dnnl::memory::data_type::f32, strides);
    };
    const Conv& w = piece.whole;
    dims filters{w.group_in() * w.taps()};
    if (c.groups > 1) filters.insert(filters.begin(), w.group_out() * w.group_in() * w.taps());
    own_[0] = plain(x, {w.in_channels * w.in_area(), w.in_area()});
    own_[1] = plain(weight, filters);
    own_[2] = plain(y, {w.out_channels * w.out_area(), w.out_area()});
    bias_ = piece.bias ? plain({c.out_channels}, {}) : Desc();
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

// A weight that is an operand, in the layout of a primitive. Parts with equal primitives share it.
struct PreparedWeight {
  const Primitive* primitive;
  std::int64_t offset;  // of the slice in the weight
  std::size_t at = 0;   // in the memory of all prepared weights
};

// The primitives for the parts of one slice: of all images of a part, and of the last part if it
// has fewer.
struct SlicePart {
  ConvSlice slice;
  std::shared_ptr<const Primitive> full, last;
  std::size_t full_weight = 0, last_weight = 0;  // indices of PreparedWeights
};

// One call of a kernel: the images are divided into ranges, and each image into slices if the
// images alone are too few parts. Parts take about half a millisecond. Sums of a weight's gradient
// are added range by range.
class ConvCall {
 public:
  ConvCall(KernelCall& call, const Conv& conv, ConvPass pass, const ConvMemory<float>& memory)
      : call_(call), conv_(conv), pass_(pass), memory_(memory) {
    wanted_ = parts_of(conv.multiplications() * 0.015, 64);
    const std::int64_t ranges = std::min({conv.batch, wanted_, max_ranges()});
    each_ = (conv.batch + ranges - 1) / ranges;
    ranges_ = (conv.batch + each_ - 1) / each_;
    // With few multiplications per number, one image at a time stays in the second-level cache
    // while its layout is converted, used and converted back.
    const bool by_image = pass != ConvPass::kWeight && conv.groups > 1 && conv.group_in() == 1 &&
                          conv.in_channels * conv.in_area() >= (std::int64_t{1} << 14);
    step_ = by_image ? 1 : each_;
    for (const ConvSlice& slice : slices_of(conv, pass, slices())) add(slice);
  }

  Status run() {
    const bool sums = pass_ == ConvPass::kWeight && ranges_ > 1;
    const std::int64_t parts = ranges_ * static_cast<std::int64_t>(slices_.size());
    const std::int64_t weights = conv_.out_channels * conv_.group_in() * conv_.taps();
    const std::size_t bytes =
        add_scratch_bytes(add_scratch_bytes(scratch_bytes(parts, room_), weight_room_),
                          sums ? scratch_bytes(ranges_, weights, sizeof(float)) : 0);
    char* const all = static_cast<char*>(call_.scratch.allocate(std::max<std::size_t>(bytes, 1)));
    if (!all) return out_of_scratch(call_.op.name, bytes);
    weights_at_ = all + static_cast<std::size_t>(parts) * room_;
    auto* const partial = reinterpret_cast<float*>(weights_at_ + weight_room_);
    in_parts(static_cast<std::int64_t>(weights_.size()), [&](std::int64_t i) {
      const PreparedWeight& w = weights_[static_cast<std::size_t>(i)];
      w.primitive->prepare_weight(memory_.weight + w.offset, weights_at_ + w.at);
    });
    in_parts(parts, [&](std::int64_t p) {
      ConvMemory<float> m = memory_;
      const std::int64_t slices = static_cast<std::int64_t>(slices_.size());
      if (sums) m.weight = partial + p / slices * weights;
      run_part(slices_[static_cast<std::size_t>(p % slices)], p / slices, m,
               all + static_cast<std::size_t>(p) * room_);
    });
    if (sums) add_ranges(call_.parallel, partial, ranges_, weights, memory_.weight);
    return {};
  }

 private:
  // Each range of images has its own sums of a weight's gradient, which are worth writing and
  // adding if many products are added to each of them.
  std::int64_t max_ranges() const {
    if (pass_ != ConvPass::kWeight) return 64;
    return std::clamp<std::int64_t>(conv_.batch * conv_.out_area() / 1024, 1, 8);
  }
  // The number of slices of each image, which take about a fifth of a millisecond each: without
  // them, a batch of one image would use one lane. More slices cost more than they save, because
  // each slice converts an operand of all of them. A third of the time of a small convolution is
  // the conversion of layouts.
  std::int64_t slices() const {
    if (ranges_ >= std::min(wanted_, kMaxSlices)) return 1;
    const double moved = static_cast<double>(conv_.out_channels * conv_.group_in() * conv_.taps() +
                                             conv_.in_channels * conv_.in_area() +
                                             conv_.out_channels * conv_.out_area());
    const double ns = conv_.multiplications() / static_cast<double>(ranges_) * 0.01 + moved * 0.5;
    return parts_of(ns * 2.5, kMaxSlices / ranges_);
  }
  void add(const ConvSlice& slice) {
    Piece piece{slice.conv, pass_, memory_.bias != nullptr, conv_};
    piece.conv.batch = step_;
    SlicePart part{slice, cache().get(piece), nullptr};
    part.last = part.full;
    if (conv_.batch % step_ != 0) {
      piece.conv.batch = conv_.batch % step_;
      part.last = cache().get(piece);
    }
    part.full_weight = prepared(*part.full, slice.weight);
    part.last_weight = prepared(*part.last, slice.weight);
    room_ = std::max({room_, part.full->room(), part.last->room()});
    slices_.push_back(std::move(part));
  }
  std::size_t prepared(const Primitive& primitive, std::int64_t offset) {
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i].primitive == &primitive && weights_[i].offset == offset) return i;
    }
    if (primitive.weight_room() == 0) return 0;
    weights_.push_back({&primitive, offset, weight_room_});
    weight_room_ += primitive.weight_room();
    return weights_.size() - 1;
  }
  // Runs f(i) for i < count on the free lanes, until the call is cancelled.
  template <class F>
  void in_parts(std::int64_t count, F&& f) {
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(count));
    share(call_.parallel, count, count, [&](std::int64_t i, std::int64_t) {
      one_thread();
      try {
        f(i);
      } catch (...) {
        failures[static_cast<std::size_t>(i)] = std::current_exception();
      }
    });
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
  }
  void run_part(const SlicePart& part, std::int64_t range, ConvMemory<float> m, char* room) {
    const bool is_last = range + 1 == ranges_;
    const Primitive& primitive = is_last ? *part.last : *part.full;
    char* const weight =
        primitive.weight_room() == 0
            ? nullptr
            : weights_at_ + weights_[is_last ? part.last_weight : part.full_weight].at;
    m.weight += part.slice.weight;
    if (m.bias) m.bias += part.slice.channel;
    const std::int64_t end = std::min(conv_.batch, (range + 1) * each_);
    for (std::int64_t image = range * each_; image < end; image += step_) {
      ConvMemory<float> here = m;
      here.x += image * conv_.in_channels * conv_.in_area() + part.slice.x;
      here.y += image * conv_.out_channels * conv_.out_area() + part.slice.y;
      primitive.run(here, weight, room);
    }
  }

  static constexpr std::int64_t kMaxSlices = 4;  // of all images
  KernelCall& call_;
  const Conv& conv_;
  const ConvPass pass_;
  const ConvMemory<float>& memory_;
  std::int64_t wanted_ = 1;  // number of parts whose time is worth a part of its own
  std::int64_t each_ = 1, ranges_ = 1, step_ = 1;  // images of a range, ranges, images of a call
  std::vector<SlicePart> slices_;
  std::vector<PreparedWeight> weights_;
  std::size_t room_ = 0, weight_room_ = 0;  // bytes of a part, and of all prepared weights
  char* weights_at_ = nullptr;
};

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
    return ConvCall(call, conv, pass, memory).run();
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
