// Calls all ops with hostile operands through infer and the CPU kernels, as the executor does:
// expanded and empty tensors, shapes whose broadcast products are near 2^31, 2^33, 2^61 and 2^64,
// any attributes. Memory beyond a quota must not be written or allocated; a call that does not fit
// is refused before its memory is allocated. With -DTELETENSOR_SANITIZE=address every read and
// write beyond an operand is detected; without it, those beyond the ends of a result or a scratch
// block.
//
//   kernel_fuzz [--calls N] [--from S] [--seed S] [--only OP] [--indices]
//     Makes N calls with the seeds S, S + 1, ... --indices: calls only the ops that read and write
//     by index, with hostile shapes of the indices. A failure prints the seed: kernel_fuzz --seed
//     S.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/backends/cpu/access/block_io.h"
#include "engine/backends/cpu/cpu.h"
#include "engine/ops/dice_test.h"
#include "engine/ops/sizes.h"

namespace teletensor::fuzz {
namespace {

using backends::KernelCall;
using backends::TensorArg;
using core::Dims;
using core::DType;
using core::Geometry;
using core::Status;
using ops::Dice;
using ops::OpDef;
using ops::Parameter;

// for the results of a call, and for its scratch memory
constexpr std::size_t kQuota = std::size_t{64} << 20;
constexpr std::int64_t kStored = 1 << 12;  // the maximum number of elements of an operand
constexpr unsigned kHang = 300;            // seconds
constexpr std::size_t kGuard = 64;
constexpr unsigned char kMark = 0xa5;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

std::uint64_t current_seed = 0;
const char* current_op = "";
std::string current_flags;

[[maybe_unused]] void say_where() {
  std::fprintf(stderr, "kernel_fuzz%s --seed %llu (%s):\n", current_flags.c_str(),
               static_cast<unsigned long long>(current_seed), current_op);
}

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "kernel_fuzz%s --seed %llu (%s): %s\n", current_flags.c_str(),
               static_cast<unsigned long long>(current_seed), current_op, text.c_str());
  std::abort();
}

// Memory of exactly `bytes`, 64-byte aligned, with marker bytes on both sides.
class Block {
 public:
  explicit Block(std::size_t bytes) : bytes_(bytes) {
    const std::size_t all = (bytes + 63) / 64 * 64 + 2 * kGuard;
    memory_.reset(static_cast<unsigned char*>(std::aligned_alloc(64, all)));
    if (!memory_) fail("the machine has no memory");
    std::memset(memory_.get(), kMark, kGuard);
    std::memset(memory_.get() + kGuard + bytes, kMark, all - kGuard - bytes);
    end_ = all;
  }
  void* data() const { return memory_.get() + kGuard; }
  bool whole() const {
    const auto marked = [](unsigned char c) { return c == kMark; };
    return std::all_of(memory_.get(), memory_.get() + kGuard, marked) &&
           std::all_of(memory_.get() + kGuard + bytes_, memory_.get() + end_, marked);
  }

 private:
  struct Free {
    void operator()(unsigned char* memory) const { std::free(memory); }
  };
  std::size_t bytes_, end_ = 0;
  std::unique_ptr<unsigned char, Free> memory_;
};

class Quota : public backends::Scratch {
 public:
  void* allocate(std::size_t bytes) override {
    if (bytes > kQuota - used_) return nullptr;
    used_ += bytes;
    void* const memory = blocks_.emplace_back(bytes).data();
    // A copy that an interruption cuts short leaves a part unwritten. The results are dropped then,
    // but UBSan reports reading a bool that is neither 0 nor 1.
    if (kSanitized) std::memset(memory, 0, bytes);
    return memory;
  }
  bool whole() const {
    return std::all_of(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.whole(); });
  }

 private:
  std::size_t used_ = 0;
  std::deque<Block> blocks_;
};

// A single lane of a session that is interrupted after a moment.
class OneLane : public backends::Parallel {
 public:
  void run(std::int64_t parts, const std::function<void(std::int64_t)>& part) override {
    for (std::int64_t i = 0; i < parts && !cancelled(); ++i) part(i);
  }
  bool cancelled() const override { return std::chrono::steady_clock::now() > until_; }

 private:
  const std::chrono::steady_clock::time_point until_ =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
};

struct Slot {
  bool absent = false, is_number = false;
  core::Number number;
  core::Layout layout;
  std::unique_ptr<Block> memory;
};

struct Counts {
  std::uint64_t calls = 0, ran = 0, refused = 0, by_kernel = 0;
};

bool by_index(std::string_view op) {
  constexpr std::string_view kOps[] = {"index",          "index_put",   "index_select", "index_add",
                                       "index_copy",     "index_fill",  "gather",       "scatter",
                                       "take",           "scatter_add", "embedding",    "one_hot",
                                       "scatter_reduce", "searchsorted"};
  return std::find(std::begin(kOps), std::end(kOps), op) != std::end(kOps);
}

// Sizes, each as large as an operand may be, whose product is one of a few targets or less than a
// quota above it: if the product overflows, the remainder looks like a small amount of memory.
const std::vector<Dims>& hostile_sizes() {
  static const std::vector<Dims> made = [] {
    std::vector<Dims> all;
    std::mt19937_64 random(61);
    const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
    for (const int bits : {31, 32, 33, 34, 58, 59, 60, 61, 62, 63, 64, 65, 66}) {
      const auto target = static_cast<unsigned __int128>(1) << bits;
      const std::int64_t most = ops::kMaxRepeated;
      for (int i = 0; i < 4; ++i) {  // only powers of two
        const int first = std::min(33, bits - static_cast<int>(below(std::min(bits, 30))));
        Dims sizes{std::int64_t{1} << first};
        for (int left = bits - first; left > 0; left -= 33) {
          sizes.push_back(std::int64_t{1} << std::min(left, 33));
        }
        all.push_back(sizes);
      }
      for (int tries = 0, found = 0; tries < 100000 && found < 30; ++tries) {
        const std::int64_t a = 1 + below(200);
        const std::int64_t b =
            1 + below(std::uint64_t{1} << std::max<std::int64_t>(1, bits - 36 + below(6)));
        const auto others = static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b);
        const unsigned __int128 c = (target + others - 1) / others;
        if (c > static_cast<unsigned __int128>(most) || b > most) continue;
        if (others * c - target > (kQuota >> 4)) continue;
        all.push_back({a, b, static_cast<std::int64_t>(c)});
        ++found;
      }
    }
    return all;
  }();
  return made;
}

class Call {
 public:
  Call(std::uint64_t seed, const OpDef& op, backends::Kernel kernel)
      : op_(op), kernel_(kernel), dice_(seed) {}

  void run(Counts& counts) {
    make_operands();
    ++counts.calls;
    if (repeats_too_often()) return void(++counts.refused);
    std::vector<ops::OperandInfo> infos;
    for (const Slot& slot : slots_) {
      ops::OperandInfo& info = infos.emplace_back();
      if (slot.absent) continue;
      if (slot.is_number) info.number = &slot.number;
      if (!slot.is_number) info.layout = &slot.layout;
    }
    ops::InferContext context{.op = op_.name,
                              .operands = infos,
                              .counts = counts_,
                              .attributes = attributes_,
                              .default_dtype = DType::kF32,
                              .device = {},
                              .results = {}};
    if (!op_.infer(context).ok() || !make_results(context)) return void(++counts.refused);
    for (Slot& slot : slots_) in_.push_back(argument(slot));
    OneLane lane;
    Quota scratch;
    KernelCall call{op_, in_, out_, counts_, attributes_, lane, scratch};
    alarm(kHang);
    const Status status = kernel_(call);
    alarm(0);
    if (!scratch.whole()) fail("a kernel wrote beyond its scratch memory");
    for (const Block& block : results_) {
      if (!block.whole()) fail("a kernel wrote beyond a result");
    }
    for (const Slot& slot : slots_) {
      if (slot.memory && !slot.memory->whole()) fail("a kernel wrote beyond an operand");
    }
    ++(status.ok() ? counts.ran : counts.by_kernel);
  }

 private:
  // Returns an entry of hostile_sizes(), in some cases with an additional dimension or a changed
  // size.
  Dims factors() {
    const std::vector<Dims>& all = hostile_sizes();
    Dims sizes = all[static_cast<std::size_t>(dice_.below(static_cast<std::int64_t>(all.size())))];
    if (dice_.chance(10)) sizes.push_back(1 + dice_.below(5));
    if (dice_.chance(10)) {
      std::int64_t& size = sizes[static_cast<int>(dice_.below(sizes.size()))];
      size = std::max<std::int64_t>(size + dice_.below(5) - 2, 0);
    }
    return sizes;
  }

  // A layout in which large dimensions are repeated, so that few elements are stored.
  Geometry laid_out(const Dims& shape) {
    Geometry g(shape, Dims(shape.size(), 0));
    std::int64_t step = 1;
    for (int d = g.rank() - 1; d >= 0; --d) {
      const std::int64_t size = std::max<std::int64_t>(shape[d], 1);
      if (size > kStored / step || dice_.chance(8)) continue;
      g.strides[d] = step;
      step *= size;
    }
    if (g.rank() > 1 && dice_.chance(25)) {
      const int a = static_cast<int>(dice_.below(g.rank())),
                b = static_cast<int>(dice_.below(g.rank()));
      std::swap(g.strides[a], g.strides[b]);
      if (g.storage_end() > 2 * kStored) std::swap(g.strides[a], g.strides[b]);
    }
    if (dice_.chance(20)) g.offset = dice_.below(5);
    return g;
  }

  Dims small_shape(const Dims* like) {
    if (like != nullptr && dice_.chance(70)) {
      Dims shape = *like;
      if (!shape.empty() && dice_.chance(20)) {
        shape[static_cast<int>(dice_.below(shape.size()))] = dice_.below(4);
      }
      return shape;
    }
    Dims shape;
    const std::int64_t rank = dice_.chance(4) ? dice_.below(core::kMaxRank + 1) : dice_.below(5);
    for (std::int64_t d = 0; d < rank; ++d) {
      shape.push_back(dice_.chance(3)   ? std::int64_t{1} << (20 + dice_.below(30))
                      : dice_.chance(8) ? dice_.below(300)
                                        : dice_.below(6));
    }
    return shape;
  }

  Slot& add_slot() {
    Slot& slot = slots_.emplace_back();
    slot.number = dice_.number();
    slot.layout.dtype =
        slots_.size() > 1 && dice_.chance(70) ? slots_[0].layout.dtype : dice_.dtype();
    return slot;
  }

  void make_operands() {
    const bool hostile = by_index(op_.name) ? dice_.chance(70) : dice_.chance(25);
    const Dims parts = factors();
    int part = 0;
    for (const Parameter& p : op_.parameters) {
      if (!p.is_operand()) {
        attributes_.push_back(attribute(p));
        continue;
      }
      std::int64_t count = 1;
      const bool list = p.type == Parameter::Type::kTensorList;
      if (list) {
        count = hostile ? parts.size() : dice_.below(4);
        counts_.push_back(static_cast<std::uint32_t>(count));
      }
      for (; count > 0; --count) {
        Slot& slot = add_slot();
        slot.absent =
            (p.optional || p.type == Parameter::Type::kOptionalTensor) && dice_.chance(30);
        slot.is_number = p.type == Parameter::Type::kOperand && dice_.chance(50);
        Dims shape = small_shape(slots_.size() > 1 ? &slots_[0].layout.geometry.shape : nullptr);
        const bool names_places = list || p.name == "index" || p.name == "indices";
        if (hostile && (names_places || dice_.chance(50)) && part < parts.size()) {
          // each operand gets one large dimension, at a position of its own
          shape = Dims(parts.size(), 1);
          shape[part] = parts[part];
          ++part;
        }
        if (names_places && dice_.chance(95)) {
          slot.layout.dtype = dice_.chance(70) ? DType::kI64 : DType::kI32;
        }
        if (!core::checked_numel(shape.span()).ok()) shape = Dims();
        slot.layout.geometry = laid_out(shape);
        if (slot.layout.geometry.storage_end() > 8 * kStored)
          slot.layout.geometry = Geometry(Dims());
        fill(slot);
      }
    }
    if (hostile && by_index(op_.name)) name_dims();
  }

  core::Attribute attribute(const Parameter& p) {
    const Dims* like = slots_.empty() ? nullptr : &slots_[0].layout.geometry.shape;
    return dice_.attribute(p, like);
  }

  // For index and index_put, x has as many dimensions as there are indices.
  void name_dims() {
    if (counts_.empty() || (op_.name != "index" && op_.name != "index_put")) return;
    const int count = static_cast<int>(counts_[0]);
    Dims dims;
    for (int d = 0; d < count; ++d) dims.push_back(d);
    for (std::size_t i = 0; i < attributes_.size(); ++i) {
      if (attributes_.at(i).kind == core::Attribute::Kind::kInts) {
        attributes_ = replaced(i, core::Attribute::of(dims));
        break;
      }
    }
    Dims shape(count, 2);
    if (dice_.chance(40)) shape.push_back(dice_.below(3));
    slots_[0].layout.geometry = laid_out(shape);
    fill(slots_[0]);
  }
  core::Attributes replaced(std::size_t at, const core::Attribute& value) const {
    core::Attributes out;
    for (std::size_t i = 0; i < attributes_.size(); ++i) {
      out.push_back(i == at ? value : attributes_.at(i));
    }
    return out;
  }

  void fill(Slot& slot) {
    if (slot.absent || slot.is_number) return;
    const std::size_t size = core::size_of(slot.layout.dtype);
    const std::int64_t elements = slot.layout.geometry.numel() == 0
                                      ? slot.layout.geometry.offset
                                      : slot.layout.geometry.storage_end();
    slot.memory = std::make_unique<Block>(static_cast<std::size_t>(elements) * size);
    auto* const bytes = static_cast<char*>(slot.memory->data());
    const bool wild = dice_.chance(10);
    for (std::int64_t i = 0; i < elements; ++i) {
      char* const at = bytes + static_cast<std::size_t>(i) * size;
      if (core::is_inexact(slot.layout.dtype)) {
        const double value = wild ? dice_.real() : static_cast<double>(dice_.below(9)) / 4 - 1;
        backends::cpu::store_block<double>(slot.layout.dtype)(&value, 1, at, 1);
      } else {
        const std::int64_t value = wild ? dice_.integer() : dice_.below(2);
        backends::cpu::store_block<std::int64_t>(slot.layout.dtype)(&value, 1, at, 1);
      }
    }
  }

  // Repetitions that the graph refuses.
  bool repeats_too_often() const {
    return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
      return !slot.absent && !slot.is_number && slot.layout.geometry.numel() > ops::kMaxRepeated;
    });
  }

  bool make_results(const ops::InferContext& context) {
    if (!op_.mutates.empty()) return mutated();
    std::size_t left = kQuota;
    for (const core::Layout& result : context.results) {
      if (!core::checked_numel(result.geometry.shape.span()).ok()) return false;
      const __int128 bytes = static_cast<__int128>(result.geometry.storage_end()) *
                             static_cast<__int128>(core::size_of(result.dtype));
      if (bytes > static_cast<__int128>(left)) return false;
      left -= static_cast<std::size_t>(bytes);
    }
    layouts_.assign(context.results.begin(), context.results.end());
    if (layouts_.size() == 1 && overwrites()) return true;
    for (const core::Layout& layout : layouts_) {
      const std::size_t bytes =
          static_cast<std::size_t>(layout.geometry.storage_end()) * core::size_of(layout.dtype);
      Block& block = results_.emplace_back(bytes);
      std::memset(block.data(), 0, bytes);
      TensorArg& arg = out_.emplace_back();
      arg.kind = TensorArg::Kind::kTensor;
      arg.data = block.data();
      arg.dtype = layout.dtype;
      arg.geometry = &layout.geometry;
    }
    return true;
  }

  // Decides at random whether the op runs in place, if the graph allows it.
  bool overwrites() {
    if (op_.inplace == ops::Inplace::kTemporary || slots_.empty() || slots_[0].absent ||
        slots_[0].is_number || !dice_.chance(40)) {
      return false;
    }
    const core::Layout& x = slots_[0].layout;
    if (!(x.geometry.shape == layouts_[0].geometry.shape) || x.geometry.overlaps_itself() ||
        !core::can_cast(layouts_[0].dtype, x.dtype)) {
      return false;
    }
    if (op_.inplace == ops::Inplace::kRegion && x.dtype != layouts_[0].dtype) return false;
    out_.push_back(argument(slots_[0]));
    return true;
  }

  bool mutated() {
    std::size_t at = 0, list = 0;
    for (int p = 0; p < op_.operand_parameters; ++p) {
      const bool is_list =
          op_.parameters[static_cast<std::size_t>(p)].type == Parameter::Type::kTensorList;
      const std::size_t length = is_list ? counts_[list++] : 1;
      const bool written = std::count(op_.mutates.begin(), op_.mutates.end(), p) > 0;
      for (std::size_t i = 0; i < length; ++i, ++at) {
        if (!written) continue;
        const Slot& slot = slots_[at];
        if (slot.absent || slot.is_number || slot.layout.geometry.overlaps_itself()) return false;
        out_.push_back(argument(slots_[at]));
      }
    }
    return true;
  }

  TensorArg argument(Slot& slot) const {
    TensorArg arg;
    if (slot.absent) return arg;
    arg.kind = slot.is_number ? TensorArg::Kind::kNumber : TensorArg::Kind::kTensor;
    arg.number = slot.number;
    if (slot.is_number) return arg;
    arg.data = slot.memory->data();
    arg.dtype = slot.layout.dtype;
    arg.geometry = &slot.layout.geometry;
    return arg;
  }

  const OpDef& op_;
  const backends::Kernel kernel_;
  Dice dice_;
  std::deque<Slot> slots_;
  std::vector<std::uint32_t> counts_;
  core::Attributes attributes_;
  std::vector<core::Layout> layouts_;
  std::deque<Block> results_;
  std::vector<TensorArg> in_, out_;
};

// Handles SIGALRM (a call runs too long) and memory faults: prints how to repeat the call, and
// exits.
void told(int signal) {
  const std::string text = "kernel_fuzz" + current_flags + " --seed " +
                           std::to_string(current_seed) + " (" + current_op + "): " +
                           (signal == SIGALRM ? "runs on although its session is interrupted\n"
                                              : "a violation of memory\n");
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  std::_Exit(1);
}

struct Options {
  std::uint64_t calls = 100000, from = 1, seed = 0;
  std::string only;
  bool indices = false;
};

int run(const Options& options) {
  const ops::Catalog& catalog = ops::catalog();
  const backends::KernelTable kernels = backends::cpu::make_kernels(catalog);
  std::vector<ops::OpId> ids;
  for (std::size_t i = 0; i < catalog.size(); ++i) {
    const auto id = static_cast<ops::OpId>(i);
    const OpDef& op = catalog.at(id);
    if (op.infer == nullptr || kernels.find(id) == nullptr) continue;
    if (!options.only.empty() && options.only != op.name) continue;
    if (options.indices && !by_index(op.name)) continue;
    ids.push_back(id);
  }
  if (ids.empty()) {
    std::fprintf(stderr, "kernel_fuzz: no such op\n");
    return 1;
  }
  if (!options.only.empty()) current_flags += " --only " + options.only;
  if (options.indices) current_flags += " --indices";
  for (const int each : {SIGALRM, SIGSEGV, SIGBUS, SIGFPE}) {
    if (each == SIGALRM || !kSanitized) signal(each, told);
  }
  Counts counts;
  const std::uint64_t first = options.seed != 0 ? options.seed : options.from;
  const std::uint64_t calls = options.seed != 0 ? 1 : options.calls;
  for (std::uint64_t seed = first; seed < first + calls; ++seed) {
    const ops::OpId id = ids[seed % ids.size()];
    current_seed = seed;
    current_op = catalog.at(id).name.c_str();
    Call(seed, catalog.at(id), kernels.find(id)).run(counts);
  }
  std::printf(
      "%llu calls of %zu ops: %llu ran, %llu were refused by infer or the quota, %llu by "
      "their kernel\n",
      static_cast<unsigned long long>(counts.calls), ids.size(),
      static_cast<unsigned long long>(counts.ran), static_cast<unsigned long long>(counts.refused),
      static_cast<unsigned long long>(counts.by_kernel));
  return counts.ran > 0 || options.seed != 0 ? 0 : 1;
}

}  // namespace

void where() { say_where(); }

}  // namespace teletensor::fuzz

// AddressSanitizer calls this function before its report.
extern "C" void __asan_on_error() { teletensor::fuzz::where(); }

int main(int argc, char** argv) {
  teletensor::fuzz::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--indices") {
      options.indices = true;
      continue;
    }
    if (i + 1 == argc) {
      std::fprintf(stderr, "kernel_fuzz: %s?\n", argv[i]);
      return 2;
    }
    const char* const value = argv[++i];
    if (flag == "--only") {
      options.only = value;
    } else if (flag == "--calls") {
      options.calls = std::strtoull(value, nullptr, 10);
    } else if (flag == "--from") {
      options.from = std::strtoull(value, nullptr, 10);
    } else if (flag == "--seed") {
      options.seed = std::strtoull(value, nullptr, 10);
    } else {
      std::fprintf(stderr, "kernel_fuzz: %s?\n", argv[i - 1]);
      return 2;
    }
  }
  return teletensor::fuzz::run(options);
}
